"""Jobs over HTTP: accepted, refused and shown as docs/guides/http.md says."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest

from forebay.core.instant import days
from forebay.core.job import Draft, State
from forebay.core.outcome import Ack, Failure, Retry
from forebay.core.policy import Bounded, KeepFor, LatestWins
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.serve.settings import ServeSettings
from forebay.store.protocol import Query, Store, Want
from tests.serve.site import Serving, Site

LEASE = timedelta(seconds=30)


def done(store: Store, queue: str, result: bytes | None = None) -> None:
    """Work off the next job of a queue."""
    [lease] = store.claim([Want(queue, 1)], "test", LEASE)
    store.settle([(lease, Ack(result))])


def problem(answer: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    """The problem that an answer is; it must be one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    response: dict[str, Any] = answer.json()
    assert (response["type"], response["status"]) == (f"urn:forebay:{slug}", status)
    return response


def test_a_job_is_accepted_and_can_be_read_back(site: Site) -> None:
    client = site.client(Role.PRODUCER)
    answer = client.post("/jobs", json={"kind": "mail", "payload": {"to": "ada"}})
    assert answer.status_code == 202, answer.text
    response = answer.json()
    assert response == {
        "job_id": response["job_id"],
        "status": "accepted",
        "duplicate": False,
        "merged": False,
        "durable": False,
    }
    job = client.get(f"/jobs/{response['job_id']}").json()
    assert (job["kind"], job["payload"], job["state"]) == ("mail", {"to": "ada"}, "ready")


def test_everything_that_a_draft_says_can_be_said(site: Site) -> None:
    body = {
        "kind": "mail",
        "payload": [1, None, {"a": "é"}],
        "queue": "post",
        "priority": -3,
        "run_at": "2100-01-02T03:04:05+01:00",
        "deadline": "2100-01-02T04:00:00Z",
        "expires_at": "2100-01-03T00:00:00Z",
        "key": "k",
        "tenant": "acme",
        "subject": "order 7",
        "max_attempts": 3,
        "meta": {"trace": "t"},
    }
    client = site.client(Role.PRODUCER)
    job = client.get(f"/jobs/{client.post('/jobs', json=body).json()['job_id']}").json()
    assert job | {"due_at": "2100-01-02T02:04:05Z", "state": "waiting"} == job
    same = ("kind", "payload", "queue", "priority", "key", "tenant", "subject", "max_attempts", "meta", "deadline")
    assert {name: job[name] for name in same} == {name: body[name] for name in same}
    later = client.post("/jobs", json={"kind": "mail", "delay": 3600}).json()["job_id"]
    assert client.get(f"/jobs/{later}").json()["state"] == "waiting"


def test_a_duplicate_is_answered_with_the_first_job_and_its_result(site: Site, store: Store) -> None:
    store.put_spec(QueueSpec(name="keep", retention=KeepFor(days(1))))
    client = site.client(Role.PRODUCER)
    body = {"kind": "sum", "payload": {"a": 1}, "queue": "keep", "key": "k"}
    first = client.post("/jobs", json=body).json()["job_id"]
    response = problem(client.post("/jobs", json=body), 409, "duplicate")
    assert (response["job_id"], response["duplicate"], response["state"], response["result"]) == (
        first,
        True,
        "ready",
        None,
    )
    assert response["job"]["payload"] == {"a": 1}
    done(store, "keep", b'{"sum":1}')
    response = problem(client.post("/jobs", json=body), 409, "duplicate")
    assert (response["state"], response["result"], response["job"]["result"]) == ("done", {"sum": 1}, {"sum": 1})
    assert len(store.browse(Query(queue="keep"), 0, 10).jobs) == 1


def test_a_duplicate_of_a_job_that_is_gone_is_still_one(site: Site, store: Store) -> None:
    client = site.client(Role.PRODUCER)
    body = {"kind": "sum", "key": "k"}
    first = client.post("/jobs", json=body).json()["job_id"]
    done(store, "default")
    response = problem(client.post("/jobs", json=body), 409, "duplicate")
    assert (response["job_id"], response["state"], response["job"]) == (first, "gone", None)


def test_a_key_with_another_payload_is_refused(site: Site) -> None:
    client = site.client(Role.PRODUCER)
    assert client.post("/jobs", json={"kind": "a", "key": "k", "payload": 1}).status_code == 202
    response = problem(client.post("/jobs", json={"kind": "a", "key": "k", "payload": 2}), 422, "key-conflict")
    assert response["key"] == "k"


