"""The ledger of a journal directory, in files: where its records are, and how they are read.

A record is first written in a frame of the journal, beside its change. Compaction gives those segments up, and before
it does it copies their records, without the changes, into a file of their own:

    ledger-<first offset>.rec    a segment's header and frames; the number of a frame is the offset of its record

Promise: a file under that name is complete and durable, and every record that a snapshot covers is in one. Reading
takes no lock and changes nothing, so another process may do it: it never reads beyond `upto`, the last record known to
be durable, and if a file disappears meanwhile, it scans again. Offsets are handed out without a gap; where one is
missing, `JournalDamaged` is raised.

Memory is bounded by one read and a place every 64 KiB of what was read.
"""

import contextlib
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from forebay.core.changeset import StoredRecord, decode_ledger_part
from forebay.core.errors import JournalDamaged
from forebay.core.ledger import LedgerRule
from forebay.store.memory.disk import Disk
from forebay.store.memory.frame import HEADER_BYTES, Scan, decode_header, encode_frame, encode_header

_READ_BYTES: Final = 1024 * 1024
_PLACE_BYTES: Final = 64 * 1024
_TRIES: Final = 16
_SALT: Final = 0
"""A file that is written again after a crash begins with the same bytes: a reader of the old one may go on."""

T = TypeVar("T")

_NAME: Final = re.compile(r"(wal|ledger)-([0-9a-f]{16})\.(log|rec|tmp)")


def is_unfinished(name: str) -> bool:
    """Whether `name` is a file of records that was never finished."""
    match = _NAME.fullmatch(name)
    return match is not None and match[3] == "tmp"


def first_offset(name: str) -> int | None:
    """The offset of the first record in the file of that name, None for any other file."""
    match = _NAME.fullmatch(name)
    return int(match[2], 16) if match and match[3] == "rec" else None


