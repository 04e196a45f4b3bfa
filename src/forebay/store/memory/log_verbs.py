"""The verbs of retained logs: appending and reading, groups and the partitions that their members own, the window."""

from collections.abc import Sequence
from zlib import crc32

from forebay.core.changeset import ChangeSet, LogChange
from forebay.core.division import divide, next_epoch
from forebay.core.entries import LogEntry
from forebay.core.errors import Invalid, OffsetGone, PartitionLost, WrongQueueKind
from forebay.core.instant import Duration, Instant, micros
from forebay.core.policy import Retained
from forebay.store.log import Owned, Standing
from forebay.store.memory.feed import FeedVerbs
from forebay.store.memory.logs import Partition
from forebay.store.protocol import Promotion


class LogVerbs(FeedVerbs):
    """Logs beside the queues."""

    def append(self, log: str, pairs: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
        with self._lock:
            now = self._begin()
            partitions = self._partitions_of(log)
            following = [partition.next for partition in partitions]
            entries = []
            for body, key in pairs:
                number = crc32(key.encode()) % len(partitions) if key else following.index(min(following))
                entries.append(LogEntry(number, following[number], now, body, key))
                following[number] += 1
            if entries:
                self._commit(ChangeSet(now, log=LogChange(log, entries)))
                self._index.queue(log).claimers.wake_all()
            lsn = self._lsn
        self._settle_down(lsn)
        return entries

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        with self._lock:
            self._begin()
            place = self._partition(log, partition)
            if after + 1 < place.first:
                raise OffsetGone(log, partition, after + 1, place.first)
            entries = place.read(after, limit)
            lsn = self._lsn
        self._settle_down(lsn)
        return entries

    def commit(self, log: str, group: str, partition: int, offset: int, rewind: bool, epoch: int | None) -> int:
        with self._lock:
            now = self._begin()
            place = self._partition(log, partition)
            if type(offset) is not int or not -1 <= offset < place.next:
                raise Invalid("offset", f"{offset!r} is not in -1 … {place.next - 1}", "commit what was read")
            holding = self._facts.logs.holding(log, group, partition)
            if epoch is not None and (holding.member is None or holding.epoch != epoch):
                raise PartitionLost(log, group, partition, epoch)
            known = self._facts.logs.places.get((log, group, partition), -1)
            known = offset if rewind else max(known, offset)
            self._commit(ChangeSet(now, log=LogChange(log, group=group, committed={partition: known})))
            lsn = self._lsn
        self._settle_down(lsn)
        return known

    def position(self, log: str, group: str, partition: int) -> int:
        with self._lock:
            self._begin()
            self._partition(log, partition)
            offset = self._facts.logs.places.get((log, group, partition), -1)
            lsn = self._lsn
        self._settle_down(lsn)
        return offset

    def extent(self, log: str) -> list[tuple[int, int]]:
        with self._lock:
            self._begin()
            ranges = [(partition.first, partition.next) for partition in self._partitions_of(log)]
            lsn = self._lsn
        self._settle_down(lsn)
        return ranges

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        with self._lock:
            self._begin()
            offset = self._partition(log, partition).before(instant)
            lsn = self._lsn
        self._settle_down(lsn)
        return offset

    def trim(self, log: str, before: Instant, limit: int) -> int:
        with self._lock:
            now = self._begin()
            ends = [partition.next for partition in self._partitions_of(log)]
            dropped = self._drop(log, before, ends, limit, now)
            lsn = self._lsn
        self._settle_down(lsn)
        return dropped

    def promote(self, limit: int) -> Promotion:
        promotion = super().promote(limit)
        if self._facts.logs.partitions:
            self._keep_windows(limit)
        return promotion

    def own(self, log: str, group: str, member: str, span: Duration) -> list[Owned]:
        with self._lock:
            now = self._begin()
            self._partitions_of(log)
            logs = self._facts.logs
            holdings = logs.holdings(log, group)
            others = [until for name, until in logs.members.get((log, group), {}).items() if name != member]
            living = 1 + sum(until > now for until in others)
            numbers, until = divide(member, holdings, living, now), now + span
            epochs = {number: next_epoch(member, holdings[number]) for number in numbers}
            self._commit(ChangeSet(now, log=LogChange(log, group=group, member=member, until=until, owned=epochs)))
            owned = [Owned(*each, logs.places.get((log, group, each[0]), -1), until) for each in epochs.items()]
            lsn = self._lsn
        self._settle_down(lsn)
        return owned

    def disown(self, log: str, group: str, member: str) -> int:
        with self._lock:
            now = self._begin()
            self._partitions_of(log)
            logs = self._facts.logs
            freed = sum(holding.member == member for holding in logs.holdings(log, group))
            if member in logs.members.get((log, group), {}):
                self._commit(ChangeSet(now, log=LogChange(log, group=group, member=member)))
            lsn = self._lsn
        self._settle_down(lsn)
        return freed

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        with self._lock:
            self._begin()
            partitions = self._partitions_of(log)
            names = sorted(name for name in self._facts.logs.seen.get(log, ()) if name > after)[:limit]
            standings = [self._standing(log, name, number) for name in names for number in range(len(partitions))]
            lsn = self._lsn
        self._settle_down(lsn)
        return standings

    def _standing(self, log: str, group: str, number: int) -> Standing:
        logs, (window, _) = self._facts.logs, self._rule(log)
        partition, place = logs.partitions[log][number], (log, group, number)
        position = logs.places.get(place, -1)
        ahead = partition.read(max(position, partition.first - 1), 1)
        holding = logs.holding(log, group, number)
        owner = (None, 0, None) if holding.member is None else (holding.member, holding.epoch, holding.until)
        return Standing(
            group,
            number,
            position,
            partition.next - max(partition.first, position + 1),
            logs.lost.get(place, 0),
            ahead[0].at + window if ahead and window is not None else None,
            logs.seen[log][group],
            *owner,
        )

    def _keep_windows(self, limit: int) -> None:
        """Entries that left their window are gone, but for those that a group still reads towards, if it may."""
        with self._lock:
            now = self._begin()
            for log, partitions in self._facts.logs.partitions.items():
                window, blocks = self._rule(log)
                if window is None or limit < 1:
                    continue
                ends = [partition.next for partition in partitions]
                if blocks:
                    reading = [name for name, at in self._facts.logs.seen.get(log, {}).items() if at >= now - window]
                    ends = [self._floor(log, reading, number, end) for number, end in enumerate(ends)]
                limit -= self._drop(log, now - window + 1, ends, limit, now)
            lsn = self._lsn
        self._settle_down(lsn)

    def _floor(self, log: str, groups: Sequence[str], number: int, end: int) -> int:
        """The first offset that one of the groups has not had."""
        places = self._facts.logs.places
        return min((places.get((log, group, number), -1) + 1 for group in groups), default=end)

    def _drop(self, log: str, before: Instant, ends: Sequence[int], limit: int, now: Instant) -> int:
        """Entries appended before the instant, of each partition only up to its end; how many."""
        left, trimmed = limit, dict[int, int]()
        for number, partition in enumerate(self._partitions_of(log)):
            end = min(partition.before(before) + 1, ends[number], partition.first + left)
            if end > partition.first:
                left -= end - partition.first
                trimmed[number] = end
        if trimmed:
            self._commit(ChangeSet(now, log=LogChange(log, trimmed=trimmed)))
        return limit - left

    def _rule(self, log: str) -> tuple[Duration | None, bool]:
        """The window of a log, and whether those who lag behind it hold it open."""
        retention = self._facts.specs[log].retention
        assert isinstance(retention, Retained)
        return None if retention.window is None else micros(retention.window), retention.lagging == "block"

    def _partitions_of(self, log: str) -> list[Partition]:
        partitions = self._facts.logs.partitions.get(log)
        if partitions is None:
            raise WrongQueueKind(log, is_log=False)
        return partitions

    def _partition(self, log: str, number: int) -> Partition:
        partitions = self._partitions_of(log)
        if type(number) is not int or not 0 <= number < len(partitions):
            raise Invalid("partition", f"{number!r} is not in 0 … {len(partitions) - 1}", f"log {log!r} has no other")
        return partitions[number]