def test_the_header_is_the_key(site: Site, store: Store) -> None:
    client = site.client(Role.PRODUCER)
    headers = {"Idempotency-Key": "from-header"}
    first = client.post("/jobs", json={"kind": "a"}, headers=headers)
    assert first.status_code == 202
    assert client.post("/jobs", json={"kind": "a"}, headers=headers).status_code == 409
    assert client.post("/jobs", json={"kind": "a", "key": "from-header"}, headers=headers).status_code == 409
    response = problem(client.post("/jobs", json={"kind": "a", "key": "other"}, headers=headers), 422, "invalid")
    assert response["field"] == "key"
    assert [job.key for job in store.browse(Query(), 0, 10).jobs] == ["from-header"]


def test_a_full_queue_says_when_to_come_back_and_takes_no_more(site: Site, store: Store) -> None:
    store.put_spec(QueueSpec(name="small", capacity=Bounded(2)))
    client = site.client(Role.PRODUCER)
    answers = [client.post("/jobs", json={"kind": "a", "queue": "small"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 503]
    response = problem(answers[2], 503, "queue-full")
    assert int(answers[2].headers["retry-after"]) == response["retry_after"] >= 1
    assert (response["queue"], response["limit"]) == ("small", 2)
    done(store, "small")
    assert client.post("/jobs", json={"kind": "a", "queue": "small"}).status_code == 202


REFUSED: list[tuple[Any, str]] = [
    ({}, "body"),
    ({"kind": 7}, "kind"),
    ({"kind": "no spaces"}, "kind"),
    ({"kind": "a", "queue": ""}, "queue"),
    ({"kind": "a", "priority": "high"}, "priority"),
    ({"kind": "a", "priority": 2**40}, "priority"),
    ({"kind": "a", "delay": -1}, "delay"),
    ({"kind": "a", "run_at": "2030-01-01T00:00:00"}, "run_at"),
    ({"kind": "a", "run_at": "2030-01-01T00:00:00Z", "delay": 1}, "run_at"),
    ({"kind": "a", "run_at": "2300-01-01T00:00:00Z"}, "run_at"),
    ({"kind": "a", "max_attempts": 0}, "max_attempts"),
    ({"kind": "a", "meta": {"no name": "x"}}, "meta"),
    ({"kind": "a", "key": "nul \u0000"}, "key"),
    ({"kind": "a", "payload": 10**30}, "payload at $"),
    ({"kind": "a", "paylod": 1}, "body"),
    ([], "body"),
]


def test_a_value_that_is_refused_names_its_field(site: Site, store: Store) -> None:
    client = site.client(Role.PRODUCER)
    for body, field in REFUSED:
        response = problem(client.post("/jobs", json=body), 422, "payload" if "$" in field else "invalid")
        assert response["field"] == field, body
    assert not store.browse(Query(), 0, 10).jobs


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/jobs", b'{"kind": "a"', 400, "truncated; send one JSON value"),
        ("POST", "/jobs", b'{"kind": "a" x}', 400, "(byte 13)"),
        ("POST", "/jobs", b'{"kind": "a b"}', 422, "kind: a name has 1 to 128 of A-Z a-z 0-9 _ . : -"),
        ("GET", "/queues/a%20b", b"", 422, "name: a name has 1 to 128"),
        ("GET", "/jobs?payload=abc", b"", 422, "payload[0]: write a condition such as customer.id=7"),
        ("GET", "/events?since=x", b"", 422, "since: give the id of an event, an offset, or start"),
        ("GET", "/nowhere", b"", 404, "/openapi.json"),
        ("DELETE", "/jobs", b"", 405, "use "),
    ],
)
def test_a_refusal_names_the_field_and_the_way_out(
    site: Site, method: str, path: str, body: bytes, status: int, words: str
) -> None:
    answer = site.client(Role.ADMIN).request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert words in answer.json()["detail"]


def test_what_is_no_json_is_refused_by_its_kind(site: Site) -> None:
    client = site.client(Role.PRODUCER)
    sent = {"Content-Type": "application/json"}
    problem(client.post("/jobs", content=b"{", headers=sent), 400, "not-json")
    problem(client.post("/jobs", content=b"\xff\xfe", headers=sent), 400, "not-json")
    for depth in (65, 5_000, 100_000):
        deep = b'{"kind": "a", "payload": ' + b"[" * depth + b"]" * depth + b"}"
        assert client.post("/jobs", content=deep, headers=sent).status_code in (400, 422)
    for media in ("text/plain", "application/x-www-form-urlencoded", "application/x-ndjson", ""):
        problem(client.post("/jobs", content=b'{"kind": "a"}', headers={"Content-Type": media}), 415, "media-type")
    loud = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert client.post("/jobs", content=b'{"kind": "a"}', headers=loud).status_code == 202


