"""The model of retained logs: every partition a list that is never shortened, and the first offset still held.

Exact but for the partition of an entry: entries of one key must meet in one partition, those without a key may go
anywhere; and for which partition is trimmed first. It also takes the specs, because a spec is what makes a name a log.
"""

from collections.abc import Sequence

from forebay.core.entries import LogEntry
from forebay.core.errors import Invalid, OffsetGone, PartitionLost, WrongQueueKind
from forebay.core.instant import Duration, Instant, micros
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.store.log import Owned, Standing
from forebay_proof.model.jobs import require


class ModelGroup:
    """One group of a log. An owner is (member, epoch), None once it was freed; `lost` is by partition."""

    def __init__(self) -> None:
        self.seen_at: Instant = 0
        self.members: dict[str, Instant] = {}
        self.owners: dict[int, tuple[str | None, int]] = {}
        self.lost: dict[int, int] = {}

    def owner(self, partition: int) -> tuple[str | None, int, Instant | None]:
        member, epoch = self.owners.get(partition, (None, 0))
        return (None, 0, None) if member is None else (member, epoch, self.members[member])


class LogModel:
    """Logs by name. `first` is the first offset still held of each partition."""

    def __init__(self, specs: dict[str, QueueSpec]) -> None:
        self._specs = specs
        self.partitions: dict[str, list[list[LogEntry]]] = {}
        self.first: dict[str, list[int]] = {}
        self.positions: dict[tuple[str, str, int], int] = {}
        self.readers: dict[str, dict[str, ModelGroup]] = {}
        self._homes: dict[tuple[str, str, int], int] = {}

    def put_spec(self, spec: QueueSpec) -> None:
        known = self._specs.get(spec.name)
        if known is not None and known.is_log != spec.is_log:
            raise WrongQueueKind(spec.name, known.is_log)
        if isinstance(spec.retention, Retained):
            partitions = self.partitions.setdefault(spec.name, [])
            if spec.retention.partitions < len(partitions):
                raise Invalid(spec.name, "a log cannot lose partitions", "keep them")
            partitions += [[] for _ in range(spec.retention.partitions - len(partitions))]
            self.first[spec.name] = self.first.get(spec.name, []) + [0] * spec.retention.partitions
            del self.first[spec.name][len(partitions) :]
        self._specs[spec.name] = spec

    def check_append(
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

    def commit(
        self,
        now: Instant,
        log: str,
        group: str,
        partition: int,
        offset: int,
        *,
        rewind: bool = False,
        epoch: int | None = None,
    ) -> int:
        if not -1 <= offset < len(self._partitions(log)[partition]):
            raise Invalid("offset", "it was never written", "commit what was read")
        known = self.readers.get(log, {}).get(group) or ModelGroup()
        if epoch is not None and (known.owner(partition)[0] is None or known.owner(partition)[1] != epoch):
            raise PartitionLost(log, group, partition, epoch)
        self._group(log, group).seen_at = now
        position = self.position(log, group, partition)
        self.positions[log, group, partition] = offset if rewind else max(position, offset)
        return self.positions[log, group, partition]

    def position(self, log: str, group: str, partition: int) -> int:
        return self.positions.get((log, group, partition), -1)

    def extent(self, log: str) -> list[tuple[int, int]]:
        return [(first, len(entries)) for first, entries in zip(self.first[log], self._partitions(log), strict=True)]

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        held = self._partitions(log)[partition][self.first[log][partition] :]
        return self.first[log][partition] - 1 + sum(entry.at < instant for entry in held)

    def own(self, now: Instant, log: str, group: str, member: str, lease_for: Duration) -> list[Owned]:
        known, count = self._group(log, group), len(self._partitions(log))
        known.seen_at = now
        known.members[member] = now + lease_for
        share = -(-count // sum(until > now for until in known.members.values()))
        mine = [number for number in range(count) if known.owner(number)[0] == member]
        for number in mine[share:]:
            known.owners[number] = (None, known.owners[number][1])
        room = share - len(mine)
        for number in range(count):
            owner, _, until = known.owner(number)
            if room > 0 and owner != member and (until is None or until <= now):
                known.owners[number] = (member, known.owners.get(number, (None, 0))[1] + 1)
                room -= 1
        self._drop_members(known, now)
        owned = [(number, *known.owner(number)) for number in range(count) if known.owner(number)[0] == member]
        return [
            Owned(number, epoch, self.position(log, group, number), now + lease_for) for number, _, epoch, _ in owned
        ]

    def disown(self, now: Instant, log: str, group: str, member: str) -> int:
        self._partitions(log)
        known = self.readers.get(log, {}).get(group) or ModelGroup()
        mine = [number for number in known.owners if known.owner(number)[0] == member]
        for number in mine:
            known.owners[number] = (None, known.owners[number][1])
        known.members.pop(member, None)
        self._drop_members(known, now)
        return len(mine)

    def groups(self, log: str) -> list[Standing]:
        readers = self.readers.get(log, {})
        return [
            self._standing(log, name, readers[name], number)
            for name in sorted(readers)
            for number in range(len(self.partitions[log]))
        ]

    def _standing(self, log: str, name: str, group: ModelGroup, number: int) -> Standing:
        position, window = self.position(log, name, number), self._window(log)
        ahead = self.partitions[log][number][max(self.first[log][number], position + 1) :]
        loses_at = ahead[0].at + window if ahead and window is not None else None
        lost = group.lost.get(number, 0)
        return Standing(name, number, position, len(ahead), lost, loses_at, group.seen_at, *group.owner(number))

    def check_trim(self, log: str, before: Instant, limit: int, answer: int, extent: Sequence[tuple[int, int]]) -> None:
        """`extent` is the store's after the trim; its choice of partitions is free."""
        gone = self._moved(log, before, [len(entries) for entries in self._partitions(log)], limit, extent)
        require(answer == gone, "the answer of trim is how many went", gone, answer)

    def check_window(self, now: Instant, log: str, limit: int, extent: Sequence[tuple[int, int]]) -> None:
        """`extent` is the store's after a promotion."""
        window, ends = self._window(log), [len(entries) for entries in self._partitions(log)]
        if window is None:
            require(self.extent(log) == extent, "without a window nothing goes", self.extent(log), extent)
            return
        retention = self._specs[log].retention
        assert isinstance(retention, Retained)
        if retention.lagging == "block":
            for name, group in self.readers.get(log, {}).items():
                if group.seen_at >= now - window:
                    ends = [min(end, self.position(log, name, number) + 1) for number, end in enumerate(ends)]
        self._moved(log, now - window + 1, ends, limit, extent)

    def _moved(
        self, log: str, before: Instant, ends: Sequence[int], limit: int, extent: Sequence[tuple[int, int]]
    ) -> int:
        """The fronts moved to where `extent` has them: only over what is old and before its end, and no less."""
        partitions, was = self._partitions(log), self.first[log]
        self.first[log] = [first for first, _ in extent]
        require(self.extent(log) == extent, "trimming moves only the front", self.extent(log), extent)
        gone, left = 0, list[LogEntry]()
        for number, (entries, old, new, end) in enumerate(zip(partitions, was, self.first[log], ends, strict=True)):
            require(old <= new, "trimming moves the front forward", was, extent)
            require(new <= max(old, end), "entries that a group has not read are kept", ends, extent)
            require(all(entry.at < before for entry in entries[old:new]), "only what is old goes", before, extent)
            gone += new - old
            left += [entry for entry in entries[new:end] if entry.at < before]
            for name, group in self.readers.get(log, {}).items():
                missed = new - max(old, self.position(log, name, number) + 1)
                group.lost[number] = group.lost.get(number, 0) + max(0, missed)
        require(gone <= limit, "trimming is bounded", gone, limit)
        require(gone == limit or not left, "trimming leaves nothing old behind", left)
        return gone

    def _drop_members(self, group: ModelGroup, now: Instant) -> None:
        busy = {owner for owner, _ in group.owners.values()}
        group.members = {name: until for name, until in group.members.items() if until > now or name in busy}

    def _group(self, log: str, name: str) -> ModelGroup:
        return self.readers.setdefault(log, {}).setdefault(name, ModelGroup())

    def _window(self, log: str) -> Duration | None:
        retention = self._specs[log].retention
        assert isinstance(retention, Retained)
        return None if retention.window is None else micros(retention.window)

    def _partitions(self, log: str) -> list[list[LogEntry]]:
        if log not in self.partitions:
            raise WrongQueueKind(log, is_log=False)
        return self.partitions[log]
