"""The assignment of the partitions of a log to the members of a group: one rule for all stores.

A member keeps its partitions up to its share, gives up the rest, and takes free ones. There is no handover: a member
with too many partitions gives them up at its next call, so a partition has one owner at a time.
"""

from collections.abc import Sequence

from msgspec import Struct

from forebay.core.instant import Instant


class Holding(Struct, frozen=True, array_like=True):
    """The ownership of a partition. `epoch` increases with every new owner; `until` is the end of the owner's lease."""

    member: str | None = None
    epoch: int = 0
    until: Instant = 0


def divide(member: str, holdings: Sequence[Holding], living: int, now: Instant) -> list[int]:
    """The partitions of the member after its call; `living` is the number of live members, including it."""
    share = -(-len(holdings) // living)
    own = [number for number, holding in enumerate(holdings) if holding.member == member][:share]
    free = [number for number, holding in enumerate(holdings) if _is_free(holding, member, now)]
    return sorted(own + free[: share - len(own)])


def next_epoch(member: str, holding: Holding) -> int:
    """The epoch of the member's ownership: unchanged if it already owned the partition."""
    return holding.epoch if holding.member == member else holding.epoch + 1


def _is_free(holding: Holding, member: str, now: Instant) -> bool:
    return holding.member is None or (holding.member != member and holding.until <= now)
