"""`Bridge`: entries of a log become jobs, each entry exactly once, whatever crashes on the way.

    Bridge(store, "clicks", "jobs", lambda entry: [Draft("count", body=entry.body, queue="counts")]).run(stopping)

The store takes the drafts of some entries and notes how far the bridge has come in one transaction (`store.feeding`),
so an entry whose jobs are in is never read again for this group, and one whose jobs are not in is never passed over.
Members share the partitions by lease, for speed alone: two that read the same entry cannot both bring it in. `drafts`
must give the same drafts for the same entry. To bring everything in again, take another group.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Event
from typing import Final

from forebay.core.event import LogEntry
from forebay.core.job import Draft
from forebay.core.limits import BATCH_MOST
from forebay.core.policy import check_between
from forebay.store.feeding import Place
from forebay.store.log import Owned
from forebay.store.protocol import Store
from forebay.work.readers import LEASE, Readers, keep_reading

_REST: Final = 1.0


class Bridge:
    """A role: `step` brings in once round its partitions. A queue that is full stops it until there is room."""

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
        check_between("batch", batch, 1, BATCH_MOST)
        self._store = store
        self._readers = Readers(store, log, group, member, lease)
        self._drafts = drafts
        self._batch = batch
        self.entries = 0
        self.jobs = 0

    def step(self) -> float:
        """Seconds to rest: none while there may be more to read."""
        self._readers.renew()
        found = False
        for owned, entries in self._readers.read(self._batch):
            self._bring_in(owned, entries)
            found = True
        return 0.0 if found else _REST

    def run(self, stopping: Event) -> None:
        """Until it is set; then the partitions are free for others at once."""
        try:
            keep_reading(self, self._store, self._readers.log, stopping)
        finally:
            self.close()

    def close(self) -> None:
        """Leave the group."""
        self._readers.leave()

    def _bring_in(self, owned: Owned, entries: Sequence[LogEntry]) -> None:
        """What another member brought in already, or before a crash, is passed over; the place follows."""
        source = f"log/{self._readers.log}/{self._readers.group}/{owned.partition}"
        known = self._store.fed(source)
        new = [entry for entry in entries if known is None or entry.offset > known.batch]
        last = entries[-1].offset
        if new:
            drafts = [draft for entry in new for draft in self._drafts(entry)]
            tally = self._store.feed(source, known, Place(last, len(drafts), b""), drafts)
            if tally is None:
                return
            self.entries += len(new)
            self.jobs += tally.taken
        self._readers.commit(owned, last)
