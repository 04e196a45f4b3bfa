"""Log readers: `Consumer` calls a function for each entry of a log; `Bridge` turns entries into jobs.

    Consumer(store, "clicks", "billing", handle, commit="after").run(stopping)
    Bridge(store, "clicks", "jobs", lambda entry: [Draft("count", body=entry.body, queue="counts")]).run(stopping)

Each runs as one member of a group. Run as many members as the log has partitions, in any number of processes: each owns
its share. A new group starts at the oldest entry.

A member owns its partitions by lease and renews well before the lease ends. A commit carries the epoch of the
ownership, so a member that has lost a partition cannot move the group's position in it: its next commit fails, and it
continues with the partitions that it still owns. A handler that runs longer than the lease therefore repeats entries
but never loses the position.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from threading import Event
from time import monotonic
from typing import Final, Literal
from uuid import uuid4

from forebay.core.entries import LogEntry
from forebay.core.errors import HalfIngested, Invalid, OffsetGone, PartitionLost, QueueFull, StoreFailed
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.limits import MAX_BATCH
from forebay.core.policy import check_between
from forebay.store.log import Owned
from forebay.store.protocol import Checkpoint, Store, Tally
from forebay.work.role import ThrottledLogger, WorkerRole

_log = logging.getLogger("forebay.work")

LEASE: Final = seconds(30)
_UNREACHABLE_PAUSE: Final = 1.0
_RENEWALS: Final = 3
"""Renewals per lease duration."""

_REST: Final = 1.0
_PAUSE_FIRST: Final = 0.1
_MAX_PAUSE: Final = 30.0


class GroupMember:
    """One member of a group: its partitions, and its position in each. `lost` counts entries trimmed before a read."""

    def __init__(self, store: Store, log: str, group: str, member: str | None, lease: timedelta) -> None:
        self.log = log
        self.group = group
        self.member = member or f"reader-{uuid4().hex[:12]}"
        self.lost = 0
        self._store = store
        self._lease = lease
        self._owned: dict[int, Owned] = {}
        self._positions: dict[int, int] = {}
        self._renew_at = float("-inf")

    @property
    def partitions(self) -> list[int]:
        return list(self._owned)

    def renew(self) -> None:
        """Renew the ownership when due. The position in a partition that stayed with this member is kept."""
        if monotonic() < self._renew_at:
            return
        renew_at = monotonic() + self._lease.total_seconds() / _RENEWALS
        before = self._owned
        self._owned = {one.partition: one for one in self._store.own(self.log, self.group, self.member, self._lease)}
        for number, one in self._owned.items():
            if number not in before or before[number].epoch != one.epoch:
                self._positions[number] = one.position
        self._renew_at = renew_at

    def owns(self, number: int, epoch: int) -> bool:
        return number in self._owned and self._owned[number].epoch == epoch

    def read(self, limit: int) -> Iterator[tuple[Owned, list[LogEntry]]]:
        """Each partition with new entries, and up to `limit` of them."""
        for number in self.partitions:
            if number in self._owned and (entries := self._next(number, limit)):
                yield self._owned[number], entries

    def commit(self, owned: Owned, offset: int) -> bool:
        """Move the group's position to the offset; False if another member owns the partition by now."""
        try:
            self._store.commit(self.log, self.group, owned.partition, offset, epoch=owned.epoch)
        except PartitionLost:
            _log.info("%s lost partition %d of %s to another member", self.member, owned.partition, self.log)
            if self.owns(owned.partition, owned.epoch):
                del self._owned[owned.partition]
            return False
        if self.owns(owned.partition, owned.epoch):
            self._positions[owned.partition] = offset
        return True

    def run(self, role: WorkerRole, stopping: Event) -> None:
        """Repeat the role's step until `stopping` is set, then leave the group.

        An unreachable store or a full queue is retried.
        """
        log = ThrottledLogger()
        try:
            while not stopping.is_set():
                try:
                    rest = role.step()
                    if rest > 0:
                        self._store.wait([self.log], seconds(rest))
                except (StoreFailed, QueueFull) as error:
                    log.log_failure(role.name, error)
                    stopping.wait(_UNREACHABLE_PAUSE)
        finally:
            self.leave()

    def leave(self) -> None:
        """Release the partitions to other members, at once if the store can be reached."""
        self._owned = {}
        self._renew_at = float("-inf")
        with suppress(StoreFailed):
            self._store.disown(self.log, self.group, self.member)

    def _next(self, number: int, limit: int) -> list[LogEntry]:
        try:
            return self._store.read(self.log, number, self._positions[number], limit)
        except OffsetGone as gone:
            missed = gone.first - gone.requested
            self.lost += missed
            _log.warning("%d entries of %s were trimmed before group %s read them", missed, self.log, self.group)
            self._positions[number] = gone.first - 1
            return self._store.read(self.log, number, gone.first - 1, limit)


class _GroupRole(WorkerRole):
    """A role that reads a log as a member of a group."""

    _member: GroupMember

    def run(self, stopping: Event) -> None:
        """Repeat the step until `stopping` is set, then leave the group."""
        self._member.run(self, stopping)

    def close(self) -> None:
        """Leave the group."""
        self._member.leave()


