"""The verbs of the ledger in the in-process store: read it, change its rule, drop its oldest records.

`Ledger` is a part of a store with a journal. `JournalLedgerReader` reads the same files from outside, without a lock,
whether a process owns them or not.
"""

import logging
import os
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final, Protocol

from forebay.core.changeset import ChangeSet, LedgerChange, StoredRecord
from forebay.core.errors import Closed, ForebayError, Invalid, OffsetGone, StoreFailed
from forebay.core.instant import Instant
from forebay.core.ledger import (
    RECORDS_PER_TRIM,
    TRIMMED_AT_ONCE,
    LedgerEntry,
    LedgerRule,
    decode_record,
    encode_record,
)
from forebay.core.record_builder import MAINTAIN
from forebay.store.checks import check_limit, check_offset
from forebay.store.memory.changes import record_of
from forebay.store.memory.disk import Disk, RealDisk
from forebay.store.memory.facts import LedgerState
from forebay.store.memory.frame import MARK_BYTES, decode_mark
from forebay.store.memory.image import ledger_state
from forebay.store.memory.ledger_files import LedgerFiles
from forebay.store.memory.session import Recorder, Session, verb
from forebay.store.memory.snapshot import first_chunk, snapshot_lsn, snapshot_path

_log = logging.getLogger("forebay.store.memory")

_TRIES: Final = 16


class LedgerRecords(Protocol):
    """Where the records are."""

    def read(self, after: int, limit: int, upto: int) -> list[StoredRecord]: ...


class Ledger:
    """The ledger of a store with a journal. `durable` is the last record on the disk."""

    def __init__(self, session: Session, recorder: Recorder, files: LedgerRecords, durable: Callable[[], int]) -> None:
        self.session = session
        self._facts = session.facts
        self._files = files
        self._durable = durable
        self._recorder_sync = recorder.sync
        self._reading = Lock()
        self._trimming = Lock()
        self._oldest: tuple[int, Instant] = (-1, 0)
        self._trim_next = self._facts.ledger.next + RECORDS_PER_TRIM
        session.recorded, session.sync = self._recorded, self._sync

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        return [LedgerEntry(each.offset, decode_record(each.record)) for each in self._read(after, limit)]

    @verb
    def ledger_extent(self, _: Instant) -> tuple[int, int]:
        return self._facts.ledger.first, self._facts.ledger.next

    @verb
    def ledger_rule(self, _: Instant) -> LedgerRule:
        return self._facts.ledger.rule

    @verb
    def put_ledger_rule(self, now: Instant, rule: LedgerRule) -> None:
        # The switch itself is on record: the last one before a silence, and the first one after it.
        switched = self._facts.ledger.rule.on != rule.on
        verb, name = ("put_ledger_rule", "on" if rule.on else "off") if switched else (MAINTAIN, None)
        self.session.commit(ChangeSet(now, verb, name=name, ledger=LedgerChange(rule)))

    def trim_ledger(self, limit: int) -> int:
        with self._trimming:
            dropped = self._trim(limit)
        self.session.sync(self.session.lsn)
        return dropped

    def sweep(self) -> None:
        """Trim some of it; a ledger that cannot be trimmed is no reason for a verb to fail."""
        self._trim_next = self._facts.ledger.next + RECORDS_PER_TRIM
        if not self._trimming.acquire(blocking=False):
            return
        try:
            self._trim(TRIMMED_AT_ONCE)
        except ForebayError as error:
            _log.warning("the ledger was not trimmed: %s", error)
        finally:
            self._trimming.release()

    def _recorded(self, change: ChangeSet) -> StoredRecord | None:
        ledger = self._facts.ledger
        record = record_of(self._facts, change) if ledger.rule.on or change.ledger is not None else None
        return None if record is None else StoredRecord(ledger.next, encode_record(record))

    def _sync(self, lsn: int) -> None:
        self._recorder_sync(lsn)
        if self._facts.ledger.next >= self._trim_next:
            self.sweep()

    def _read(self, after: int, limit: int) -> list[StoredRecord]:
        """What is durable behind an offset."""
        with self.session.lock:
            self.session.begin()
            following, lsn = self._facts.ledger.next, self.session.lsn
        self._recorder_sync(lsn)
        with self._reading:
            self._check_held(after)
            count = min(limit, following - after - 1)
            try:
                return self._files.read(after, count, self._durable()) if count > 0 else []
            except ForebayError:
                # What was given up meanwhile is not damaged.
                self._check_held(after)
                raise

    def _check_held(self, after: int) -> None:
        first = self._facts.ledger.first
        if after + 1 < first:
            raise OffsetGone("ledger", 0, after + 1, first)

    def _trim(self, limit: int) -> int:
        """Reads happen outside the store's lock: only the trimming thread moves the front."""
        session = self.session
        with session.lock:
            now, ledger = session.begin(), self._facts.ledger
            first, rule, size = ledger.first, ledger.rule, ledger.size
            offset, at = self._oldest
            if first == ledger.next or (offset == first and not rule.dropped([(at, 0)], size, now)[0]):
                return 0
        records = self._read(first - 1, limit)
        sizes = ((decode_record(each.record).at, len(each.record)) for each in records)
        dropped, freed = rule.dropped(sizes, size, now)
        if dropped < len(records):
            self._oldest = (records[dropped].offset, decode_record(records[dropped].record).at)
        if dropped:
            with session.lock:
                session.commit(ChangeSet(session.begin(), ledger=LedgerChange(first=first + dropped, freed=freed)))
        return dropped


