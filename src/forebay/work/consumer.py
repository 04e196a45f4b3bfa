"""`Consumer`: a function that is called with each entry of a log, in order within a partition.

    Consumer(store, "clicks", "billing", handle, commit="after").run(stopping)

When the place of the group moves on is an explicit choice, for there is no third one:

    after   handle, then commit: at least once. A crash in between repeats up to a batch; an entry whose handler fails
            is tried again, later and later, and the partition waits for it
    before  commit, then handle: at most once. A crash in between loses up to a batch; an entry whose handler fails is
            logged and gone

Run as many of them as there are partitions, in as many processes as you like: each owns its share. A group that is new
starts with the oldest entry.
"""

import logging
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from time import monotonic
from typing import Final, Literal

from forebay.core.errors import Invalid
from forebay.core.event import LogEntry
from forebay.core.limits import BATCH_MOST
from forebay.core.policy import check_between
from forebay.store.log import Owned
from forebay.store.protocol import Store
from forebay.work.readers import LEASE, Readers, keep_reading

_log = logging.getLogger("forebay.work")

_REST: Final = 1.0
_PAUSE_FIRST: Final = 0.1
_PAUSE_MOST: Final = 30.0

Handler = Callable[[LogEntry], object]


class Consumer:
    """A role: `step` reads and handles once round its partitions. `failed` counts calls of the handler that raised."""

    name = "consumer"

    def __init__(
        self,
        store: Store,
        log: str,
        group: str,
        handler: Handler,
        *,
        commit: Literal["before", "after"],
        batch: int = 100,
        lease: timedelta = LEASE,
        member: str | None = None,
    ) -> None:
        if commit not in ("before", "after"):
            raise Invalid(
                "commit", f"{commit!r} is neither", 'choose "after" (at least once) or "before" (at most once)'
            )
        check_between("batch", batch, 1, BATCH_MOST)
        self._store = store
        self._readers = Readers(store, log, group, member, lease)
        self._handler = handler
        self._first = commit == "before"
        self._batch = batch
        self._failing: dict[int, tuple[float, float]] = {}
        self.handled = 0
        self.failed = 0

    @property
    def lost(self) -> int:
        """Entries that left the log before they could be read."""
        return self._readers.lost

    def step(self) -> float:
        """Seconds to rest: none while there may be more to read."""
        self._readers.renew()
        found = False
        for owned, entries in self._readers.read(self._batch):
            if self._failing.get(owned.partition, (0.0, 0.0))[0] <= monotonic():
                self._take(owned, entries)
                found = True
        waits = [until - monotonic() for until, _ in self._failing.values()]
        return 0.0 if found else max(0.0, min([_REST, *waits]))

    def run(self, stopping: Event) -> None:
        """Until it is set; then the partitions are free for others at once."""
        try:
            keep_reading(self, self._store, self._readers.log, stopping)
        finally:
            self.close()

    def close(self) -> None:
        """Leave the group."""
        self._readers.leave()

    def _take(self, owned: Owned, entries: list[LogEntry]) -> None:
        if self._first:
            if self._readers.commit(owned, entries[-1].offset):
                for entry in entries:
                    self._handle(entry)
            return
        done: LogEntry | None = None
        for entry in entries:
            self._readers.renew()
            if not self._readers.owns(owned.partition, owned.epoch):
                break
            if not self._handle(entry):
                self._set_aside(owned.partition)
                break
            done = entry
            self._failing.pop(owned.partition, None)
        if done is not None:
            self._readers.commit(owned, done.offset)

    def _handle(self, entry: LogEntry) -> bool:
        try:
            self._handler(entry)
        except Exception:
            self.failed += 1
            what = "it is gone" if self._first else "it is tried again"
            _log.exception("entry %d of partition %d failed; %s", entry.offset, entry.partition, what)
            return False
        self.handled += 1
        return True

    def _set_aside(self, partition: int) -> None:
        """The partition waits, longer each time; the others go on."""
        _, pause = self._failing.get(partition, (0.0, _PAUSE_FIRST / 2))
        pause = min(_PAUSE_MOST, pause * 2)
        self._failing[partition] = (monotonic() + pause, pause)
