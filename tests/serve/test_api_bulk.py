"""Actions of operators over HTTP that move many jobs, or that race: requeue, purge, cancel by a filter, run now."""

from collections.abc import Sequence
from datetime import timedelta

from forebay.core.job import Draft, State
from forebay.core.outcome import Ack, DeadLetter, Failure, Verdict
from forebay.serve.actor import Role
from forebay.serve.security.operator_log import read_actions
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Query, Store, Want
from tests.serve.site import Serving, Site
from tests.serve.test_api_jobs import problem
from tests.serve.test_api_queues import died


class Raced(MemoryStore):
    """Another client redrives each dead letter first, at the last moment."""

    rivals = 1

    def redrive(self, ids: Sequence[int]) -> list[int]:
        if self.rivals:
            self.rivals -= 1
            super().redrive(ids)
            self.after()
        return super().redrive(ids)

    def purge_dead(self, ids: Sequence[int]) -> list[int]:
        super().redrive(ids)
        return super().purge_dead(ids)

    def after(self) -> None:
        """What happens before our own call arrives."""


def test_a_requeue_that_comes_second_says_what_the_job_is_now(serve_on: Serving) -> None:
    store = Raced()
    (job_id,) = died(store, 1)
    client = serve_on(store).client(Role.OPERATOR)
    response = problem(client.post(f"/dlq/{job_id}/requeue"), 409, "not-dead")
    assert response["detail"] == f"job {job_id} is ready"
    (job_id,) = died(store, 1)
    response = problem(client.delete(f"/dlq/{job_id}"), 409, "not-dead")
    assert response["detail"] == f"job {job_id} is ready"


def test_a_requeue_moves_a_job_that_died_again_and_says_when_it_is_gone(serve_on: Serving) -> None:
    store = Raced()
    client = serve_on(store).client(Role.OPERATOR)

    def end(verdict: Verdict) -> None:
        (lease,) = store.claim([Want("mail", 1)], "rival", timedelta(minutes=1))
        store.settle([(lease, verdict)])

    (job_id,) = died(store, 1)
    store.after = lambda: end(DeadLetter(Failure("Again", "")))  # type: ignore[method-assign]
    assert client.post(f"/dlq/{job_id}/requeue").json() == {"job_id": job_id, "status": "requeued"}
    end(DeadLetter(Failure("Again", "")))
    store.rivals = 1
    store.after = lambda: end(Ack())  # type: ignore[method-assign]
    response = problem(client.post(f"/dlq/{job_id}/requeue"), 409, "not-dead")
    assert "done and removed" in response["detail"]


def test_dead_letters_are_purged_by_ids_and_by_filter(any_store: Store, serve_on: Serving) -> None:
    ids = died(any_store, 3) + died(any_store, 3, error="Timeout")
    site = serve_on(any_store)
    client = site.client(Role.OPERATOR)
    dry = client.post("/dlq/purge", json={"where": "TIMEOUT", "dry_run": True}).json()
    assert dry == {"purged": 3, "ids": ids[3:], "scanned": 6, "dry_run": True, "next": None}
    response = client.post("/dlq/purge", json={"where": "timeout", "limit": 2}).json()
    assert (response["ids"], response["next"]) == (ids[3:5], ids[4])
    response = client.post("/dlq/purge", json={"where": "timeout", "after": response["next"]}).json()
    assert (response["ids"], response["next"]) == (ids[5:], None)
    (alive,) = any_store.enqueue([Draft("hello", None, "mail")])
    assert client.post("/dlq/purge", json={"ids": [ids[1], alive.id, ids[1]]}).json()["ids"] == [ids[1]]
    assert client.delete(f"/dlq/{ids[0]}").status_code == 204
    problem(client.delete(f"/dlq/{ids[0]}"), 404, "not-found")
    problem(client.delete(f"/dlq/{alive.id}"), 409, "not-dead")
    early, late = "2001-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
    assert client.post("/dlq/purge", json={"died_before": early}).json()["purged"] == 0
    assert client.post("/dlq/purge", json={"died_before": late, "queue": "mail"}).json()["ids"] == [ids[2]]
    assert any_store.browse(Query(state=State.DEAD), 0, 10).jobs == []
    assert any_store.get([alive.id])[0] is not None
    assert {act.action for act in read_actions(any_store)[0]} == {"dlq purge"}


