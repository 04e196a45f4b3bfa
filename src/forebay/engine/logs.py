"""Rules of retained logs: the partition of an entry, what may be committed, and the partitions of a group's members.

A member keeps its partitions up to its share, gives up the rest, and takes free ones. There is no handover: a member
with too many partitions gives them up at its next call, so a partition has one owner at a time.
"""

from collections.abc import Iterable, Sequence
from zlib import crc32

from msgspec import Struct

from forebay.core.entries import LogEntry
from forebay.core.errors import Invalid, PartitionLost
from forebay.core.instant import Duration, Instant, micros
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec


def place_entries(
    pairs: Iterable[tuple[bytes, str | None]], following: list[int], instants: Sequence[Instant]
) -> list[LogEntry]:
    """Entries with the same key get the same partition, others the one with the fewest.

    By partition: its next offset, which moves on here, and the instant of what is appended to it.
    """
    entries = []
    for body, key in pairs:
        number = crc32(key.encode()) % len(following) if key else following.index(min(following))
        entries.append(LogEntry(number, following[number], instants[number], body, key))
        following[number] += 1
    return entries


def no_partition(log: str, number: int, count: int) -> Invalid:
    return Invalid("partition", f"{number!r} is not in 0 … {count - 1}", f"log {log!r} has no other")


def check_commit(offset: int, following: int) -> None:
    """A group commits what was read; `following` is the next offset of the partition."""
    if type(offset) is not int or not -1 <= offset < following:
        raise Invalid("offset", f"{offset!r} is not in -1 … {following - 1}", "commit what was read")


def check_epoch(log: str, group: str, partition: int, epoch: int | None, member: str | None, current: int) -> None:
    """The fence of a commit: `epoch` as the caller owns the partition, `member` and `current` as the store has it."""
    if epoch is not None and (member is None or current != epoch):
        raise PartitionLost(log, group, partition, epoch)


def window_of(spec: QueueSpec) -> tuple[Duration | None, bool]:
    """The window of a log, and whether groups that lag behind hold it open."""
    retention = spec.retention
    assert isinstance(retention, Retained)
    return None if retention.window is None else micros(retention.window), retention.lagging == "block"


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
