"""Recovery of the jobs of dead processes: a job whose handler had begun is charged an attempt, the others are released.

This module turns what is known about a lost owner into an outcome; `core.decide` turns the outcome into a verdict.

A supervisor reclaims the jobs of its own workers. For all other workers, every worker on the machine looks for start
marks whose process is dead, reclaims its jobs and removes the file. So the jobs of an unsupervised worker do not wait
for their leases either, once another worker runs on the machine.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from forebay.core.decide import decide
from forebay.core.job import State
from forebay.core.lease import Fence, Lease, Settled
from forebay.core.limits import MAX_BATCH
from forebay.core.outcome import Abandoned, Displaced, Interrupted, Outcome, Unaccounted
from forebay.core.policy import Routing
from forebay.store.protocol import Query, Store, matching
from forebay.work.exit_status import describe_exit
from forebay.work.job_log import JobLog
from forebay.work.stall_watch import describe_stall
from forebay.work.start_marks import IN_QUARANTINE, ProcessMarks, Stall, owners_of, read_marks, remove_marks

_INTERVAL: Final = 1.0
_LOST_WORKER: Final = "its worker ended while it ran in quarantine"
_DIED: Final = f"the process {describe_exit(None)} while running it"


class Recovery:
    """Reclaims the jobs of dead processes on this machine.

    A process is skipped the first time it is seen dead: its supervisor, if it has one, also has its exit code. By the
    second time, a claim that was in progress when it died has completed.
    """

    name = "recovery"

    def __init__(
        self,
        store: Store,
        routing: Callable[[str], Routing],
        directory: Path,
        owner: str,
        log: JobLog | None = None,
    ) -> None:
        self._store = store
        self._routing = routing
        self._directory = directory
        self._owner = owner
        self._log = log
        self._seen_dead: set[str] = set()
        self.recovered = 0

    def step(self) -> float:
        dead: set[str] = set()
        for owner, path in owners_of(self._directory).items():
            marks = read_marks(path)
            if owner == self._owner or marks is None or marks.alive:
                continue
            if owner in self._seen_dead:
                self.recovered += reclaim_jobs(self._store, owner, marks, None, self._routing, self._log)
                remove_marks(self._directory, owner)
            else:
                dead.add(owner)
        self._seen_dead = dead
        return _INTERVAL


def reclaim_jobs(
    store: Store,
    owner: str,
    marks: ProcessMarks | None,
    exit_code: int | None,
    routing: Callable[[str], Routing],
    log: JobLog | None = None,
) -> int:
    """Settle all jobs that a dead process held; returns their number.

    `marks` None: it is unknown which jobs had begun. `exit_code` None: it is unknown how the process ended.
    """
    cause = _DIED if exit_code is None else f"the process {describe_exit(exit_code)} while running it"
    held = [job for job in matching(store, Query(state=State.RUNNING)) if job.owner == owner]
    verdicts = [
        (
            Lease(job, owner, job.lease_until or 0),
            decide(job, _dead_owner_outcome(marks, (job.id, job.delivery), cause), routing(job.queue), 0.0),
        )
        for job in held
    ]
    for start in range(0, len(verdicts), MAX_BATCH):
        batch = verdicts[start : start + MAX_BATCH]
        for (lease, verdict), answer in zip(batch, store.settle(batch), strict=True):
            if log is not None and answer is Settled.APPLIED:
                log.ended(lease.job, verdict)
    return len(held)


def expired_outcome(marks: ProcessMarks | None, fence: Fence) -> Outcome:
    """The outcome of an expired lease; `marks` are those of its owner, if they are on this machine.

    An owner that is alive is blocked or cannot reach the store: which of its jobs caused that is unknown.
    """
    if marks is None or marks.begun is None or (marks.alive and fence in marks.begun):
        return Unaccounted()
    return _dead_owner_outcome(marks, fence, _DIED) if fence in marks.begun else Interrupted(expired=True)


def _dead_owner_outcome(marks: ProcessMarks | None, fence: Fence, cause: str) -> Outcome:
    if marks is None or marks.begun is None:
        return Unaccounted(cause)
    if fence not in marks.begun:
        return Interrupted()
    if marks.begun[fence] == IN_QUARANTINE:
        return Displaced(_LOST_WORKER)
    return Abandoned(cause) if marks.stall is None else _stalled_outcome(marks.stall, fence)


def _stalled_outcome(stall: Stall, fence: Fence) -> Outcome:
    """Only the job that held the GIL is charged."""
    if stall.holder is None:
        return Unaccounted(f"the GIL was held for {stall.seconds:.1f} s, by this job or another one of the process")
    return Abandoned(describe_stall(stall)) if fence == stall.holder else Interrupted()
