"""The rule of lines over the smallest table there is, against what follows from the states alone."""

from dataclasses import dataclass, field
from random import Random

import pytest

from forebay.core.job import State
from forebay.engine.lines import expose, in_line, line_hold
from forebay.store.protocol import Hold


@dataclass
class Job:
    id: int
    state: State = State.WAITING

    @property
    def is_running(self) -> bool:
        return self.state is State.RUNNING

    @property
    def has_ended(self) -> bool:
        return self.state.terminal


@dataclass
class Line:
    """`jobs`: all there ever were."""

    blocks: bool
    jobs: list[Job] = field(default_factory=list)
    exposed: Job | None = None

    def members(self) -> list[Job]:
        return [job for job in self.jobs if in_line(job.state, blocks=self.blocks)]

    def expose(self) -> None:
        hidden, shown = expose(next(iter(self.members()), None), self.exposed)
        assert hidden is None or hidden is self.exposed
        assert shown is None or shown is not self.exposed
        if hidden is not None or shown is not None:
            self.exposed = shown


def expected(line: Line) -> Job | None:
    """One that runs, else the first, unless it is dead."""
    jobs = line.members()
    running = next((job for job in jobs if job.is_running), None)
    return running or next((job for job in jobs[:1] if not job.has_ended), None)


def move(random: Random, line: Line) -> None:
    """A new job, a claim, the end of a job, or one that comes back to life."""
    job = random.choice(line.jobs) if line.jobs else None
    if job is None or random.random() < 0.3:
        line.jobs.append(Job(len(line.jobs)))
    elif job is line.exposed and not job.is_running:
        job.state = random.choice([State.RUNNING, State.DEAD, State.CANCELLED])
    elif not job.has_ended:
        job.state = random.choice([State.DONE, State.DEAD, State.WAITING]) if job.is_running else State.DEAD
    elif job.state is State.DEAD:
        job.state = random.choice([State.WAITING, State.CANCELLED])
    exposed = line.exposed
    if exposed is not None and exposed.has_ended:
        line.exposed = None
    line.expose()


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_a_line_exposes_its_first_job_and_no_other(seed: int, blocks: bool) -> None:
    random, line = Random(seed), Line(blocks)
    for _ in range(60):
        move(random, line)
        assert line.exposed is expected(line), (seed, line)


def test_what_holds_a_job_is_the_head_of_its_line() -> None:
    assert line_hold("line", 0, False, 3, lambda: 2) == Hold("line", 1, 0, 2, 0)
    assert line_hold("line", 0, True, 3, lambda: 2) == Hold("line", 1, 1, 2, 0)
    assert line_hold("line", 0, True, 0, lambda: 0) is None
