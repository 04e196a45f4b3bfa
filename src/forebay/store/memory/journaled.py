"""`memory:///directory`: the in-process store with its journal behind it, recovered when it is opened.

Recovery is the latest good snapshot plus the records after it, applied through the same code as live calls.
Compaction keeps the disk bounded without stopping the world: when the log has outgrown the last snapshot, a thread
reads that snapshot and the ended segments back from disk, applies them to facts of its own, copies the ledger's records
into a file of their own, writes the next snapshot and drops what it covers. It never takes the store's lock; its price
is a second copy of the state while it runs.
"""

import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Final, TypeVar

from forebay.core.changeset import StoredRecord, decode_entry
from forebay.core.clock import Clock
from forebay.core.errors import JournalDamaged, StoreFailed
from forebay.store.memory.changes import apply
from forebay.store.memory.disk import Disk, RealDisk
from forebay.store.memory.facts import Facts
from forebay.store.memory.frame import Scan, decode_header
from forebay.store.memory.image import image, restore
from forebay.store.memory.journal import Journal
from forebay.store.memory.ledger import Ledger
from forebay.store.memory.ledger_files import LedgerFiles, LedgerWriter, discard_below
from forebay.store.memory.recovery import SEGMENT_BYTES, failing_as_store, recover
from forebay.store.memory.snapshot import read_snapshot, snapshot_path
from forebay.store.memory.store import MemoryStore

_log = logging.getLogger("forebay.store.memory")

T = TypeVar("T")

COMPACT_BYTES: Final = 64 * 1024 * 1024
"""The log may grow by this much, or to the size of the last snapshot, before it is compacted."""

RESERVE_BYTES: Final = 16 * 1024 * 1024
"""A compaction leaves so much room on the disk to the log, which stops for good when a write of its own fails."""

_RETRY_SECONDS: Final = 60.0
_MAX_RETRY_SECONDS: Final = 3_600.0
_BREATH: Final = 0.002
_RECORDS_PER_BREATH: Final = 64


def open_journaled(
    directory: str,
    *,
    clock: Clock | None = None,
    disk: Disk | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    compact_bytes: int = COMPACT_BYTES,
) -> MemoryStore:
    """The store in this directory, created if need be; `StoreLocked`, `JournalDamaged` or `StoreFailed` if not."""
    disk = RealDisk() if disk is None else disk
    with recover(directory, disk, segment_bytes) as recovery, _no_collections():
        for damage in recovery.passed_over:
            _log.warning("a snapshot was passed over: %s", damage)
        facts = restore(recovery.chunks(), f"snapshot {snapshot_path(directory, recovery.snapshot_lsn)}")
        _replay(facts, recovery.frames(), directory)
        snapshot_lsn = recovery.snapshot_lsn
        journal = recovery.start()
    recorder = CompactingJournal(journal, directory, disk, snapshot_lsn, compact_bytes)
    files = LedgerFiles(disk, directory)
    return MemoryStore(
        clock=clock,
        facts=facts,
        recorder=recorder,
        ledger=lambda session: Ledger(session, recorder, files, lambda: journal.synced),
    )


