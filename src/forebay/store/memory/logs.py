"""The retained logs of the in-process store: dense offsets per partition, places of groups, trimming from the front.

Part of the facts: changed by events alone. A trimmed offset is gone for readers but never used again.
"""

from forebay.core.event import Appended, Committed, LogEntry, Trimmed
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec


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

    def trim(self, before: int) -> None:
        """The freed front is given back once it is half of the list: amortised O(1) an entry."""
        self._gone += before - self.first
        self.first = before
        if self._gone * 2 > len(self._entries):
            del self._entries[: self._gone]
            self._gone = 0


class Logs:
    """All logs of a store by name."""

    def __init__(self) -> None:
        self.partitions: dict[str, list[Partition]] = {}
        self.places: dict[tuple[str, str, int], int] = {}

    def create(self, spec: QueueSpec) -> None:
        """A log with its partitions; more may be added later, never fewer: offsets are for ever."""
        assert isinstance(spec.retention, Retained)
        partitions = self.partitions.setdefault(spec.name, [])
        partitions.extend(Partition() for _ in range(spec.retention.partitions - len(partitions)))

    def appended(self, event: Appended) -> None:
        partitions = self.partitions[event.log]
        for entry in event.entries:
            partitions[entry.partition].append(entry)

    def committed(self, event: Committed) -> None:
        self.places[event.log, event.group, event.partition] = event.offset

    def trimmed(self, event: Trimmed) -> None:
        self.partitions[event.log][event.partition].trim(event.before)
