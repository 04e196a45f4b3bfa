"""Lines (`InOrder`, `LatestWins`): which job of a line is exposed, and what holds the others.

A line exposes one job, its smallest unfinished id: that one waits for its time, is ready, or runs. The others wait
behind it, whatever their due times. A head that is tried again stays first. A dead job leaves its line, unless it
blocks it: then the line exposes nothing once that job is its head, until it is redriven or removed. A job that comes
back takes the place of an exposed one with a larger id, unless that one runs: it finishes first.

The *head* is the smallest id of the jobs that a line has (`in_line`). The server functions of Postgres and Redis have
`expose` under the same name.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from forebay.core.job import State
from forebay.store.protocol import Hold


class JobInLine(Protocol):
    """The fields of a job that the rules need. `has_ended`: it is dead and blocks the line, or is about to leave it."""

    @property
    def id(self) -> int: ...

    @property
    def is_running(self) -> bool: ...

    @property
    def has_ended(self) -> bool: ...


J = TypeVar("J", bound=JobInLine)


def in_line(state: State, *, blocks: bool) -> bool:
    """Whether a line has a job in this state; `blocks`: when it is dead, it blocks its line."""
    return not state.terminal or (blocks and state is State.DEAD)


def expose(head: J | None, exposed: J | None) -> tuple[J | None, J | None]:
    """The job that is exposed no more, and the one that is exposed instead; equal jobs are the same object."""
    if exposed is head or (exposed is not None and exposed.is_running):
        return None, None
    return exposed, None if head is None or head.has_ended else head


def line_hold(name: str, head: int, is_running: bool, job_id: int, between: Callable[[], int]) -> Hold | None:
    """What holds a due job that is not exposed; None: it is the head, and waits until a later job has finished.

    `is_running`: the head is. `between`: how many unfinished jobs are between it and this one.
    """
    return None if head == job_id else Hold(name, 1, int(is_running), between(), head)
