"""Claim, settle and extend over HTTP: the same fenced leases as in Python, at any server of the store."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from forebay.core.instant import days, micros, seconds
from forebay.core.job import Draft, State
from forebay.serve.actor import Role
from forebay.serve.security.keys import mint
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from forebay.store.protocol import Query, Store, Want
from forebay.testing.clock import ManualClock
from tests.serve.site import Serving, Site
from tests.serve.test_api_jobs import problem


def claimed(client: httpx.Client, count: int = 1, queue: str = "mail", **more: Any) -> list[dict[str, Any]]:
    answer = client.post("/claim", json={"wants": [{"queue": queue, "count": count}], **more})
    assert answer.status_code == 200, answer.text
    leases: list[dict[str, Any]] = answer.json()["leases"]
    return leases


def settled(client: httpx.Client, *items: dict[str, Any]) -> list[dict[str, Any]]:
    answer = client.post("/settle", json={"settlements": list(items)})
    assert answer.status_code == 200, answer.text
    response: list[dict[str, Any]] = answer.json()["settled"]
    return response


def state(store: Store, job_id: int) -> State | None:
    job = store.get([job_id])[0]
    return None if job is None else job.state


def test_a_worker_in_any_language_holds_fenced_leases(any_store: Store, serve_on: Serving) -> None:
    site = serve_on(any_store)
    client = site.client(Role.WORKER)
    ids = [receipt.id for receipt in any_store.enqueue([Draft("a", {"n": n}, "mail") for n in range(5)])]
    leases = claimed(client, 5, owner="w1", lease=20)
    assert [lease["job"]["id"] for lease in leases] == ids
    assert [lease["job"]["payload"]["n"] for lease in leases] == [0, 1, 2, 3, 4]
    assert {lease["job"]["delivery"] for lease in leases} == {1}
    assert leases[0]["job"]["owner"].startswith("w1@")
    error = {"kind": "SMTPError", "message": "greylisted", "trace": "…"}
    response = settled(
        client,
        {"lease": leases[0]["lease"], "outcome": "ack", "result": {"sent": True}},
        {"lease": leases[1]["lease"], "outcome": "fail", "error": error},
        {"lease": leases[2]["lease"], "outcome": "drop", "error": error},
        {"lease": leases[3]["lease"], "outcome": "release"},
        {"lease": leases[4]["lease"], "outcome": "snooze", "after": 30},
    )
    assert [(each["job_id"], each["answer"], each["became"], each["after"]) for each in response] == [
        (ids[0], "applied", "done", None),
        (ids[1], "applied", "retry", 60.0),
        (ids[2], "applied", "dead", None),
        (ids[3], "applied", "released", 0.0),
        (ids[4], "applied", "released", 30.0),
    ]
    first, second, third, fourth, fifth = (job for job in any_store.get(ids) if job is not None)
    assert (first.state, first.result) == (State.DONE, {"sent": True})
    assert (second.state, second.attempt, second.errors[0].kind) == (State.WAITING, 1, "SMTPError")
    assert (third.state, third.errors[0].message) == (State.DEAD, "greylisted")
    assert (fourth.state, fourth.attempt) == (State.READY, 0)
    assert (fifth.state, fifth.attempt) == (State.WAITING, 0)


def test_the_server_decides_between_retry_and_dead_letter(any_store: Store, serve_on: Serving) -> None:
    client = serve_on(any_store).client(Role.WORKER)
    [job] = [receipt.id for receipt in any_store.enqueue([Draft("a", None, "mail")])]
    for became in ("retry", "dead"):
        [lease] = claimed(client, wait=5)
        [response] = settled(client, {"lease": lease["lease"], "outcome": "fail", "after": 0})
        assert response["became"] == became
    assert state(any_store, job) is State.DEAD


def test_a_settle_whose_answer_was_lost_may_be_repeated(any_store: Store, serve_on: Serving) -> None:
    client = serve_on(any_store).client(Role.WORKER)
    any_store.enqueue([Draft("a", None, "mail")] * 3)
    leases = claimed(client, 3)
    items = [
        {"lease": lease["lease"], "outcome": outcome}
        for lease, outcome in zip(leases, ("ack", "fail", "drop"), strict=True)
    ]
    first = [each["answer"] for each in settled(client, *items)]
    assert first == [each["answer"] for each in settled(client, *items)] == ["applied"] * 3
    others = [item | {"outcome": "release"} for item in items]
    assert [each["answer"] for each in settled(client, *others)] == ["stale"] * 3
    assert len(any_store.browse(Query(), 0, 10).jobs) == 3


def test_leases_are_good_at_every_server_of_the_store_and_after_a_restart(tmp_path: Path, serve_on: Serving) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    stores = [open_store(url) for _ in range(2)]
    stores[0].enqueue([Draft("a", None, "mail")] * 3)
    one, two = (serve_on(store) for store in stores)
    key = one.key(Role.WORKER)
    assert two.context.authenticator.follower is not None
    two.context.authenticator.follower.step()
    [first, second, third] = claimed(one.with_key(key), 3)
    extended = two.with_key(key).post("/extend", json={"leases": [first["lease"]], "lease": 90}).json()["leases"]
    assert extended[0]["answer"] == "extended"
    assert settled(two.with_key(key), {"lease": first["lease"], "outcome": "ack"})[0]["answer"] == "applied"
    third_site = serve_on(open_store(url))
    assert settled(third_site.with_key(key), {"lease": second["lease"], "outcome": "ack"})[0]["answer"] == "applied"
    assert settled(one.with_key(key), {"lease": second["lease"], "outcome": "ack"})[0]["answer"] == "applied"
    assert settled(one.with_key(key), {"lease": third["lease"], "outcome": "ack"})[0]["answer"] == "applied"
    for store in stores:
        assert not store.browse(Query(), 0, 10).jobs


def test_a_fence_that_is_not_current_is_stale(site: Site, store: Store) -> None:
    client = site.client(Role.WORKER)
    store.enqueue([Draft("a", None, "mail")])
    [late] = claimed(client)
    settled(client, {"lease": late["lease"], "outcome": "release"})
    [current] = claimed(client)
    assert current["job"]["delivery"] == late["job"]["delivery"] + 1
    assert settled(client, {"lease": late["lease"], "outcome": "ack"})[0] == {
        "job_id": late["job"]["id"],
        "answer": "stale",
        "became": None,
        "after": None,
    }
    lost = client.post("/extend", json={"leases": [late["lease"]]}).json()["leases"][0]
    assert lost["answer"] == "lost"
    assert settled(client, {"lease": current["lease"], "outcome": "ack"})[0]["answer"] == "applied"


def made_up(text: str) -> list[str]:
    """What resembles a lease, and is not one."""
    return [text[:-2] + ("AA" if text[-2:] != "AA" else "BB"), "", "x", "é", "A" * 5_000, text + "=", text[1:]]


def test_a_call_with_one_lease_of_others_is_refused_whole(any_store: Store, serve_on: Serving) -> None:
    site = serve_on(any_store)
    ours, theirs = site.client(Role.WORKER), site.client(Role.WORKER)
    any_store.enqueue([Draft("a", None, "mail")] * 2)
    [own], [foreign] = claimed(ours), claimed(theirs)
    before = any_store.get([own["job"]["id"], foreign["job"]["id"]])
    refused = set()
    for text in (foreign["lease"], *made_up(own["lease"])):
        for bad in (1, 0):
            texts = [own["lease"], text] if bad else [text, own["lease"]]
            items = [{"lease": each, "outcome": "ack"} for each in texts]
            response = problem(ours.post("/settle", json={"settlements": items}), 404, "not-found")
            assert response["detail"] == f"settlements[{bad}].lease does not exist, or this key may not see it"
            refused.add(ours.post("/settle", json={"settlements": items[bad : bad + 1]}).text)
            response = problem(ours.post("/extend", json={"leases": texts, "lease": 600}), 404, "not-found")
            assert response["detail"] == f"leases[{bad}] does not exist, or this key may not see it"
    assert len(refused) == 1
    assert any_store.get([own["job"]["id"], foreign["job"]["id"]]) == before
    assert settled(ours, {"lease": own["lease"], "outcome": "ack"})[0]["answer"] == "applied"
    assert settled(theirs, {"lease": foreign["lease"], "outcome": "ack"})[0]["answer"] == "applied"


def test_a_lease_of_a_queue_that_the_key_no_longer_reaches_cannot_be_settled(site: Site, store: Store) -> None:
    store.enqueue([Draft("a", None, "mail")])
    [lease] = store.claim([Want("mail", 1)], "w", timedelta(seconds=30))
    key, text = mint("narrow", (Role.WORKER,), store.now(), queues=("other",))
    site.admit(key)
    item = {"lease": site.context.signer.text(lease, key.actor().name), "outcome": "ack"}
    problem(site.with_key(text).post("/settle", json={"settlements": [item]}), 404, "not-found")
    assert state(store, lease.job.id) is State.RUNNING


def test_extend_gives_time_and_reports_a_cancellation(any_store: Store, serve_on: Serving) -> None:
    client = serve_on(any_store).client(Role.WORKER)
    any_store.enqueue([Draft("a", None, "mail")] * 2)
    leases = claimed(client, 2, lease=5)
    texts = [lease["lease"] for lease in leases]
    for _ in range(2):
        response = client.post("/extend", json={"leases": texts, "lease": 600}).json()["leases"]
        assert [each["answer"] for each in response] == ["extended"] * 2
        assert response[0]["until"] > leases[0]["until"]
    any_store.cancel([leases[1]["job"]["id"]])
    for _ in range(3):
        response = client.post("/extend", json={"leases": texts, "lease": 600}).json()["leases"]
        assert [each["cancel_requested"] for each in response] == [False, True]
    [done] = settled(client, {"lease": texts[1], "outcome": "cancel"})
    assert (done["answer"], done["became"]) == ("applied", "cancelled")


def test_bad_words_are_refused_as_a_whole(site: Site, store: Store) -> None:
    client = site.client(Role.WORKER)
    store.enqueue([Draft("a", None, "mail")])
    [lease] = claimed(client)
    good = {"lease": lease["lease"], "outcome": "ack"}
    for bad, field in (
        ({"lease": lease["lease"], "outcome": "lost"}, "settlements[1].outcome"),
        ({"lease": lease["lease"], "outcome": "snooze"}, "settlements[1].after"),
        ({"lease": lease["lease"], "outcome": "ack", "result": 10**30}, "settlements[1].result"),
        ({"lease": lease["lease"], "outcome": "ack", "result": "x" * 300_000}, "settlements[1].result"),
    ):
        response = problem(client.post("/settle", json={"settlements": [good, bad]}), 422, "invalid")
        assert response["field"] in (field, field.replace("[1]", "[...]"))
    assert state(store, lease["job"]["id"]) is State.RUNNING
    problem(client.post("/settle", json={"settlements": []}), 422, "invalid")
    problem(client.post("/claim", json={"wants": [{"queue": "mail", "count": 1001}]}), 422, "invalid")
    problem(client.post("/claim", json={"wants": [{"queue": "mail"}], "wait": 61}), 422, "invalid")
    problem(
        client.post("/claim", json={"wants": [{"queue": "a", "count": 900}, {"queue": "b", "count": 900}]}),
        413,
        "batch-too-large",
    )


def test_workers_claim_from_their_queues_alone(site: Site, store: Store) -> None:
    store.enqueue([Draft("a", None, "theirs")])
    client = site.client(Role.WORKER, queues=("mine",))
    problem(client.post("/claim", json={"wants": [{"queue": "theirs"}]}), 404, "not-found")
    problem(client.post("/claim", json={"wants": [{"queue": "mine"}, {"queue": "theirs"}]}), 404, "not-found")
    problem(site.client().post("/claim", json={"wants": [{"queue": "forebay.keys"}]}), 404, "not-found")


def test_the_server_takes_back_what_a_silent_worker_held(serve_on: Serving) -> None:
    """Workers in other languages may be the only ones: the server then maintains the store."""
    clock = ManualClock()
    store = open_store("memory://", clock=clock)
    site = serve_on(store)
    client = site.client(Role.WORKER)
    store.enqueue([Draft("a", None, "mail")])
    [lease] = claimed(client, lease=10)
    clock.advance(micros(seconds(11)))
    [again] = claimed(client, wait=20)
    assert again["job"]["id"] == lease["job"]["id"]
    assert again["job"]["errors"][0]["kind"] == "forebay.Abandoned"
    assert settled(client, {"lease": lease["lease"], "outcome": "ack"})[0]["answer"] == "stale"


def test_a_claim_in_another_name_is_in_the_ledger(postgres_url: str, serve_on: Serving) -> None:
    """What is settled over HTTP is recorded in the ledger as by any worker: attempt, times, error."""
    store = open_store(postgres_url)
    client = serve_on(store, ServeSettings(port=0, maintain=False, drain=1)).client(Role.WORKER)
    store.enqueue([Draft("a", None, "mail")])
    [lease] = claimed(client, owner="w9")
    settled(client, {"lease": lease["lease"], "outcome": "fail", "error": {"kind": "E"}})
    records = [entry.record for entry in store.ledger(-1, 1000)]
    claim = next(record for record in records if record.verb == "claim" and record.ranges)
    assert claim.owner is not None
    assert claim.owner.startswith("w9@key:")
    [job_range] = next(record.ranges for record in records if record.verb == "settle" and record.ranges)
    assert (job_range.change, job_range.delivery, job_range.attempt) == ("retried", 1, 1)
    assert min(job_range.enqueued_at, job_range.due_at, job_range.claimed_at) > micros(days(1))
    store.close()


def test_jobs_of_a_python_worker_and_of_http_do_not_mix_up(site: Site, store: Store) -> None:
    store.enqueue([Draft("a", None, "mail")] * 2)
    [python] = store.claim([Want("mail", 1)], "python", timedelta(seconds=30))
    [http] = claimed(site.client(Role.WORKER))
    assert http["job"]["id"] != python.job.id


def test_progress_is_reported_and_shown(any_store: Store, serve_on: Serving) -> None:
    site = serve_on(any_store)
    client, viewer = site.client(Role.WORKER), site.client(Role.VIEWER)
    any_store.enqueue([Draft("a", {"password": "hunter2hunter2"}, "mail"), Draft("a", {}, "mail")])
    first, second = claimed(client, 2)
    reports = [
        {"lease": first["lease"], "portion": 0.25, "note": "logged in with hunter2hunter2"},
        {"lease": second["lease"], "portion": 1},
    ]
    answer = client.post("/progress", json={"reports": reports})
    assert answer.status_code == 200, answer.text
    assert [(each["answer"], each["cancel_requested"]) for each in answer.json()["reports"]] == [("applied", False)] * 2
    job = viewer.get(f"/jobs/{first['job']['id']}").json()
    assert (job["progress"]["portion"], job["progress"]["note"]) == (0.25, "logged in with ***")
    assert job["progress"]["at"]
    any_store.cancel([second["job"]["id"]])
    settled(client, {"lease": first["lease"], "outcome": "release"})
    response = client.post("/progress", json={"reports": reports}).json()["reports"]
    assert [(each["answer"], each["cancel_requested"]) for each in response] == [("stale", False), ("applied", True)]
    assert viewer.get(f"/jobs/{first['job']['id']}").json()["progress"] is None
    for wrong in (-0.1, 1.5, None):
        report = {"lease": second["lease"], "portion": wrong}
        assert client.post("/progress", json={"reports": [report]}).status_code == 422
    whole = client.post("/progress", json={"reports": [*reports[1:], {"lease": "x", "portion": 0.1}]})
    assert (whole.status_code, whole.json()["detail"]) == (
        404,
        "reports[1].lease does not exist, or this key may not see it",
    )


def test_a_result_over_http_is_kept_on_any_queue(any_store: Store, serve_on: Serving) -> None:
    client = serve_on(any_store).client(Role.WORKER)
    ids = [receipt.id for receipt in any_store.enqueue([Draft("a", queue="plain") for _ in range(4)])]
    leases = [each["lease"] for each in claimed(client, 4, queue="plain")]
    settled(
        client,
        {"lease": leases[0], "outcome": "ack", "result": 7},
        {"lease": leases[1], "outcome": "ack", "result": 7, "keep": 0},
        {"lease": leases[2], "outcome": "ack", "keep": 60},
        {"lease": leases[3], "outcome": "ack"},
    )
    states = [None if job is None else (job.state, job.result) for job in any_store.get(ids)]
    assert states == [(State.DONE, 7), None, (State.DONE, None), None]
