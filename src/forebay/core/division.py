"""Who of a group reads which partitions of a log: one rule, the same on every store.

A member keeps what it has up to its share, gives up the rest, and takes what is free. Nobody is asked to hand over:
who has too much finds out when it next calls, so a partition has one owner at a time.
"""

from collections.abc import Sequence

from msgspec import Struct

from forebay.core.instant import Instant


class Holding(Struct, frozen=True, array_like=True):
    """One partition as a group has it. `epoch` grows each time it changes hands; `until` is its owner's lease."""

    member: str | None = None
    epoch: int = 0
    until: Instant = 0


def divide(member: str, holdings: Sequence[Holding], living: int, now: Instant) -> list[int]:
    """The partitions of a member after its call, by number; `living` members there are, itself among them."""
    share = -(-len(holdings) // living)
    own = [number for number, holding in enumerate(holdings) if holding.member == member][:share]
    free = [number for number, holding in enumerate(holdings) if _is_free(holding, member, now)]
    return sorted(own + free[: share - len(own)])


def next_epoch(member: str, holding: Holding) -> int:
    """The epoch in which the member has it from now on: the same if it had it before."""
    return holding.epoch if holding.member == member else holding.epoch + 1


def _is_free(holding: Holding, member: str, now: Instant) -> bool:
    return holding.member is None or (holding.member != member and holding.until <= now)
