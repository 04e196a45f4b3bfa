"""`/metrics`: it parses, counts what happened, caps its series, and shows an actor only what that actor may see."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from forebay.core.gate import whole_gates
from forebay.core.instant import days, seconds
from forebay.core.job import Draft
from forebay.core.ledger import Change, JobRange, LedgerEntry, Record
from forebay.core.outcome import Ack, DeadLetter, Failure
from forebay.core.policy import AtMost, Bounded, Rate, Retained, Shed, Until
from forebay.core.presence import Presence
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from forebay.serve.actor import Actor, Role
from forebay.serve.metrics import gates
from forebay.serve.metrics.poller import Stalls
from forebay.serve.metrics.server_metrics import Metrics, exposition, visible_families
from forebay.serve.metrics.tally import COUNTED, MAX_PAIRS, MAX_QUEUES
from forebay.store.memory.store import MemoryStore
from forebay.store.open import open_store
from forebay.store.protocol import Backlog, GateUse, Store, Want
from forebay.work.metrics import BUCKETS, gauge, to_text
from tests.serve.site import Serving, Site

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(text: str) -> Series:
    """Every sample of an exposition; twice the same would be an error of ours."""
    found: Series = {}
    for family in parse(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def scraped(client: httpx.Client) -> Series:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return series(answer.text)


def settled(site: Site) -> None:
    """All roles have polled once after what was done last."""
    metrics = site.context.metrics
    while metrics.followers[""].step() < 1.0:
        pass
    metrics.poller.poll(slowly=True)


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    yield store
    store.close()


def test_a_kind_that_no_worker_handles_is_a_gauge_until_one_does(durable: Store, serve_on: Serving) -> None:
    site = serve_on(durable)
    durable.announce(Presence("a", "host", 1, ("mail",), ("send",), unhandled=(("mail", "resize"),)), seconds(60))
    settled(site)
    key = ("forebay_kind_unhandled", (("kind", "resize"), ("queue", "mail")))
    with site.client(Role.VIEWER) as viewer:
        assert scraped(viewer)[key] == 1
        durable.announce(Presence("b", "host", 2, ("mail",), ("resize",)), seconds(60))
        settled(site)
        assert key not in scraped(viewer)


def test_a_scrape_shows_what_happened(durable: Store, serve_on: Serving) -> None:
    site = serve_on(durable)
    settled(site)
    durable.put_spec(QueueSpec(name="tiny", capacity=Bounded(1)))
    durable.enqueue([Draft("send", n, "mail") for n in range(5)])
    leases = durable.claim([Want("mail", 3)], "w", seconds(30))
    durable.settle([(leases[0], Ack()), (leases[1], DeadLetter(Failure("Oops")))])
    durable.pause("tiny")
    durable.put_spec(QueueSpec(name="few", capacity=Bounded(1, Shed())))
    for number in range(3):
        durable.enqueue([Draft("send", number, "few")])
    durable.put_spec(QueueSpec(name="clicks", retention=Retained(2, window=days(1))))
    durable.append("clicks", [b"1"] * 4)
    durable.commit("clicks", "g", 0, 0)
    producer = site.client(Role.PRODUCER)
    for _ in range(2):
        producer.post("/jobs", json={"kind": "x", "queue": "tiny"})
    settled(site)
    found = scraped(site.client(Role.VIEWER))
    mail = (("kind", "send"), ("queue", "mail"))
    assert found["forebay_jobs_accepted_total", mail] == 5
    assert found["forebay_jobs_claimed_total", mail] == 3
    assert found["forebay_jobs_acked_total", mail] == 1
    assert found["forebay_jobs_died_total", mail] == 1
    assert found["forebay_jobs_shed_total", (("kind", "send"), ("queue", "few"))] == 2
    assert found["forebay_job_wait_seconds_count", mail] == 3
    assert found["forebay_job_run_seconds_bucket", (*mail[:1], ("le", "+Inf"), *mail[1:])] == 2
    states = {
        state: found["forebay_queue_jobs", (("queue", "mail"), ("state", state))] for state in ("ready", "running")
    }
    assert states == {"ready": 2, "running": 1}
    assert found["forebay_queue_jobs", (("queue", "mail"), ("state", "dead"))] == 1
    assert found["forebay_queue_oldest_seconds", (("queue", "mail"),)] > 0
    assert found["forebay_dead_oldest_seconds", (("queue", "mail"),)] >= 0
    assert found["forebay_queue_paused", (("queue", "tiny"),)] == 1
    reading = (("group", "g"), ("queue", "clicks"))
    assert (found["forebay_log_lag_entries", reading], found["forebay_log_lost_entries_total", reading]) == (3, 0)
    assert 86_000 < found["forebay_log_loses_in_seconds", reading] <= 86_400
    assert found["forebay_capacity_refusals_total", (("queue", "tiny"),)] == 1
    posts = {
        status: found["forebay_http_requests_total", (("method", "POST"), ("route", "/jobs"), ("status", status))]
        for status in ("202", "503")
    }
    assert posts == {"202": 1, "503": 1}
    assert found["forebay_ledger_followed", ()] == 1
    assert found["forebay_store_call_duration_seconds_count", (("verb", "enqueue"),)] >= 2
    assert any(name == "process_resident_memory_bytes" for name, _ in found)


def test_gates_are_shown_by_queue_and_sort_and_never_by_a_value(store: Store, serve_on: Serving) -> None:
    site = serve_on(store)
    store.put_spec(QueueSpec(name="mail", eligibility=AtMost(2) & AtMost(1, per="tenant")))
    store.put_spec(QueueSpec(name="shut", eligibility=Until("go", per="subject")))
    store.enqueue([Draft("k", None, "mail", tenant=f"tenant-{n % 3}") for n in range(6)])
    store.enqueue([Draft("k", None, "shut", subject=f"person/{n}") for n in range(4)])
    store.set_gate("until/go/person/0", 0)
    assert len(store.claim([Want("mail", 9), Want("shut", 9)], "w", seconds(60))) == 2
    settled(site)
    text = site.client(Role.VIEWER).get("/metrics").text
    found = series(text)
    plain, each = (("gate", "cap"), ("queue", "mail")), (("gate", "cap/tenant"), ("queue", "mail"))
    until = (("gate", "until/go"), ("queue", ""))
    for field, wanted in {"slots": (2, 2, 0), "used": (2, 2, 0), "parked": (0, 0, 1)}.items():
        assert tuple(found[f"forebay_gate_{field}", labels] for labels in (plain, each, until)) == wanted, field
    states = {state: found["forebay_gates", (*each, ("state", state))] for state in ("open", "full")}
    assert states == {"open": 0, "full": 2}
    assert found["forebay_queue_held_jobs", (("queue", "shut"),)] == 4
    assert found["forebay_gates_uncounted", ()] == 0
    assert "tenant-1" not in text
    assert "person" not in text
    mine = scraped(site.client(Role.VIEWER, queues=("mail",)))
    assert ("forebay_gate_used", plain) in mine
    assert ("forebay_gate_used", until) not in mine, "a condition holds back other queues too"


def test_a_look_at_gates_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "MAX_GATES", 2_000)

    class Many(MemoryStore):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.names = [f"cap/q/subject/{n:05}" for n in range(count)]

        def gates(self, after: str, limit: int, prefix: str = "") -> list[GateUse]:
            return [GateUse(name, 1, 1) for name in self.names if name > after][:limit]

    whole, cut = gates.sum_gates(Many(2_000)), gates.sum_gates(Many(2_001))
    assert (whole.more, cut.more) == (False, True)
    for seen in (whole, cut):
        assert seen.sums == {("q", "cap/subject"): gates.GateSum(2_000, 2_000, 2_000, 2_000)}


def test_a_thousand_queues_and_conditions_make_no_more_series_than_the_cap(store: Store) -> None:
    names = [f"cap/q{n}/tenant/t" for n in range(1_000)] + [f"until/c{n}" for n in range(1_000)]
    sums = {gates.gate_label(name): gates.GateSum(1, 1, 1, 1) for name in names}
    metrics = Metrics(store)
    metrics.poller.gates = gates.GateSums(sums)
    response = {family.name: family for family in metrics.families()}
    used = response["forebay_gate_used"].samples
    assert len(used) == MAX_QUEUES + 1 + gates.MAX_CONDITIONS + 1
    assert sum(value for _, value in used) == 2_000


def test_every_name_of_a_gate_has_its_sort() -> None:
    capped = AtMost(3) & AtMost(3, per="subject") & Until("go", per="tenant") & Until("up")
    spec = QueueSpec(name="q", eligibility=capped)
    names = [gate.name for gate in whole_gates(spec)]
    names += Stamper(spec).lane_gates(Draft("k", None, "q", tenant="a", subject="x/y/../z"))
    paced = (
        AtMost(3, per="tenant", shared="gpu") & Rate(3, seconds(1)) & Rate(3, seconds(1), per="tenant", shared="api")
    )
    spec = QueueSpec(name="p", eligibility=paced)
    names += [*(gate.name for gate in whole_gates(spec)), *Stamper(spec).lane_gates(Draft("k", tenant="a.b"))]
    assert sorted(map(gates.gate_label, names)) == [
        ("", "cap/@gpu/tenant"),
        ("", "rate/@api/tenant"),
        ("", "until/go"),
        ("", "until/up"),
        ("p", "rate"),
        ("q", "cap"),
        ("q", "cap/subject"),
    ]
    assert gates.gate_label("something else") == ("", "other")


def test_a_store_without_a_ledger_says_so(site: Site) -> None:
    site.store.enqueue([Draft("send")])
    settled(site)
    found = scraped(site.client(Role.VIEWER))
    assert found["forebay_ledger_followed", ()] == 0
    assert found["forebay_queue_jobs", (("queue", "default"), ("state", "ready"))] == 1
    assert not any(name.startswith("forebay_jobs_") for name, _ in found)


def test_openmetrics_is_sent_where_it_is_asked_for(site: Site) -> None:
    settled(site)
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = site.client(Role.VIEWER, headers=accept).get("/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    response = parse_openmetrics(answer.text)  # type: ignore[no-untyped-call]
    assert {family.name for family in response} >= {"forebay_queue_jobs", "forebay_server_info"}


def test_a_key_is_needed_and_a_viewer_is_enough(site: Site) -> None:
    assert site.with_key(None).get("/metrics").status_code == 401
    assert site.client(Role.PRODUCER).get("/metrics").status_code == 403
    assert site.client(Role.VIEWER).get("/metrics").status_code == 200


def test_a_key_for_some_queues_sees_the_series_of_those_alone(durable: Store, serve_on: Serving) -> None:
    site = serve_on(durable)
    settled(site)
    for queue in ("mine", "mine-too", "theirs"):
        durable.enqueue([Draft("send", None, queue)])
    settled(site)
    found = scraped(site.client(Role.VIEWER, queues=("mine*",)))
    assert {dict(labels).get("queue") for _, labels in found} == {"mine", "mine-too"}
    assert "theirs" not in site.client(Role.VIEWER, queues=("mine*",)).get("/metrics").text
    assert scraped(site.client(Role.VIEWER, tenant="acme")) == {}


def test_a_hundred_thousand_names_make_no_more_series_than_the_cap(store: Store) -> None:
    metrics = Metrics(store)
    ranges = [JobRange(Change.ACCEPTED, n, 1, f"q{n % 50_000}", f"k{n}") for n in range(100_000)]
    ends = (Change.CLAIMED, Change.ACKED)
    ranges += [JobRange(change, n, 1, f"q{n}", f"k{n}", 1, 1, 1, 1, 1, 1) for n in range(1_000) for change in ends]
    metrics.tally.take([LedgerEntry(0, Record(1_000_000, "enqueue", ranges))])
    for n in range(1_000):
        metrics.meters.requested(f"M{n}", "/jobs/{job_id}", 200, 0.1)
    text = exposition("", metrics.families(), process=False)[0].decode()
    found = [line for line in text.splitlines() if not line.startswith("#")]
    spread = len(BUCKETS) + 3
    assert (
        len(found) <= (MAX_PAIRS + MAX_QUEUES + 1) * (len(COUNTED) + 2 * spread) + (MAX_QUEUES + 1) * 2 * spread + 100
    )
    assert len(found) < 25_000
    for name, all_of_them in (("forebay_jobs_accepted_total", 100_000), ("forebay_http_requests_total", 1_000)):
        own = [float(line.rpartition(" ")[2]) for line in found if line.startswith(name + "{")]
        assert sum(own) == all_of_them


NASTY = ['a"b', "a\\b", "a\nb", 'x"} 1\nforebay_fake{queue="', "#", "ä€\u2028", "{}", "le", ""]


@pytest.mark.parametrize("value", NASTY)
def test_label_values_are_safe_in_both_writers(value: str) -> None:
    response = [gauge("forebay_test", 'back\\slash and\nline "quoted"', [((("queue", value), ("kind", "k")), 1.5)])]
    key = ("forebay_test", (("kind", "k"), ("queue", value)))
    assert series(to_text(response)) == {key: 1.5}
    assert series(exposition("", response, process=False)[0].decode()) == {key: 1.5}


def test_both_writers_say_the_same(durable: Store) -> None:
    metrics = Metrics(durable, whole=True)
    durable.enqueue([Draft("send", n) for n in range(3)])
    durable.settle([(lease, Ack()) for lease in durable.claim([Want("default", 2)], "w", seconds(30))])
    for role in metrics.roles:
        role.step()
    metrics.meters.requested("GET", "/jobs/{job_id}", 200, 0.0123)
    response = list(metrics.families())
    assert series(to_text(response)) == series(exposition("", response, process=False)[0].decode())


def test_a_scrape_never_asks_the_store(durable: Store, serve_on: Serving) -> None:
    """A store that is gone does not make the scrape fail: the last poll stays, and grows old."""
    site = serve_on(durable)
    durable.enqueue([Draft("send")])
    settled(site)
    client = site.client(Role.VIEWER)
    before = scraped(client)
    durable.close()
    after = scraped(client)
    ready = ("forebay_queue_jobs", (("queue", "default"), ("state", "ready")))
    assert before[ready] == after[ready] == 1
    assert after["forebay_poll_age_seconds", ()] >= 0


def test_a_key_that_was_used_for_another_payload_is_counted(durable: Store, serve_on: Serving) -> None:
    site = serve_on(durable)
    producer = site.client(Role.PRODUCER)
    for payload in (1, 2):
        producer.post("/jobs", json={"kind": "x", "key": "k", "payload": payload})
    found = scraped(site.client(Role.VIEWER))
    assert found["forebay_key_conflicts_total", (("queue", "default"),)] == 1


def test_callers_that_are_slowed_down_are_counted(site: Site) -> None:
    short_timeouts = site.client(Role.VIEWER, rate=0.01, burst=1)
    assert [short_timeouts.get("/queues").status_code for _ in range(3)] == [200, 429, 429]
    assert scraped(site.client(Role.VIEWER))["forebay_rate_limited_total", (("limit", "rate"),)] == 2


def test_an_unknown_path_is_no_label(site: Site) -> None:
    client = site.client(Role.VIEWER)
    for n in range(5):
        client.get(f"/no/such/{n}")
    found = scraped(client)
    routes = {dict(labels)["route"] for name, labels in found if name == "forebay_http_requests_total"}
    assert not any("such" in route for route in routes)
    assert "unmatched" in routes


def backlog(*, ready: int = 1, running: int = 0, done: int = 0, age: int = 0, until: int | None = None) -> Backlog:
    return Backlog("q", 0, ready, running, done, 0, 0, age, until, 0)


def test_a_queue_is_stalled_while_no_worker_claims_what_is_ready() -> None:
    stalls, second = Stalls(), 1_000_000

    def poll(at: int, claimed: int = 0, **facts: int) -> dict[str, float]:
        return stalls.update([backlog(age=at * second, **facts)], {"q": claimed}, at * second, at)

    assert poll(0) == {"q": 0}
    assert poll(20) == {"q": 20}
    assert poll(21, ready=5) == {"q": 21}, "more work is no progress"
    assert poll(22, claimed=22) == {"q": 0}, "the ledger shows a claim"
    assert poll(30, claimed=22) == {"q": 8}
    assert poll(31, claimed=22, running=1) == {"q": 0}, "one more runs"
    assert poll(40, claimed=22) == {"q": 9}, "fewer run: that is no claim"
    assert poll(41, claimed=22, done=1) == {"q": 0}
    assert poll(42, claimed=22, ready=0) == {}
    assert poll(60, claimed=22) == {"q": 0}, "it begins anew when there is work again"
    assert stalls.update([backlog(until=9)], {}, 0, 99) == {}


def test_the_head_of_a_queue_that_gets_younger_is_progress() -> None:
    stalls = Stalls()
    assert stalls.update([backlog(age=10_000_000)], {}, 10_000_000, 0) == {"q": 0}
    assert stalls.update([backlog(age=19_990_000)], {}, 20_000_000, 10) == {"q": 10}, "a jitter of clocks is none"
    assert stalls.update([backlog(age=5_000_000)], {}, 30_000_000, 20) == {"q": 0}


def test_an_actor_for_everything_sees_everything(durable: Store) -> None:
    metrics = Metrics(durable)
    response = list(metrics.families())
    assert list(visible_families(Actor("a", frozenset({Role.VIEWER})), response)) == response
