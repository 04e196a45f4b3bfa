"""Jobs that are taken back from workers that die or are signalled twice run before a backlog, in real workers.

What counts is how much of the backlog began before them: by the file of effects, not by a clock. At night the backlog
is long, and the time counts as well.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.site import APP, Line, Site

BACKLOG = 600
LONG_BACKLOG = 100_000
VICTIMS = 4


@pytest.fixture(params=("sqlite", "postgres", "redis"))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    kept = request.param
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if kept == "sqlite" else request.getfixturevalue(f"{kept}_url")
    site = Site(tmp_path, url)
    try:
        yield site
    finally:
        site.close()


def fleet(site: Site, processes: int = 1) -> subprocess.Popen[bytes]:
    words = f"--processes {processes} --concurrency {VICTIMS} --visibility-timeout 60 --drain-timeout 60"
    return site.run("-m", "forebay", "worker", f"{APP}:fb", *words.split())


def held(site: Site, backlog: int) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
    """One fleet that is stuck in all its victims, and another that works on what came after them."""
    site.enqueue("stuck_once", VICTIMS)
    first = fleet(site)
    for seq in range(1, VICTIMS + 1):
        site.started(seq)
    for _ in range(0, backlog, BACKLOG):
        site.enqueue("plain", BACKLOG, pause=0.02)
    second = fleet(site)
    site.until(lambda: len(site.lines("start")) > VICTIMS + 20, "the other fleet works")
    return first, second


def killed(site: Site, first: subprocess.Popen[bytes]) -> None:
    os.kill(site.started(1).pid, signal.SIGKILL)


def reported_twice(site: Site, first: subprocess.Popen[bytes]) -> None:
    first.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    first.send_signal(signal.SIGTERM)


def restarts(site: Site) -> list[Line]:
    """The second starts of the victims, and of no other job."""
    found = [line for line in site.lines("start") if line.seq <= VICTIMS and line.delivery > 1]
    return [
        min((line for line in found if line.seq == seq), key=lambda line: line.at) for seq in {f.seq for f in found}
    ]


def passed(site: Site, end: Callable[[Site, subprocess.Popen[bytes]], None], backlog: int) -> tuple[int, float]:
    """How many others began after the end of their worker and before the last victim; and the seconds it took."""
    first, _ = held(site, backlog)
    ended_at = time.monotonic_ns() // 1_000
    end(site, first)
    site.until(lambda: len(restarts(site)) == VICTIMS, "every victim runs again")
    last = max(line.at for line in restarts(site))
    others = [line for line in site.lines("start") if line.seq > VICTIMS and ended_at < line.at < last]
    return len(others), (last - ended_at) / 1_000_000


@pytest.mark.parametrize("end", [killed, reported_twice])
def test_what_is_taken_back_runs_before_the_backlog(
    site: Site, end: Callable[[Site, subprocess.Popen[bytes]], None]
) -> None:
    before, _ = passed(site, end, BACKLOG)
    assert before < BACKLOG / 2, "they went behind the backlog"


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", [killed, reported_twice])
def test_a_victim_runs_again_within_a_second_behind_a_long_backlog(
    site: Site, end: Callable[[Site, subprocess.Popen[bytes]], None]
) -> None:
    _, took = passed(site, end, LONG_BACKLOG)
    assert took < 1.2, "0.2 s of it are the time between two signals"
