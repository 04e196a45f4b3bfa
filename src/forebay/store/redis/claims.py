"""Handing out: promote, claim, extend, overdue."""

from collections.abc import Iterable, Sequence

from forebay.core.instant import Span
from forebay.core.lease import Lease
from forebay.store.protocol import Promotion, Want
from forebay.store.redis.intake import Intake
from forebay.store.redis.row import leases_of, packed, sid


class Claims(Intake):
    """From waiting to running, and leases."""

    def promote(self, limit: int) -> Promotion:
        ready, next_due = self._call("promote", limit)
        return Promotion(ready, next_due if isinstance(next_due, int) else None)

    def claim(self, wants: Sequence[Want], owner: str, span: Span) -> list[Lease]:
        return leases_of(self._call("claim", owner, span, wanted(wants), tokened=True))

    def extend(self, leases: Sequence[Lease], span: Span) -> list[Lease]:
        return leases_of(self._call("extend", span, packed(_by_delivery(leases)))) if leases else []

    def overdue(self, limit: int) -> list[Lease]:
        return leases_of(self._call("overdue", limit))


def wanted(wants: Sequence[Want]) -> bytes:
    return packed([(str(want.queue), want.count, False if want.cls is None else str(want.cls)) for want in wants])


def _by_delivery(leases: Iterable[Lease]) -> list[tuple[int, list[str]]]:
    """Runs of leases with the same delivery, in their order."""
    groups: list[tuple[int, list[str]]] = []
    for lease in leases:
        if not groups or groups[-1][0] != lease.job.delivery:
            groups.append((lease.job.delivery, []))
        groups[-1][1].append(sid(lease.job.id))
    return groups
