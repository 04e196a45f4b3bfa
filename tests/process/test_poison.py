"""Innocents beside a dozen kinds of killers, in the real worker command: no other job is charged for a killer.

Judged from outside: by the starts that the handlers counted before they did anything (`poison.py`), and by the store. A
worker that a killer took down altogether, supervisor and all, is started again, as an init system would.
"""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forebay import Job, State
from tests.process.site import Site

APP = "tests.process.poison:fb"
STARTS = ".starts"
MAX_SEQ = 65_535
KILLERS = (
    "exits",
    "segfaults",
    "starves",
    "stalls",
    "raises_exit",
    "raises_base",
    "closes_files",
    "kills_parent",
    "ignores_sigterm",
    "overflows",
    "returns_too_much",
    "leaves_a_child",
)
HOPELESS = "returns_too_much"
ISOLATED = ("closes_files", "ignores_sigterm")
"""No retry can help it: it may be given up at its first attempt."""

ATTEMPTS = 3
PATIENCE = 150.0


@pytest.fixture(params=("sqlite", "postgres", "redis"))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    kept = request.param
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if kept == "sqlite" else request.getfixturevalue(f"{kept}_url")
    site = Site(tmp_path, url)
    starts_of(site).write_bytes(bytes(MAX_SEQ + 1))
    try:
        yield site
    finally:
        children = {int(child.name.rpartition("-")[2]) for child in tmp_path.glob("effects.child-*")}
        for pid in children | stalled(site):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        site.close()


def stalled(site: Site) -> set[int]:
    """Where the interpreter was held. If another killer took the supervisor, nothing ends such a process."""
    jobs = {job.id for job in site.jobs() if job.kind == "stalls"}
    return {line.pid for line in site.lines("start") if line.job in jobs}


def starts_of(site: Site) -> Path:
    """Where handlers count their starts, a byte for each seq."""
    return Path(f"{site.effects}{STARTS}")


def worker(site: Site) -> subprocess.Popen[bytes]:
    words = "--processes 2 --concurrency 8 --visibility-timeout 2 --drain-timeout 10"
    return site.run("-m", "forebay", "worker", APP, *words.split())


def send(site: Site, innocents: int, killers: tuple[str, ...], pause: float = 0.01) -> dict[int, str]:
    """Innocents around each killer; the kinds of the killers by seq."""
    sent: dict[int, str] = {}
    share = max(1, innocents // (2 * (len(killers) or 1)))
    for killer in killers or ("",):
        site.enqueue("quick", share, max_attempts=ATTEMPTS, pause=pause)
        if killer:
            site.enqueue(killer, max_attempts=ATTEMPTS)
            sent[len(site.ids)] = killer
        site.enqueue("plain", share, max_attempts=ATTEMPTS, pause=pause)
    return sent


def work_off(site: Site) -> float:
    """Until nothing is left; the seconds that it took."""
    began, running = time.monotonic(), worker(site)

    def through() -> bool:
        nonlocal running
        if running.poll() is not None:
            running = worker(site)
        return site.store.backlog(["default"])[0].depth == 0

    site.until(through, "all ended", PATIENCE)
    took = time.monotonic() - began
    site.end(running)
    return took


def reported(job: Job, starts: int) -> str:
    errors = "; ".join(f"{each.attempt}: {each.kind} {each.message:.60}" for each in job.errors)
    return f"{job.kind} {job.id} {job.state} attempt {job.attempt} delivery {job.delivery} starts {starts} ({errors})"


def judge(site: Site, killers: dict[int, str]) -> None:
    jobs: dict[int, Job] = {job.id: job for job in site.jobs()}
    starts = starts_of(site).read_bytes()
    fences = Counter((line.job, line.delivery) for line in site.lines("start"))
    assert not [fence for fence, count in fences.items() if count > 1], "one fence began twice"
    harmed, charged, wrong = [], [], []
    for seq, job_id in enumerate(site.ids, 1):
        job, began = jobs[job_id], starts[seq]
        if seq in killers:
            due = range(1, ATTEMPTS + 1) if job.kind == HOPELESS else [ATTEMPTS]
            # The worker marks an isolated job as begun before its child process has it: if the worker dies between the
            # two, the attempt is charged, because a job of one attempt must never start twice.
            unseen = sum(error.abandoned for error in job.errors) if job.kind in ISOLATED else 0
            if job.state is not State.DEAD or job.attempt not in due or began < job.attempt - unseen:
                wrong.append(reported(job, began))
        else:
            if job.state is not State.DONE:
                harmed.append(reported(job, began))
            if job.attempt > began:
                charged.append(reported(job, began))
    found = {
        "innocents that are not done": harmed,
        "innocents with more attempts than starts": charged,
        f"killers that are not dead after {ATTEMPTS} attempts": wrong,
    }
    assert not any(found.values()), "\n".join(f"{what}: {each}" for what, some in found.items() for each in some)


@pytest.mark.timeout(240)
def test_killers_die_of_their_own_attempts_and_innocents_live(site: Site) -> None:
    killers = send(site, 96, KILLERS)
    work_off(site)
    judge(site, killers)


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("number", range(20))
def test_two_thousand_innocents_and_every_killer(site: Site, number: int) -> None:
    """All done within three times the time that the innocents take by themselves."""
    send(site, 2_000, (), pause=0.1)
    alone = work_off(site)
    killers = send(site, 2_000, KILLERS if number % 2 else KILLERS[::-1], pause=0.1)
    beside = work_off(site)
    judge(site, killers)
    assert beside <= 3 * alone, f"{beside:.1f} s with killers, {alone:.1f} s without"
