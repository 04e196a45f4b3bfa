"""Handing out: promote, claim, extend, overdue."""

from collections.abc import Iterable, Sequence
from datetime import timedelta

from forebay.core.instant import checked_micros
from forebay.core.lease import Lease
from forebay.core.limits import LEASE_LEAST, LEASE_MOST
from forebay.store.checks import check_batch, check_limit, checked_owner, checked_total
from forebay.store.protocol import Promotion, Want
from forebay.store.redis.intake import Intake
from forebay.store.redis.row import leases_of, packed, sid


class Claims(Intake):
    """From waiting to running, and leases."""

    def promote(self, limit: int) -> Promotion:
        check_limit("promote", limit)
        ready, next_due = self._call("promote", limit)
        return Promotion(ready, next_due if isinstance(next_due, int) else None)

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        owner = checked_owner(owner)
        span = checked_micros("lease_for", lease_for, LEASE_LEAST, LEASE_MOST)
        checked_total(wants)
        return leases_of(self._call("claim", owner, span, wanted(wants), tokened=True))

    def extend(self, leases: Sequence[Lease], lease_for: timedelta) -> list[Lease]:
        check_batch("extend", len(leases))
        span = checked_micros("lease_for", lease_for, LEASE_LEAST, LEASE_MOST)
        return leases_of(self._call("extend", span, packed(_by_delivery(leases)))) if leases else []

    def overdue(self, limit: int) -> list[Lease]:
        check_limit("overdue", limit)
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
