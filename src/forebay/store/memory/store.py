"""`MemoryStore`: the in-process store. Fast, complete, and durable when a journal is behind it.

One process, many threads. Without a journal everything ends with the process; with one (`journaled.py`) every answer
is durable before it is given.
"""

from collections.abc import Sequence
from zlib import crc32

from forebay.core.clock import Clock
from forebay.core.errors import Invalid, OffsetGone, WrongQueueKind
from forebay.core.event import Appended, Committed, LogEntry, Trimmed
from forebay.core.features import Feature
from forebay.core.instant import Instant, checked_instant
from forebay.core.names import check_name
from forebay.store.checks import check_limit, checked_entries
from forebay.store.clock import SystemClock
from forebay.store.memory.engine import Recorder
from forebay.store.memory.facts import SETTLE_MEMORY, Facts
from forebay.store.memory.logs import Partition
from forebay.store.memory.queues import QueueVerbs
from forebay.store.protocol import Capabilities
from forebay.store.unbuilt import MEMORY, Unbuilt, unbuilt


class MemoryStore(QueueVerbs, Unbuilt):
    """Every verb of the contract, in this process's memory."""

    def __init__(
        self, *, clock: Clock | None = None, facts: Facts | None = None, recorder: Recorder | None = None
    ) -> None:
        super().__init__(facts or Facts(), clock or SystemClock(), recorder)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="memory", durable=self._recorder is not None, settle_memory=SETTLE_MEMORY, lacks=MEMORY
        )

    def append(self, log: str, bodies: Sequence[bytes], keys: Sequence[str | None] | None = None) -> list[LogEntry]:
        log = check_name("log", log)
        pairs = checked_entries(bodies, keys)
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
                self._record(Appended(now, log, entries))
            lsn = self._lsn
        self._settle_down(lsn)
        return entries

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        log = check_name("log", log)
        check_limit("read", limit)
        with self._lock:
            self._begin()
            place = self._partition(log, partition)
            if type(after) is not int or after < -1:
                raise Invalid("after", f"{after!r} is no offset", "-1 reads from the start")
            if after + 1 < place.first:
                raise OffsetGone(log, partition, after + 1, place.first)
            entries = place.read(after, limit)
            lsn = self._lsn
        self._settle_down(lsn)
        return entries

    def commit(
        self, log: str, group: str, partition: int, offset: int, *, rewind: bool = False, epoch: int | None = None
    ) -> int:
        if epoch is not None:
            raise unbuilt("memory", Feature.GROUPS)
        log = check_name("log", log)
        group = check_name("group", group)
        with self._lock:
            now = self._begin()
            place = self._partition(log, partition)
            if type(offset) is not int or not -1 <= offset < place.next:
                raise Invalid("offset", f"{offset!r} is not in -1 … {place.next - 1}", "commit what was read")
            known = self._facts.logs.places.get((log, group, partition), -1)
            if offset > known or (rewind and offset != known):
                self._record(Committed(now, log, group, partition, offset))
                known = offset
            lsn = self._lsn
        self._settle_down(lsn)
        return known

    def position(self, log: str, group: str, partition: int) -> int:
        log = check_name("log", log)
        with self._lock:
            self._begin()
            self._partition(log, partition)
            offset = self._facts.logs.places.get((log, group, partition), -1)
            lsn = self._lsn
        self._settle_down(lsn)
        return offset

    def extent(self, log: str) -> list[tuple[int, int]]:
        log = check_name("log", log)
        with self._lock:
            self._begin()
            ranges = [(partition.first, partition.next) for partition in self._partitions_of(log)]
            lsn = self._lsn
        self._settle_down(lsn)
        return ranges

    def trim(self, log: str, before: Instant, limit: int) -> int:
        log = check_name("log", log)
        check_limit("trim", limit)
        checked_instant("before", before)
        with self._lock:
            now = self._begin()
            dropped = 0
            for number, partition in enumerate(self._partitions_of(log)):
                old = [entry for entry in partition.read(partition.first - 1, limit - dropped) if entry.at < before]
                if old:
                    self._record(Trimmed(now, log, number, old[-1].offset + 1))
                    dropped += len(old)
            lsn = self._lsn
        self._settle_down(lsn)
        return dropped

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
