"""A job that holds the GIL is ended before the leases of all others expire, and is charged alone."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay import State
from forebay.core.instant import seconds
from forebay_proof.processes import alive
from tests.process.site import Site
from tests.process.test_quarantine import make_suspects
from tests.process.test_worker import DATABASE, locked

LEASE = seconds(3)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, f"sqlite:///{tmp_path / DATABASE}")
    try:
        yield site
    finally:
        site.close()


@pytest.mark.parametrize("holder", ["holds_the_interpreter", "holds_the_loop_and_the_interpreter"])
def test_the_job_that_holds_the_interpreter_is_charged_alone(each_site: Site, holder: str) -> None:
    """Those beside it wait for the interpreter themselves, in threads and on the loop."""
    site = each_site
    site.enqueue("reported_when", 2)
    site.enqueue("called_on_the_loop", 2)
    fleet = site.fleet(1, lease_for=LEASE)
    site.until(lambda: len(site.lines("start")) == 4, "the others run")
    (killer,) = site.enqueue(holder, max_attempts=1)
    site.until(lambda: site.job(killer).state is State.DEAD, "it is found")
    assert site.job(killer).errors[-1].message.startswith("it held the GIL for ")
    site.make("go-2")
    site.until_ended()
    others = [site.job(job_id) for job_id in site.ids if job_id != killer]
    assert [(job.state, job.attempt, job.delivery, job.errors) for job in others] == [(State.DONE, 1, 2, ())] * 4
    log = site.log.read_text()
    assert "its GIL is held for" in log
    assert f"in {holder}" in log, "the stacks say where"
    assert site.end(fleet) == 0


def test_where_the_holder_is_unknown_no_job_is_charged_and_quarantine_finds_it(site: Site) -> None:
    """One beside it sleeps without the interpreter: from outside there is no difference."""
    site.enqueue("stuck_once", max_attempts=2)
    fleet = site.fleet(1, lease_for=LEASE)
    site.started(1)
    (killer,) = site.enqueue("holds_the_interpreter", max_attempts=2)
    site.until_ended(60)
    sleeper, found = site.job(site.ids[0]), site.job(killer)
    assert (sleeper.state, sleeper.attempt) == (State.DONE, 1)
    assert "by this job or another one of the process" in sleeper.errors[0].message
    assert (found.state, found.attempt, found.delivery) == (State.DEAD, 2, 3)
    assert found.errors[-1].message.startswith("it held the GIL for ")
    assert site.end(fleet) == 0


def test_the_watchdog_does_not_wait_for_the_store(site: Site) -> None:
    """The supervisor is about to take jobs back from another worker while the file is locked, perhaps by this one."""
    fleet = site.fleet(2, lease_for=LEASE)
    site.until(lambda: len(site.workers_of(fleet)) == 2, "both workers")
    site.enqueue("holds_the_interpreter", max_attempts=1)
    held = site.started(1)
    (other,) = site.workers_of(fleet) - {held.pid}
    with locked(site.directory / DATABASE):
        os.kill(other, signal.SIGKILL)
        site.until(lambda: not alive(held.pid), "it is ended while no process can write")
        assert time.monotonic_ns() // 1_000 - held.at < 7_000_000, "it did not end by itself"
    site.until_ended()
    assert site.job(site.ids[0]).errors[-1].message.startswith("it held the GIL for ")
    assert site.end(fleet) == 0


def test_a_suspect_that_holds_its_interpreter_is_ended_in_quarantine(site: Site) -> None:
    (killer,) = make_suspects(site, "holds_the_interpreter")
    worker = site.worker(lease_for=LEASE)
    site.until(lambda: site.job(killer).state is State.DEAD, "it is found")
    assert site.job(killer).errors[-1].message.startswith("it held the GIL for ")
    assert worker.poll() is None
    assert site.end(worker) == 0


def test_a_worker_without_a_supervisor_has_a_watchdog(site: Site) -> None:
    """It ends the worker; the next one reclaims what it held."""

    def lone() -> "subprocess.Popen[bytes]":
        return site.run("-m", "forebay", "worker", "tests.process.apps:fb", "--visibility-timeout", "3")

    site.enqueue("reported_when", 3)
    first = lone()
    site.until(lambda: len(site.lines("start")) == 3, "the others run")
    (killer,) = site.enqueue("holds_the_interpreter", max_attempts=1)
    site.until(lambda: first.poll() is not None, "it is ended")
    assert first.returncode in (-signal.SIGABRT, -signal.SIGKILL)
    second = lone()
    site.until(lambda: site.job(killer).state is State.DEAD, "it is taken back")
    assert site.job(killer).errors[-1].message.startswith("it held the GIL for ")
    site.make("go-2")
    site.until_ended()
    assert {(site.job(job_id).attempt, site.job(job_id).errors) for job_id in site.ids[:3]} == {(1, ())}
    assert "holds_the_interpreter" in site.log.read_text(), "the stacks say where"
    assert site.end(second) == 0
    site.until(lambda: not list(site.run_directory.glob("*/*:*")), "nothing is left")


def test_a_worker_that_is_stopped_is_not_taken_for_one_that_is_held(site: Site) -> None:
    fleet = site.fleet(1, lease_for=LEASE)
    site.enqueue("reported_when")
    worker = site.started(1).pid
    os.kill(worker, signal.SIGSTOP)
    time.sleep(3.5)
    os.kill(worker, signal.SIGCONT)
    time.sleep(0.5)
    assert alive(worker)
    site.make("go-1")
    site.make("go-2")
    site.until_ended()
    assert site.end(fleet) == 0