class JournalLedgerReader:
    """The ledger of a journal directory, read from outside."""

    def __init__(self, directory: str, disk: Disk | None = None) -> None:
        self._disk = RealDisk() if disk is None else disk
        self._directory = directory
        self._files = LedgerFiles(self._disk, directory)
        self._reading = Lock()
        self._closed = False
        try:
            self._disk.entries(directory)
        except (FileNotFoundError, NotADirectoryError):
            raise Invalid(
                "store URL", f"there is no journal in {directory!r}", "name the directory of a store"
            ) from None

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        check_limit("ledger", limit)
        check_offset(after)
        with self._reading:
            upto, following = self._held(after)
            count = min(limit, following - after - 1)
            try:
                records = self._files.read(after, count, upto) if count > 0 else []
            except ForebayError:
                # What was given up meanwhile is not damaged.
                self._held(after)
                raise
        return [LedgerEntry(each.offset, decode_record(each.record)) for each in records]

    def ledger_extent(self) -> tuple[int, int]:
        with self._reading:
            return self._extent()[1]

    def ledger_rule(self) -> LedgerRule:
        with self._reading:
            _, _, state = self._extent()
            return self._files.rule or state.rule

    def close(self) -> None:
        """Nothing is held between calls; no call works afterwards."""
        self._closed = True

    def _held(self, after: int) -> tuple[int, int]:
        upto, (first, following), _ = self._extent()
        if after + 1 < first:
            raise OffsetGone("ledger", 0, after + 1, first)
        return upto, following

    def _extent(self) -> tuple[int, tuple[int, int], LedgerState]:
        """The last record that is known to be durable, the ledger up to there, and as the last snapshot knew it."""
        if self._closed:
            raise Closed("the ledger")
        for _ in range(_TRIES):
            names = self._disk.entries(self._directory)
            mark = self._disk.read(os.path.join(self._directory, "synced"), 0, MARK_BYTES) if "synced" in names else b""
            newest = _newest_snapshot(names)
            upto = max(decode_mark(mark) or 0, newest)
            try:
                state = self._state_at(newest) if newest else LedgerState()
            except FileNotFoundError:
                continue
            self._files.scan(upto)
            # Where there is a newer one, segments went that this one does not know of.
            if _newest_snapshot(self._disk.entries(self._directory)) == newest:
                return upto, (max(state.first, self._files.first), max(state.next, self._files.next)), state
        raise StoreFailed(f"ledger in {self._directory}", "its snapshots go away as fast as they are read")

    def _state_at(self, lsn: int) -> LedgerState:
        chunk = first_chunk(self._disk, self._directory, lsn)
        return ledger_state([chunk], f"snapshot {snapshot_path(self._directory, lsn)}")


def _newest_snapshot(names: Iterable[str]) -> int:
    return max((lsn for name in names if (lsn := snapshot_lsn(name)) is not None), default=0)
