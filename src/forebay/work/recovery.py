"""Taking back the jobs of processes that died: what had begun is charged, what was only held is released.

What is known of a lost holder becomes an outcome here; what is done about it is `core.decide`'s.

A supervisor takes back what its own children held. The rest is the business of every worker on the machine: it looks
for files of start marks whose processes are dead, takes back their jobs and removes the files. So the jobs of a worker
without a supervisor do not wait for their leases either, once another worker runs here or the worker is started again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from forebay.core.decide import decide
from forebay.core.job import Job, State
from forebay.core.lease import Fence, Lease, Settled
from forebay.core.limits import BATCH_MOST
from forebay.core.outcome import Abandoned, Displaced, Interrupted, Outcome, Unaccounted
from forebay.core.policy import Routing
from forebay.store.protocol import Query, Store
from forebay.work.exit_status import describe_exit
from forebay.work.job_log import JobLog
from forebay.work.stall_watch import describe_stall
from forebay.work.start_marks import IN_QUARANTINE, ProcessMarks, Stall, owners_of, read_marks, remove_marks

_EVERY: Final = 1.0
_LOST_WORKER: Final = "its worker ended while it ran in quarantine"
_DIED: Final = f"the process {describe_exit(None)} while running it"


class Recovery:
    """Takes back what dead processes of this machine held.

    A process is left alone when it is first seen dead: its supervisor, if it has one, knows more about its end. By the
    second time a claim that was under way has also arrived.
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
                self.recovered += take_back(self._store, owner, marks, None, self._routing, self._log)
                remove_marks(self._directory, owner)
            else:
                dead.add(owner)
        self._seen_dead = dead
        return _EVERY


def take_back(
    store: Store,
    owner: str,
    marks: ProcessMarks | None,
    exit_code: int | None,
    routing: Callable[[str], Routing],
    log: JobLog | None = None,
) -> int:
    """Settle everything that a dead process held; how many jobs that was.

    `marks` None: nobody knows what had begun. `exit_code` None: nobody saw the end of the process.
    """
    cause = _DIED if exit_code is None else f"the process {describe_exit(exit_code)} while running it"
    held = [job for job in _running(store) if job.owner == owner]
    verdicts = [
        (
            Lease(job, owner, job.lease_until or 0),
            decide(job, _of_dead(marks, (job.id, job.delivery), cause), routing(job.queue), 0.0),
        )
        for job in held
    ]
    for start in range(0, len(verdicts), BATCH_MOST):
        batch = verdicts[start : start + BATCH_MOST]
        for (lease, verdict), answer in zip(batch, store.settle(batch), strict=True):
            if log is not None and answer is Settled.APPLIED:
                log.ended(lease.job, verdict)
    return len(held)


def expired_outcome(marks: ProcessMarks | None, fence: Fence) -> Outcome:
    """What a lease that ran out means: `marks` are its holder's, if they can be read here.

    A holder that lives stands still or cannot reach the store, and who of its jobs is to blame cannot be seen.
    """
    if marks is None or marks.begun is None or (marks.alive and fence in marks.begun):
        return Unaccounted()
    return _of_dead(marks, fence, _DIED) if fence in marks.begun else Interrupted(expired=True)


def _of_dead(marks: ProcessMarks | None, fence: Fence, cause: str) -> Outcome:
    if marks is None or marks.begun is None:
        return Unaccounted(cause)
    if fence not in marks.begun:
        return Interrupted()
    if marks.begun[fence] == IN_QUARANTINE:
        return Displaced(_LOST_WORKER)
    return Abandoned(cause) if marks.stall is None else _of_stalled(marks.stall, fence)


def _of_stalled(stall: Stall, fence: Fence) -> Outcome:
    """One job held the interpreter; those beside it had no part in it."""
    if stall.holder is None:
        return Unaccounted(f"the interpreter was held for {stall.seconds:.1f} s, by this job or one beside it")
    return Abandoned(describe_stall(stall)) if fence == stall.holder else Interrupted()


def _running(store: Store) -> list[Job]:
    jobs: list[Job] = []
    after: int | None = 0
    while after is not None:
        page = store.browse(Query(state=State.RUNNING), after, BATCH_MOST)
        jobs += page.jobs
        after = page.next
    return jobs