def test_a_purge_is_named_and_stays_within_reach(site: Site, store: Store) -> None:
    ids = died(store, 2)
    client = site.client(Role.OPERATOR)
    for body in ({}, {"ids": ids, "all": True}, {"ids": ids, "queue": "mail"}, {"queue": "mail", "all": True}):
        problem(client.post("/dlq/purge", json=body), 422, "invalid")
    problem(client.post("/dlq/purge", json={"ids": []}), 422, "invalid")
    foreign = site.client(Role.OPERATOR, queues=("other",))
    problem(foreign.post("/dlq/purge", json={"ids": ids}), 404, "not-found")
    assert foreign.post("/dlq/purge", json={"all": True}).json()["purged"] == 0
    problem(foreign.delete(f"/dlq/{ids[0]}"), 404, "not-found")
    problem(site.client(Role.VIEWER).post("/dlq/purge", json={"all": True}), 403, "forbidden")
    assert client.post("/dlq/purge", json={"all": True}).json()["ids"] == ids


def test_jobs_are_cancelled_by_a_filter(any_store: Store, serve_on: Serving) -> None:
    drafts = [Draft("news", n, "mail") for n in range(5)] + [Draft("bill", 1, "mail"), Draft("news", 9, "media")]
    ids = [receipt.id for receipt in any_store.enqueue(drafts)]
    (held,) = any_store.claim([Want("mail", 1)], "w", timedelta(minutes=1))
    site = serve_on(any_store)
    client = site.client(Role.OPERATOR)
    wish = {"queue": "mail", "kind": "news"}
    dry = client.post("/jobs/cancel", json=wish | {"dry_run": True}).json()
    assert (dry["ids"], dry["cancelled"], dry["dry_run"]) == (ids[:5], 0, True)
    assert all(job is not None and not job.state.terminal for job in any_store.get(ids))
    response = client.post("/jobs/cancel", json=wish | {"limit": 3}).json()
    assert (response["cancelled"], response["requested"], response["gone"], response["next"]) == (2, 1, 0, ids[2])
    response = client.post("/jobs/cancel", json=wish | {"after": response["next"]}).json()
    assert (response["cancelled"], response["ids"], response["next"]) == (2, ids[3:5], None)
    assert client.post("/jobs/cancel", json={"state": "running"}).json()["ids"] == [held.job.id]
    for body in ({}, {"queue": "mail", "all": True}, {"state": "dead"}):
        problem(client.post("/jobs/cancel", json=body), 422, "invalid")
    problem(site.client(Role.PRODUCER).post("/jobs/cancel", json=wish), 403, "forbidden")
    assert site.client(Role.OPERATOR, queues=("other",)).post("/jobs/cancel", json={"all": True}).json()["ids"] == []
    assert set(client.post("/jobs/cancel", json={"all": True}).json()["ids"]) >= {ids[5], ids[6]}
    assert "cancel many 3 jobs" in {f"{act.action} {act.target}" for act in read_actions(any_store)[0]}


def test_a_schedule_is_run_now(site: Site, store: Store) -> None:
    client = site.client(Role.OPERATOR)
    client.put("/cron/nightly", json={"rule": "30 1 * * *", "kind": "report", "payload": {"n": 1}, "paused": True})
    before = store.schedules()
    response = client.post("/cron/nightly/run")
    assert response.status_code == 202
    job = store.get([response.json()["job_id"]])[0]
    assert job is not None
    assert (job.kind, job.payload, job.state) == ("report", {"n": 1}, State.READY)
    assert store.schedules() == before
    problem(client.post("/cron/never/run"), 404, "not-found")
    assert [act.action for act in read_actions(store)[0]] == ["cron run", "cron put"]
