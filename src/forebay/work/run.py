"""One job being run: its lease, its handler, and whether somebody wants it to stop."""

from enum import StrEnum

from forebay.core.lease import Fence, Lease
from forebay.core.outcome import Failed, Failure, Interrupted, Outcome, Withdrawn
from forebay.work.context import Context
from forebay.work.handler import Handler

TIMEOUT = "forebay.Timeout"


class Stop(StrEnum):
    """Why a run is to end early. LOST: the lease is gone, so whatever comes of it is thrown away."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    DRAIN = "drain"
    LOST = "lost"


class Run:
    """Changed under the pool's lock, but for `stop`, which is only ever set once."""

    __slots__ = ("context", "deadline", "handler", "lease", "over", "stop", "task")

    def __init__(self, lease: Lease, handler: Handler, deadline: float | None) -> None:
        self.lease = lease
        self.handler = handler
        self.deadline = deadline
        self.context = Context(lease)
        self.stop: Stop | None = None
        self.over = False
        self.task: object = None

    @property
    def fence(self) -> Fence:
        return self.lease.fence

    def stopped_outcome(self) -> Outcome:
        """What it means that the run was ended from outside."""
        match self.stop:
            case Stop.CANCEL:
                return Withdrawn()
            case Stop.TIMEOUT:
                limit = (self.handler.timeout or 0) / 1_000_000
                return Failed(Failure(TIMEOUT, f"it ran longer than {limit:g} s"))
            case _:
                return Interrupted()
