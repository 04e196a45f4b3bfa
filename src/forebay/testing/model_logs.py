"""The reference model of retained logs: every partition a list that is never shortened, and where each now begins.

Exact but for the partition of an entry: entries of one key must meet in one partition, those without a key may go
anywhere. It also keeps the specs, because a spec is what makes a name a log.
"""

from collections.abc import Sequence

from forebay.core.errors import Invalid, OffsetGone, WrongQueueKind
from forebay.core.event import LogEntry
from forebay.core.instant import Instant
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec


def require(holds: bool, what: str, *seen: object) -> None:
    """The model's one way to say that a store is wrong."""
    if not holds:
        raise AssertionError("; ".join([what, *map(repr, seen)]))


class LogModel:
    """Logs by name. `first` is the first offset still held of each partition."""

    def __init__(self) -> None:
        self.specs: dict[str, QueueSpec] = {}
        self.logs: dict[str, list[list[LogEntry]]] = {}
        self.first: dict[str, list[int]] = {}
        self.places: dict[tuple[str, str, int], int] = {}
        self._homes: dict[tuple[str, str, int], int] = {}

    def put_spec(self, spec: QueueSpec) -> None:
        known = self.specs.get(spec.name)
        if known is not None and known.is_log != spec.is_log:
            raise WrongQueueKind(spec.name, known.is_log)
        if isinstance(spec.retention, Retained):
            partitions = self.logs.setdefault(spec.name, [])
            if spec.retention.partitions < len(partitions):
                raise Invalid(spec.name, "a log cannot lose partitions", "keep them")
            partitions += [[] for _ in range(spec.retention.partitions - len(partitions))]
            self.first[spec.name] = self.first.get(spec.name, []) + [0] * spec.retention.partitions
            del self.first[spec.name][len(partitions) :]
        self.specs[spec.name] = spec

    def appended(
        self, now: Instant, log: str, bodies: Sequence[bytes], keys: Sequence[str | None], answer: Sequence[LogEntry]
    ) -> None:
        partitions = self._partitions(log)
        require(len(answer) == len(bodies), "append answers one entry a body", bodies, answer)
        for entry, body, key in zip(answer, bodies, keys, strict=True):
            require(0 <= entry.partition < len(partitions), "append names a partition", entry)
            partition = partitions[entry.partition]
            expected = LogEntry(entry.partition, len(partition), now, body, key)
            require(entry == expected, "offsets are dense", expected, entry)
            if key is not None:
                home = self._homes.setdefault((log, key, len(partitions)), entry.partition)
                require(home == entry.partition, f"entries of key {key} meet in one partition", home, entry)
            partition.append(entry)

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        entries, first = self._partitions(log)[partition], self.first[log][partition]
        if after + 1 < first:
            raise OffsetGone(log, partition, after + 1, first)
        return entries[after + 1 :][:limit]

    def commit(self, log: str, group: str, partition: int, offset: int, *, rewind: bool = False) -> int:
        if not -1 <= offset < len(self._partitions(log)[partition]):
            raise Invalid("offset", "it was never written", "commit what was read")
        place = self.position(log, group, partition)
        self.places[log, group, partition] = offset if rewind else max(place, offset)
        return self.places[log, group, partition]

    def position(self, log: str, group: str, partition: int) -> int:
        return self.places.get((log, group, partition), -1)

    def extent(self, log: str) -> list[tuple[int, int]]:
        return [(first, len(entries)) for first, entries in zip(self.first[log], self._partitions(log), strict=True)]

    def trimmed(self, log: str, before: Instant, limit: int, answer: int, extent: Sequence[tuple[int, int]]) -> None:
        """`extent` is what the store says after the trim; its choice of partitions is free."""
        partitions, was = self._partitions(log), self.first[log]
        self.first[log] = [first for first, _ in extent]
        require(self.extent(log) == extent, "trim moves only the front", self.extent(log), extent)
        moved = list(zip(partitions, was, self.first[log], strict=True))
        gone = [entry for entries, old, new in moved for entry in entries[old:new]]
        left = [entry for entries, _, new in moved for entry in entries[new:] if entry.at < before]
        require(all(old <= new for _, old, new in moved), "trim moves the front forward", was, extent)
        require(all(entry.at < before for entry in gone), "trim drops only what is old", before, gone)
        require(answer == len(gone) <= limit, "trim says how many", len(gone), answer)
        require(answer == limit or not left, "trim leaves nothing old behind", left)

    def _partitions(self, log: str) -> list[list[LogEntry]]:
        if log not in self.logs:
            raise WrongQueueKind(log, is_log=False)
        return self.logs[log]
