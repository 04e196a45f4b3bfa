"""Disks for tests: one in memory that can lose its power, one that fails on demand.

Promise. `MemoryDisk` keeps apart what a program reads back and what a power cut leaves.
A write is durable after `sync` of its file, a new, renamed or deleted name only after
`sync_directory`. `crash(draw)` returns the disk that the machine finds when it comes back:
of everything not yet durable it keeps nothing, all, a prefix, or any subset, with writes
torn at sector borders and at any byte. `kill` returns what kill -9 leaves: everything,
and as undurable as it was. Neither changes the disk it is called on, so one run can be
cut a thousand ways.

`FaultyDisk` wraps any disk, counts the calls that change something, and fails the chosen
one. A failed sync on a `MemoryDisk` drops the writes it was asked for while they can still
be read, as Linux does; a later sync does not bring them back.

Authority: `draw(n)` returns an integer in [0, n); all chance comes from it, so a seed is
a full account of a failure.

What can go wrong: this is a model. It is harsher than ext4 or xfs on the order of names
and knows no bit rot; tests flip bits themselves. It serves one thread at a time.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeAlias, TypeVar

from forebay.core.errors import StoreLocked
from forebay.store.memory.disk import DirectoryLock, Disk

Draw: TypeAlias = Callable[[int], int]
T = TypeVar("T")

_MAX_PENDING: Final = 1_024


class DiskCrash(BaseException):
    """The process died here; every later call on the disk dies again."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A write of `data` at `offset`; a truncation to `offset` if there is none."""

    offset: int
    data: bytes | None

    def apply(self, image: bytearray) -> None:
        if self.data is None:
            del image[self.offset :]
            image.extend(bytes(self.offset - len(image)))
        else:
            image.extend(bytes(max(0, self.offset - len(image))))
            image[self.offset : self.offset + len(self.data)] = self.data

    def pieces(self, sector: int) -> "list[_Change]":
        if self.data is None:
            return [self]
        first = self.offset - self.offset % sector
        borders = [
            self.offset,
            *range(first + sector, self.offset + len(self.data), sector),
            self.offset + len(self.data),
        ]
        return [_Change(start, self.data[start - self.offset : end - self.offset]) for start, end in pairwise(borders)]

    def torn(self, draw: Draw) -> "_Change":
        """A prefix of the write; a truncation happens or does not."""
        return self if self.data is None else _Change(self.offset, self.data[: draw(len(self.data) + 1)])


@dataclass(slots=True)
class _File:
    seen: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Change] = field(default_factory=list)

    def change(self, change: _Change) -> None:
        change.apply(self.seen)
        self.pending.append(change)
        if len(self.pending) > _MAX_PENDING:
            # A kernel writes back on its own after a while.
            self.pending.pop(0).apply(self.durable)

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.durable)
        self.pending.clear()

    def survivor(self, draw: Draw, sector: int) -> "_File":
        image = bytearray(self.durable)
        how = draw(2) if self.pending else 0
        pieces = [piece for change in self.pending for piece in change.pieces(sector)] if how else self.pending
        kept = _pick(pieces, draw)
        if len(kept) < len(pieces) and kept == pieces[: len(kept)]:
            kept.append(pieces[len(kept)].torn(draw))
        for change in kept:
            change.apply(image)
        return _File(image, bytearray(image))


@dataclass(frozen=True, slots=True)
class _Naming:
    """`path` now names `file`, or nothing; `former`, if any, names nothing any more."""

    path: str
    file: _File | None
    former: str | None = None

    def apply(self, names: dict[str, _File]) -> None:
        if self.former is not None:
            names.pop(self.former, None)
        if self.file is None:
            names.pop(self.path, None)
        else:
            names[self.path] = self.file


Pending = TypeVar("Pending", _Change, _Naming)


def _pick(pending: list[Pending], draw: Draw) -> list[Pending]:
    match draw(4) if pending else 0:
        case 0:
            return []
        case 1:
            return list(pending)
        case 2:
            return pending[: draw(len(pending) + 1)]
        case _:
            return [item for item in pending if draw(2)]


