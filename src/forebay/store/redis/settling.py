"""The commit point and the other endings: settle, exchange, cancel, redrive, purge."""

from collections.abc import Sequence
from typing import Any, Final

from forebay.core.instant import Instant, Span
from forebay.core.job import State
from forebay.core.lease import Lease, Settled, Settlement, presumes_expiry
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.store.protocol import CancelAnswer, Want
from forebay.store.redis.base import refuse
from forebay.store.redis.claims import Claims, wanted
from forebay.store.redis.row import leases_of, packed, sid, sids
from forebay.store.states import STATES

_CODES: Final[dict[type, str]] = {Ack: "a", Retry: "r", DeadLetter: "d", Release: "l", Cancel: "c"}
_SETTLED: Final = (Settled.STALE, Settled.APPLIED)
_CANCELLED: Final = (CancelAnswer.GONE, CancelAnswer.CANCELLED, CancelAnswer.REQUESTED)
_RESULTS_OF_SETTLE: Final = 4
_RESULTS_OF_EXCHANGE: Final = 7

Group = tuple[str, int, Instant, int, "list[str] | bool", int, list[str], bool, bool]
"""Settlements with one verdict: code, delivery, until, span, error, where the result is, ids, the rank is kept, it is
void if the lease was renewed since.

The span is how long until the job is tried again, or for how long it is kept."""


class Settling(Claims):
    """How jobs end."""

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if not settlements:
            return []
        groups, results = _grouped(settlements, _RESULTS_OF_SETTLE)
        return [_SETTLED[told] for told in self._call("settle", packed(groups), *results)]

    def exchange(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, span: Span
    ) -> tuple[list[Settled], list[Lease]]:
        groups, results = _grouped(settlements, _RESULTS_OF_EXCHANGE)
        told, leases = self._call("exchange", packed(groups), owner, span, wanted(wants), *results, tokened=True)
        return [_SETTLED[each] for each in told], leases_of(leases)

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        known = sids(ids)
        told = iter(self._call("cancel", packed(known), tokened=True) if known else ())
        return [_CANCELLED[next(told)] if sids([job_id]) else CancelAnswer.GONE for job_id in ids]

    def redrive(self, ids: Sequence[int]) -> list[int]:
        reply: Sequence[Any] = self._call("redrive", packed(sids(ids)), tokened=True)
        if reply[0] != b"ok":
            refuse(reply)
        return [int(each) for each in reply[1:]]

    def purge(self, state: State, before: Instant, limit: int, queue: str | None) -> int:
        purged: int = self._call("purge", STATES.index(state), before, limit, queue or "", tokened=True)
        return purged

    def discard(self, ids: Sequence[int]) -> list[int]:
        return [int(each) for each in self._call("discard", packed(sids(ids)), tokened=True)]


def _grouped(settlements: Sequence[Settlement], first_result: int) -> tuple[list[Group], list[bytes]]:
    """Runs of equal verdicts on equal deliveries; and the results, which come from an argument on."""
    groups: list[Group] = []
    results: list[bytes] = []
    last: tuple[Verdict, int] | None = None
    for lease, verdict in settlements:
        job, plain = lease.job, type(verdict) is Ack and verdict.result is None
        if plain and last == (verdict, job.delivery):
            groups[-1][6].append(sid(job.id))
            continue
        last = (verdict, job.delivery) if plain else None
        place = 0
        if type(verdict) is Ack and verdict.result is not None:
            place = first_result + len(results)
            results.append(verdict.result)
        error = verdict.error if isinstance(verdict, Retry | DeadLetter | Release) else None
        code = _CODES[type(verdict)]
        keep_rank = isinstance(verdict, Release) or (isinstance(verdict, Retry) and verdict.keep_rank)
        said = (code, job.delivery, lease.until, _span(verdict), _error(error), place, [sid(job.id)])
        groups.append((*said, keep_rank, presumes_expiry(verdict)))
    return groups, results


def _span(verdict: Verdict) -> Span:
    match verdict:
        case Retry(after) | Release(after):
            return after
        case Ack(_, keep_for) | Cancel(keep_for):
            return keep_for
        case _:
            return 0


def _error(error: Failure | None) -> list[str] | bool:
    return False if error is None else [error.kind, error.message, error.trace]