class CompactingJournal:
    """A journal that keeps itself short."""

    def __init__(self, journal: Journal, directory: str, disk: Disk, snapshot_lsn: int, compact_bytes: int) -> None:
        self.append = journal.append
        self._journal = journal
        self._directory = directory
        self._disk = disk
        self._snapshot_lsn = snapshot_lsn
        self._compact_bytes = compact_bytes
        self._compact_above = compact_bytes
        self._starting = Lock()
        self._thread: Thread | None = None
        self._closing = False
        self._failures = 0
        self._not_before = 0.0

    def sync(self, lsn: int) -> None:
        self._journal.sync(lsn)
        if self._journal.bytes_since_snapshot > self._compact_above and time.monotonic() >= self._not_before:
            self._compact_soon()

    def close(self) -> None:
        with self._starting:
            self._closing = True
        if self._thread is not None:
            self._thread.join()
        self._journal.close()

    def compact(self) -> None:
        """Write a snapshot of everything durable now, and drop the log before it.

        What fails leaves the log as it was, and nothing behind on the disk.
        """
        self._check_free_space(0)
        upto = self._journal.rotate()
        if upto <= self._snapshot_lsn:
            return
        facts = self._last_snapshot()
        writer = LedgerWriter(self._disk, self._directory)
        try:
            with failing_as_store(self._directory):
                self._keep_ledger(facts, writer, upto)
            self._journal.snapshot(upto, self._within_free_space(self._unhurried(image(facts), 1)))
        except BaseException:
            writer.give_up()
            raise
        self._snapshot_lsn = upto
        self._compact_above = max(self._compact_bytes, self._disk.size(snapshot_path(self._directory, upto)))
        self._journal.discard(upto)
        with failing_as_store(self._directory):
            discard_below(self._disk, self._directory, facts.ledger.first, facts.ledger.next)

    def _last_snapshot(self) -> Facts:
        lsn = self._snapshot_lsn
        with failing_as_store(self._directory):
            chunks = read_snapshot(self._disk, self._directory, lsn) if lsn else iter(())
            return restore(self._unhurried(chunks, 1), f"snapshot {snapshot_path(self._directory, lsn)}")

    def _keep_ledger(self, facts: Facts, writer: LedgerWriter, upto: int) -> None:
        """Bring the facts up to date, and the ledger's records into a file that will outlive the segments."""

        def keep(each: StoredRecord) -> None:
            self._check_free_space(len(each.record))
            writer.add(each)

        frames = _ended_frames(self._disk, self._journal.sealed_segments(upto), self._snapshot_lsn)
        _replay(facts, self._unhurried(frames, _RECORDS_PER_BREATH), self._directory, keep)
        writer.finish()

    def _within_free_space(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._check_free_space(len(chunk))
            yield chunk

    def _check_free_space(self, size: int) -> None:
        with failing_as_store(self._directory):
            free = self._disk.free(self._directory)
        if free - size < RESERVE_BYTES:
            reason = f"{free:,} bytes are free on its disk, of which {RESERVE_BYTES:,} stay free for new records"
            raise StoreFailed(f"journal {self._directory}", f"{reason}; make room for about a copy of the state")

    def _compact_soon(self) -> None:
        with self._starting:
            if self._closing or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = Thread(target=self._compact_in_background, name="forebay-compaction", daemon=True)
            self._thread.start()

    def _compact_in_background(self) -> None:
        try:
            self.compact()
            self._failures = 0
        except _Closing:
            return
        except Exception as error:
            # The log is whole and only longer than it should be: go on, and try again later.
            wait = min(_RETRY_SECONDS * 2**self._failures, _MAX_RETRY_SECONDS)
            self._failures += 1
            self._not_before = time.monotonic() + wait
            # Not the text of the error: that of a failed store says that it has stopped.
            reason = error.reason if isinstance(error, StoreFailed) else f"{type(error).__name__}: {error}"
            _log.warning(
                "the journal in %s was not compacted, it works on and grows; next try in %.0f s: %s",
                self._directory,
                wait,
                reason,
            )

    def _unhurried(self, items: Iterable[T], per_breath: int) -> Iterator[T]:
        """The items, with pauses in which the store's own threads go first."""
        for number, item in enumerate(items):
            yield item
            if number % per_breath == 0:
                if self._closing:
                    raise _Closing
                time.sleep(_BREATH)


class _Closing(Exception):
    """The store is being closed; the snapshot can wait for another day."""


def _replay(
    facts: Facts,
    frames: Iterable[tuple[int, bytes]],
    directory: str,
    keep: Callable[[StoredRecord], None] | None = None,
) -> None:
    for lsn, body in frames:
        try:
            entry = decode_entry(body)
            apply(facts, entry.change, entry.record)
        except (ValueError, LookupError) as error:
            raise StoreFailed(f"journal {directory}", f"record {lsn} is sound but not understood: {error}") from error
        if keep is not None and entry.record is not None:
            keep(entry.record)


def _ended_frames(disk: Disk, paths: Iterable[str], after: int) -> Iterator[tuple[int, bytes]]:
    """The records of ended segments behind an lsn. They are durable and vouched for: any fault in them is damage."""
    for path in paths:
        data = disk.read(path, 0, disk.size(path))
        header = decode_header(data)
        if header is None:
            raise JournalDamaged(path, 0, "its header is damaged")
        scan = Scan(data, header[0], header[1])
        yield from ((lsn, body) for lsn, body in scan if body and lsn > after)
        if scan.fault is not None:
            raise JournalDamaged(path, scan.end, scan.fault)


@contextmanager
def _no_collections() -> Iterator[None]:
    """A recovery makes millions of objects and no garbage: walking them over and over would double its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
