"""The write-ahead journal: numbered records that survive kill -9 and power cuts.

Promise. `append` gives a record the next number (lsn) and keeps it in memory; `sync(lsn)`
returns when it and all before it are on disk. What `sync` returned for is acknowledged,
and recovery returns every acknowledged record, in order, or refuses. It may also return
records that were written and never acknowledged; it never returns anything else.

Group commit. There is no thread: the first caller of `sync` leads, writes all that is
buffered in one write and one sync, then wakes exactly those it served and one more, the
next leader. The buffer needs no bound of its own, because every caller waits for its sync
before it appends again: it holds at most one record per thread.

Fail-stop. After any failed write or sync the journal is stopped for ever: the kernel may
have dropped the pages, so a later sync that succeeds proves nothing. So it is after an
exception that breaks into a commit, and in a forked child. Every later call raises
StoreFailed; what was written is a torn tail for recovery to judge.

Files in the directory, all 0600: `lock` (flock, one owner), `wal-<first lsn>.log` segments,
`snapshot-<lsn>.snap`, and `synced`, the mark: the acknowledged lsn, overwritten without a
sync after each commit. It survives kill -9 and may be stale after a power cut, never ahead.
A segment is created, with its header and its name durable, only when every record before it
is durable; `close` ends the last one with a seal, an empty frame that confirms the rest.

How records are read back, and when that is refused, is described in `recovery`, which also makes
the journals: `recover`, replay, `start`.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from forebay.core.errors import StoreFailed
from forebay.store.memory.disk import DirectoryLock, Disk
from forebay.store.memory.frame import HEADER_BYTES, encode_head, encode_header, encode_mark
from forebay.store.memory.snapshot import snapshot_lsn, write_snapshot

_WHEN_ALONE: Final = 2**64


@dataclass(slots=True)
class Segment:
    """One file of the log: the lsn of its first record, present or to come, and its bytes."""

    first: int
    path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """What a journal starts from; the last segment is open under `handle` and everything in it is durable."""

    directory: str
    disk: Disk
    owner: DirectoryLock
    segment_bytes: int
    segments: list[Segment]
    handle: int
    mark: int
    salt: int
    snapshots: dict[int, int]
    lsn: int
    bytes_since_snapshot: int


def create_segment(disk: Disk, directory: str, first: int, salt: int) -> tuple[Segment, int]:
    """An empty segment, its header and its name durable, with the handle to write to it."""
    segment = Segment(first, os.path.join(directory, f"wal-{first:016x}.log"), HEADER_BYTES)
    handle = disk.create(segment.path)
    disk.write(handle, 0, encode_header(first, salt))
    disk.sync(handle)
    disk.sync_directory(directory)
    return segment, handle


class Journal:
    """One owner, many threads; one thread at a time calls `snapshot` or `discard`. Made by `JournalRecovery.start`."""

    def __init__(self, opened: RecoveredLog) -> None:
        self._opened = opened
        self._disk = opened.disk
        self._segments = opened.segments
        self._handle = opened.handle
        self._salt = opened.salt
        self._snapshots = opened.snapshots
        self._guard = threading.Lock()
        self._buffer: list[bytes] = []
        self._taken = self._synced = opened.lsn
        self._waiting: list[tuple[int, threading.Lock]] = []
        self._leader: threading.Lock | None = None
        self._stopped: str | None = None
        self._closed = False
        self._bytes_since_snapshot = opened.bytes_since_snapshot

    @property
    def lsn(self) -> int:
        """The last lsn given out."""
        with self._guard:
            return self._last()

    @property
    def synced(self) -> int:
        """The last lsn known to be durable."""
        return self._synced

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of all segments and snapshots."""
        with self._guard:
            return sum(segment.size for segment in self._segments) + sum(self._snapshots.values())

    @property
    def bytes_since_snapshot(self) -> int:
        """About as many bytes as a recovery would replay on top of the newest snapshot."""
        return self._bytes_since_snapshot

    def append(self, body: bytes) -> int:
        """Gives `body` the next lsn; never waits for the disk. The order of calls is the order of the log."""
        if not body:
            raise ValueError("a journal body has 0 bytes, at least 1 is needed: the empty body is the seal")
        with self._guard:
            if self._stopped is not None:
                self._check()
            lsn = self._last() + 1
            self._buffer += (encode_head(lsn, self._synced, body, self._salt), body)
        return lsn

    def sync(self, lsn: int) -> None:
        """Returns when every record up to `lsn` is durable; costs nothing if it is already."""
        if self._synced >= lsn and self._stopped is None:
            return
        if self._await_turn(lsn):
            try:
                self._commit()
            finally:
                self._pass_turn()

    def rotate(self) -> int:
        """Ends the current segment; every record up to the returned lsn is then in an ended one."""
        self._await_turn(_WHEN_ALONE)
        try:
            self._commit(rotate=True)
            return self._synced
        finally:
            self._pass_turn()

    def snapshot(self, lsn: int, chunks: Iterable[bytes]) -> None:
        """Makes `chunks` the state at `lsn`, durably; appends and syncs go on meanwhile.

        What was appended while the chunks were made is synced before the snapshot gets its name, so
        a chunk may already hold the effect of a later record if replaying that record does no harm.
        A failure leaves the journal running and the older snapshot in force.
        """
        minimum = max(self._snapshots, default=1)
        if not minimum <= lsn <= self.lsn:
            raise ValueError(
                f"snapshot at {lsn}: older than {minimum} is of no use, newer than {self.lsn} is not there"
            )
        replayed = self._bytes_since_snapshot
        try:
            size = write_snapshot(self._disk, self._opened.directory, lsn, self._then_sync(chunks))
        except OSError as error:
            raise StoreFailed(f"snapshot at {lsn} in {self._opened.directory}", str(error)) from error
        with self._guard:
            self._snapshots[lsn] = size
            self._bytes_since_snapshot -= replayed

    def sealed_segments(self, upto: int) -> tuple[str, ...]:
        """Paths of the ended segments that are wholly at or below `upto`, oldest first."""
        with self._guard:
            return tuple(
                segment.path
                for segment, successor in zip(self._segments, self._segments[1:], strict=False)
                if successor.first <= upto + 1
            )

    def discard(self, upto: int) -> None:
        """Deletes what the newest snapshot at or below `upto` makes superfluous: older segments, then snapshots."""
        kept = max((lsn for lsn in self._snapshots if lsn <= upto), default=None)
        if kept is None:
            raise ValueError(f"discard up to {upto}: no durable snapshot at or below it, take one first")
        directory = self._opened.directory
        try:
            for path in self.sealed_segments(kept):
                self._disk.unlink(path)
                with self._guard:
                    del self._segments[0]
            for name in self._disk.entries(directory):
                lsn = snapshot_lsn(name)
                if lsn is not None and lsn < kept:
                    self._disk.unlink(os.path.join(directory, name))
                    with self._guard:
                        self._snapshots.pop(lsn, None)
            self._disk.sync_directory(directory)
        except OSError as error:
            raise StoreFailed(f"discard up to {upto} in {directory}", str(error)) from error

    def close(self) -> None:
        """Syncs and seals what is there and gives up the lock; a second call does nothing."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            running = self._stopped is None and self._opened.owner.held()
        try:
            if running:
                self._await_turn(_WHEN_ALONE)
                try:
                    self._commit(seal=True)
                finally:
                    self._stop("it was closed")
                    self._pass_turn()
        finally:
            for handle in (self._handle, self._opened.mark):
                with suppress(OSError):
                    self._disk.close(handle)
            self._opened.owner.release()

    def _await_turn(self, lsn: int) -> bool:
        """False: `lsn` is durable. True: this thread leads and must pass the turn on."""
        gate = threading.Lock()
        gate.acquire()
        try:
            with self._guard:
                self._check()
                if self._synced >= lsn:
                    return False
                last = self._last()
                if last < lsn < _WHEN_ALONE:
                    raise ValueError(f"sync up to {lsn}: the last record is {last}")
                if self._leader is None:
                    self._leader = gate
                    return True
                self._waiting.append((lsn, gate))
            gate.acquire()
            self._check()
            return self._leader is gate
        except BaseException:
            self._leave_queue(gate)
            raise

    def _leave_queue(self, gate: threading.Lock) -> None:
        with self._guard:
            self._waiting = [waiter for waiter in self._waiting if waiter[1] is not gate]
            leads = self._leader is gate
        if leads:
            self._pass_turn()

    def _pass_turn(self) -> None:
        """Wakes all callers that are served and the next leader, which in a stopped journal fails and passes it on."""
        with self._guard:
            woken = [gate for lsn, gate in self._waiting if lsn <= self._synced]
            self._waiting = [waiter for waiter in self._waiting if waiter[0] > self._synced]
            self._leader = self._waiting.pop(0)[1] if self._waiting else None
            if self._leader is not None:
                woken.append(self._leader)
        for gate in woken:
            gate.release()

    def _commit(self, *, rotate: bool = False, seal: bool = False) -> None:
        """Makes the buffer durable. Only the leader is ever in here."""
        try:
            if not self._opened.owner.held():
                raise OSError("the process that opened it is another one: open a journal after the fork")
            if self._segments[-1].size >= max(self._opened.segment_bytes, HEADER_BYTES + 1):
                self._start_segment()
            with self._guard:
                batch, self._buffer = self._buffer, []
                self._taken += len(batch) // 2
            if batch:
                self._write(b"".join(batch))
                self._disk.write(self._opened.mark, 0, encode_mark(self._taken))
                self._synced = self._taken
            if self._segments[-1].size > HEADER_BYTES:
                if rotate:
                    self._start_segment()
                elif seal:
                    self._write(encode_head(self._taken + 1, self._synced, b"", self._salt))
        except OSError as error:
            self._stop(str(error))
            raise StoreFailed(f"journal {self._opened.directory}", str(error)) from error
        except BaseException as error:
            self._stop(f"{type(error).__name__} broke into a commit")
            raise

    def _write(self, data: bytes) -> None:
        segment = self._segments[-1]
        self._disk.write(self._handle, segment.size, data)
        self._disk.sync(self._handle)
        with self._guard:
            segment.size += len(data)
            self._bytes_since_snapshot += len(data)

    def _start_segment(self) -> None:
        # The salt stays: frames that wait in the buffer were made with it.
        segment, handle = create_segment(self._disk, self._opened.directory, self._taken + 1, self._salt)
        self._disk.close(self._handle)
        self._handle = handle
        with self._guard:
            self._segments.append(segment)

    def _then_sync(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        yield from chunks
        self.sync(self.lsn)

    def _last(self) -> int:
        # Heads and bodies take turns in the buffer, so that no body is copied before the commit.
        return self._taken + len(self._buffer) // 2

    def _stop(self, reason: str) -> None:
        if self._stopped is None:
            self._stopped = reason

    def _check(self) -> None:
        if self._stopped is not None:
            raise StoreFailed(f"journal {self._opened.directory}", self._stopped)
