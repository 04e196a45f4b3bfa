"""The pages over real HTTP: who sees what, what every act does and leaves behind, and what is refused."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import msgspec
import pytest

from forebay.core.instant import days
from forebay.core.job import Draft, State
from forebay.core.outcome import Ack, DeadLetter, Failure
from forebay.core.policy import KeepFor, Retained, Until
from forebay.core.presence import Presence
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.serve.security.operator_log import read_actions
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from forebay.store.protocol import Query, Store, Want
from forebay.work.cron import Cron, Timetable
from tests.serve.site import Serving, Site
from tests.serve.visitor import Visitor, visitor

MINUTE = timedelta(minutes=1)
PAGES = (
    "/ui/",
    "/ui/queues/mail",
    "/ui/jobs",
    "/ui/jobs/1",
    "/ui/dead",
    "/ui/schedules",
    "/ui/schedules/night",
    "/ui/workers",
    "/ui/logs",
    "/ui/logs/clicks",
    "/ui/logs/clicks?group=g",
)
OPERATING = ("/ui/bulk/new?state=dead", "/ui/bulk/new?queue=mail", "/ui/bulk/new?state=dead&act=purge")
RULING = ("/ui/operators", "/ui/keys")
ACTIONS: tuple[tuple[str, dict[str, str]], ...] = (
    ("/ui/queues/mail/pause", {}),
    ("/ui/queues/mail/resume", {}),
    ("/ui/queues/mail/gate", {"gate": "until/open", "slots": "1"}),
    ("/ui/jobs/1/cancel", {}),
    ("/ui/jobs/1/redrive", {}),
    ("/ui/bulk", {"act": "cancel"}),
    ("/ui/jobs/1/purge", {}),
    ("/ui/schedules/night/run", {}),
    ("/ui/schedules/night/pause", {}),
    ("/ui/schedules/night/resume", {}),
    ("/ui/schedules/night/edit", {"rule": "5 5 * * *", "zone": "UTC"}),
    ("/ui/logs/clicks/rewind", {"group": "g", "partition": "0", "offset": "-1"}),
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not cut a life short."""
    monkeypatch.setattr("forebay.serve.dashboard.views.timeline.READ_SECONDS", 60.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/jobs.db")
    yield opened
    opened.close()


@pytest.fixture
def shop(store: Store, serve_on: Serving) -> Site:
    """A few of everything: job 1 waits, 2 runs, 3 is dead, 4 is done, 5 is another tenant's in another queue."""
    store.put_spec(QueueSpec(name="mail", retention=KeepFor(days(1)), eligibility=Until("open", "subject")))
    store.put_spec(QueueSpec(name="clicks", retention=Retained(2)))
    store.append("clicks", [b'{"token": "fb_secret"}', b'"plain"'], ["a", "b"])
    rule = Timetable(Cron("30 1 * * *", "Europe/Berlin")).rule
    store.put_schedule(Schedule("night", rule, store.now() + 3_600_000_000, Draft("report", {"n": 1}, "mail")))
    mail = [Draft("hello", {"to": "ada", "password": "hunter2"}, "mail", tenant="acme") for _ in range(3)]
    waits = Draft("hello", {"n": 1}, "mail", tenant="acme", delay=3_600_000_000)
    store.enqueue([waits, *mail, Draft("resize", {"n": 2}, "media", tenant="birch")])
    runs, dies, ends = store.claim([Want("mail", 3)], "worker-1", timedelta(minutes=30))
    store.settle([(dies, DeadLetter(Failure("KeyError", "'user'"))), (ends, Ack(b'{"ok": true}'))])
    assert (runs.job.id, dies.job.id, ends.job.id) == (2, 3, 4)
    return serve_on(store, ServeSettings(port=0, maintain=False))


def acts(store: Store) -> list[str]:
    return [f"{act.action} {act.target}" for act in read_actions(store)[0]]


# -- who sees what


def test_a_viewer_sees_and_does_nothing(shop: Site, store: Store) -> None:
    with visitor(shop, Role.VIEWER) as viewer:
        for path in PAGES:
            page = viewer.get(path)
            assert page.values("href").count("/ui/keys") == 0
            actions = [value for value in page.values("action") if not value.startswith(("/ui/jobs", "/ui/schedules"))]
            assert {each for each in actions if "/ui/logs" not in each} == {"/ui/logout"}, path
        for path in (*OPERATING, *RULING):
            viewer.get(path, 403)
        before = store.get([1, 2, 3, 4, 5])
        for path, fields in ACTIONS:
            assert viewer.post(path, **fields).status_code == 403, path
        assert store.get([1, 2, 3, 4, 5]) == before
    assert acts(store) == []


def test_an_operator_acts_and_does_not_rule(shop: Site) -> None:
    with visitor(shop, Role.OPERATOR) as operator:
        for path in (*PAGES, *OPERATING):
            operator.get(path)
        for path in RULING:
            operator.get(path, 403)


def test_an_admin_sees_all(shop: Site) -> None:
    with visitor(shop, Role.ADMIN) as admin:
        for path in (*PAGES, *OPERATING, *RULING):
            admin.get(path)


def test_producers_and_workers_have_no_pages(shop: Site) -> None:
    with visitor(shop, Role.PRODUCER, Role.WORKER) as other:
        for path in (*PAGES, *OPERATING, *RULING):
            other.get(path, 403)


def test_without_a_session_no_page_is_shown(shop: Site) -> None:
    with shop.with_key(None) as client:
        for path in (*PAGES, *OPERATING, *RULING, "/ui/whatever"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login"), path
        for path, fields in ACTIONS:
            assert client.post(path, data=fields, headers={"Origin": shop.url}).status_code == 401, path
        assert client.get("/").headers["location"] == "/ui/"
        assert client.get("/ui").headers["location"] == "/ui/"


def test_an_api_key_in_a_header_opens_no_page(shop: Site) -> None:
    assert shop.client(Role.ADMIN).get("/ui/").status_code == 303


def test_a_tenant_sees_its_own_jobs_and_no_sums(shop: Site) -> None:
    with visitor(shop, Role.OPERATOR, tenant="birch") as tenant:
        assert tenant.client.get("/ui/").headers["location"] == "/ui/jobs"
        assert "resize" in tenant.get("/ui/jobs").text
        assert "hello" not in tenant.get("/ui/jobs").text
        tenant.get("/ui/jobs/5")
        for path in ("/ui/jobs/1", "/ui/queues/mail", "/ui/queues/media", "/ui/workers", "/ui/schedules", "/ui/logs"):
            tenant.get(path, 404)
        assert "KeyError" not in tenant.get("/ui/dead").text
        assert tenant.post("/ui/jobs/1/cancel").status_code == 404
        assert tenant.post("/ui/queues/media/pause").status_code == 404
        not_found, foreign = tenant.client.get("/ui/jobs/999"), tenant.client.get("/ui/jobs/1")
        assert not_found.text.replace("999", "1") == foreign.text


def test_queues_out_of_reach_do_not_exist(shop: Site) -> None:
    with visitor(shop, Role.OPERATOR, queues=("media",)) as some:
        assert "mail" not in some.get("/ui/").text.replace("Dead letters", "")
        assert "media" in some.get("/ui/").text
        for path in ("/ui/queues/mail", "/ui/jobs/1", "/ui/jobs/3", "/ui/logs/clicks", "/ui/schedules/night"):
            some.get(path, 404)
        assert "KeyError" not in some.get("/ui/dead").text
        assert "worker-1" not in some.get("/ui/workers").text
        for path, fields in ACTIONS[:5] + ACTIONS[6:]:
            assert some.post(path, **fields).status_code == 404, path


def test_the_server_s_own_logs_are_never_shown(shop: Site) -> None:
    with visitor(shop, Role.ADMIN) as admin:
        admin.done("/ui/queues/mail/pause")
        assert "forebay." not in admin.get("/ui/logs").text
        for name in ("forebay.keys", "forebay.operators"):
            admin.get(f"/ui/logs/{name}", 404)
            admin.get(f"/ui/queues/{name}", 404)


# -- forged and malformed


def test_an_act_needs_the_token_and_the_origin(shop: Site, store: Store) -> None:
    with visitor(shop, Role.ADMIN) as admin:
        token = admin.csrf()
        for path, fields in (*ACTIONS, ("/ui/keys/0/revoke", {}), ("/ui/logout", {})):
            assert admin.client.post(path, data={"other": "field", **fields}).status_code == 403, path
            assert admin.client.post(path, data={**fields, "csrf": "x" * len(token)}).status_code == 403, path
            elsewhere = admin.client.post(
                path, data={**fields, "csrf": token}, headers={"Origin": "https://evil.example"}
            )
            assert elsewhere.status_code == 403, path
            assert admin.client.get(path).status_code in (404, 405), path
    assert acts(store) == []


def test_logging_in_from_elsewhere_is_refused(shop: Site) -> None:
    with shop.with_key(None) as client:
        answer = client.post("/ui/login", data={"key": shop.key()}, headers={"Origin": "https://evil.example"})
        assert answer.status_code == 403
        assert client.post("/ui/login", data={"key": "fb_no"}, headers={"Origin": shop.url}).status_code == 401
        assert not client.cookies


def test_a_one_time_token_opens_one_session(shop: Site) -> None:
    from forebay.serve.actor import Actor

    token = shop.context.authenticator.sessions.one_time(Actor("dev", frozenset({Role.ADMIN})))
    with shop.with_key(None) as client:
        assert client.get(f"/?token={token}").headers["location"] == f"/ui/login?token={token}"
        assert client.get(f"/ui/login?token={token}").headers["location"] == "/ui/"
        assert client.get("/ui/").status_code == 200
    with shop.with_key(None) as second:
        assert "too old" in second.get(f"/ui/login?token={token}").text
        assert not second.cookies
    with shop.with_key(None) as third:
        third.get(f"/ui/login?token={shop.key()}")
        assert not third.cookies


ABSENT = (
    "/ui/jobs/0",
    "/ui/jobs/-1",
    "/ui/jobs/99999999999999999999999",
    "/ui/jobs/abc",
    "/ui/queues/none",
    "/ui/logs/none",
    "/ui/logs/clicks?partition=9",
    "/ui/logs/mail",
    "/ui/queues/clicks",
    "/ui/schedules/none",
    "/ui/bulk/none",
    "/ui/static/../render.py",
    "/ui/static/none.css",
    "/ui/nowhere",
    "/ui/jobs?state=odd",
    "/ui/jobs?queue=%3Cb%3E",
    "/ui/logs/clicks?group=%3Cb%3E",
    "/ui/bulk/new?state=done",
)


def test_what_is_not_there_is_a_page_that_says_so(shop: Site) -> None:
    with visitor(shop, Role.ADMIN) as admin:
        for path in ABSENT:
            answer = admin.client.get(path)
            assert answer.status_code in (404, 422), (path, answer.status_code)
            assert answer.headers["content-type"].startswith("text/html"), path


def test_odd_pages_of_a_list_are_the_first(shop: Site) -> None:
    with visitor(shop, Role.VIEWER) as viewer:
        for before in ("-1", "x", "9" * 40, ""):
            assert "hello" in viewer.get(f"/ui/jobs?before={before}").text


def test_a_dead_letter_is_purged_and_says_so(shop: Site, store: Store) -> None:
    with visitor(shop, Role.OPERATOR) as operator:
        place = operator.done("/ui/jobs/3/purge")
        page = operator.get(place).text
        assert "It was purged." in page
        assert "purged hello in mail" in page
        assert "did=alive" in operator.done("/ui/jobs/1/purge")
        operator.get("/ui/bulk/new?act=odd", 422)
    assert (store.get([3])[0], acts(store)) == (None, ["dlq purge job 1", "dlq purge job 3"])


def test_a_schedule_is_run_now_also_while_it_is_paused(shop: Site, store: Store) -> None:
    before = store.schedules()
    with visitor(shop, Role.OPERATOR) as operator, visitor(shop, Role.OPERATOR, queues=["media"]) as foreign:
        place = operator.done("/ui/schedules/night/run")
        page = operator.get(place).text
        assert "enqueued just now" in page
        assert "report in mail" in page
        assert store.schedules() == before
        operator.done("/ui/schedules/night/pause")
        operator.done("/ui/schedules/night/run")
        assert foreign.post("/ui/schedules/night/run").status_code == 404
    assert [job.payload for job in store.browse(Query(kind="report"), 0, 10).jobs] == [{"n": 1}] * 2
    assert acts(store) == [f"cron {act} night" for act in ("run", "pause", "run")]


def test_jobs_are_listed_newest_first(shop: Site) -> None:
    with visitor(shop, Role.VIEWER) as viewer:
        page = viewer.get("/ui/jobs").values("href")
        assert [int(each.rpartition("/")[2]) for each in page if each.startswith("/ui/jobs/")] == [5, 4, 3, 2, 1]
        page = viewer.get("/ui/jobs?before=4&queue=mail").values("href")
        assert [int(each.rpartition("/")[2]) for each in page if each.startswith("/ui/jobs/")] == [3, 2, 1]


def test_idle_workers_are_on_the_page_of_workers(shop: Site, store: Store) -> None:
    store.announce(Presence("h:7:x", "host-7", 4711, ("mail", "media"), ("hello", "resize"), 16), MINUTE)
    store.announce(Presence("h:8:x", "host-8", 4712, ("media",)), MINUTE)
    with visitor(shop, Role.VIEWER) as viewer, visitor(shop, Role.VIEWER, queues=["mail"]) as mail:
        page = viewer.get("/ui/workers").text
        assert "2 workers , 2 idle, 17 slots" in page
        assert "host-7 pid 4711" in page
        assert "mail, media 2 kinds" in page
        assert "kinds not known" in page
        assert "worker-1" in page
        page = mail.get("/ui/workers").text
        assert "host-7" in page
        assert "media" not in page
        assert "kinds" not in page
        assert "host-8" not in page


def test_a_kind_that_no_worker_handles_is_shown_wherever_it_hurts(shop: Site, store: Store) -> None:
    job_id = store.enqueue([Draft("resize", None, "mail")])[0].id
    store.announce(Presence("w", "host", 1, ("mail",), ("hello",), unhandled=(("mail", "resize"),)), MINUTE)
    with visitor(shop, Role.VIEWER) as viewer, visitor(shop, Role.VIEWER, queues=["media"]) as other:
        assert "no worker handles kind resize" in viewer.get("/ui/").text
        assert "No worker handles kind resize" in viewer.get("/ui/queues/mail").text
        assert "No worker handles kind resize" in viewer.get(f"/ui/jobs/{job_id}").text
        assert "resize" not in other.get("/ui/").text


# -- acts


def test_a_job_is_cancelled_and_redriven(shop: Site, store: Store) -> None:
    with visitor(shop, Role.OPERATOR) as operator:
        assert "did=cancelled" in operator.done("/ui/jobs/1/cancel")
        assert "did=requested" in operator.done("/ui/jobs/2/cancel")
        assert "did=gone" in operator.done("/ui/jobs/4/cancel")
        assert "did=redriven" in operator.done("/ui/jobs/3/redrive")
        assert "did=alive" in operator.done("/ui/jobs/3/redrive")
        assert "its worker was notified" in operator.get("/ui/jobs/2?did=requested").text
        assert "all its attempts again" in operator.get("/ui/jobs/3?did=redriven").text
        assert "evil" not in operator.get("/ui/jobs/3?did=evil").text
        assert operator.post("/ui/jobs/999/cancel").status_code == 404
    one, _, three, *_ = store.get([1, 2, 3])
    assert one is not None
    assert three is not None
    assert (one.state, three.state) == (State.CANCELLED, State.READY)
    cancels = ["cancel job 1", "cancel job 2", "cancel job 4"]
    assert acts(store)[::-1] == [*cancels, "dlq redrive job 3", "dlq redrive job 3"]
    assert read_actions(store)[0][0].actor.startswith("key:")


def test_a_queue_is_paused_and_resumed_and_its_gate_opened(shop: Site, store: Store) -> None:
    with visitor(shop, Role.OPERATOR) as operator:
        operator.done("/ui/queues/mail/pause", minutes=30)
        assert "Paused for 29m" in operator.get("/ui/queues/mail").text
        operator.done("/ui/queues/mail/pause")
        assert "Paused until it is resumed" in operator.get("/ui/queues/mail").text
        operator.done("/ui/queues/mail/resume")
        assert store.backlog(["mail"])[0].paused_until is None
        for minutes in ("0", "x", "-5", "9" * 20):
            assert operator.post("/ui/queues/mail/pause", minutes=minutes).status_code == 422
        operator.done("/ui/queues/mail/gate", gate="until/open/x", slots=3)
        operator.done("/ui/queues/mail/gate", gate="until/open/x", slots="")
        for gate in ("until/other", "cap/media", "order/mailbox/subject/x", ""):
            assert operator.post("/ui/queues/mail/gate", gate=gate, slots=1).status_code == 404, gate
    assert acts(store)[0] == "gates set until/open/x"


FORMS = (
    ("/ui/queues/mail/pause", "minutes", "x"),
    ("/ui/queues/mail/gate", "slots", "1.5"),
    ("/ui/schedules/night/edit", "jitter", "soon"),
    ("/ui/logs/clicks/rewind", "partition", "first"),
    ("/ui/bulk", "rate", "nan"),
)


def test_an_invalid_form_names_its_field_to_callers_that_may_send_it(shop: Site, store: Store) -> None:
    """The role is checked before the form is decoded."""
    with visitor(shop, Role.OPERATOR) as operator, visitor(shop, Role.VIEWER) as viewer:
        for path, field, value in FORMS:
            fields = {"group": "g", "offset": "0", "partition": "0", field: value}
            refused = operator.post(path, **fields)
            assert refused.status_code == 422, path
            assert f"{field}: " in refused.text, path
            assert viewer.post(path, **fields).status_code == 403, path
    assert acts(store) == []


def test_a_schedule_is_paused_resumed_and_edited(shop: Site, store: Store) -> None:
    def night() -> Schedule:
        return next(each for each in store.schedules() if each.name == "night")

    with visitor(shop, Role.OPERATOR) as operator:
        operator.done("/ui/schedules/night/pause")
        assert night().paused
        assert "none while it is paused" in operator.get("/ui/schedules").text
        operator.done("/ui/schedules/night/resume")
        assert not night().paused
        fields = {"rule": "15 6 * * 1-5", "zone": "America/New_York", "dst": "skip", "catch_up": "all(3)"}
        operator.done("/ui/schedules/night/edit", **fields, overlap="skip", jitter=5)
        assert "at 06:15 Monday to Friday (America/New_York)" in operator.get("/ui/schedules/night").text
        kept = Timetable.parse(night().rule, night().zone)
        assert (kept.cron.dst, kept.catch_up.limit, kept.overlap, kept.jitter) == ("skip", 3, "skip", 5)
        assert night().draft.payload == {"n": 1}
        for wrong in ({"rule": "x"}, {"zone": "Mars/Base"}, {"jitter": "-1"}, {"overlap": "odd"}, {"catch_up": "odd"}):
            answer = operator.post("/ui/schedules/night/edit", **{**fields, **wrong})
            assert answer.status_code == 422, wrong
            assert 'role="alert"' in answer.text
        assert Timetable.parse(night().rule, night().zone) == kept


def test_a_group_is_moved_back(shop: Site, store: Store) -> None:
    place = next(number for number, (_, end) in enumerate(store.extent("clicks")) if end)
    store.commit("clicks", "g", place, 0)
    with visitor(shop, Role.OPERATOR) as operator:
        operator.done("/ui/logs/clicks/rewind", group="g", partition=place, offset=-1)
        assert store.position("clicks", "g", place) == -1
        for field, value, status in (
            ("partition", "9", 404),
            ("partition", "-1", 404),
            ("offset", "x", 422),
            ("offset", "99", 422),
            ("group", "<b>", 422),
            ("group", "", 422),
        ):
            fields = {"group": "g", "partition": str(place), "offset": "0", field: value}
            assert operator.post("/ui/logs/clicks/rewind", **fields).status_code == status, (field, value)
    assert acts(store) == ["logs seek clicks"] * 2


def test_a_key_is_revoked_for_everybody(shop: Site, store: Store) -> None:
    victim = shop.key(Role.VIEWER)
    key_id = victim.split("_")[1]
    with visitor(shop, key=victim) as viewer, visitor(shop, Role.ADMIN) as admin:
        assert key_id in admin.get("/ui/keys").text
        assert victim.split("_", 2)[2] not in admin.client.get("/ui/keys").text
        admin.done(f"/ui/keys/{key_id}/revoke")
        assert viewer.client.get("/ui/").status_code == 303
        assert admin.post("/ui/keys/000000000000/revoke").status_code == 404
        assert f"keys revoke {key_id}" in f"{acts(store)}"
        assert "revoke" in admin.get("/ui/operators").text


def test_logging_out_ends_the_session(shop: Site) -> None:
    with visitor(shop, Role.VIEWER) as viewer:
        kept = dict(viewer.client.cookies)
        assert viewer.done("/ui/logout") == "/ui/login"
        with httpx.Client(base_url=shop.url, cookies=kept, trust_env=False) as again:
            assert again.get("/ui/").status_code == 303


# -- what is shown


def test_secrets_are_hidden_wherever_they_could_show(shop: Site, store: Store) -> None:
    secret = "hunter2"
    store.put_schedule(Schedule("secretive", "@daily", 4 * 10**15, Draft("k", {"password": secret})))
    dead = store.enqueue([Draft("k", {"password": secret}, "secretive")])[0].id
    leases = store.claim([Want("secretive", 1)], "w", MINUTE)
    store.settle([(leases[0], DeadLetter(Failure("Refused", f"{secret} is wrong")))])
    with visitor(shop, Role.ADMIN) as admin:
        assert "password" in admin.get("/ui/schedules/secretive").text
        assert "is wrong" in admin.get(f"/ui/jobs/{dead}").text
        for path in (
            f"/ui/jobs/{dead}",
            "/ui/schedules/secretive",
            "/ui/jobs/1",
            "/ui/jobs/2",
            "/ui/jobs/3",
            "/ui/logs/clicks",
            "/ui/dead",
            "/ui/jobs",
        ):
            text = admin.client.get(path).text
            assert secret not in text, path
            assert "fb_secret" not in text, path
        assert "ada" in admin.get("/ui/jobs/2").text


def test_pages_carry_careful_headers_and_little_script(shop: Site) -> None:
    with visitor(shop, Role.ADMIN) as admin:
        for path in PAGES:
            answer = admin.client.get(path)
            policy = answer.headers["content-security-policy"]
            assert "unsafe-inline" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["cache-control"] == "no-store"
            page = admin.get(path)
            assert not page.values("style")
            assert all(tag != "script" or dict(given).get("src") for tag, given in page.elements)
        script = admin.client.get("/ui/static/forebay.js")
        assert len(script.content) < 10_000
        assert script.headers["content-type"].startswith("text/javascript")
        assert "immutable" in script.headers["cache-control"]


def test_a_gone_job_is_shown_by_the_ledger(shop: Site, store: Store) -> None:
    store.enqueue([Draft("brief", None, "media", tenant="acme")])
    lease = store.claim([Want("media", 2)], "w", MINUTE)[-1]
    store.settle([(lease, Ack())])
    with visitor(shop, Role.VIEWER) as viewer, visitor(shop, Role.VIEWER, tenant="birch") as foreign:
        page = viewer.get(f"/ui/jobs/{lease.job.id}").text
        assert "no longer in the store" in page
        assert "done brief in media" in page
        assert "acked" in page
        foreign.get(f"/ui/jobs/{lease.job.id}", 404)


def test_finished_jobs_have_a_page_after_a_backlog_was_drained(
    store: Store, serve_on: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.serve.dashboard.views.timeline.FIND_SECONDS", 60.0)
    for count in (300, 20):
        store.enqueue([Draft("hello")] * count)
        for _ in range(count):
            store.settle([(lease, Ack()) for lease in store.claim([Want("default", 1)], "w", MINUTE)])
    site = serve_on(store, ServeSettings(port=0, maintain=False))
    with visitor(site, Role.VIEWER) as viewer:
        for job_id in range(301, 321):
            assert "done hello in default" in viewer.get(f"/ui/jobs/{job_id}").text
        assert "no longer in the store" in viewer.get("/ui/jobs/7").text
        viewer.get("/ui/jobs/321", 404)


def test_the_last_job_of_a_schedule_has_a_page_also_where_nothing_is_remembered(serve_on: Serving) -> None:
    store = open_store("memory://")
    draft = Draft("report", {"n": 1}, "mail")
    store.put_schedule(Schedule("night", Timetable(Cron("30 1 * * *")).rule, 1_000_000, draft))
    assert store.fire("night", 1_000_000, store.now() + 3_600_000_000, draft)
    (lease,) = store.claim([Want("mail", 1)], "w", MINUTE)
    store.settle([(lease, Ack())])
    site = serve_on(store, ServeSettings(port=0, maintain=False))
    with visitor(site, Role.VIEWER) as viewer, visitor(site, Role.VIEWER, queues=["other"]) as foreign:
        for path in ("/ui/schedules", "/ui/schedules/night"):
            assert f"/ui/jobs/{lease.job.id}" in viewer.get(path).values("href")
        page = viewer.get(f"/ui/jobs/{lease.job.id}").text
        assert "report in mail" in page
        assert "enqueued by the schedule night" in page
        foreign.get(f"/ui/jobs/{lease.job.id}", 404)
        viewer.get("/ui/jobs/2", 404)
        store.enqueue([Draft("hello")] * 2)
        store.settle([(lease, Ack()) for lease in store.claim([Want("default", 1)], "w", MINUTE)])
        assert "no longer in the store" in viewer.get("/ui/jobs/2").text
        foreign.get("/ui/jobs/2", 404)
    store.close()


def test_a_store_without_a_ledger_says_so_in_plain_words(serve_on: Serving) -> None:
    store = open_store("memory://")
    store.enqueue([Draft("k", {"n": 1})])
    try:
        with visitor(serve_on(store, ServeSettings(port=0, maintain=False)), Role.ADMIN) as admin:
            assert "keeps no ledger" in admin.get("/ui/").text
            assert "keeps no ledger" in admin.get("/ui/jobs/1").text
            assert "keeps no ledger" in admin.get("/ui/queues/default").text
            assert "not durable" in admin.get("/ui/").text
            assert "a JSON merge patch" in admin.get("/ui/bulk/new?state=dead").text
            admin.get("/ui/workers")
            admin.get("/ui/jobs/2", 404)
    finally:
        store.close()


def test_an_empty_store_has_pages_too(tmp_path: Path, serve_on: Serving) -> None:
    store = open_store(f"sqlite:///{tmp_path}/empty.db")
    try:
        with visitor(serve_on(store, ServeSettings(port=0, maintain=False)), Role.ADMIN) as admin:
            for path in ("/ui/", "/ui/jobs", "/ui/dead", "/ui/schedules", "/ui/workers", "/ui/logs", *RULING):
                admin.get(path)
            assert "No queues yet" in admin.get("/ui/").text
    finally:
        store.close()


# -- live


def first_part(viewer: Visitor, path: str) -> str:
    with viewer.client.stream("GET", path, headers={"Accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                part: str = msgspec.json.decode(line.removeprefix("data: "))
                return part
    raise AssertionError("the stream ended")


def test_live_pages_send_what_they_show(shop: Site) -> None:
    with visitor(shop, Role.VIEWER) as viewer:
        for path in ("/ui/", "/ui/queues/mail", "/ui/jobs/2", "/ui/dead", "/ui/workers"):
            page, part = viewer.client.get(path).text, first_part(viewer, path)
            assert 'id="live"' in page
            assert "<main" not in part
            assert 'name="csrf"' not in part, path
            heads = re.findall(r"<h2[^>]*>([^<]*)<", part)
            assert heads or path in ("/ui/dead", "/ui/workers")
            assert set(heads) <= set(re.findall(r"<h2[^>]*>([^<]*)<", page)), path
        render_without_store = viewer.client.get("/ui/schedules", headers={"Accept": "text/event-stream"})
        assert render_without_store.status_code == 200
        assert render_without_store.headers["content-type"].startswith("text/html")


def test_a_stream_changes_with_the_store_and_ends_with_the_session(shop: Site, store: Store) -> None:
    key = shop.key(Role.VIEWER)
    with (
        visitor(shop, key=key) as viewer,
        viewer.client.stream("GET", "/ui/jobs/1", headers={"Accept": "text/event-stream"}) as answer,
    ):
        lines = answer.iter_lines()
        assert "waiting" in next(line for line in lines if line.startswith("data: "))
        store.cancel([1])
        assert "cancelled" in next(line for line in lines if line.startswith("data: ") and "cancelled" in line)
        follower = shop.context.authenticator.follower
        assert follower is not None
        follower.revoke(key.split("_")[1], "test")
        assert next(line for line in lines if line.startswith("event: ")) == "event: over"
        assert [line for line in lines if line.startswith("event")] == []


def test_a_sentence_that_begins_with_a_worker_keeps_its_name(shop: Site) -> None:
    with visitor(shop, Role.VIEWER) as viewer:
        assert " worker-1 holds it" in viewer.get("/ui/jobs/2").text


def test_a_page_of_a_job_that_is_removed_is_loaded_again(shop: Site, store: Store) -> None:
    stream = {"Accept": "text/event-stream"}
    with visitor(shop, Role.VIEWER) as viewer, viewer.client.stream("GET", "/ui/jobs/3", headers=stream) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith(("data: ", "event: ")))
        assert "dead" in next(lines)
        assert store.purge_dead([3]) == [3]
        assert next(lines) == "event: over"


def test_streams_are_bounded_and_given_back(shop: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.serve.dashboard.live.MAX_STREAMS", 0)
    with visitor(shop, Role.VIEWER) as viewer:
        assert viewer.client.get("/ui/", headers={"Accept": "text/event-stream"}).status_code == 503
        assert viewer.client.get("/ui/").status_code == 200
    assert shop.app.state.view_cache.streams == 0
