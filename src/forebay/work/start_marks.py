"""Which jobs a process has begun, in a memory-mapped file that outlives even `kill -9` of that process.

A mark (job id, delivery, thread) is written just before the handler's first line and removed when the store has the
verdict. Whoever takes back the jobs of the process can so tell what had begun from what was only held. Every worker
writes marks: the files lie in a private directory of the machine, one directory a store, one file a process, named
after the owner of its leases. A clean exit removes the file; the next worker on the machine removes those that
crashed processes left, once their jobs are taken back.

The file grows by whole chunks. Where it cannot, it says that it is incomplete, and counts as unreadable.
"""

import hashlib
import logging
import mmap
import os
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from forebay.core.lease import Fence

_log = logging.getLogger("forebay.work")

RUN_DIRECTORY: Final = "FOREBAY_RUN_DIR"
_MAGIC: Final = b"FBMARKS1"
_HEADER: Final = struct.Struct("<8sQQQ")
"""Magic, process id, when the process was started, whether marks are missing."""

_INCOMPLETE_AT: Final = 24
_HEADER_BYTES: Final = 128
_MARK: Final = struct.Struct("<QQQ")
IN_QUARANTINE: Final = 2**64 - 1
"""The thread of a job that runs in a process of its own: the death of the worker is not its doing."""

_CHUNK: Final = 65_536

_Slot = tuple[mmap.mmap, int]


class StartMarks:
    """The marks of this process. May be used from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._maps: list[mmap.mmap] = []
        self._free: list[_Slot] = []
        self._slot_of: dict[Fence, _Slot] = {}
        self._failed = False

    def open(self) -> None:
        """Create the file. Without it the worker goes on, and nobody can tell what it had begun if it crashes."""
        with self._lock:
            self._grow()

    def started(self, fence: Fence, thread: int = 0) -> None:
        with self._lock:
            if self._free or self._grow():
                slot = self._slot_of[fence] = self._free.pop()
                _MARK.pack_into(slot[0], slot[1], *fence, thread)

    def ended(self, fence: Fence) -> None:
        with self._lock:
            slot = self._slot_of.pop(fence, None)
            if slot is not None:
                _MARK.pack_into(slot[0], slot[1], 0, 0, 0)
                self._free.append(slot)

    def close(self) -> None:
        """The process gives back all it holds, or has: nobody will ask."""
        with self._lock:
            self._failed = True
            self._free.clear()
            self._slot_of.clear()
            for each in self._maps:
                each.close()
            self._maps.clear()
        self.path.unlink(missing_ok=True)

    def _grow(self) -> bool:
        """Another chunk of slots. Its space is reserved: a write to a page that a full disk refuses is a SIGBUS."""
        if self._failed:
            return False
        number = len(self._maps)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                _reserve(descriptor, number * _CHUNK, _CHUNK)
                chunk = mmap.mmap(descriptor, _CHUNK, offset=number * _CHUNK)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._failed = True
            _log.warning("start marks: %s; after a crash nobody can tell which jobs had begun", error)
            if self._maps:
                self._maps[0][_INCOMPLETE_AT] = 1
            return False
        if number == 0:
            _HEADER.pack_into(chunk, 0, _MAGIC, os.getpid(), _started_at(os.getpid()), 0)
        self._maps.append(chunk)
        self._free += [(chunk, at) for at in reversed(_slots_of(number))]
        return True


class ProcessMarks(Struct, frozen=True):
    """What the file of a process says.

    begun  the jobs that it had begun, each with its thread; None: the file does not tell
    alive  whether the process still lives
    """

    begun: dict[Fence, int] | None
    alive: bool


def read_marks(path: Path) -> ProcessMarks | None:
    """None: there is no such file, or nothing in it yet."""
    try:
        data = path.read_bytes()
        magic, pid, started_at, incomplete = _HEADER.unpack_from(data)
    except (OSError, struct.error):
        return None
    if magic != _MAGIC:
        return None
    return ProcessMarks(None if incomplete else dict(_marks_in(data)), _lives(pid, started_at))


def marks_directory(url: str) -> Path | None:
    """Where workers of this store keep their marks on this machine; None for a store that dies with its process.

    The names of the directories tell nothing of the store. One that somebody else owns is not used.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory" and parts.path in ("", "/"):
        return None
    if parts.scheme in ("memory", "sqlite"):
        path = unquote(parts.path)
        url = f"{parts.scheme}:{os.path.realpath(path.removeprefix('/') if parts.scheme == 'sqlite' else path)}"
    given = os.environ.get(RUN_DIRECTORY)
    root = Path(given) if given else Path(tempfile.gettempdir()) / f"forebay-{os.getuid()}"
    directory = root / hashlib.sha256(url.encode()).hexdigest()[:16]
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        for each in (root, directory):
            found = each.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
                raise PermissionError(f"{each} is not a directory that only this user may write to")
    except OSError as error:
        _log.warning("start marks: %s; set %s to a private directory", error, RUN_DIRECTORY)
        return None
    return directory


def marks_path(directory: Path, owner: str) -> Path:
    return directory / quote(owner, safe=":")


def marks_of(directory: Path | None, owner: str) -> ProcessMarks | None:
    return None if directory is None else read_marks(marks_path(directory, owner))


def owners_of(directory: Path) -> dict[str, Path]:
    """The processes that have files here, dead or alive."""
    with suppress(OSError):
        return {unquote(path.name): path for path in sorted(directory.iterdir())}
    return {}


def _reserve(descriptor: int, offset: int, length: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, offset, length)
    else:
        os.ftruncate(descriptor, offset + length)


def _slots_of(number: int) -> list[int]:
    """Where the slots of a chunk are; the first one has the header."""
    return list(range(_HEADER_BYTES if number == 0 else 0, _CHUNK - _MARK.size + 1, _MARK.size))


def _marks_in(data: bytes) -> Iterator[tuple[Fence, int]]:
    for number in range(len(data) // _CHUNK):
        for at in _slots_of(number):
            job_id, delivery, thread = _MARK.unpack_from(data, number * _CHUNK + at)
            if job_id:
                yield (job_id, delivery), thread


def _lives(pid: int, started_at: int) -> bool:
    """Whether this very process lives: its number may have been given to another one since."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return not started_at
    return not started_at or _started_at(pid) == started_at


def _started_at(pid: int) -> int:
    """When a process was started, in ticks since the machine was; 0 where nothing tells, or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
