"""What a worker does with jobs: claim, extend, report and settle, and the maintenance that makes jobs ready."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from forebay.core.instant import Duration, Instant
from forebay.core.job import Progress
from forebay.core.lease import Fence, Lease, Settled, Settlement
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.engine.settle import VERDICT_CODES, presumes_expiry
from forebay.store.protocol import Promotion, Want
from forebay.store.redis.records import leases_of, packed, sid, sids
from forebay.store.redis.session import Session

_SETTLED: Final = (Settled.STALE, Settled.APPLIED)
_RESULTS_OF_SETTLE: Final = 4
_RESULTS_OF_BOTH: Final = 7


class VerdictGroup(Struct, frozen=True, omit_defaults=True):
    """Settlements with one verdict, as lua/settle.lua reads them.

    `duration`: how long until the job is tried again, or for how long it is kept. `result`: the number of the argument
    that has it. `till`: void if the lease ends later than that by now.
    """

    code: str
    delivery: int
    ids: list[str]
    duration: Duration = 0
    error: tuple[str, str, str] | None = None
    result: int = 0
    keep_rank: bool = False
    till: Instant | None = None


class Leases:
    """Claims and how they end."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def promote(self, limit: int) -> Promotion:
        ready, next_due = self._session.call("promote", limit)
        return Promotion(ready, next_due if isinstance(next_due, int) else None)

    def claim(self, wants: Sequence[Want], owner: str, lease_for: Duration) -> list[Lease]:
        return leases_of(self._session.call("claim", owner, lease_for, _wanted(wants)))

    def extend(self, leases: Sequence[Lease], lease_for: Duration) -> list[Lease]:
        return leases_of(self._session.call("extend", lease_for, packed(_by_delivery(leases)))) if leases else []

    def overdue(self, limit: int) -> list[Lease]:
        return leases_of(self._session.call("overdue", limit))

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if not settlements:
            return []
        groups, results = _grouped(settlements, _RESULTS_OF_SETTLE)
        return _settled(self._session.call("settle", packed(groups), *results))

    def settle_and_claim(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, lease_for: Duration
    ) -> tuple[list[Settled], list[Lease]]:
        groups, results = _grouped(settlements, _RESULTS_OF_BOTH)
        claim = (owner, lease_for, _wanted(wants))
        applied, leases = self._session.call("settle_and_claim", packed(groups), *claim, *results)
        return _settled(applied), leases_of(leases)

    def report_progress(self, newest: dict[Fence, Progress]) -> dict[Fence, bool]:
        known = {fence: progress for fence, progress in newest.items() if sids(fence[:1])}
        rows = [(sid(job_id), delivery, of.portion, of.note) for (job_id, delivery), of in known.items()]
        current = self._session.call("report_progress", packed(rows)) if rows else []
        return dict.fromkeys(newest, False) | {fence: bool(kept) for fence, kept in zip(known, current, strict=True)}


def _wanted(wants: Sequence[Want]) -> bytes:
    return packed([(str(want.queue), want.count, False if want.cls is None else str(want.cls)) for want in wants])


def _by_delivery(leases: Iterable[Lease]) -> list[tuple[int, list[str]]]:
    """Runs of leases with the same delivery, in their order."""
    groups: list[tuple[int, list[str]]] = []
    for lease in leases:
        if not groups or groups[-1][0] != lease.job.delivery:
            groups.append((lease.job.delivery, []))
        groups[-1][1].append(sid(lease.job.id))
    return groups


def _settled(applied: Sequence[Any]) -> list[Settled]:
    return [_SETTLED[each] for each in applied]


def _grouped(settlements: Sequence[Settlement], first_result: int) -> tuple[list[VerdictGroup], list[bytes]]:
    """Runs of equal verdicts on equal deliveries; and the results, which come from an argument on."""
    groups: list[VerdictGroup] = []
    results: list[bytes] = []
    last: tuple[Verdict, int] | None = None
    for lease, verdict in settlements:
        job, plain = lease.job, type(verdict) is Ack and verdict.result is None
        if plain and last == (verdict, job.delivery):
            groups[-1].ids.append(sid(job.id))
            continue
        last = (verdict, job.delivery) if plain else None
        group = VerdictGroup(
            VERDICT_CODES[type(verdict)],
            job.delivery,
            [sid(job.id)],
            _duration_of(verdict),
            _error(verdict.error) if isinstance(verdict, Retry | DeadLetter | Release) else None,
            0 if type(verdict) is not Ack or verdict.result is None else first_result + len(results),
            isinstance(verdict, Release) or (isinstance(verdict, Retry) and verdict.keep_rank),
            lease.until if presumes_expiry(verdict) else None,
        )
        groups.append(group)
        if type(verdict) is Ack and verdict.result is not None:
            results.append(verdict.result)
    return groups, results


def _duration_of(verdict: Verdict) -> Duration:
    match verdict:
        case Retry(after) | Release(after):
            return after
        case Ack(_, keep_for) | Cancel(keep_for):
            return keep_for
        case _:
            return 0


def _error(error: Failure | None) -> tuple[str, str, str] | None:
    return None if error is None else (error.kind, error.message, error.trace)
