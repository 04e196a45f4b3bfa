"""Suspects run in processes of their own, with and without a supervisor, and no other job waits or is charged."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay import State
from forebay.core.instant import seconds
from forebay.core.outcome import ABANDONED, Failure, Retry
from forebay.store.protocol import Want
from forebay_proof.processes import alive
from tests.process.site import Site
from tests.process.test_worker import DATABASE, locked


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, f"sqlite:///{tmp_path / DATABASE}")
    try:
        yield site
    finally:
        site.close()


def make_suspects(site: Site, *kinds: str) -> list[int]:
    """Jobs whose last two holders died: their next attempt is the third."""
    ids = [site.enqueue(kind, max_attempts=3)[0] for kind in kinds]
    for _ in range(2):
        leases = site.store.claim([Want("default", len(ids))], "gone", seconds(10))
        site.store.settle([(lease, Retry(0, Failure(ABANDONED, "gone"), keep_rank=True)) for lease in leases])
    return ids


def test_a_killer_ends_in_quarantine_and_its_worker_goes_on(each_site: Site) -> None:
    site = each_site
    ids = make_suspects(site, "exits", "crashes", "exits_on_the_loop", "kills_itself", "kills_its_parent")
    worker = site.worker()
    site.enqueue("quick", 20)
    site.until_ended()
    assert worker.poll() is None, "nothing of this reached the worker"
    assert [(site.job(job_id).state, site.job(job_id).attempt) for job_id in ids] == [(State.DEAD, 3)] * 5
    output = [site.job(job_id).errors[-1].message for job_id in ids]
    assert output == [
        "the process exited with code 13 while running it",
        "the process died with SIGSEGV while running it",
        "the process exited with code 14 while running it",
        "the process was killed (SIGKILL) while running it",
        "the process was killed (SIGKILL) while running it",
    ]
    assert {line.pid for seq in range(1, 6) for line in site.lines("start", seq)}.isdisjoint({worker.pid})
    assert site.end(worker) == 0


def test_innocent_suspects_of_both_kinds_succeed_in_quarantine(site: Site) -> None:
    make_suspects(site, *["plain", "quick", "counted", "counted_plain", "alone"] * 3)
    worker = site.worker(quarantine_processes=2)
    site.until_ended()
    jobs = site.audit()
    assert {(job.state, job.attempt) for job in jobs.values()} == {(State.DONE, 3)}
    assert {site.job(job_id).result for job_id in site.ids if site.job(job_id).kind == "counted"} == {3}
    pids = {line.pid for line in site.lines("start")}
    assert worker.pid not in pids
    assert len(pids) <= 2, "a process is kept for the next suspect"
    assert site.end(worker) == 0


def test_a_suspect_that_forks_is_answered_for_once(site: Site) -> None:
    """Its copy comes back from the handler too, and first."""
    make_suspects(site, "forks", "forks", "plain")
    worker = site.worker(quarantine_processes=1)
    site.until_ended()
    assert {job.state for job in site.audit().values()} == {State.DONE}
    assert [line.seq for line in site.lines("effect")] == [1, 2, 3]
    assert site.end(worker) == 0


def test_the_pool_does_not_stop_for_suspects(site: Site) -> None:
    """Two suspects take their time, one at each place; another waits. Everybody else goes on meanwhile."""
    make_suspects(site, "reported_when", "reported_when", "reported_when")
    worker = site.worker(concurrency=2, lease_for=seconds(1))
    site.until(lambda: len(site.lines("start")) == 2, "two suspects run")
    others = site.enqueue("quick", 200)
    site.until(lambda: all(job is not None and job.state is State.DONE for job in site.store.get(others)), "others")
    time.sleep(1.5)
    assert len(site.lines("start")) == 202, "the third suspect waits, longer than its lease"
    held = site.jobs(State.RUNNING)
    assert [job.delivery for job in held] == [3, 3, 3], "and was not handed out again"
    site.make("go-3")
    site.until_ended()
    assert {job.attempt for job in site.audit().values() if job.kind == "reported_when"} == {3}
    assert site.end(worker) == 0


def test_the_next_suspect_waits_until_the_verdict_of_the_last_one_is_durable(site: Site) -> None:
    make_suspects(site, "reported_when", "exits")
    worker = site.worker(quarantine_processes=1)
    site.started(1, attempt=3)
    with locked(site.directory / DATABASE):
        site.make("go-3")
        site.until(lambda: len(site.lines("effect", 1)) == 1, "the effect")
        time.sleep(0.5)
        assert site.lines("start", 2) == [], "the first one could still be charged"
    site.until_ended()
    assert (site.job(site.ids[0]).state, site.job(site.ids[1]).state) == (State.DONE, State.DEAD)
    assert site.end(worker) == 0


def test_a_drain_ends_suspects_and_releases_those_that_wait(site: Site) -> None:
    ids = make_suspects(site, "stuck", "stuck", "stuck", "stuck")
    worker = site.worker(quarantine_processes=1, drain_timeout=seconds(0.2))
    victim = site.started(1, attempt=3).pid
    assert site.end(worker) == 0
    site.until(lambda: not alive(victim), "the child is gone too")
    assert [(site.job(job_id).state, site.job(job_id).attempt) for job_id in ids] == [(State.READY, 2)] * 4


def test_a_suspect_whose_worker_is_killed_is_not_to_blame(site: Site) -> None:
    """It ran in a process of its own, with its last attempt; so did one that waited."""
    ids = make_suspects(site, "reported_when", "plain")
    fleet = site.fleet(1, lease_for=seconds(20), quarantine_processes=1)
    child = site.started(1, attempt=3).pid
    (worker,) = {line.pid for line in site.lines("boot") if alive(line.pid)} - {fleet.pid, child}
    os.kill(worker, signal.SIGKILL)
    site.make("go-4")
    site.until_ended()
    first, second = (site.job(job_id) for job_id in ids)
    assert (first.state, first.attempt, first.errors[-1].message) == (
        State.DONE,
        3,
        "its worker ended while it ran in quarantine",
    )
    assert (second.state, second.attempt, len(second.errors)) == (State.DONE, 3, 2)
    assert site.end(fleet) == 0


def test_without_a_supervisor_a_killer_costs_two_workers_and_no_innocent(each_site: Site) -> None:
    """The worker is started again each time, as a service manager does."""
    site = each_site
    innocents = site.enqueue("plain", 12, max_attempts=3, pause=0.3)
    (killer,) = site.enqueue("exits_late", max_attempts=3)
    site.enqueue("plain", 12, max_attempts=3, pause=0.3)
    workers = []
    while not site.job(killer).state.terminal:
        worker = site.worker(lease_for=seconds(30), concurrency=6)
        workers.append(worker)
        site.until(lambda worker=worker: worker.poll() is not None or site.job(killer).state.terminal, "it ends")  # type: ignore[misc]
    site.until_ended()
    assert site.end(workers[-1]) == 0
    assert len(workers) == 3
    jobs = site.audit()
    assert {job.state for job in jobs.values() if job.id != killer} == {State.DONE}
    assert (site.job(killer).attempt, len(site.lines("start", 13))) == (3, 3)
    assert len(innocents) == 12
