"""How running jobs end: what a settle answers, what a verdict makes of a job, and what a cancel does.

The fence decides, not the time: a settle counts if the job runs and its delivery is the lease's. The last settle is
kept as a `Mark`, on the job's row or, once the job is deleted, in a table: a repeated settle gets the same answer.

How a store uses it, inside the step that writes:

    plan = plan_settle(settlements, rows, marks)     `plan.answers`; `plan.endings` are the rows with their verdicts
    transition(verdict, stamper, now)                for each: the state it ends in, until when, and what is recorded
    rank_after, attempts_after, errors_after         for a job that waits again, or dies
    MARK_CODES[change]                               the code of its mark, once more
    plan_cancel(ids, rows)                           which of them end at once, which holders are requested to stop

A store whose server computes instants calls `transition` with now = 0: `until` is then a duration.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from msgspec.structs import replace

from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.ledger import Change
from forebay.core.limits import ERRORS_KEPT
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.core.stamp import Stamper, rank_at, rank_back
from forebay.store.protocol import CancelAnswer

_VERDICTS: Final[tuple[tuple[type, Change, str], ...]] = (
    (Ack, Change.ACKED, "a"),
    (Retry, Change.RETRIED, "r"),
    (DeadLetter, Change.DIED, "d"),
    (Release, Change.RELEASED, "l"),
    (Cancel, Change.DISCARDED, "c"),
)
VERDICT_CODES: Final[dict[type, str]] = {verdict: code for verdict, _, code in _VERDICTS}
"""Codes of verdicts in the stores; the letters are part of the schemas."""
MARK_CODES: Final[dict[str, str]] = {change: code for _, change, code in _VERDICTS}
"""The same by the ledger's name of the change."""

Mark: TypeAlias = tuple[int, str]
"""The last settle of a job: its delivery, and the code of the verdict."""


class HeldJob(Protocol):
    """The columns of a job that a settle reads."""

    @property
    def is_running(self) -> bool: ...

    @property
    def delivery(self) -> int: ...

    @property
    def lease_until(self) -> Instant: ...

    @property
    def mark(self) -> Mark: ...


class RankedJob(Protocol):
    """The columns of a job that determine its rank."""

    @property
    def rank(self) -> int: ...

    @property
    def rank_base(self) -> int: ...

    @property
    def rank_timed(self) -> int: ...


J = TypeVar("J", bound=HeldJob)


class SettlePlan(NamedTuple, Generic[J]):
    """The answers, and the jobs that end, each with its verdict and its mark."""

    answers: list[Settled]
    endings: list[tuple[J, Verdict, Mark]]


def plan_settle(settlements: Sequence[Settlement], rows: Mapping[int, J], marks: Mapping[int, Mark]) -> SettlePlan[J]:
    """`rows`: of the jobs that exist; `marks`: of those that were deleted."""
    plan: SettlePlan[J] = SettlePlan([], [])
    ended: dict[int, Mark] = {}
    for lease, verdict in settlements:
        job_id, mark = lease.job.id, (lease.job.delivery, VERDICT_CODES[type(verdict)])
        row, last = rows.get(job_id), ended.get(job_id) or marks.get(job_id)
        if last is None and row is not None:
            held = row.is_running and row.delivery == lease.job.delivery
            if held and not outlived(lease, verdict, row.lease_until):
                plan.endings.append((row, verdict, mark))
                ended[job_id] = last = mark
            else:
                last = row.mark
        plan.answers.append(Settled.APPLIED if last == mark else Settled.STALE)
    return plan


def presumes_expiry(verdict: Verdict) -> bool:
    """Whether a verdict is about a holder whose lease had expired."""
    return isinstance(verdict, Retry | DeadLetter | Release) and verdict.expired


def outlived(lease: Lease, verdict: Verdict, until: Instant) -> bool:
    """Whether a verdict about a lost holder is out of date: the lease was renewed since it was read."""
    return until > lease.until and presumes_expiry(verdict)


class Transition(NamedTuple):
    """What becomes of a running job. `state` None: it is deleted. `until`: when it is due, or how long it is readable.

    `keep_rank`: a job that waits again keeps its rank; otherwise its rank follows from its new due time.
    """

    change: Change
    state: State | None
    until: Instant
    error: Failure | None = None
    keep_rank: bool = False


def transition(verdict: Verdict, stamper: Stamper, now: Instant) -> Transition:
    """`stamper`: of the job's queue, whose retention may keep a job longer than the verdict does."""
    match verdict:
        case Ack(_, keep_for):
            until = stamper.kept_until(now, keep_for)
            return Transition(Change.ACKED, State.DONE if until else None, until)
        case Cancel(keep_for):
            until = stamper.kept_until(now, keep_for)
            return Transition(Change.DISCARDED, State.CANCELLED if until else None, until)
        case Retry(after, error, keep_rank):
            return Transition(Change.RETRIED, State.WAITING, now + after, error, keep_rank)
        case Release(after, error):
            return Transition(Change.RELEASED, State.WAITING, now + after, error, keep_rank=True)
        case DeadLetter(error):
            return Transition(Change.DIED, State.DEAD, 0, error)


def rank_after(job: RankedJob, keep_rank: bool, due_at: Instant, now: Instant) -> int:
    """The rank of a job that waits again: its old one, or that of its new due time."""
    if keep_rank:
        return rank_back(job.rank, job.rank_timed)
    return rank_at(job.rank_base, job.rank_timed, due_at, now)


def attempts_after(change: str, attempt: int) -> int:
    """A release gives the attempt back."""
    return attempt - (change == Change.RELEASED)


def errors_after(errors: tuple[Failure, ...], error: Failure | None, at: Instant, attempt: int) -> tuple[Failure, ...]:
    """The last failures of a job, this one included."""
    return errors if error is None else (*errors, replace(error, at=at, attempt=attempt))[-ERRORS_KEPT:]


class CancelPlan(NamedTuple):
    """The answers. Jobs in `ended` will not run; the holders of those in `requested` are to stop them."""

    answers: list[CancelAnswer]
    ended: list[int]
    requested: list[int]


def plan_cancel(ids: Iterable[int], states: Mapping[int, State]) -> CancelPlan:
    """`states`: of the jobs that exist."""
    answers: list[CancelAnswer] = []
    ended: dict[int, None] = {}
    requested: dict[int, None] = {}
    for job_id in ids:
        state = states.get(job_id)
        if state is None or state.terminal or job_id in ended:
            answers.append(CancelAnswer.GONE)
        elif state is State.RUNNING:
            requested[job_id] = None
            answers.append(CancelAnswer.REQUESTED)
        else:
            ended[job_id] = None
            answers.append(CancelAnswer.CANCELLED)
    return CancelPlan(answers, list(ended), list(requested))
