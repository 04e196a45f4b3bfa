"""What a handler may know about its job, and say about it."""

from forebay.core.instant import Instant
from forebay.core.job import Job
from forebay.core.lease import Fence, Lease


class Context:
    """Given to a handler that has a parameter annotated `Context` (or named `ctx`).

    fence      (job id, delivery): only ever grows; write it beside your effect and refuse a smaller one
    deadline   the instant at which the handler is stopped, in microseconds; None without a timeout
    cancelled  someone asked for the job to end
    lost       the lease is gone: whatever you do now, someone else may be doing too
    """

    __slots__ = ("cancelled", "deadline", "lease", "lost", "note", "portion")

    def __init__(self, lease: Lease, deadline: Instant | None = None) -> None:
        self.lease = lease
        self.deadline = deadline
        self.portion = 0.0
        self.note = ""
        self.cancelled = False
        self.lost = False

    @property
    def job(self) -> Job:
        return self.lease.job

    @property
    def attempt(self) -> int:
        return self.lease.job.attempt

    @property
    def fence(self) -> Fence:
        return self.lease.fence

    def progress(self, portion: float, note: str = "") -> None:
        """How far it is, from 0 to 1; shown by the worker that runs it."""
        self.portion = min(1.0, max(0.0, portion))
        self.note = note[:200]
