"""Queues, figures, dead letters, schedules and logs over HTTP."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from forebay.core.instant import to_datetime
from forebay.core.job import Draft, State
from forebay.core.outcome import Ack, DeadLetter, Failure, Retry
from forebay.core.policy import DeadLetters, Moved, Retained, Routing
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.serve.api import dead
from forebay.serve.security.operator_log import read_actions
from forebay.store.open import open_store
from forebay.store.protocol import Query, Store, Want
from tests.serve.site import Serving, Site
from tests.serve.test_api_jobs import problem

LEASE = timedelta(minutes=5)


def died(store: Store, count: int, queue: str = "mail", error: str = "SMTPError", **more: Any) -> list[int]:
    """So many dead letters; their ids."""
    ids = [receipt.id for receipt in store.enqueue([Draft("send", n, queue, **more) for n in range(count)])]
    leases = store.claim([Want(queue, count)], "test", LEASE)
    store.settle([(lease, DeadLetter(Failure(error, "no such box"))) for lease in leases])
    return ids


def acts(store: Store) -> list[tuple[str, str]]:
    return [(act.action, act.target) for act in reversed(read_actions(store)[0])]


def test_a_queue_is_put_shown_paused_and_resumed(site: Site, store: Store) -> None:
    client = site.client(Role.ADMIN)
    spec = {"routing": {"max_attempts": 3}, "capacity": {"type": "bounded", "limit": 5}}
    shown = client.put("/queues/mail", json=spec).json()
    assert shown["axes"]["capacity"] == "bounded 5, reject"
    assert shown["axes"]["position"].startswith("main → retry × 3")
    assert all(words in shown["vector"] for words in shown["axes"].values())
    assert next(each for each in store.specs() if each.name == "mail").routing.max_attempts == 3
    again = client.put("/queues/mail", json=client.get("/queues/mail").json()["spec"])
    assert again.json()["vector"] == shown["vector"]
    store.enqueue([Draft("a", None, "mail")])
    assert client.get("/queues/mail").json()["backlog"]["ready"] == 1
    assert client.post("/queues/mail/pause").json() == {"queue": "mail", "paused": True, "until": None}
    assert store.claim([Want("mail", 1)], "test", LEASE) == []
    response = client.get("/queues/mail").json()["backlog"]
    assert (response["paused"], response["paused_until"]) == (True, None)
    until = "2100-01-01T00:00:00Z"
    assert client.post("/queues/mail/pause", json={"until": until}).json()["until"] == until
    assert client.post("/queues/mail/resume").json()["paused"] is False
    assert len(store.claim([Want("mail", 1)], "test", LEASE)) == 1
    assert problem(client.post("/queues/mail/pause", json={"until": "2001-01-01T00:00:00Z"}), 422, "invalid")
    assert acts(store) == [
        ("queues put", "mail"),
        ("queues put", "mail"),
        ("pause", "mail"),
        ("pause", "mail"),
        ("resume", "mail"),
    ]


def test_a_spec_that_makes_no_sense_is_refused(site: Site) -> None:
    client = site.client(Role.ADMIN)
    for spec in (
        {"retention": {"type": "for-ever"}},
        {"name": "other"},
        {"capacity": {"type": "bounded", "limit": 0}},
        {"retention": {"type": "retained"}, "routing": {"max_attempts": 2}},
        {"speed": 1},
    ):
        assert problem(client.put("/queues/mail", json=spec), 422, "invalid")["field"]
    problem(client.put("/queues/forebay.keys", json={}), 404, "not-found")
    problem(client.put("/queues/no%20name", json={}), 422, "invalid")
    client.put("/queues/log", json={"retention": {"type": "retained"}})
    problem(client.put("/queues/log", json={}), 409, "wrong-kind")
    problem(client.post("/jobs", json={"kind": "a", "queue": "log"}), 409, "wrong-kind")


def test_a_queue_that_has_left_the_cell_is_not_opened(site: Site, store: Store) -> None:
    store.put_spec(QueueSpec(name="mail", capacity=Moved(version=3)))
    refused = problem(site.client(Role.ADMIN).put("/queues/mail", json={}), 409, "queue-moved")
    assert (refused["queue"], refused["version"]) == ("mail", 3)


def test_only_queues_that_are_reached_are_listed_and_logs_are_not(site: Site, store: Store) -> None:
    store.put_spec(QueueSpec(name="log", retention=Retained()))
    store.enqueue([Draft("a", None, "a.1"), Draft("a", None, "b.1")])
    assert [queue["name"] for queue in site.client(Role.VIEWER).get("/queues").json()["queues"]] == ["a.1", "b.1"]
    some = site.client(Role.VIEWER, queues=("b.*",))
    assert [queue["name"] for queue in some.get("/queues").json()["queues"]] == ["b.1"]
    problem(some.get("/queues/a.1"), 404, "not-found")
    problem(some.get("/queues/never"), 404, "not-found")
    assert site.client(Role.VIEWER, tenant="acme").get("/queues").json() == {"queues": [], "next": None}
    problem(site.client(Role.OPERATOR, tenant="acme").post("/queues/a.1/pause"), 404, "not-found")


def test_stats_of_one_queue_and_of_all(tmp_path: Path, serve_on: Serving) -> None:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    for attempt in range(3):
        if not attempt:
            store.enqueue([Draft("a", None, "mail")])
        [lease] = store.claim([Want("mail", 1)], "test", LEASE)
        store.settle([(lease, Retry(0, Failure("E"))) if attempt < 2 else (lease, Ack())])
    store.enqueue([Draft("a", None, "mail")] * 2 + [Draft("a", None, "media")])
    died(store, 1, "media")
    client = serve_on(store).client(Role.VIEWER)
    response = client.get("/stats?queue=mail").json()
    assert response | {"queue": "mail", "ready": 2, "running": 0, "dead": 0, "attempts_p99": 3} == response
    assert response["oldest_age_s"] >= 0
    assert "ledger" in response["attempts_from"]
    both = client.get("/stats").json()
    assert (both["ready"], both["dead"], both["attempts_p99"]) == (3, 1, 3)
    assert [each["queue"] for each in both["queues"]] == ["mail", "media"]
    nothing = client.get("/stats?queue=never").json()
    assert (nothing["depth"], nothing["attempts_p99"]) == (0, None)
    scale = client.get("/scale?queue=mail&within=0.001").json()
    assert scale["scanned"] == 1
    assert scale["work_seconds"] == pytest.approx(2 * scale["seconds_per_job"])
    assert client.get("/scale?queue=media").json()["workers"] is not None
    idle = client.get("/scale?queue=never").json()
    assert (idle["depth"], idle["workers"], idle["seconds_per_job"]) == (0, 0, None)
    problem(client.get("/scale"), 422, "invalid")


def test_dead_letters_are_found_shown_and_live_again(site: Site, store: Store) -> None:
    ids = died(store, 3) + died(store, 2, error="Timeout")
    store.enqueue([Draft("alive", None, "mail")])
    client = site.client(Role.OPERATOR)
    assert [job["id"] for job in client.get("/dlq").json()["jobs"]] == ids
    assert [job["id"] for job in client.get("/dlq?where=TIMEOUT").json()["jobs"]] == ids[3:]
    assert client.get("/dlq?queue=media").json() == {"jobs": [], "next": None}
    assert client.get(f"/dlq/{ids[0]}").json()["errors"][0]["message"] == "no such box"
    problem(client.get("/dlq/6"), 404, "not-found")
    assert client.post(f"/dlq/{ids[0]}/requeue").json() == {"job_id": ids[0], "status": "requeued"}
    assert client.post(f"/dlq/{ids[1]}/retry").json() == {"job_id": ids[1], "status": "requeued"}
    problem(client.post(f"/dlq/{ids[0]}/requeue"), 409, "not-dead")
    jobs = [job for job in store.get(ids[:2]) if job is not None]
    assert [(job.state, job.attempt, len(job.errors)) for job in jobs] == [(State.READY, 0, 1)] * 2
    problem(site.client(Role.VIEWER).post(f"/dlq/{ids[2]}/requeue"), 403, "forbidden")
    problem(site.client(Role.OPERATOR, queues=("other",)).post(f"/dlq/{ids[2]}/requeue"), 404, "not-found")
    assert acts(store) == [("dlq redrive", "dead letters")] * 2


def test_a_redrive_is_bounded_and_goes_on_where_it_ended(site: Site, store: Store) -> None:
    ids = died(store, 5) + died(store, 2, "media") + died(store, 3, error="Timeout")
    client = site.client(Role.OPERATOR)
    wish = {"queue": "mail", "where": "smtp", "limit": 2}
    dry = client.post("/dlq/redrive", json=wish | {"dry_run": True}).json()
    assert (dry["redriven"], dry["ids"], dry["dry_run"]) == (2, ids[:2], True)
    assert len(store.browse(Query(state=State.DEAD), 0, 100).jobs) == 10
    moved, after = [], 0
    for _ in range(5):
        response = client.post("/dlq/redrive", json=wish | {"after": after}).json()
        moved += response["ids"]
        # What dies again at once lies behind the place where the next call begins.
        leases = store.claim([Want("mail", 10)], "test", LEASE)
        store.settle([(lease, DeadLetter(Failure("SMTPError"))) for lease in leases])
        if response["next"] is None:
            break
        after = response["next"]
    assert moved == ids[:5]
    assert client.post("/dlq/redrive", json={"kind": "never"}).json()["redriven"] == 0
    assert client.post("/dlq/redrive", json={"queue": "media", "rate": 1000}).json()["ids"] == ids[5:7]
    assert [fact for fact in acts(store) if fact[0] == "dlq redrive"] == acts(store)


def test_a_rate_bounds_what_one_call_moves(site: Site, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "_MAX_PACED", 0.5)
    ids = died(store, 30)
    began = store.now()
    response = site.client(Role.OPERATOR).post("/dlq/redrive", json={"limit": 1000, "rate": 20}).json()
    assert (response["ids"], response["next"]) == (ids[:10], ids[9])
    assert store.now() - began >= 300_000


def test_causes_are_counted_and_named_to_redrive_by_them(site: Site, store: Store) -> None:
    ids = died(store, 3) + died(store, 2, error="Timeout")
    client = site.client(Role.OPERATOR)
    response = client.get("/dlq/causes?queue=mail").json()
    assert (response["scanned"], response["next"]) == (5, None)
    assert [(cause["count"], cause["error"], cause["example"]) for cause in response["causes"]] == [
        (3, "SMTPError", ids[2]),
        (2, "Timeout", ids[4]),
    ]
    name = response["causes"][1]["fingerprint"]
    assert client.post("/dlq/redrive", json={"fingerprint": name}).json()["ids"] == ids[3:]
    assert site.client(Role.VIEWER, tenant="me").get("/dlq/causes").json()["causes"] == []


def test_a_redrive_by_sample_with_a_patch_and_a_brake(site: Site, store: Store) -> None:
    ids = died(store, 30)
    client = site.client(Role.OPERATOR)
    wish = {"sample": 4, "patch": {"to": "ada"}}
    dry = client.post("/dlq/redrive", json=wish | {"dry_run": True}).json()["ids"]
    assert len(dry) == 4
    response = client.post("/dlq/redrive", json=wish).json()
    jobs = [job for job in store.get(response["ids"]) if job is not None]
    assert [job.payload for job in jobs] == [{"to": "ada"}] * 4
    assert {int((job.meta or {})["redriven_from"]) for job in jobs} == set(dry)
    assert store.get(dry) == [None] * 4
    problem(client.post("/dlq/redrive", json={"stop_at": 0.1}), 422, "invalid")
    assert set(dry) < set(ids)


def test_a_redrive_leaves_the_quarantined_unless_they_are_asked_for(site: Site, store: Store) -> None:
    killer, clumsy = died(store, 1, error="forebay.Abandoned"), died(store, 1)
    client = site.client(Role.OPERATOR)
    assert client.post("/dlq/redrive", json={}).json()["ids"] == clumsy
    assert client.post("/dlq/redrive", json={"quarantined": True}).json()["ids"] == killer


def test_a_dead_letter_belongs_to_the_queue_that_it_died_in(site: Site, store: Store) -> None:
    store.put_spec(QueueSpec(name="mail", routing=Routing(dead=DeadLetters("graves"))))
    [job_id] = died(store, 1)
    undertaker = site.client(Role.OPERATOR, queues=("graves",))
    assert undertaker.get("/dlq").json()["jobs"] == []
    assert undertaker.post("/dlq/redrive", json={}).json()["redriven"] == 0
    problem(undertaker.post(f"/dlq/{job_id}/requeue"), 404, "not-found")
    assert [job["id"] for job in site.client(Role.OPERATOR, queues=("mail",)).get("/dlq").json()["jobs"]] == [job_id]


def test_tenants_redrive_their_own(site: Site, store: Store) -> None:
    mine, theirs = died(store, 2, tenant="me"), died(store, 2, tenant="them")
    client = site.client(Role.OPERATOR, tenant="me")
    assert [job["id"] for job in client.get("/dlq").json()["jobs"]] == mine
    assert client.get("/dlq?tenant=them").json()["jobs"] == []
    assert client.post("/dlq/redrive", json={"tenant": "them"}).json()["redriven"] == 0
    assert client.post("/dlq/redrive", json={}).json()["ids"] == mine
    assert len(store.browse(Query(state=State.DEAD), 0, 10).jobs) == len(theirs)


def test_a_search_finds_no_secret_that_is_not_shown(site: Site, store: Store) -> None:
    store.enqueue([Draft("login", {"password": "hunter22"}, "mail")])
    [lease] = store.claim([Want("mail", 1)], "test", LEASE)
    store.settle([(lease, DeadLetter(Failure("Denied", "hunter22 is wrong")))])
    assert len(site.client(Role.ADMIN).get("/dlq?where=hunter22").json()["jobs"]) == 1
    viewer = site.client(Role.VIEWER)
    assert viewer.get("/dlq?where=hunter22").json()["jobs"] == []
    assert len(viewer.get("/dlq?where=is wrong").json()["jobs"]) == 1
    assert "hunter22" not in viewer.get("/dlq").text


def test_a_schedule_is_managed_over_http(site: Site, store: Store) -> None:
    client = site.client(Role.OPERATOR)
    body = {"rule": "30 1 * * *", "kind": "report", "payload": {"n": 1}, "tz": "Europe/Berlin", "jitter": 30}
    made = client.put("/cron/nightly", json=body).json()
    assert made["words"].startswith("at 01:30 every day (Europe/Berlin)")
    assert (made["rule"], made["payload"]) == ("30 1 * * * ; jitter=30s", {"n": 1})
    assert [each["name"] for each in client.get("/cron").json()["schedules"]] == ["nightly"]
    assert client.post("/cron/nightly/pause").json()["paused"] is True
    assert store.schedules()[0].paused
    assert client.post("/cron/nightly/resume").json()["paused"] is False
    assert client.put("/cron/nightly", json=body | {"rule": "@hourly"}).json()["rule"].startswith("@hourly")
    assert client.delete("/cron/nightly").status_code == 204
    assert store.schedules() == []
    problem(client.delete("/cron/nightly"), 404, "not-found")
    for wrong in ({"rule": "61 * * * *"}, {"tz": "Mars/Olympus"}, {"catch_up": "some"}, {"jitter": -1}):
        problem(client.put("/cron/nightly", json=body | wrong), 422, "invalid")
    wanted = ["cron put", "cron pause", "cron resume", "cron put", "cron rm"]
    assert acts(store) == [(act, "nightly") for act in wanted]


def test_a_schedule_that_is_put_again_keeps_its_pending_tick(site: Site, store: Store) -> None:
    client = site.client(Role.OPERATOR)
    body = {"rule": "30 1 * * *", "kind": "report", "payload": {"n": 1}}
    client.put("/cron/nightly", json=body)
    (made,) = store.schedules()
    due = made.next_at - 86_400_000_000
    store.drop_schedule("nightly")
    store.put_schedule(replace(made, next_at=due))
    for change in ({}, {"payload": {"n": 2}}):
        shown = client.put("/cron/nightly", json=body | change).json()["next_at"]
        assert datetime.fromisoformat(shown) == to_datetime(due)
        assert store.schedules()[0].next_at == due
    client.put("/cron/nightly", json=body | {"rule": "31 1 * * *"})
    assert store.schedules()[0].next_at > store.now()


def test_a_schedule_belongs_to_its_queue_and_tenant(site: Site, store: Store) -> None:
    store.put_schedule(Schedule("theirs", "@daily", store.now() + 10**9, Draft("a", None, "theirs")))
    client = site.client(Role.OPERATOR, queues=("mine",))
    body = {"rule": "@daily", "kind": "a", "queue": "mine"}
    assert client.get("/cron").json() == {"schedules": [], "next": None}
    problem(client.get("/cron/theirs"), 404, "not-found")
    problem(client.put("/cron/theirs", json=body), 404, "not-found")
    problem(client.delete("/cron/theirs"), 404, "not-found")
    problem(client.put("/cron/new", json=body | {"queue": "theirs"}), 404, "not-found")
    assert store.schedules()[0].draft.queue == "theirs"
    bound = site.client(Role.OPERATOR, tenant="acme")
    assert bound.put("/cron/own", json=body).json()["tenant"] == "acme"
    problem(bound.get("/cron/theirs"), 404, "not-found")


def test_the_server_fires_schedules(site: Site, store: Store) -> None:
    body = {"rule": "@every 1s", "kind": "beat", "queue": "beats"}
    client = site.client(Role.OPERATOR, Role.WORKER)
    assert client.put("/cron/beat", json=body).status_code == 200
    answer = client.post("/claim", json={"wants": [{"queue": "beats"}], "wait": 10}).json()
    assert answer["leases"][0]["job"]["kind"] == "beat"


def test_a_log_is_appended_read_and_committed(site: Site, store: Store) -> None:
    store.put_spec(QueueSpec(name="events", retention=Retained(2)))
    producer, reader = site.client(Role.PRODUCER), site.client(Role.WORKER)
    entries = [{"body": {"n": n}, "key": "ada"} for n in range(5)]
    places = producer.post("/logs/events", json={"entries": entries}).json()["entries"]
    [partition] = {place["partition"] for place in places}
    assert [place["offset"] for place in places] == [0, 1, 2, 3, 4]
    page = reader.get(f"/logs/events/{partition}?limit=2").json()
    assert ([entry["body"]["n"] for entry in page["entries"]], page["next"]) == ([0, 1], 1)
    assert reader.get(f"/logs/events/{partition}?after=3").json()["entries"][0]["offset"] == 4
    commit = f"/logs/events/{partition}/commit"
    assert reader.post(commit, json={"group": "g", "offset": 2}).json() == {"group": "g", "position": 2}
    assert reader.post(commit, json={"group": "g", "offset": 0}).json()["position"] == 2
    assert reader.post(commit, json={"group": "g", "offset": 0, "rewind": True}).json()["position"] == 0
    after = reader.get(f"/logs/events/{partition}?group=g").json()
    assert (after["entries"][0]["offset"], after["position"]) == (1, 0)
    extents = site.client(Role.VIEWER).get("/logs").json()["logs"][0]["partitions"]
    assert {(each["first"], each["next"]) for each in extents} == {(0, 0), (0, 5)}
    for path in ("/logs/never/0", "/logs/events/2", "/logs/forebay.keys/0"):
        problem(reader.get(path), 404, "not-found")
    store.enqueue([Draft("a", None, "mail")])
    problem(reader.get("/logs/mail/0"), 404, "not-found")
    problem(site.client(Role.VIEWER, tenant="acme").get(f"/logs/events/{partition}"), 404, "not-found")
    assert problem(reader.post(commit, json={"group": "g", "offset": 99}), 422, "invalid")


def test_what_was_trimmed_is_gone(site: Site, store: Store) -> None:
    store.put_spec(QueueSpec(name="events", retention=Retained()))
    store.append("events", [b"1", b"2", b"3"])
    store.trim("events", store.now() + 1_000_000, 2)
    response = problem(site.client(Role.VIEWER).get("/logs/events/0?after=-1"), 410, "offset-gone")
    assert response["first"] == 2
