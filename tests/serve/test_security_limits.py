"""Limits by caller: buckets, quotas, requests at once; one caller's flood leaves the others their room (S11)."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.serve.problems import Problem
from forebay.serve.security.auth import ANONYMOUS, is_long_poll
from forebay.serve.security.limits import (
    DAY,
    HOUR,
    MAX_CALLERS,
    USAGE_LOG,
    Allowance,
    ConcurrencyLimits,
    Limits,
    QueueNames,
    Quotas,
    TokenBuckets,
    UsageFollower,
)
from forebay.store.protocol import Store
from tests.serve.site import Serving, Site
from tests.waiting import eventually


class ManualTime:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    clock = ManualTime()
    buckets = TokenBuckets(clock)
    assert [buckets.take("a", 10, 3) for _ in range(3)] == [0, 0, 0]
    assert buckets.take("a", 10, 3) == pytest.approx(0.1)
    assert buckets.take("b", 10, 3) == 0
    clock.now += 0.15
    assert buckets.take("a", 10, 3) == 0
    assert buckets.take("a", 10, 3) > 0
    clock.now += 3_600
    assert Counter(buckets.take("a", 10, 3) == 0 for _ in range(10)) == {True: 3, False: 7}


def test_over_any_time_no_more_passes_than_burst_and_rate() -> None:
    clock = ManualTime()
    buckets = TokenBuckets(clock)
    passed = 0
    for _ in range(10_000):
        passed += buckets.take("a", 50, 20) == 0
        clock.now += 0.001
    assert 50 * 10 <= passed <= 20 + 50 * 10 + 1


def test_a_hundred_thousand_callers_need_bounded_memory() -> None:
    clock = ManualTime()
    buckets, quotas = TokenBuckets(clock), Quotas(clock)
    for number in range(100_000):
        buckets.take(f"key:{number}", 10, 10)
        quotas.charge_jobs(f"key:{number}", 1, {HOUR: 5, DAY: 9})
    assert len(buckets) == MAX_CALLERS
    assert len(quotas) == 2 * MAX_CALLERS


def test_quotas_count_by_the_hour_and_the_day_and_all_or_none() -> None:
    clock = ManualTime()
    clock.now = 20 * DAY + 30.0
    quotas = Quotas(clock)
    limits: dict[int, int | None] = {HOUR: 10, DAY: 25}
    assert quotas.charge_jobs("a", 8, limits) == 0
    assert quotas.charge_jobs("a", 3, limits) == HOUR - 30
    assert quotas.charge_jobs("a", 2, limits) == 0
    clock.now += HOUR
    assert quotas.charge_jobs("a", 10, limits) == 0
    clock.now += HOUR
    assert quotas.charge_jobs("a", 6, limits) == DAY - 2 * HOUR - 30
    assert quotas.charge_jobs("a", 5, limits) == 0
    clock.now += DAY
    assert quotas.charge_jobs("a", 10, limits) == 0


def test_places_are_held_while_a_request_is_under_way_and_given_back() -> None:
    limits = Limits(
        ConcurrencyLimits(max_requests=3, max_requests_per_caller=2, max_polls=1, max_polls_per_caller=1),
        wall_clock=ManualTime(),
    )
    none = Allowance()
    with limits.admit("a", none, is_poll=False), limits.admit("a", none, is_poll=False):
        with pytest.raises(Problem, match="concurrent requests") as own, limits.admit("a", none, is_poll=False):
            pass
        assert own.value.status == 429
        with limits.admit("b", none, is_poll=False):
            with pytest.raises(Problem) as full, limits.admit("c", none, is_poll=False):
                pass
            assert full.value.status == 503
            with limits.admit("c", none, is_poll=True):
                pass
    with pytest.raises(ZeroDivisionError), limits.admit("a", none, is_poll=False):
        _ = 1 // 0
    for _ in range(10):
        with limits.admit("a", none, is_poll=False):
            pass
    assert limits.refused["concurrency"] == 2


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("POST", "/claim", b"", True),
        ("POST", "/jobs", b"wait=5", False),
        ("GET", "/jobs/7", b"wait=5", True),
        ("GET", "/jobs/7", b"", False),
        ("DELETE", "/cron/x", b"wait=5", False),
    ],
)
def test_only_long_polls_count_as_waiting(method: str, path: str, query: bytes, expected: bool) -> None:
    assert is_long_poll({"method": method, "path": path, "query_string": query}) is expected


def test_a_key_over_its_rate_is_answered_with_when_to_come_again(site: Site) -> None:
    client = site.client(Role.VIEWER, rate=0.01, burst=2)
    answers = [client.get("/queues") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert 0 < int(answers[2].headers["retry-after"]) <= 100
    assert answers[2].json()["type"] == "urn:forebay:rate"


def test_pages_of_a_session_count_for_its_key_and_not_with_strangers(serve_on: Serving, store: Store) -> None:
    """A flood of anonymous requests leaves logged-in users their pages."""
    site = serve_on(store)
    limits = site.context.authenticator.limits
    text = site.key(Role.VIEWER, rate=0.01, burst=3)
    browser = site.with_key(None, {"Origin": site.url})
    assert browser.post("/ui/login", data={"key": text}).status_code == 303
    # A request has its place for a moment longer than its answer takes to arrive.
    eventually(lambda: not limits._in_flight_by_caller, "no request is in flight")
    with ExitStack() as flood:
        for _ in range(limits.concurrency.max_requests_per_caller):
            flood.enter_context(limits.admit(ANONYMOUS, Allowance(), is_poll=False))
        assert site.with_key(None).get("/ui/login").status_code == 429
        assert browser.get("/ui/jobs").status_code == 200
        assert browser.get("/ui/static/mark.svg").status_code == 200
        assert site.with_key(text).get("/queues").status_code == 200
        assert browser.get("/ui/jobs").status_code == 429, "the key's own rate is spent, by pages and by calls"
        assert browser.get("/queues").status_code == 429, "a cookie is anonymous to the API"
    assert browser.get("/queues").status_code == 401


def test_a_quota_of_jobs_is_kept_by_single_jobs_and_batches(site: Site) -> None:
    client = site.client(Role.PRODUCER, quota_day=5)
    for _ in range(3):
        assert client.post("/jobs", json={"kind": "k"}).status_code == 202
    lines = b'{"kind": "k"}\n' * 3
    answer = client.post("/jobs/batch", content=lines, headers={"Content-Type": "application/x-ndjson"})
    assert answer.status_code in (200, 429)
    last = [client.post("/jobs", json={"kind": "k"}) for _ in range(4)][-1]
    assert last.status_code == 429
    assert last.json()["type"] == "urn:forebay:quota"
    assert site.store.backlog(["default"])[0].depth <= 5


def test_a_quota_holds_for_all_servers_together_and_after_a_restart(store: Store) -> None:
    def server() -> tuple[Quotas, UsageFollower]:
        quotas = Quotas(lambda: store.now() / 1_000_000)
        follower = UsageFollower(store, quotas, QueueNames(lambda: store.now() / 1_000_000))
        follower.step()
        return quotas, follower

    limit: dict[int, int | None] = {DAY: 10}
    (here, reporting), (there, reading) = server(), server()
    assert here.charge_jobs("a", 7, limit) == 0
    assert here.charge_jobs("nobody", 7, {DAY: None}) == 0
    assert there.charge_jobs("a", 2, limit) == 0
    for each in (reporting, reading, reporting):
        each.step()
    assert here.charge_jobs("a", 2, limit) > 0
    assert there.charge_jobs("a", 1, limit) == 0
    reading.step()
    reading.step()
    after, _ = server()
    assert after.charge_jobs("a", 1, limit) > 0
    assert after.charge_jobs("b", 10, limit) == 0
    bodies = b"".join(entry.body for entry in store.read(USAGE_LOG, 0, -1, 100))
    assert b"nobody" not in bodies
    assert len(store.read(USAGE_LOG, 0, -1, 100)) == 3


def test_what_was_spent_yesterday_is_not_learnt() -> None:
    clock = ManualTime()
    quotas = Quotas(clock)
    quotas.add_remote({"a": 10}, clock.now - DAY)
    assert quotas.charge_jobs("a", 10, {DAY: 10}) == 0
    quotas.add_remote({"b": 10}, clock.now - clock.now % HOUR - 1)
    assert quotas.charge_jobs("b", 1, {HOUR: 1}) == 0


def test_a_key_may_bring_up_so_many_names_of_queues(site: Site) -> None:
    site.store.put_spec(QueueSpec(name="configured"))
    site.context.metrics.poller.poll(slowly=True)
    key = site.key(Role.ADMIN, queue_names=3)
    client = site.with_key(key)

    def sent(queue: str) -> int:
        return client.post("/jobs", json={"kind": "k", "queue": queue}).status_code

    assert [sent(queue) for queue in ("a", "b", "a", "configured", "c", "b")] == [202] * 6
    refused = client.post("/jobs", json={"kind": "k", "queue": "d"})
    assert (refused.status_code, refused.json()["type"]) == (429, "urn:forebay:queue-names")
    assert int(refused.headers["Retry-After"]) == refused.json()["retry_after"] > 0
    lines = b'{"kind": "k", "queue": "e"}\n{"kind": "k", "queue": "a"}\n'
    batch = client.post("/jobs/batch", content=lines, headers={"Content-Type": "application/x-ndjson"})
    assert batch.content.count(b"urn:forebay:queue-names") == 2
    assert client.post("/queues/f/pause").status_code == 429
    assert client.put("/cron/nightly", json={"rule": "@daily", "kind": "k", "queue": "g"}).status_code == 429
    assert [sent(queue) for queue in ("a", "c", "configured")] == [202] * 3
    assert site.client(Role.PRODUCER).post("/jobs", json={"kind": "k", "queue": "d"}).status_code == 202
    assert not {"e", "f", "g"} & set(site.store.queues("", 100))
    assert site.context.authenticator.limits.refused["queue-names"] == 4


def test_names_of_queues_are_counted_for_all_servers_together_and_a_day(store: Store) -> None:
    clock = ManualTime()
    here, there = QueueNames(clock), QueueNames(clock)
    assert here.charge("a", ["x", "y", "x"], 2) == 0
    there.add_remote(here.take_unreported(), clock.now)
    assert there.charge("a", ["x"], 2) == 0
    assert 0 < there.charge("a", ["z"], 2) <= DAY
    assert there.charge("b", ["z"], 2) == 0
    there.add_remote({"b": ["q", "r"]}, clock.now - DAY)
    assert there.charge("b", ["y"], 2) == 0
    clock.now += DAY
    assert there.charge("a", ["z", "w"], 2) == 0
    names = QueueNames(lambda: store.now() / 1_000_000)
    follower = UsageFollower(store, Quotas(clock), names)
    assert names.charge("a", [f"q{number}" for number in range(2_500)], 2_500) == 0
    follower.step()
    again = QueueNames(lambda: store.now() / 1_000_000)
    UsageFollower(store, Quotas(clock), again).step()
    assert again.charge("a", ["one-more"], 2_500) > 0


def test_one_tenant_cannot_starve_another(site: Site) -> None:
    """S11: while one key floods, the other gets every one of its answers."""
    loud, quiet = site.key(Role.PRODUCER, rate=1, burst=5, tenant="loud"), site.key(Role.PRODUCER, tenant="quiet")

    def posts(key: str, number: int) -> Counter[int]:
        async def all_of_them() -> Counter[int]:
            headers = {"Authorization": f"Bearer {key}"}
            limits = httpx.Limits(max_connections=16)
            async with httpx.AsyncClient(base_url=site.url, headers=headers, limits=limits, trust_env=False) as client:
                requested = [client.post("/jobs", json={"kind": "k"}, timeout=60) for _ in range(number)]
                return Counter([answer.status_code for answer in await asyncio.gather(*requested)])

        return asyncio.run(all_of_them())

    with ThreadPoolExecutor(2) as pool:
        flood, calm = pool.submit(posts, loud, 200), pool.submit(posts, quiet, 50)
        flooded, calmed = flood.result(), calm.result()
    assert calmed == {202: 50}
    assert set(flooded) == {202, 429}
    assert flooded[429] > flooded[202]
