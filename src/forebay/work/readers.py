"""What reads a log for a group: one member of it, its partitions, and its place in each.

A member owns its partitions by lease and calls again long before that runs out. What it commits carries the epoch, so
a member that was followed by another can change nothing any more: it finds out at its next commit, and goes on with
what it still owns. A handler that takes longer than the lease therefore costs a repetition, never a lost place.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from threading import Event
from time import monotonic
from typing import Final
from uuid import uuid4

from forebay.core.errors import OffsetGone, PartitionLost, QueueFull, StoreFailed
from forebay.core.event import LogEntry
from forebay.core.instant import seconds
from forebay.store.log import Owned
from forebay.store.protocol import Store
from forebay.work.role import Role, Voice

_log = logging.getLogger("forebay.work")

LEASE: Final = seconds(30)
_AWAY: Final = 1.0
_RENEWALS: Final = 3
"""So often within a lease a member calls again."""


def keep_reading(role: Role, store: Store, log: str, stopping: Event) -> None:
    """Step after step until it is told to stop; a store that is away, or a queue that is full, is waited for."""
    voice = Voice()
    while not stopping.is_set():
        try:
            rest = role.step()
            if rest > 0:
                store.wait([log], seconds(rest))
        except (StoreFailed, QueueFull) as error:
            voice.warn(role.name, error)
            stopping.wait(_AWAY)


class Readers:
    """One member of a group. `lost`: entries that were trimmed before this member had read them."""

    def __init__(self, store: Store, log: str, group: str, member: str | None, lease: timedelta) -> None:
        self.log = log
        self.group = group
        self.member = member or f"reader-{uuid4().hex[:12]}"
        self.lost = 0
        self._store = store
        self._lease = lease
        self._owned: dict[int, Owned] = {}
        self._places: dict[int, int] = {}
        self._renew_at = float("-inf")

    @property
    def partitions(self) -> list[int]:
        return list(self._owned)

    def renew(self) -> None:
        """Call `own` if it is time to. A place that was read up to is kept where the partition stayed ours."""
        if monotonic() < self._renew_at:
            return
        calls_again = monotonic() + self._lease.total_seconds() / _RENEWALS
        before = self._owned
        self._owned = {one.partition: one for one in self._store.own(self.log, self.group, self.member, self._lease)}
        for number, one in self._owned.items():
            if number not in before or before[number].epoch != one.epoch:
                self._places[number] = one.position
        self._renew_at = calls_again

    def owns(self, number: int, epoch: int) -> bool:
        return number in self._owned and self._owned[number].epoch == epoch

    def read(self, limit: int) -> Iterator[tuple[Owned, list[LogEntry]]]:
        """Each partition that has something, with up to `limit` entries of it."""
        for number in self.partitions:
            if number in self._owned and (entries := self._next(number, limit)):
                yield self._owned[number], entries

    def commit(self, owned: Owned, offset: int) -> bool:
        """The group has everything up to there; False: the partition is another member's by now."""
        try:
            self._store.commit(self.log, self.group, owned.partition, offset, epoch=owned.epoch)
        except PartitionLost:
            _log.info("%s lost partition %d of %s to another member", self.member, owned.partition, self.log)
            if self.owns(owned.partition, owned.epoch):
                del self._owned[owned.partition]
            return False
        self.move(owned, offset)
        return True

    def move(self, owned: Owned, offset: int) -> None:
        """Read on after there."""
        if self.owns(owned.partition, owned.epoch):
            self._places[owned.partition] = offset

    def leave(self) -> None:
        """What it owned is free for others, at once if the store can be reached."""
        self._owned = {}
        self._renew_at = float("-inf")
        with suppress(StoreFailed):
            self._store.disown(self.log, self.group, self.member)

    def _next(self, number: int, limit: int) -> list[LogEntry]:
        try:
            return self._store.read(self.log, number, self._places[number], limit)
        except OffsetGone as gone:
            missed = gone.first - gone.asked
            self.lost += missed
            _log.warning("%d entries of %s left its window before group %s had them", missed, self.log, self.group)
            self._places[number] = gone.first - 1
            return self._store.read(self.log, number, gone.first - 1, limit)
