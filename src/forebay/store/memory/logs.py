"""The verbs of retained logs: appending and reading, groups and the partitions that their members own, the window."""

from collections.abc import Sequence

from forebay.core.changeset import ChangeSet, LogChange
from forebay.core.entries import LogEntry
from forebay.core.errors import OffsetGone, WrongQueueKind
from forebay.core.instant import Duration, Instant
from forebay.engine.logs import (
    check_commit,
    check_epoch,
    divide,
    next_epoch,
    no_partition,
    place_entries,
    window_of,
)
from forebay.store.log import Owned, Standing
from forebay.store.memory.facts import Partition
from forebay.store.memory.session import Session, verb


class Logs:
    """Logs beside the queues."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._logs, self._specs = session.facts.logs, session.facts.specs

    @verb
    def append(self, now: Instant, log: str, pairs: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
        following = [partition.next for partition in self._partitions(log)]
        entries = place_entries(pairs, following, [now] * len(following))
        if entries:
            self._commit(now, LogChange(log, entries))
            self.session.index.queue(log).claimers.wake_all()
        return entries

    @verb
    def read(self, _: Instant, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        found = self._partition(log, partition)
        if after + 1 < found.first:
            raise OffsetGone(log, partition, after + 1, found.first)
        return found.read(after, limit)

    @verb
    def commit(
        self, now: Instant, log: str, group: str, partition: int, offset: int, rewind: bool, epoch: int | None
    ) -> int:
        check_commit(offset, self._partition(log, partition).next)
        holding = self._logs.holding(log, group, partition)
        check_epoch(log, group, partition, epoch, holding.member, holding.epoch)
        position = offset if rewind else max(offset, self._logs.position(log, group, partition))
        self._commit(now, LogChange(log, group=group, committed={partition: position}))
        return position

    @verb
    def position(self, _: Instant, log: str, group: str, partition: int) -> int:
        self._partition(log, partition)
        return self._logs.position(log, group, partition)

    @verb
    def extent(self, _: Instant, log: str) -> list[tuple[int, int]]:
        return [(partition.first, partition.next) for partition in self._partitions(log)]

    @verb
    def offset_at(self, _: Instant, log: str, partition: int, instant: Instant) -> int:
        return self._partition(log, partition).before(instant)

    @verb
    def trim(self, now: Instant, log: str, before: Instant, limit: int) -> int:
        return self._drop(log, before, [partition.next for partition in self._partitions(log)], limit, now)

    @verb
    def own(self, now: Instant, log: str, group: str, member: str, lease_for: Duration) -> list[Owned]:
        self._partitions(log)
        logs = self._logs
        holdings = logs.holdings(log, group)
        others = [until for name, until in logs.members.get((log, group), {}).items() if name != member]
        numbers, until = divide(member, holdings, 1 + sum(end > now for end in others), now), now + lease_for
        epochs = {number: next_epoch(member, holdings[number]) for number in numbers}
        self._commit(now, LogChange(log, group=group, member=member, until=until, owned=epochs))
        return [Owned(*each, logs.position(log, group, each[0]), until) for each in epochs.items()]

    @verb
    def disown(self, now: Instant, log: str, group: str, member: str) -> int:
        self._partitions(log)
        freed = sum(holding.member == member for holding in self._logs.holdings(log, group))
        if member in self._logs.members.get((log, group), {}):
            self._commit(now, LogChange(log, group=group, member=member))
        return freed

    @verb
    def groups(self, _: Instant, log: str, after: str, limit: int) -> list[Standing]:
        numbers = range(len(self._partitions(log)))
        names = sorted(name for name in self._logs.seen.get(log, ()) if name > after)[:limit]
        return [self._standing(log, name, number) for name in names for number in numbers]

    @verb
    def keep_windows(self, now: Instant, limit: int) -> None:
        """Entries that left their window are gone, but for those that a group still reads towards, if it may."""
        for log, partitions in self._logs.partitions.items():
            window, blocks = window_of(self._specs[log])
            if window is None or limit < 1:
                continue
            ends = [partition.next for partition in partitions]
            if blocks:
                reading = [name for name, at in self._logs.seen.get(log, {}).items() if at >= now - window]
                ends = [self._floor(log, reading, number, end) for number, end in enumerate(ends)]
            limit -= self._drop(log, now - window + 1, ends, limit, now)

    def _commit(self, now: Instant, change: LogChange) -> None:
        self.session.commit(ChangeSet(now, log=change))

    def _standing(self, log: str, group: str, number: int) -> Standing:
        logs, (window, _) = self._logs, window_of(self._specs[log])
        partition, position = logs.partitions[log][number], logs.position(log, group, number)
        ahead = partition.read(max(position, partition.first - 1), 1)
        holding = logs.holding(log, group, number)
        owner = (None, 0, None) if holding.member is None else (holding.member, holding.epoch, holding.until)
        return Standing(
            group,
            number,
            position,
            partition.next - max(partition.first, position + 1),
            logs.lost.get((log, group, number), 0),
            ahead[0].at + window if ahead and window is not None else None,
            logs.seen[log][group],
            *owner,
        )

    def _floor(self, log: str, groups: Sequence[str], number: int, end: int) -> int:
        """The first offset that one of the groups has not read."""
        return min((self._logs.position(log, group, number) + 1 for group in groups), default=end)

    def _drop(self, log: str, before: Instant, ends: Sequence[int], limit: int, now: Instant) -> int:
        """Entries appended before the instant, of each partition only up to its end; how many."""
        left, trimmed = limit, dict[int, int]()
        for number, partition in enumerate(self._partitions(log)):
            end = min(partition.before(before) + 1, ends[number], partition.first + left)
            if end > partition.first:
                left -= end - partition.first
                trimmed[number] = end
        if trimmed:
            self._commit(now, LogChange(log, trimmed=trimmed))
        return limit - left

    def _partitions(self, log: str) -> list[Partition]:
        partitions = self._logs.partitions.get(log)
        if partitions is None:
            raise WrongQueueKind(log, is_log=False)
        return partitions

    def _partition(self, log: str, number: int) -> Partition:
        partitions = self._partitions(log)
        if type(number) is not int or not 0 <= number < len(partitions):
            raise no_partition(log, number, len(partitions))
        return partitions[number]