def test_sizes_are_bounded(store: Store, serve_on: Serving) -> None:
    site = serve_on(store, ServeSettings(port=0, max_body=400_000))
    client = site.client(Role.PRODUCER)
    response = problem(client.post("/jobs", json={"kind": "a", "payload": "x" * 300_000}), 422, "payload")
    assert "262144" in response["detail"]
    assert client.post("/jobs", json={"kind": "a", "payload": "x" * 500_000}).status_code == 413
    chunks = (b" " * 10_000 for _ in range(100))
    assert client.post("/jobs", content=chunks, headers={"Content-Type": "application/json"}).status_code == 413


def test_tenants_that_share_a_queue_share_neither_keys_nor_sight(site: Site) -> None:
    ada, bob = (site.client(Role.PRODUCER, tenant=name) for name in ("ada", "bob"))
    body = {"kind": "a", "key": "same", "payload": 1}
    mine = ada.post("/jobs", json=body).json()["job_id"]
    assert bob.post("/jobs", json=body | {"payload": 2}).status_code == 202
    assert ada.post("/jobs", json=body).json()["job_id"] == mine
    assert ada.get(f"/jobs/{mine}").json()["tenant"] == "ada"
    assert problem(ada.post("/jobs", json=body | {"tenant": "bob"}), 422, "invalid")["field"] == "tenant"
    foreign, never = bob.get(f"/jobs/{mine}"), bob.get("/jobs/999999")
    assert foreign.status_code == never.status_code == 404
    assert foreign.text == never.text.replace("999999", str(mine))
    assert bob.post(f"/jobs/{mine}/cancel").status_code == 404


def test_queues_of_others_do_not_exist(site: Site, store: Store) -> None:
    store.enqueue([Draft("a", queue="foreign")])
    client = site.client(Role.PRODUCER, Role.VIEWER, queues=("mine.*",))
    assert client.post("/jobs", json={"kind": "a", "queue": "mine.1"}).status_code == 202
    problem(client.post("/jobs", json={"kind": "a", "queue": "foreign"}), 404, "not-found")
    assert [job["queue"] for job in client.get("/jobs").json()["jobs"]] == ["mine.1"]
    assert client.get("/jobs?queue=foreign").json() == {"jobs": [], "next": None}
    assert client.get("/jobs/1").status_code == 404
    problem(site.client().post("/jobs", json={"kind": "a", "queue": "forebay.keys"}), 404, "not-found")


def test_pages_go_on_where_the_last_one_ended(site: Site) -> None:
    client = site.client()
    for number in range(5):
        client.post("/jobs", json={"kind": "odd" if number % 2 else "even", "subject": f"s{number}"})
    seen, after = [], 0
    while after >= 0:
        page = client.get("/jobs", params={"after": after, "limit": 2}).json()
        seen += [job["id"] for job in page["jobs"]]
        after = -1 if page["next"] is None else page["next"]
    assert len(seen) == len(set(seen)) == 5
    assert seen == sorted(seen)
    assert [job["kind"] for job in client.get("/jobs?kind=odd").json()["jobs"]] == ["odd", "odd"]
    assert [job["subject"] for job in client.get("/jobs?subject=s3").json()["jobs"]] == ["s3"]
    assert client.get("/jobs?state=dead").json()["jobs"] == []
    assert problem(client.get("/jobs?state=lost"), 422, "invalid")["field"] == "state"
    assert problem(client.get("/jobs?limit=1001"), 422, "invalid")["field"] == "limit"


def test_viewers_see_no_secrets_and_producers_do(site: Site) -> None:
    body = {"kind": "login", "payload": {"user": "ada", "password": "correct horse"}}
    job = site.client(Role.PRODUCER).post("/jobs", json=body).json()["job_id"]
    assert site.client(Role.PRODUCER).get(f"/jobs/{job}").json()["payload"] == body["payload"]
    assert site.client(Role.VIEWER).get(f"/jobs/{job}").json()["payload"] == {"user": "ada", "password": "***"}
    assert "correct" not in site.client(Role.OPERATOR).get("/jobs").text


