"""Reading a journal directory back, and the rule for what may be cut off it.

    with recover(directory) as recovery:
        for chunk in recovery.chunks(): ...
        for lsn, body in recovery.frames(): ...
        journal = recovery.start()

Promise. `chunks` is the newest good snapshot, `frames` every record behind it, in order:
all that was ever acknowledged, perhaps some that was written and never acknowledged, and
nothing else. Memory is bounded by one segment. Reading changes nothing on disk; `start`
does, each of its steps leaves a directory that recovers to the same records, and when it
returns they are durable. Leaving the `with` before `start` gives up the lock, no more.

The rule. Segments are read by lsn, each record the successor of the one before. Where
record k is missing, torn or wrong, it was acknowledged if

  a. the mark, or the name of a snapshot, is at k or above;
  b. a later segment exists: one is made only when all before it is durable;
  c. a frame behind it in the segment has a watermark at k or above;
  d. it is the header of a segment that holds a frame marker: the header was durable first.

Then JournalDamaged is raised. Otherwise it is the tail of a commit that never finished,
even where later pages of it landed first, and `start` cuts it off. Records missing between
segments, behind a snapshot or below the mark are damage too. A mark that fails its crc
counts as absent. A damaged snapshot is passed over (see `passed_over`) for an older one,
or for none, if the log reaches back that far; if not, that is damage.

New records go to a new segment, or to an empty last one: all that recovery accepted is
then vouched for by (b), and no frame is ever written behind a cut.

What can go wrong: a mark lost in a power cut and, on top of it, damage to the last commit
of a log that was not closed appear as a torn tail; that takes two faults. A caller that
acts on frames before the iteration has ended acts on a log that may yet be refused.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from forebay.core.errors import JournalDamaged, StoreFailed
from forebay.store.memory.disk import Disk, RealDisk
from forebay.store.memory.frame import (
    FORMAT_VERSION,
    HEAD_BYTES,
    HEADER_BYTES,
    MARK_BYTES,
    MARKER,
    Scan,
    decode_header,
    decode_mark,
    encode_mark,
    later_watermark,
)
from forebay.store.memory.journal import Journal, RecoveredLog, Segment, create_segment
from forebay.store.memory.ledger_files import is_unfinished
from forebay.store.memory.snapshot import is_leftover, read_snapshot, snapshot_lsn, snapshot_path

SEGMENT_BYTES: Final = 64 * 1024 * 1024

_SEGMENT_NAME: Final = re.compile(r"wal-([0-9a-f]{16})\.log")


def recover(directory: str, disk: Disk | None = None, segment_bytes: int = SEGMENT_BYTES) -> "JournalRecovery":
    """Takes the lock of `directory`, which is made if need be, and reads what is there."""
    return JournalRecovery(directory, RealDisk() if disk is None else disk, segment_bytes)


class JournalRecovery:
    """A directory under lock, read and not yet changed."""

    def __init__(self, directory: str, disk: Disk, segment_bytes: int) -> None:
        self._directory = directory
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._chunks: Iterator[bytes] = iter(())
        self._torn_header: Segment | None = None
        self._tail: Segment | None = None
        self._end = self._proven_end = self._salt = self._skipped_bytes = 0
        self._replayed = self._started = False
        self.passed_over: tuple[JournalDamaged, ...] = ()
        self.snapshot_lsn = 0
        with failing_as_store(directory):
            disk.make_directory(directory)
            self._owner = disk.lock(os.path.join(directory, "lock"))
            try:
                self._survey()
            except BaseException:
                self._owner.release()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._started:
            self._owner.release()

    def chunks(self) -> Iterator[bytes]:
        """The newest good snapshot, at `snapshot_lsn`, once; nothing if there is none."""
        with failing_as_store(self._directory):
            yield from self._chunks

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Every (lsn, body) behind the snapshot, once; the numbers rise, and skip where a log was closed."""
        self._lsn = self._segments[self._needed].first - 1 if self._segments else 0
        for index in range(self._needed, len(self._segments)):
            yield from self._frames_of(index)
        if self._lsn < self._acknowledged:
            if self.passed_over and not self._segments:
                raise self._unread(f"there is no log, and nothing else holds record {self._acknowledged}")
            path = self._segments[-1].path if self._segments else self._directory
            raise JournalDamaged(path, self._end, f"record {self._acknowledged} was acknowledged and is missing")
        self._replayed = True

    def start(self) -> Journal:
        """Cuts off a torn tail, makes all that was read durable, and opens the journal behind it."""
        if not self._replayed or self._started:
            raise RuntimeError("a journal starts once, when all frames have been read: iterate `frames` to its end")
        disk, directory = self._disk, self._directory
        with failing_as_store(directory):
            for name in self._leftovers:
                disk.unlink(os.path.join(directory, name))
            handle = self._settle_tail()
            replayed = sum(segment.size - HEADER_BYTES for segment in self._segments[self._needed :])
            mark = disk.open(os.path.join(directory, "synced"))
            disk.write(mark, 0, encode_mark(self._lsn))
        self._started = True
        return Journal(
            RecoveredLog(
                directory=directory,
                disk=disk,
                owner=self._owner,
                segment_bytes=self._segment_bytes,
                segments=self._segments,
                handle=handle,
                mark=mark,
                salt=self._salt,
                snapshots=self._snapshots,
                lsn=self._lsn,
                bytes_since_snapshot=replayed - self._skipped_bytes,
            )
        )

    def _survey(self) -> None:
        disk, directory = self._disk, self._directory
        names = disk.entries(directory)
        self._leftovers = [name for name in names if is_leftover(name) or is_unfinished(name)]
        self._segments = [
            Segment(int(match[1], 16), os.path.join(directory, name), disk.size(os.path.join(directory, name)))
            for name in names
            if (match := _SEGMENT_NAME.fullmatch(name))
        ]
        claimed = sorted(lsn for name in names if (lsn := snapshot_lsn(name)) is not None)
        mark = disk.read(os.path.join(directory, "synced"), 0, MARK_BYTES) if "synced" in names else b""
        self._acknowledged = max(decode_mark(mark) or 0, *claimed[-1:], 0)
        for lsn in reversed(claimed):
            try:
                self._chunks = read_snapshot(disk, directory, lsn)
            except JournalDamaged as damage:
                self.passed_over += (damage,)
            else:
                self.snapshot_lsn = lsn
                break
        self._snapshots = {lsn: disk.size(snapshot_path(directory, lsn)) for lsn in claimed if lsn <= self.snapshot_lsn}
        self._needed = self._first_needed()

    def _first_needed(self) -> int:
        """The index of the segment with the first record behind the snapshot."""
        below = [index for index, segment in enumerate(self._segments) if segment.first <= self.snapshot_lsn + 1]
        if self._segments and not below:
            oldest, missing = self._segments[0], self.snapshot_lsn + 1
            if self.passed_over:
                raise self._unread(f"the log starts at record {oldest.first}, and nothing else holds record {missing}")
            reason = f"it starts at record {oldest.first}, and no good snapshot holds record {missing}"
            raise JournalDamaged(oldest.path, 0, reason)
        return below[-1] if below else 0

    def _unread(self, consequence: str) -> JournalDamaged:
        """The newest snapshot is damaged, and there is no way around it."""
        damage = self.passed_over[0]
        return JournalDamaged(damage.file, damage.offset, f"{damage.reason}; {consequence}")

    def _frames_of(self, index: int) -> Iterator[tuple[int, bytes]]:
        segment = self._segments[index]
        if segment.first != self._lsn + 1:
            previous = self._segments[index - 1]
            reason = f"its last record is {self._lsn}, and the next segment starts at {segment.first}"
            raise JournalDamaged(previous.path, self._end, reason)
        with failing_as_store(self._directory):
            data = self._disk.read(segment.path, 0, segment.size)
        header = decode_header(data)
        if header is None or header[0] != segment.first:
            self._judge_header(index, data)
            return
        scan, covered = Scan(data, segment.first, header[1], self._acknowledged), self.snapshot_lsn
        for lsn, body in scan:
            if lsn <= covered:
                self._skipped_bytes += HEAD_BYTES + len(body)
            elif body:
                yield lsn, body
        self._tail, self._lsn, self._salt = segment, scan.lsn - 1, header[1]
        self._end, self._proven_end = scan.end, scan.proven_end
        if scan.fault is not None:
            self._judge_tail(index, data, scan.fault)

    def _judge_header(self, index: int, data: bytes) -> None:
        segment = self._segments[index]
        last = index == len(self._segments) - 1
        if not last or MARKER in data or segment.first <= self._acknowledged or decode_header(data):
            raise JournalDamaged(
                segment.path,
                0,
                f"this is not a header, in format {FORMAT_VERSION}, of a segment from record {segment.first} on",
            )
        self._torn_header = segment

    def _judge_tail(self, index: int, data: bytes, fault: str) -> None:
        lsn = self._lsn + 1
        if lsn <= self._acknowledged:
            witness = f"the mark or a snapshot says that record {self._acknowledged} was acknowledged"
        elif index < len(self._segments) - 1:
            witness = "a later segment exists"
        elif (watermark := later_watermark(data, self._end, lsn, self._salt)) >= lsn:
            witness = f"a later frame says that record {watermark} was acknowledged"
        else:
            return
        raise JournalDamaged(self._segments[index].path, self._end, f"{fault}, and {witness}")

    def _settle_tail(self) -> int:
        """Makes the log end, durably, where reading ended, and returns the handle of a segment with no frames."""
        disk = self._disk
        if self._torn_header is not None:
            disk.unlink(self._torn_header.path)
            self._segments.remove(self._torn_header)
        tail, start, end = self._tail, self._proven_end, self._end
        if tail is not None:
            handle = disk.open(tail.path)
            if tail.size > end:
                disk.truncate(handle, end)
                tail.size = end
            # Written again, not only synced: after a failed sync the kernel may hold
            # pages that it calls clean and that never reached the disk.
            if start < end:
                disk.write(handle, start, disk.read(tail.path, start, end - start))
            disk.sync(handle)
            disk.sync_directory(self._directory)
            if end == HEADER_BYTES:
                return handle
            disk.close(handle)
        self._salt = disk.salt()
        segment, handle = create_segment(disk, self._directory, self._lsn + 1, self._salt)
        self._segments.append(segment)
        return handle


@contextmanager
def failing_as_store(directory: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(f"journal {directory}", str(error)) from error
