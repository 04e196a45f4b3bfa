"""One run of a job: its lease, its handler, and whether it is to stop."""

import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from math import inf
from typing import Final

from forebay.core.lease import Fence, Lease
from forebay.core.outcome import Failed, Failure, Interrupted, Outcome, Withdrawn
from forebay.store.protocol import Store
from forebay.work.context import Context
from forebay.work.handler import Handler

TIMEOUT = "forebay.Timeout"
lease_clock: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""The clock of local lease deadlines. It advances while the process is stopped or the machine sleeps."""


class Stop(StrEnum):
    """Why a run is to end early. LOST: its lease is lost, and its outcome is discarded."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    DRAIN = "drain"
    LOST = "lost"


class Run:
    """The state of one run.

    begun        a thread has started it
    back         that thread has returned
    written_off  the run ended while that thread was still in the handler
    over         the run has ended
    started_at   when the handler began, on the `lease_clock`
    deadline     when it times out, on the monotonic clock
    lease_ends   the earliest end of the lease on the `lease_clock`, counted from before the call that claimed or
                 renewed it; no handler begins after it
    stop         why it is to end; CANCEL may be followed by a harder one
    context      only for a handler that takes one
    """

    __slots__ = (
        "back",
        "begun",
        "context",
        "deadline",
        "fence",
        "handler",
        "lease",
        "lease_ends",
        "over",
        "quarantined",
        "started_at",
        "stop",
        "stopped_at",
        "task",
        "written_off",
    )

    def __init__(
        self, lease: Lease, handler: Handler, store: Callable[[], Store] | None = None, lease_ends: float = inf
    ) -> None:
        self.lease = lease
        self.lease_ends = lease_ends
        self.quarantined = False
        self.fence: Fence = lease.fence
        self.handler = handler
        self.deadline: float | None = None
        self.context = None if handler.signature.context_name is None else _context_of(lease, handler, store)
        self.begun = False
        self.back = False
        self.started_at: float | None = None
        self.written_off = False
        self.stop: Stop | None = None
        self.stopped_at = 0.0
        self.over = False
        self.task: object = None

    @property
    def settled(self) -> bool:
        """The job was settled by its handler's transaction."""
        return self.context is not None and self.context.settled

    @property
    def lost(self) -> bool:
        """The lease is lost, and the outcome will be discarded."""
        return self.stop is Stop.LOST or (self.context is not None and self.context.lost)

    def mark_stopped(self, stop: Stop) -> None:
        """It is to end early; its handler sees that in its context."""
        self.stop, self.stopped_at = stop, time.monotonic()
        if self.context is not None:
            self.context.stop = stop
            self.context.lost |= stop is Stop.LOST

    def stopped_outcome(self) -> Outcome:
        """The outcome of a run that was stopped."""
        return outcome_of_stop(self.stop, self.handler)


def outcome_of_stop(stop: str | None, handler: Handler) -> Outcome:
    """The outcome of a run that was stopped for this reason."""
    match stop:
        case Stop.CANCEL:
            return Withdrawn(handler.keep_for)
        case Stop.TIMEOUT:
            limit = (handler.timeout or 0) / 1_000_000
            return Failed(Failure(TIMEOUT, f"it ran longer than {limit:g} s"))
        case _:
            return Interrupted()


def _context_of(lease: Lease, handler: Handler, store: Callable[[], Store] | None) -> Context:
    stopped_at = None if handler.timeout is None else (lease.job.claimed_at or 0) + handler.timeout
    return Context(lease, stopped_at, store, handler)