class Consumer(_GroupRole):
    """Calls a handler for each entry of a log, in order within a partition. A role.

    `commit` chooses the delivery guarantee:

    after   handle, then commit: at least once. A crash repeats up to a batch. An entry whose handler fails is retried
            with backoff, and its partition waits for it
    before  commit, then handle: at most once. A crash loses up to a batch. An entry whose handler fails is logged and
            skipped

    `failed` counts the calls of the handler that raised.
    """

    name = "consumer"

    def __init__(
        self,
        store: Store,
        log: str,
        group: str,
        handler: Callable[[LogEntry], object],
        *,
        commit: Literal["before", "after"],
        batch: int = 100,
        lease: timedelta = LEASE,
        member: str | None = None,
    ) -> None:
        if commit not in ("before", "after"):
            raise Invalid(
                "commit",
                f"{commit!r} is not a commit mode",
                'choose "after" (at least once) or "before" (at most once)',
            )
        check_between("batch", batch, 1, MAX_BATCH)
        self._member = GroupMember(store, log, group, member, lease)
        self._handler = handler
        self._first = commit == "before"
        self._batch = batch
        self._failing: dict[int, tuple[float, float]] = {}
        self.handled = 0
        self.failed = 0

    @property
    def lost(self) -> int:
        """Entries that were trimmed before they could be read."""
        return self._member.lost

    def step(self) -> float:
        """Read and handle one batch of each partition; rest only when there was none."""
        self._member.renew()
        found = False
        for owned, entries in self._member.read(self._batch):
            if self._failing.get(owned.partition, (0.0, 0.0))[0] <= monotonic():
                self._take(owned, entries)
                found = True
        waits = [until - monotonic() for until, _ in self._failing.values()]
        return 0.0 if found else max(0.0, min([_REST, *waits]))

    def _take(self, owned: Owned, entries: list[LogEntry]) -> None:
        if self._first:
            if self._member.commit(owned, entries[-1].offset):
                for entry in entries:
                    self._handle(entry)
            return
        done: LogEntry | None = None
        for entry in entries:
            self._member.renew()
            if not self._member.owns(owned.partition, owned.epoch):
                break
            if not self._handle(entry):
                self._back_off(owned.partition)
                break
            done = entry
            self._failing.pop(owned.partition, None)
        if done is not None:
            self._member.commit(owned, done.offset)

    def _handle(self, entry: LogEntry) -> bool:
        try:
            self._handler(entry)
        except Exception:
            self.failed += 1
            what = "skipped" if self._first else "it will be retried"
            _log.exception("entry %d of partition %d failed; %s", entry.offset, entry.partition, what)
            return False
        self.handled += 1
        return True

    def _back_off(self, partition: int) -> None:
        """Pause the partition, longer after each failure; the others continue."""
        _, pause = self._failing.get(partition, (0.0, _PAUSE_FIRST / 2))
        pause = min(_MAX_PAUSE, pause * 2)
        self._failing[partition] = (monotonic() + pause, pause)


class Bridge(_GroupRole):
    """Turns entries of a log into jobs, each entry exactly once, across any crash. A role.

    The store accepts the drafts of some entries and records the bridge's position in one transaction (`ingest`): an
    entry whose jobs are accepted is not read again by this group, and none is skipped. Partition leases only avoid
    duplicate work; two members that read the same entry cannot both insert its jobs. `drafts` must return the same
    drafts for the same entry. To insert everything again, use another group. A full queue pauses the bridge.
    """

    name = "bridge"

    def __init__(
        self,
        store: Store,
        log: str,
        group: str,
        drafts: Callable[[LogEntry], Sequence[Draft]],
        *,
        batch: int = 100,
        lease: timedelta = LEASE,
        member: str | None = None,
    ) -> None:
        check_between("batch", batch, 1, MAX_BATCH)
        self._store = store
        self._member = GroupMember(store, log, group, member, lease)
        self._drafts = drafts
        self._batch = batch
        self.entries = 0
        self.jobs = 0

    def step(self) -> float:
        """Insert one batch of each partition; rest only when there was none."""
        self._member.renew()
        found = False
        for owned, entries in self._member.read(self._batch):
            self._insert(owned, entries)
            found = True
        return 0.0 if found else _REST

    def _insert(self, owned: Owned, entries: Sequence[LogEntry]) -> None:
        """Entries already inserted, by another member or before a crash, are skipped; the group's position follows."""
        source = f"log/{self._member.log}/{self._member.group}/{owned.partition}"
        known = self._store.ingested(source)
        new = [entry for entry in entries if known is None or entry.offset > known.batch]
        last = entries[-1].offset
        if new:
            try:
                tally = self._ingest(source, known, new)
            except HalfIngested as half:
                new, last = self._interrupted(owned, new[0].offset, half), half.batch
                tally = self._ingest(source, known, new)
            if tally is None:
                return
            self.entries += len(new)
            self.jobs += tally.taken
        self._member.commit(owned, last)

    def _ingest(self, source: str, known: Checkpoint | None, entries: Sequence[LogEntry]) -> Tally | None:
        drafts = [draft for entry in entries for draft in self._drafts(entry)]
        return self._store.ingest(source, known, Checkpoint(entries[-1].offset, len(drafts), b""), drafts)

    def _interrupted(self, owned: Owned, first: int, half: HalfIngested) -> list[LogEntry]:
        """The entries of a batch that was interrupted between two cells; it had another end."""
        count = half.batch - first + 1
        if not 1 <= count <= MAX_BATCH:
            raise half
        return self._store.read(self._member.log, owned.partition, first - 1, count)