class LedgerWriter:
    """Copies records into a file of their own. Nothing is there before `finish`, nor after `give_up`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = ""
        self._handle = -1
        self._pending: list[bytes] = []
        self._waiting = self._size = 0

    def add(self, each: StoredRecord) -> None:
        if self._handle < 0:
            self._path = os.path.join(self._directory, f"ledger-{each.offset:016x}")
            if os.path.basename(self._path) + ".tmp" in self._disk.entries(self._directory):
                self._disk.unlink(self._path + ".tmp")
            self._handle = self._disk.create(self._path + ".tmp")
            self._pending = [encode_header(each.offset, _SALT)]
        frame = encode_frame(each.offset, 0, each.record, _SALT)
        self._pending.append(frame)
        self._waiting += len(frame)
        if self._waiting >= _READ_BYTES:
            self._flush()

    def finish(self) -> None:
        """The records are durable in their new place; those in the segments are not needed any more."""
        if self._handle < 0:
            return
        self._flush()
        self._disk.sync(self._handle)
        self._close()
        self._disk.rename(self._path + ".tmp", self._path + ".rec")
        self._disk.sync_directory(self._directory)

    def give_up(self) -> None:
        """Leave nothing behind: as long as no snapshot covers them, the records are in their segments."""
        unfinished = self._handle >= 0
        if unfinished:
            self._close()
        if self._path:
            with contextlib.suppress(OSError):
                self._disk.unlink(self._path + (".tmp" if unfinished else ".rec"))

    def _flush(self) -> None:
        data = b"".join(self._pending)
        self._disk.write(self._handle, self._size, data)
        self._size += len(data)
        self._pending, self._waiting = [], 0

    def _close(self) -> None:
        self._disk.close(self._handle)
        self._handle = -1


def discard_below(disk: Disk, directory: str, first: int, following: int) -> None:
    """Delete the files whose records are all below `first`; `following` is the offset behind the last file."""
    files = sorted((offset, name) for name in disk.entries(directory) if (offset := first_offset(name)) is not None)
    ends = [offset for offset, _ in files[1:]]
    for (_, name), end in zip(files, [*ends, following], strict=False):
        if end <= first:
            disk.unlink(os.path.join(directory, name))


class _Missing(Exception):
    """A record that should be there was not found at its offset."""


class _Place(NamedTuple):
    """The frame with the record of this offset."""

    offset: int
    path: str
    position: int
    number: int


class _Frame(NamedTuple):
    """Where a frame begins and ends, its number, and its body."""

    position: int
    number: int
    body: bytes
    end: int


class _File:
    """A file of records, or a segment. `seen`: how far it was scanned, and the frame expected there."""

    def __init__(self, path: str, first: int, salt: int, *, segment: bool) -> None:
        self.path = path
        self.first = first
        self.salt = salt
        self.segment = segment
        self.seen = HEADER_BYTES, first
        self.marked = -_PLACE_BYTES


class LedgerFiles:
    """The records of one directory, for one reader at a time. `first` and `next`: as far as segments show."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._drop_cache()

    def read(self, after: int, count: int, upto: int) -> list[StoredRecord]:
        """The `count` records behind an offset, which are in the journal up to its record `upto`."""

        def read() -> list[StoredRecord]:
            self._refresh(upto)
            return list(self._read(after, count, upto))

        return self._with_retries(read)

    def scan(self, upto: int) -> None:
        """Read what is new."""
        self._with_retries(lambda: self._refresh(upto))

    def _with_retries(self, action: Callable[[], T]) -> T:
        """Compaction may take a file away while it is read; what was in it is in another one then."""
        for again in range(_TRIES, -1, -1):
            try:
                return action()
            except (FileNotFoundError, _Missing) as error:
                if not again:
                    raise JournalDamaged(self._directory, 0, f"{error} of the ledger is missing") from error
                self._drop_cache()
        raise AssertionError("the last try returns or raises")

    def _drop_cache(self) -> None:
        self.first = self.next = 0
        self.rule: LedgerRule | None = None
        self._files: dict[str, _File] = {}
        self._places: list[_Place] = []

    def _refresh(self, upto: int) -> None:
        names = [(match, name) for name in self._disk.entries(self._directory) if (match := _NAME.fullmatch(name))]
        present = {os.path.join(self._directory, name): match for match, name in names if match[3] != "tmp"}
        if any(path not in present for path in self._files):
            self._drop_cache()
        for path, match in present.items():
            file = self._files.get(path) or self._open(path, segment=match[3] == "log")
            if file is not None and file.segment:
                self._scan_file(file, upto)

    def _open(self, path: str, *, segment: bool) -> _File | None:
        header = decode_header(self._disk.read(path, 0, HEADER_BYTES))
        if header is None:
            if segment:
                return None
            raise JournalDamaged(path, 0, "its header is damaged")
        file = self._files[path] = _File(path, *header, segment=segment)
        if not segment:
            self._mark(file, file.first, _Frame(HEADER_BYTES, file.first, b"", HEADER_BYTES))
        return file

    def _scan_file(self, file: _File, upto: int) -> None:
        """Find the places of new records, and what is said about the ledger itself."""
        for frame in self._frames(file, *file.seen, upto):
            if frame.body:
                self._look_at(file, frame)
            file.seen = frame.end, frame.number + 1

    def _look_at(self, file: _File, frame: _Frame) -> None:
        part = decode_ledger_part(frame.body)
        if part.record is not None:
            self.next = max(self.next, part.record.offset + 1)
            self._mark(file, part.record.offset, frame)
        change = part.change.ledger
        if change is not None:
            self.first = max(self.first, change.first)
            self.rule = change.rule or self.rule

    def _read(self, after: int, count: int, upto: int) -> Iterator[StoredRecord]:
        wanted, end = after + 1, after + 1 + count
        at = bisect_right(self._places, wanted, key=_offset) - 1
        if at < 0:
            raise _Missing(f"record {wanted}")
        start = self._places[at]
        paths = sorted(self._files)
        for path in paths[paths.index(start.path) :]:
            file = self._files[path]
            position, number = (start.position, start.number) if path == start.path else (HEADER_BYTES, file.first)
            for each in self._records(file, position, number, upto):
                if wanted == end or each.offset > wanted:
                    break
                if each.offset == wanted:
                    yield each
                    wanted += 1
            if wanted == end:
                return
        raise _Missing(f"record {wanted}")

    def _records(self, file: _File, position: int, number: int, upto: int) -> Iterator[StoredRecord]:
        for frame in self._frames(file, position, number, upto):
            if not file.segment:
                self._mark(file, frame.number, frame)
                yield StoredRecord(frame.number, frame.body)
            elif frame.body and (record := decode_ledger_part(frame.body).record) is not None:
                yield record

    def _frames(self, file: _File, position: int, number: int, upto: int) -> Iterator[_Frame]:
        """The frames from a position on, up to what is durable."""
        length = _READ_BYTES
        while not file.segment or number <= upto:
            data, begin = self._disk.read(file.path, position, length), position
            scan = Scan(data, number, file.salt, start=0)
            for found, body in scan:
                if file.segment and found > upto:
                    return
                yield _Frame(position, found, body, begin + scan.end)
                position, number = begin + scan.end, found + 1
            if len(data) < length:
                if scan.fault is not None and (not file.segment or number <= upto):
                    raise JournalDamaged(file.path, position, scan.fault)
                return
            length = _READ_BYTES if position > begin else 2 * length

    def _mark(self, file: _File, offset: int, frame: _Frame) -> None:
        """Keep the place, if none is near."""
        if frame.position >= file.marked + _PLACE_BYTES:
            file.marked = frame.position
            at = bisect_right(self._places, offset, key=_offset)
            self._places.insert(at, _Place(offset, file.path, frame.position, frame.number))


def _offset(place: _Place) -> int:
    return place.offset
