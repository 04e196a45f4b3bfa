"""Real workers on a real file, killed, stopped and poisoned: nothing accepted is lost, what started is charged once.

The tests judge by the file of effects and by the store (`site.py`). At the end of every test each process that ever
loaded the app is gone.
"""

import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay import State
from forebay.core.instant import seconds
from forebay.work.isolate import CRASHED
from forebay.work.run import TIMEOUT
from forebay_proof.processes import alive
from tests.process.site import Site
from tests.waiting import PATIENCE

DATABASE = "jobs.db"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, f"sqlite:///{tmp_path / DATABASE}")
    try:
        yield site
    finally:
        site.close()


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another process writes, and takes its time."""
    other = sqlite3.connect(database, isolation_level=None, timeout=30)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def stop_between_writes(process: subprocess.Popen[bytes], database: Path) -> None:
    """A process that is stopped while it writes locks the file for all others."""
    while True:
        process.send_signal(signal.SIGSTOP)
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        other = sqlite3.connect(database, isolation_level=None, timeout=0.3)
        try:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
            return
        except sqlite3.OperationalError:
            process.send_signal(signal.SIGCONT)
        finally:
            other.close()


# Kills


def test_after_a_kill_in_the_middle_of_a_handler_the_job_runs_again_long_before_its_lease_ends(site: Site) -> None:
    fleet = site.fleet(2, lease_for=seconds(20))
    (job_id,) = site.enqueue("stuck_once")
    site.enqueue("plain", 20)
    victim = site.started(1)
    os.kill(victim.pid, signal.SIGKILL)
    killed_at = time.monotonic_ns() // 1_000
    again = site.started(1, attempt=2)
    assert again.pid != victim.pid
    assert (again.at - killed_at) / 1_000_000 < 10, "half a lease"
    site.until_ended()
    assert site.end(fleet) == 0
    jobs = site.audit()
    assert [(job.state, job.attempt) for job in jobs.values() if job.id == job_id] == [(State.DONE, 2)]
    assert site.job(job_id).errors[0].abandoned


def test_idle_workers_are_known_and_one_that_is_killed_gives_way_to_the_next(site: Site) -> None:
    def known() -> set[int]:
        return {worker.pid for worker in site.store.workers("", 10)}

    fleet = site.fleet(2)
    site.until(lambda: len(known()) == 2, "both workers are known while they are idle")
    assert known() == site.workers_of(fleet)
    victim = min(known())
    os.kill(victim, signal.SIGKILL)
    site.until(lambda: victim not in known() and len(known()) == 2, "the next one is known", patience=20)
    assert known() == site.workers_of(fleet)
    assert site.end(fleet) == 0
    assert known() == set()


def test_after_a_kill_between_effect_and_acknowledgement_the_effects_differ_by_their_fence(site: Site) -> None:
    fleet = site.fleet(1, lease_for=seconds(20))
    (stuck,) = site.enqueue("effect_then_stuck")
    site.until(lambda: len(site.lines("effect", 1)) == 1, "the first effect")
    os.kill(site.lines("effect", 1)[0].pid, signal.SIGKILL)
    site.until_ended()
    assert [(line.job, line.delivery) for line in site.lines("effect", 1)] == [(stuck, 1), (stuck, 2)]
    assert site.job(stuck).attempt == 2
    assert site.end(fleet) == 0
    site.audit()


def test_a_handler_that_returned_before_the_kill_is_charged_like_any_that_started(site: Site) -> None:
    """The verdict cannot be written, because another process holds the file; then the worker dies with it."""
    fleet = site.fleet(1, lease_for=seconds(20))
    (job_id,) = site.enqueue("reported_when")
    victim = site.started(1)
    with locked(site.directory / DATABASE):
        site.make("go-1")
        site.until(lambda: len(site.lines("effect", 1)) == 1, "the first effect")
        time.sleep(0.3)
        os.kill(victim.pid, signal.SIGKILL)
        time.sleep(0.3)
    site.started(1, attempt=2)
    assert (site.job(job_id).attempt, site.job(job_id).delivery) == (2, 2)
    site.make("go-2")
    site.until_ended()
    assert site.job(job_id).result == 2
    assert site.end(fleet) == 0
    site.audit()


def test_a_worker_that_was_stopped_past_its_lease_cannot_acknowledge_late(site: Site) -> None:
    first = site.worker(lease_for=seconds(1))
    (job_id,) = site.enqueue("reported_when")
    assert site.started(1).pid == first.pid
    first.send_signal(signal.SIGSTOP)
    second = site.worker(lease_for=seconds(1))
    site.until(lambda: len(site.lines("start", 1)) == 2, "it starts again")
    assert site.lines("start", 1)[1].pid != first.pid
    site.make("go-1")
    first.send_signal(signal.SIGCONT)
    site.until(lambda: len(site.lines("effect", 1)) == 1, "the late effect")
    time.sleep(1.0)
    held = site.job(job_id)
    assert (held.state, held.delivery, held.result_body) == (State.RUNNING, 2, None), "its acknowledgement was refused"
    site.make("go-2")
    site.until_ended()
    done = site.job(job_id)
    assert (done.state, done.attempt, done.result) == (State.DONE, 1, 2), "it is unknown whether it was the cause"
    assert done.errors[0].abandoned
    assert [line.delivery for line in site.lines("effect", 1)] == [1, 2]
    site.enqueue("plain", 5)
    site.until_ended()
    assert site.end(first) == 0, "it runs, and goes on working"
    assert site.end(second) == 0
    site.audit()


def test_a_worker_that_was_stopped_past_its_lease_begins_nothing_that_others_have_by_now(site: Site) -> None:
    first = site.worker("tests.process.quick_app", lease_for=seconds(1))
    site.enqueue("quick", 900)
    site.until(lambda: len(site.lines("effect")) > 150, "it claims ahead of what it runs")
    stop_between_writes(first, site.directory / DATABASE)
    second = site.worker(lease_for=seconds(1))
    site.until_ended()
    before = len(site.lines("start"))
    first.send_signal(signal.SIGCONT)
    site.enqueue("quick", 50)
    site.until_ended()
    assert site.end(first) == 0, "it runs, and goes on working"
    assert site.end(second) == 0
    late = [line for line in site.lines("start")[before:] if line.seq <= 900]
    assert late == [], "every one of these was done by then"
    site.audit()


def test_the_next_worker_takes_back_what_one_without_a_supervisor_held(site: Site) -> None:
    """Long before the leases end: the next worker on the machine finds the start marks of a dead process."""
    first = site.worker(lease_for=seconds(60), concurrency=2)
    stuck, _ = site.enqueue("stuck_once", 2)
    site.until(lambda: len(site.lines("start")) == 2, "both have begun")
    first.kill()
    first.wait()
    assert len(list(site.run_directory.glob("*/worker-*"))) == 1
    second = site.worker(lease_for=seconds(60))
    site.until_ended(20)
    assert (site.job(stuck).attempt, site.job(stuck).errors[0].abandoned) == (2, True)
    assert site.end(second) == 0
    assert list(site.run_directory.glob("*/worker-*")) == [], "nothing is left of either"
    site.audit()


# Signals


def test_a_signal_at_any_moment_drains_and_harms_nothing(site: Site) -> None:
    rng = random.Random(4)
    site.enqueue("quick", 150)
    site.enqueue("plain", 150, pause=0.02)
    for _ in range(4):
        before = len(site.lines("effect"))
        worker = site.worker()
        site.until(lambda before=before: len(site.lines("effect")) >= before + 15, "some work")  # type: ignore[misc]
        time.sleep(rng.uniform(0, 0.1))
        asked_at = time.monotonic_ns() // 1_000
        assert site.end(worker) == 0
        assert [line for line in site.lines("start") if line.at > asked_at + 1_000_000] == [], "nothing starts after it"
        assert site.jobs(State.RUNNING) == []
        open_jobs = site.jobs(State.READY, State.WAITING)
        assert {job.attempt for job in open_jobs} <= {0}, "what was handed back is not charged"
        assert len(open_jobs) + len(site.lines("effect")) == 300
    worker = site.worker()
    site.until_ended()
    assert site.end(worker) == 0
    jobs = site.audit()
    assert Counter(line.seq for line in site.lines("effect")) == Counter(range(1, 301)), (
        "each once, for no process died"
    )
    assert {job.attempt for job in jobs.values()} == {1}


def test_what_does_not_end_in_the_drain_is_for_others_at_once_and_a_second_signal_hurries(site: Site) -> None:
    patient = site.worker(drain_timeout=seconds(600), lease_for=seconds(600))
    (job_id,) = site.enqueue("stuck_once")
    site.started(1)
    patient.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert patient.poll() is None, "it waits for the handler"
    assert site.end(patient) == 0
    back = site.job(job_id)
    assert (back.state, back.attempt, back.errors) == (State.READY, 0, ())
    hurried = site.worker(drain_timeout=seconds(0))
    site.until_ended()
    assert site.end(hurried) == 0
    assert (site.job(job_id).attempt, site.job(job_id).delivery) == (1, 2)
    site.audit()


def test_a_fleet_whose_supervisor_is_killed_drains_by_itself(site: Site) -> None:
    fleet = site.fleet(2, lease_for=seconds(600), drain_timeout=seconds(1))
    ids = site.enqueue("stuck_once", 2)
    children = {site.started(1).pid, site.started(2).pid}
    workers = {line.pid for line in site.lines("boot")} - {fleet.pid}
    assert children <= workers
    fleet.kill()
    fleet.wait(PATIENCE)
    site.until(lambda: not any(alive(pid) for pid in workers), "the children are gone")
    assert [(site.job(job_id).state, site.job(job_id).attempt) for job_id in ids] == [(State.READY, 0)] * 2
    other = site.worker()
    site.until_ended()
    assert site.end(other) == 0
    site.audit()


# Poison


POISON = ("exits", "exits_on_the_loop", "crashes", "raises_exit", "holds_the_interpreter", "hangs", "hungry")


def test_a_worker_that_died_just_before_the_signal_did_not_fail_to_drain(site: Site) -> None:
    fleet = site.fleet(2)
    site.until(lambda: len(site.workers_of(fleet)) == 2, "both workers")
    victim = min(site.workers_of(fleet))
    fleet.send_signal(signal.SIGSTOP)
    os.kill(victim, signal.SIGKILL)
    site.until(lambda: not alive(victim), "it is dead, and its supervisor has not noticed")
    fleet.send_signal(signal.SIGTERM)
    fleet.send_signal(signal.SIGCONT)
    assert fleet.wait(PATIENCE) == 0


def test_poison_dies_of_its_own_and_innocents_live(site: Site) -> None:
    fleet = site.fleet(2, lease_for=seconds(1.5))
    site.enqueue("plain", 20)
    poison = [site.enqueue(kind, max_attempts=2)[0] for kind in POISON]
    site.enqueue("forks", 2)
    site.enqueue("quick", 40)
    site.enqueue("plain", 20)
    site.until_ended(80)
    site.enqueue("quick", 10)
    site.until_ended()
    assert site.end(fleet) == 0
    jobs = site.audit()
    innocents = [job for job in jobs.values() if job.id not in poison]
    assert {job.state for job in innocents} == {State.DONE}
    ended = {site.job(job_id).kind: site.job(job_id).state for job_id in poison}
    assert set(ended.values()) == {State.DEAD}
    deaths = len({line.pid for line in site.lines("boot")}) - 3
    assert deaths <= 2 * len(POISON), "no more workers died than poison had attempts"


def test_a_dead_letter_says_how_its_process_ended(site: Site) -> None:
    fleet = site.fleet(1)
    output = {
        "crashes": "the process died with SIGSEGV while running it",
        "exits": "the process exited with code 13 while running it",
        "kills_itself": "the process was killed (SIGKILL) while running it",
    }
    for kind, message in output.items():
        (job_id,) = site.enqueue(kind, max_attempts=1)
        site.until_ended()
        assert site.job(job_id).errors[-1].message == message
    (thrice,) = site.enqueue("crashes", max_attempts=3)
    site.until_ended()
    assert site.job(thrice).errors[-1].message == f"{output['crashes']} (3 times)"
    assert site.end(fleet) == 0
    site.audit()


def test_a_handler_that_closes_files_that_are_not_its_own_does_not_leave_a_worker_that_does_nothing(site: Site) -> None:
    """Alone in its fleet: the numbers of closed files are given to others, and a store's file could be harmed so."""
    fleet = site.fleet(1)
    (poison,) = site.enqueue("closes_files", max_attempts=2)
    site.until_ended(80)
    site.enqueue("quick", 10)
    site.until_ended()
    assert site.end(fleet) == 0
    jobs = site.audit()
    assert Counter(job.state for job in jobs.values()) == {State.DEAD: 1, State.DONE: 10}
    assert site.job(poison).state is State.DEAD