class MemoryDisk:
    """Files in memory, durable only where they were synced. `capacity`: as many bytes as they may have together."""

    def __init__(self, sector: int = 512, capacity: int = 2**63) -> None:
        self._sector = sector
        self._capacity = capacity
        self._directories: set[str] = set()
        self._names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        self._pending: list[_Naming] = []
        self._handles: dict[int, _File] = {}
        self._locks: set[str] = set()
        self._count = 0

    def crash(self, draw: Draw) -> "MemoryDisk":
        """The disk after a power cut, all of it durable."""
        after = MemoryDisk(self._sector)
        after._directories = set(self._directories)
        after._count = self._count
        names = dict(self._durable_names)
        for naming in _pick(self._pending, draw):
            naming.apply(names)
        after._names = {path: file.survivor(draw, self._sector) for path, file in names.items()}
        after._durable_names = dict(after._names)
        return after

    def kill(self) -> "MemoryDisk":
        """The disk after kill -9: all is there, and nothing more durable than before."""
        after = MemoryDisk(self._sector)
        after._directories = set(self._directories)
        after._count = self._count
        copies = {
            id(file): _File(bytearray(file.seen), bytearray(file.durable), list(file.pending))
            for file in (
                *self._names.values(),
                *self._durable_names.values(),
                *(naming.file for naming in self._pending if naming.file),
            )
        }
        after._names = {path: copies[id(file)] for path, file in self._names.items()}
        after._durable_names = {path: copies[id(file)] for path, file in self._durable_names.items()}
        after._pending = [
            _Naming(naming.path, copies[id(naming.file)] if naming.file else None, naming.former)
            for naming in self._pending
        ]
        return after

    def lose_writes(self, handle: int) -> None:
        """Forgets what was not yet durable of a file; it can still be read."""
        self._handles[handle].pending.clear()

    def files(self) -> dict[str, bytes]:
        """Every file as a program reads it now."""
        return {path: bytes(file.seen) for path, file in self._names.items()}

    def put(self, path: str, data: bytes | None) -> None:
        """Sets a file to `data`, durably, or removes it: what a test does to a disk."""
        file = None if data is None else _File(bytearray(data), bytearray(data))
        for names in (self._names, self._durable_names):
            _Naming(path, file).apply(names)

    def make_directory(self, path: str) -> None:
        self._directories.add(path)

    def lock(self, path: str) -> DirectoryLock:
        if path in self._locks:
            raise StoreLocked(path, "this process")
        self._locks.add(path)
        return _MemoryLock(self._locks, path)

    def entries(self, directory: str) -> list[str]:
        return sorted(os.path.basename(path) for path in self._names if os.path.dirname(path) == directory)

    def size(self, path: str) -> int:
        return len(self._file(path).seen)

    def read(self, path: str, offset: int, length: int) -> bytes:
        return bytes(self._file(path).seen[offset : offset + length])

    def create(self, path: str) -> int:
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "exists", path)
        if os.path.dirname(path) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        self._name(_Naming(path, _File()))
        return self._handle(path)

    def open(self, path: str) -> int:
        return self._handle(path) if path in self._names else self.create(path)

    def write(self, handle: int, offset: int, data: bytes) -> None:
        file = self._handles[handle]
        room = max(0, len(file.seen) - offset) + self.free("")
        file.change(_Change(offset, bytes(data[:room])))
        if room < len(data):
            raise OSError(errno.ENOSPC, "no space left on device")

    def truncate(self, handle: int, size: int) -> None:
        self._handles[handle].change(_Change(size, None))

    def sync(self, handle: int) -> None:
        self._handles[handle].sync()

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def rename(self, source: str, target: str) -> None:
        self._name(_Naming(target, self._file(source), source))

    def unlink(self, path: str) -> None:
        self._file(path)
        self._name(_Naming(path, None))

    def sync_directory(self, path: str) -> None:
        for naming in self._pending:
            naming.apply(self._durable_names)
        self._pending.clear()

    def free(self, path: str) -> int:
        return max(0, self._capacity - sum(len(file.seen) for file in self._names.values()))

    def salt(self) -> int:
        self._count += 1
        return self._count * 0x9E37_79B1 & 0xFFFF_FFFF

    def _file(self, path: str) -> _File:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._names[path]

    def _handle(self, path: str) -> int:
        self._count += 1
        self._handles[self._count] = self._file(path)
        return self._count

    def _name(self, naming: _Naming) -> None:
        naming.apply(self._names)
        self._pending.append(naming)


