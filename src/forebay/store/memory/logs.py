"""The retained logs of the in-process store: dense offsets per partition, groups and their members, trimming.

Part of the facts: changed by change sets alone. A trimmed offset is gone for readers but never used again.
"""

from bisect import bisect_left
from operator import attrgetter
from typing import Final

from forebay.core.changeset import LogChange
from forebay.core.division import Holding
from forebay.core.entries import LogEntry
from forebay.core.instant import Instant
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec

_AT: Final = attrgetter("at")

GroupName = tuple[str, str]
"""A log and a group of its readers."""
Place = tuple[str, str, int]
"""A log, a group, a partition."""


class Partition:
    """Entries from `first` on; `next` is the offset of the one to come."""

    __slots__ = ("_entries", "_gone", "first")

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self._entries: list[LogEntry] = []
        self._gone = 0

    @property
    def next(self) -> int:
        return self.first + len(self._entries) - self._gone

    def append(self, entry: LogEntry) -> None:
        self._entries.append(entry)

    def read(self, after: int, limit: int) -> list[LogEntry]:
        start = after + 1 - self.first + self._gone
        return self._entries[start : start + limit]

    def before(self, instant: Instant) -> int:
        """The last offset that was appended before the instant; the one before the first that is held, if none was."""
        return bisect_left(self._entries, instant, self._gone, key=_AT) - self._gone + self.first - 1

    def trim(self, before: int) -> None:
        """The freed front is given back once it is half of the list: amortised O(1) an entry."""
        self._gone += before - self.first
        self.first = before
        if self._gone * 2 > len(self._entries):
            del self._entries[: self._gone]
            self._gone = 0


class Logs:
    """All logs of a store by name.

    places   how far a group has come in a partition; owners: who reads it for the group, and in which epoch
    members  until when each member of a group lives
    seen     the groups of a log, and when each last committed or owned
    lost     what left a partition before the group had it
    """

    def __init__(self) -> None:
        self.partitions: dict[str, list[Partition]] = {}
        self.places: dict[Place, int] = {}
        self.owners: dict[Place, tuple[str | None, int]] = {}
        self.members: dict[GroupName, dict[str, Instant]] = {}
        self.seen: dict[str, dict[str, Instant]] = {}
        self.lost: dict[Place, int] = {}

    def holding(self, log: str, group: str, partition: int) -> Holding:
        member, epoch = self.owners.get((log, group, partition), (None, 0))
        until = 0 if member is None else self.members[log, group][member]
        return Holding(member, epoch, until)

    def holdings(self, log: str, group: str) -> list[Holding]:
        return [self.holding(log, group, number) for number in range(len(self.partitions[log]))]

    def create(self, spec: QueueSpec) -> None:
        """A log with its partitions; more may be added later, never fewer: offsets are for ever."""
        assert isinstance(spec.retention, Retained)
        partitions = self.partitions.setdefault(spec.name, [])
        partitions.extend(Partition() for _ in range(spec.retention.partitions - len(partitions)))

    def apply(self, change: LogChange, at: Instant) -> None:
        log, group, partitions = change.log, change.group, self.partitions[change.log]
        for entry in change.entries:
            partitions[entry.partition].append(entry)
        for number, offset in change.committed.items():
            self.places[log, group, number] = offset
        for number, before in change.trimmed.items():
            self._trim(log, number, before)
        if change.committed or change.until:
            self.seen.setdefault(log, {})[group] = at
        if change.member is not None:
            self._own(change, change.member, at)

    def _trim(self, log: str, number: int, before: int) -> None:
        partition = self.partitions[log][number]
        for group in self.seen.get(log, ()):
            missed = before - max(partition.first, self.places.get((log, group, number), -1) + 1)
            if missed > 0:
                self.lost[log, group, number] = self.lost.get((log, group, number), 0) + missed
        partition.trim(before)

    def _own(self, change: LogChange, member: str, at: Instant) -> None:
        """Members whose time is over are forgotten once they own nothing; there are never more than partitions."""
        log, group, epochs = change.log, change.group, change.owned
        busy = set()
        for number in range(len(self.partitions[log])):
            owner, epoch = self.owners.get((log, group, number), (None, 0))
            if number in epochs:
                owner, epoch = member, epochs[number]
            elif owner == member:
                owner = None
            if epoch:
                self.owners[log, group, number] = (owner, epoch)
            busy.add(owner)
        members = self.members.setdefault((log, group), {})
        members[member] = change.until
        for name in [name for name, until in members.items() if until <= at and name not in busy]:
            del members[name]