def test_waiting_for_a_job_ends_with_it(site: Site, store: Store) -> None:
    store.put_spec(QueueSpec(name="keep", retention=KeepFor(days(1))))
    client = site.client(Role.PRODUCER)
    job = client.post("/jobs", json={"kind": "a", "queue": "keep"}).json()["job_id"]
    assert client.get(f"/jobs/{job}?wait=0.05").json()["state"] == "ready"
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(client.get, f"/jobs/{job}?wait=20") for _ in range(3)]
        while site.context.job_polls.watchers < 3:
            assert not any(answer.done() for answer in answers)
        done(store, "keep", b"7")
        response = [answer.result(10).json() for answer in answers]
    assert [(each["state"], each["result"]) for each in response] == [("done", 7)] * 3
    assert client.get(f"/jobs/{job}?wait=20").json()["state"] == "done"


def test_waiting_for_a_job_that_leaves_nothing_says_so(site: Site, store: Store) -> None:
    client = site.client(Role.PRODUCER)
    job = client.post("/jobs", json={"kind": "a"}).json()["job_id"]
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(client.get, f"/jobs/{job}?wait=20")
        while not site.context.job_polls.watchers:
            assert not answer.done()
        done(store, "default")
        problem(answer.result(10), 410, "gone")
    problem(client.get(f"/jobs/{job}"), 404, "not-found")


def test_cancel_and_explain(site: Site, store: Store) -> None:
    client = site.client(Role.PRODUCER)
    job = client.post("/jobs", json={"kind": "a"}).json()["job_id"]
    assert any("is ready" in sentence for sentence in client.get(f"/jobs/{job}/explain").json()["sentences"])
    assert client.post(f"/jobs/{job}/cancel").json() == {"job_id": job, "answer": "cancelled"}
    assert store.get([job]) == [None] or store.get([job])[0].state is State.CANCELLED  # type: ignore[union-attr]
    problem(client.post("/jobs/999/cancel"), 404, "not-found")
    problem(client.get("/jobs/999/explain"), 404, "not-found")
    assert problem(client.get("/jobs/x"), 422, "invalid")["field"] == "job_id"


def test_explain_shows_no_secrets_and_nothing_of_other_tenants(site: Site, store: Store) -> None:
    store.enqueue([Draft("login", {"password": "hunter22"}, tenant="ada"), Draft("a", tenant="bob")])
    [lease] = store.claim([Want("default", 1)], "test", LEASE)
    store.settle([(lease, Retry(0, Failure("Denied", "hunter22 is wrong")))])
    store.promote(10)
    clients = (site.client(Role.VIEWER), site.client(Role.PRODUCER, tenant="ada"))
    response = [client.get(f"/jobs/{lease.job.id}/explain").text for client in clients]
    assert "hunter22" not in response[0]
    assert "ready in the queue: 2 jobs" in response[0]
    assert "hunter22" in response[1]
    assert "ready in the queue" not in response[1]


def test_a_merged_job_is_said_to_be_one(site: Site, store: Store) -> None:
    store.put_spec(QueueSpec(name="latest", merge=LatestWins()))
    client = site.client(Role.PRODUCER)
    body = {"kind": "a", "queue": "latest", "subject": "s", "delay": 60}
    first = client.post("/jobs", json=body).json()
    second = client.post("/jobs", json=body | {"payload": 2}).json()
    assert second == first | {"merged": True}


def test_an_unknown_answer_is_a_problem_too(site: Site) -> None:
    client = site.client()
    problem(client.get("/nowhere"), 404, "not-found")
    problem(client.delete("/jobs"), 405, "method-not-allowed")
    problem(httpx.get(f"{site.url}/jobs", trust_env=False), 401, "unauthorized")
    problem(site.client(Role.VIEWER).post("/jobs", json={"kind": "a"}), 403, "forbidden")


def test_an_unexpected_error_shows_nothing_of_the_inside(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret of the inside")

    monkeypatch.setattr(site.store, "get", broken)
    monkeypatch.setattr(site.store, "enqueue", broken)
    client = site.client()
    for answer in (client.get("/jobs/1"), client.post("/jobs", json={"kind": "a"})):
        response = problem(answer, 500, "internal-error")
        assert response["reference"] in response["detail"]
        assert "secret" not in answer.text
        assert "ZeroDivision" not in answer.text


def test_the_document_lists_every_route(site: Site) -> None:
    response = httpx.get(f"{site.url}/openapi.json", trust_env=False).json()
    assert json.dumps(response)
    routes = {(method.upper(), path) for path, methods in response["paths"].items() for method in methods}
    assert {("POST", "/jobs"), ("POST", "/jobs/batch"), ("POST", "/claim"), ("PUT", "/queues/{name}")} <= routes
    for path, methods in response["paths"].items():
        for method, about in methods.items():
            assert about.get("description") or about.get("summary"), (method, path)