class FaultyDisk:
    """Another disk, with one fault to come.

    `crash_at=k` dies at the k-th changing call, before it or, with `after`, behind it.
    `fail_sync=k` answers EIO to the k-th sync of a file or directory. `room=n` takes n
    bytes in all and then, in the middle of a write if need be, answers ENOSPC. `calls`
    is the record, (what, file name) each.
    """

    def __init__(
        self,
        inner: Disk,
        *,
        crash_at: int | None = None,
        after: bool = False,
        fail_sync: int | None = None,
        room: int | None = None,
    ) -> None:
        self._inner = inner
        self._crash_at = crash_at
        self._after = after
        self._fail_sync = fail_sync
        self._room = room
        self._paths: dict[int, str] = {}
        self._dead = False
        self.calls: list[tuple[str, str]] = []
        self.syncs = 0

    def make_directory(self, path: str) -> None:
        self._call("make_directory", path, lambda: self._inner.make_directory(path))

    def lock(self, path: str) -> DirectoryLock:
        return self._inner.lock(path)

    def entries(self, directory: str) -> list[str]:
        return self._inner.entries(directory)

    def size(self, path: str) -> int:
        return self._inner.size(path)

    def read(self, path: str, offset: int, length: int) -> bytes:
        return self._inner.read(path, offset, length)

    def create(self, path: str) -> int:
        handle = self._call("create", path, lambda: self._inner.create(path))
        self._paths[handle] = path
        return handle

    def open(self, path: str) -> int:
        handle = self._call("open", path, lambda: self._inner.open(path))
        self._paths[handle] = path
        return handle

    def write(self, handle: int, offset: int, data: bytes) -> None:
        self._call("write", self._paths[handle], lambda: self._write(handle, offset, data))

    def truncate(self, handle: int, size: int) -> None:
        self._call("truncate", self._paths[handle], lambda: self._inner.truncate(handle, size))

    def sync(self, handle: int) -> None:
        self._call("sync", self._paths[handle], lambda: self._sync(handle))

    def close(self, handle: int) -> None:
        self._inner.close(handle)

    def rename(self, source: str, target: str) -> None:
        self._call("rename", target, lambda: self._inner.rename(source, target))

    def unlink(self, path: str) -> None:
        self._call("unlink", path, lambda: self._inner.unlink(path))

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory", path, lambda: self._sync_directory(path))

    def free(self, path: str) -> int:
        return self._inner.free(path) if self._room is None else self._room

    def salt(self) -> int:
        return self._inner.salt()

    def _call(self, name: str, path: str, action: Callable[[], T]) -> T:
        if self._dead:
            raise DiskCrash
        self.calls.append((name, os.path.basename(path)))
        self._dead = len(self.calls) == self._crash_at
        if self._dead and not self._after:
            raise DiskCrash
        result = action()
        if self._dead:
            raise DiskCrash
        return result

    def _write(self, handle: int, offset: int, data: bytes) -> None:
        if self._room is not None:
            fits, self._room = data[: self._room], max(0, self._room - len(data))
            if len(fits) < len(data):
                self._inner.write(handle, offset, fits)
                raise OSError(errno.ENOSPC, "no space left on device")
        self._inner.write(handle, offset, data)

    def _sync(self, handle: int) -> None:
        self.syncs += 1
        if self.syncs == self._fail_sync:
            if isinstance(self._inner, MemoryDisk):
                self._inner.lose_writes(handle)
            raise OSError(errno.EIO, "input/output error")
        self._inner.sync(handle)

    def _sync_directory(self, path: str) -> None:
        self.syncs += 1
        if self.syncs == self._fail_sync:
            raise OSError(errno.EIO, "input/output error")
        self._inner.sync_directory(path)


class _MemoryLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def held(self) -> bool:
        return self._path in self._locks

    def release(self) -> None:
        self._locks.discard(self._path)
