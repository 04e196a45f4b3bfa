"""A `Lease` is proof of ownership: the job was claimed by its holder, and by no other since.

The fence is (job id, delivery). `delivery` grows with every claim, across retries, redrives and restarts, so the settle
of a late holder is always recognised. `attempt` is no fence: a redrive sets it back.
Time is liveness, the fence is safety: a lease past its time is still the current one until another claim takes the job.
"""

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from forebay.core.instant import Instant
from forebay.core.job import Job
from forebay.core.outcome import Verdict

Fence: TypeAlias = tuple[int, int]


class Lease(Struct, frozen=True):
    """A claimed job; the lease lasts until `until`, on the store's clock."""

    job: Job
    owner: str
    until: Instant

    @property
    def fence(self) -> Fence:
        return (self.job.id, self.job.delivery)


class Settled(StrEnum):
    """The answer to a settle: it was applied, or the lease is no longer the current one."""

    APPLIED = "applied"
    STALE = "stale"


class Heartbeat(Struct, frozen=True):
    """The result of one heartbeat for all leases of an owner: leases that are lost, to be cancelled, or not found."""

    lost: list[Fence] = []
    cancel_requested: list[Fence] = []
    unknown: list[Fence] = []


Settlement: TypeAlias = tuple[Lease, Verdict]
