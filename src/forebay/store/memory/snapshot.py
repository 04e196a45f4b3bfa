"""A snapshot: the whole state at one lsn, as chunks of bytes in one file.

    header  magic 4 | format version u8 | lsn u64 | crc
    chunk   length u32 | crc | bytes                         (as many as there are)
    footer  0xFFFFFFFF | crc of all chunk heads | count u64 | crc

Promise: `write_snapshot` returns when the snapshot will survive a power cut, and a
file under the name of a snapshot was complete and durable before it got that name.
`read_snapshot` reads the file twice: it checks every byte of it, up to the footer and
the end of the file, before the first chunk is handed out. No caller can act on half
a snapshot. Memory is bounded by one chunk and one read of a mebibyte.

Authority: the name says which lsn a snapshot claims, the header and its crc say
whether to accept it. The chunk heads are summed in order, so chunks that were
swapped, doubled or dropped do not pass.

What can go wrong: damage raises JournalDamaged with the file and the offset; the
journal then tries an older snapshot. A process that dies while it writes leaves a
`.tmp` file, which no reader opens and which the next recovery removes.
"""

import contextlib
import os
import re
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from forebay.core.errors import JournalDamaged
from forebay.store.memory.disk import Disk
from forebay.store.memory.frame import MAX_BODY_BYTES, checksum

FORMAT_VERSION: Final = 1

_READ_BYTES: Final = 1024 * 1024
_HEADER: Final = struct.Struct("<4sBQ")
_MAGIC: Final = b"FBYS"
_CHUNK: Final = struct.Struct("<II")
_FOOTER: Final = struct.Struct("<IIQ")
_FOOTER_TAG: Final = 0xFFFF_FFFF
_CRC: Final = struct.Struct("<I")
_NAME: Final = re.compile(r"snapshot-([0-9a-f]{16})\.(snap|tmp)")


def snapshot_path(directory: str, lsn: int) -> str:
    return os.path.join(directory, f"snapshot-{lsn:016x}.snap")


def snapshot_lsn(name: str) -> int | None:
    """The lsn in the name of a finished snapshot, None for any other file."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match and match[2] == "snap" else None


def is_leftover(name: str) -> bool:
    """Whether `name` is a snapshot that was never finished."""
    match = _NAME.fullmatch(name)
    return match is not None and match[2] == "tmp"


def write_snapshot(disk: Disk, directory: str, lsn: int, chunks: Iterable[bytes]) -> int:
    """Makes `chunks` the snapshot at `lsn` and returns its size in bytes."""
    path = snapshot_path(directory, lsn)
    leftover = path.removesuffix("snap") + "tmp"
    if os.path.basename(leftover) in disk.entries(directory):
        disk.unlink(leftover)
    handle = disk.create(leftover)
    try:
        try:
            size = _write(disk, handle, lsn, chunks)
            disk.sync(handle)
        finally:
            disk.close(handle)
        disk.rename(leftover, path)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(leftover)
        raise
    disk.sync_directory(directory)
    return size


def read_snapshot(disk: Disk, directory: str, lsn: int) -> Iterator[bytes]:
    """The chunks of the snapshot at `lsn`, in order; raises before the first if any byte of the file is wrong."""
    path = snapshot_path(directory, lsn)
    for _ in _chunks(disk, path, lsn):
        pass
    return _chunks(disk, path, lsn)


def first_chunk(disk: Disk, directory: str, lsn: int) -> bytes:
    """The first chunk of the snapshot at `lsn`; what follows it is not read."""
    return next(_chunks(disk, snapshot_path(directory, lsn), lsn))


def _write(disk: Disk, handle: int, lsn: int, chunks: Iterable[bytes]) -> int:
    header = _HEADER.pack(_MAGIC, FORMAT_VERSION, lsn)
    pending, waiting, size, count, heads = [header, _CRC.pack(checksum(header))], 0, 0, 0, 0
    for chunk in chunks:
        if len(chunk) > MAX_BODY_BYTES:
            raise ValueError(f"a snapshot chunk has {len(chunk)} bytes, the limit is {MAX_BODY_BYTES}: split it")
        head = _CHUNK.pack(len(chunk), checksum(chunk))
        heads = checksum(head, heads)
        count += 1
        pending += (head, chunk)
        waiting += len(head) + len(chunk)
        if waiting >= _READ_BYTES:
            data = b"".join(pending)
            disk.write(handle, size, data)
            pending, waiting, size = [], 0, size + len(data)
    footer = _FOOTER.pack(_FOOTER_TAG, heads, count)
    data = b"".join((*pending, footer, _CRC.pack(checksum(footer))))
    disk.write(handle, size, data)
    return size + len(data)


def _chunks(disk: Disk, path: str, lsn: int) -> Iterator[bytes]:
    source = _Source(disk, path)
    header = source.take(_HEADER.size)
    if source.number() != checksum(header) or _HEADER.unpack(header) != (_MAGIC, FORMAT_VERSION, lsn):
        raise JournalDamaged(path, 0, f"this is not a header of a snapshot at record {lsn}")
    count, heads = 0, 0
    while True:
        start = source.offset
        head = source.take(_CHUNK.size)
        length, crc = _CHUNK.unpack(head)
        if length == _FOOTER_TAG:
            break
        if length > MAX_BODY_BYTES:
            raise JournalDamaged(path, start, f"chunk {count} claims {length} bytes, the limit is {MAX_BODY_BYTES}")
        chunk = source.take(length)
        if checksum(chunk) != crc:
            raise JournalDamaged(path, start, f"chunk {count} fails its checksum")
        heads = checksum(head, heads)
        count += 1
        yield chunk
    footer = head + source.take(_FOOTER.size - _CHUNK.size)
    if source.number() != checksum(footer) or _FOOTER.unpack(footer) != (_FOOTER_TAG, heads, count):
        raise JournalDamaged(path, start, "the footer does not match the chunks")
    if source.offset != source.size:
        raise JournalDamaged(path, source.offset, "there are bytes behind the footer")


class _Source:
    """A file read from front to back in large pieces."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._piece = b""
        self._at = 0
        self.offset = 0
        self.size = disk.size(path)

    def take(self, length: int) -> bytes:
        if length > self.size - self.offset:
            raise JournalDamaged(self._path, self.offset, f"it ends here, {length} more bytes were expected")
        if length > len(self._piece) - self._at:
            self._refill(length)
        taken = self._piece[self._at : self._at + length]
        self._at += length
        self.offset += length
        return taken

    def number(self) -> int:
        return int(_CRC.unpack(self.take(_CRC.size))[0])

    def _refill(self, length: int) -> None:
        rest = self._piece[self._at :]
        read = self._disk.read(self._path, self.offset + len(rest), max(length, _READ_BYTES))
        self._piece = rest + read
        self._at = 0
        if len(self._piece) < length:
            raise JournalDamaged(self._path, self.offset, "it became shorter while it was read")