# Processes of their own


def test_isolated_handlers_cost_their_own_process_and_nothing_else(site: Site) -> None:
    worker = site.worker(concurrency=3)
    site.enqueue("alone", 4)
    bad = [site.enqueue(kind, max_attempts=2)[0] for kind in ("alone_exits", "alone_killed", "alone_raises")]
    (hanging,) = site.enqueue("alone_hangs", max_attempts=1)
    site.enqueue("alone_and_asynchronous", 2)
    site.enqueue("quick", 10)
    site.until_ended(60)
    assert worker.poll() is None
    jobs = site.audit()
    assert Counter(job.state for job in jobs.values()) == {State.DONE: 16, State.DEAD: 4}
    kinds = [site.job(job_id).errors[-1].kind for job_id in (*bad, hanging)]
    assert kinds == [CRASHED, CRASHED, "SystemExit", TIMEOUT]
    assert "SIGKILL" in site.job(bad[1]).errors[-1].message
    assert site.end(worker) == 0


def test_an_isolated_handler_does_not_outlive_its_worker(site: Site) -> None:
    fleet = site.fleet(1, lease_for=seconds(20))
    (job_id,) = site.enqueue("alone_stuck_once")
    orphan = site.started(1).pid
    workers = {line.pid for line in site.lines("boot")} - {fleet.pid, orphan}
    (worker,) = workers
    os.kill(worker, signal.SIGKILL)
    site.until(lambda: not alive(orphan), "the isolated process is gone too")
    site.until_ended()
    assert site.job(job_id).attempt == 2
    assert site.end(fleet) == 0
    site.audit()


# Outages


def test_a_worker_goes_on_when_the_file_is_free_again(site: Site) -> None:
    worker = site.worker()
    site.enqueue("quick", 20)
    site.until_ended()
    with locked(site.directory / DATABASE):
        time.sleep(2.5)
    site.enqueue("quick", 20)
    site.enqueue("plain", 20)
    site.until(lambda: len(site.lines("start")) > 30, "work again")
    with locked(site.directory / DATABASE):
        time.sleep(2.5)
    site.until_ended()
    assert worker.poll() is None
    assert site.end(worker) == 0
    jobs = site.audit()
    assert {job.state for job in jobs.values()} == {State.DONE}
    assert len({line.pid for line in site.lines("boot")}) == 1
