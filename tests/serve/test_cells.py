"""One server over several cells: jobs, timelines, rates, counters and events of all of them, also while one is down."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.core.errors import StoreFailed
from forebay.core.instant import minutes
from forebay.core.job import Draft
from forebay.core.outcome import DeadLetter, Failure
from forebay.core.policy import Bounded
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.serve.dashboard.views.rates import RateTracker
from forebay.serve.dashboard.views.timeline import timeline_of, timeline_of_gone, was_given
from forebay.serve.metrics import history
from forebay.serve.metrics.server_metrics import Metrics
from forebay.serve.recent_runs import RecentRuns
from forebay.store.cells.ids import cell_of
from forebay.store.protocol import Want
from tests.serve.site import Serving
from tests.serve.visitor import visitor
from tests.stores import openers
from tests.stores.breakable_cells import QUEUES, Fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.store.close()


def test_the_pages_and_the_api_show_jobs_of_all_cells(tmp_path: Path, serve_on: Serving) -> None:
    store = openers.cells(2, tmp_path)(None)
    queues = ["default", "mail", "media", "orders", "reports"]
    ids = [receipt.id for receipt in store.enqueue([Draft("work", queue=queue) for queue in queues])]
    assert {cell_of(job_id) for job_id in ids} == {0, 1}
    dead = store.claim([Want(queue, 1) for queue in queues[:2]], "w", minutes(5))
    store.settle([(lease, DeadLetter(Failure("Boom", "it broke"))) for lease in dead])
    ended = {lease.job.id for lease in dead}
    site = serve_on(store)
    with site.client(Role.ADMIN) as client:
        for job_id in ids:
            assert client.get(f"/jobs/{job_id}").json()["id"] == job_id
            sentences = client.get(f"/jobs/{job_id}/explain").json()["sentences"]
            assert f"it is in cell c{cell_of(job_id)}" in sentences
        homes = {each["name"]: each["cells"] for each in client.get("/queues").json()["queues"]}
        assert homes == {queue: [f"c{cell_of(job_id)}"] for queue, job_id in zip(queues, ids, strict=True)}
        assert client.get("/queues/mail").json()["cells"] == homes["mail"]
        metrics = client.get("/metrics").text
        assert all(f'queue="{queue}"' in metrics for queue in queues)
        for cell in ("c0", "c1"):
            jobs = sum(cell_of(job_id) == int(cell[1]) and job_id not in ended for job_id in ids)
            assert f'forebay_cell_up{{cell="{cell}"}} 1' in metrics
            assert f'forebay_cell_jobs{{cell="{cell}",state="ready"}} {jobs}' in metrics
        assert client.get("/ready").json()["status"] == "ready"
    with visitor(site, Role.ADMIN) as admin:
        for page in ("/ui/", "/ui/jobs", "/ui/dead", "/ui/queues/mail", *(f"/ui/jobs/{job_id}" for job_id in ids)):
            assert admin.client.get(page).status_code == 200, page
        for queue, job_id in zip(queues, ids, strict=True):
            assert f"It is in cell c{cell_of(job_id)}." in admin.client.get(f"/ui/jobs/{job_id}").text
            assert f"It is in cell c{cell_of(job_id)}." in admin.client.get(f"/ui/queues/{queue}").text
    with site.client(Role.VIEWER, tenant="acme") as tenant:
        (own,) = store.enqueue([Draft("work", queue="mail", tenant="acme")])
        assert not any("cell" in each for each in tenant.get(f"/jobs/{own.id}/explain").json()["sentences"])
    store.close()


def test_each_draft_of_a_batch_has_its_own_answer_while_a_cell_is_down(fleet: Fleet, serve_on: Serving) -> None:
    site = serve_on(fleet.store)
    fleet.store.put_spec(QueueSpec(name="a-small", capacity=Bounded(1)))
    fleet.stop("b")
    lines = [{"kind": "work", "queue": queue} for queue in ("b-jobs", "a-jobs", "a-small", "a-small", "b-jobs")]
    with site.client(Role.ADMIN) as client:
        content = "\n".join(json.dumps(line) for line in lines)
        answer = client.post("/jobs/batch", content=content, headers={"content-type": "application/x-ndjson"})
        results = [json.loads(line) for line in answer.text.splitlines()]
        refused = {each["line"]: each["problem"]["type"] for each in results if "problem" in each}
        down = "urn:forebay:store-unavailable"
        assert refused == {1: down, 4: "urn:forebay:queue-full", 5: down}, results
        assert [each["accepted"] for each in results if "accepted" in each] == [2], results
        assert client.post("/jobs", json=lines[0]).status_code == 503
        assert client.post("/jobs", json=lines[1]).status_code == 202
    assert [backlog.depth for backlog in fleet.store.backlog(["a-jobs", "a-small"])] == [2, 1]


def test_single_drafts_that_share_a_call_have_their_own_answers_while_a_cell_is_down(
    fleet: Fleet, serve_on: Serving
) -> None:
    site = serve_on(fleet.store)
    fleet.stop("b")

    async def post() -> list[int]:
        async with httpx.AsyncClient(
            base_url=site.url, headers={"authorization": f"Bearer {site.key(Role.ADMIN)}"}
        ) as client:
            posts = [client.post("/jobs", json={"kind": "work", "queue": QUEUES["ab"[n % 2]]}) for n in range(40)]
            return [answer.status_code for answer in await asyncio.gather(*posts)]

    assert asyncio.run(post()) == [202, 503] * 20
    assert fleet.store.backlog(["a-jobs"])[0].depth == 20


def test_rates_timelines_counters_and_runs_are_those_of_all_cells(fleet: Fleet) -> None:
    ids = [*fleet.work("a", 3), *fleet.work("b", 2)]
    tracker = RateTracker(fleet.store)
    tracker.refresh()
    assert tracker.known
    assert tracker.busy() == {"a-jobs": 6, "b-jobs": 4}
    runs = RecentRuns().refresh(fleet.store)
    assert {queue: count for queue, (count, _) in runs.ran.items()} == {"a-jobs": 3, "b-jobs": 2}
    for job_id in ids:
        timeline = timeline_of_gone(fleet.store, job_id)
        assert timeline is not None
        assert timeline.queue == QUEUES["ab"[cell_of(job_id)]]
        assert [moment.change for moment in timeline.moments] == ["accepted", "claimed", "acked"]
        assert was_given(fleet.store, job_id)
        assert not was_given(fleet.store, job_id + 1_000)
    for receipt in fleet.store.enqueue([Draft("work", queue=queue) for queue in QUEUES.values()]):
        (job,) = fleet.store.get([receipt.id])
        assert job is not None
        assert [moment.change for moment in timeline_of(fleet.store, job).moments] == ["accepted"]


def test_a_dead_cell_holds_up_no_counter_and_is_counted_when_it_is_back(fleet: Fleet) -> None:
    metrics = Metrics(fleet.store, whole=True)
    tracker = RateTracker(fleet.store)
    fleet.work("a", 1)
    fleet.work("b", 1)

    def counted() -> dict[str, float]:
        for follower in metrics.followers.values():
            with suppress(StoreFailed):
                follower.step()
        return {
            labels["queue"]: value
            for family in metrics.families()
            if family.name == "forebay_jobs_acked_total"
            for labels, value in ((dict(pairs), value) for pairs, value in family.samples)
        }

    assert counted() == {"a-jobs": 1, "b-jobs": 1}
    fleet.work("b", 1)
    fleet.stop("b")
    fleet.work("a", 2)
    assert counted() == {"a-jobs": 3, "b-jobs": 1}
    tracker.refresh()
    assert tracker.busy() == {"a-jobs": 6}
    fleet.start("b")
    assert counted() == {"a-jobs": 3, "b-jobs": 2}
    tracker._read()
    assert tracker.busy() == {"a-jobs": 6, "b-jobs": 4}
    position = {name: follower.offset for name, follower in metrics.followers.items()}
    assert position == {name: cell.ledger_extent()[1] for name, cell in fleet.store.cells().items()}


def test_the_history_of_a_day_counts_all_cells_and_waits_for_none_that_is_down(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.work("a", 2)
    fleet.work("b", 3)
    later = fleet.store.now() + history.STEP
    metrics = Metrics(fleet.store)
    for follower in metrics.followers.values():
        follower.step()
    metrics.history.step()
    assert metrics.history.day(later).done == 5
    fleet.stop("b")
    metrics = Metrics(fleet.store)
    metrics.followers["a"].step()
    assert metrics.history.step() < 1.0
    monkeypatch.setattr(metrics.history, "_started", 0.0)
    metrics.history.step()
    assert metrics.history.day(later).done == 2


def test_event_streams_merge_cells_and_name_the_one_that_is_down(fleet: Fleet, serve_on: Serving) -> None:
    site = serve_on(fleet.store)
    fleet.work("a", 1)
    fleet.work("b", 1)
    with site.client(Role.ADMIN) as client:

        def streamed(since: str) -> list[dict[str, Any]]:
            text = client.get("/events", params={"since": since, "follow": "false"}).text
            return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]

        *seen, end = streamed("start")
        assert (len(seen), end["reason"], end["detail"]) == (6, "caught-up", "there are no further events")
        assert len({event["id"] for event in seen}) == 6
        assert [len(streamed(event["id"])) - 1 for event in seen] == [5, 4, 3, 2, 1, 0]
        fleet.work("b", 1)
        fleet.stop("b")
        fleet.work("a", 1)
        *seen, end = streamed(seen[-1]["id"])
        assert {event["queue"] for event in seen} == {"a-jobs"}
        assert end["detail"] == "there are no further events; cells that do not answer: b"
        fleet.start("b")
        *late, _ = streamed(seen[-1]["id"])
        assert [event["queue"] for event in late] == ["b-jobs"] * 3
        assert client.get("/events", params={"since": "41-7"}).status_code == 422
        text = client.get("/metrics").text
        assert 'forebay_ledger_followed{cell="a"} 1' in text


def test_a_stream_that_follows_gets_the_events_of_a_cell_that_is_back(fleet: Fleet, serve_on: Serving) -> None:
    site = serve_on(fleet.store)
    fleet.stop("b")
    with site.client(Role.ADMIN) as client, client.stream("GET", "/events", timeout=30) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("retry")
        fleet.work("a", 1)
        assert [next(line for line in lines if line.startswith("event: ")) for _ in range(3)][-1] == "event: acked"
        fleet.start("b")
        fleet.work("b", 1)
        queues = [json.loads(next(line for line in lines if line.startswith("data: "))[6:])["queue"] for _ in range(4)]
        assert queues == ["a-jobs", "b-jobs", "b-jobs", "b-jobs"]
