"""Start marks: the jobs that a process has begun, in a memory-mapped file that survives `kill -9` of the process.

A mark (job id, delivery, thread) is written just before the handler runs and removed once the store has the verdict.
Recovery uses the marks to distinguish jobs that had begun from jobs that were only leased. Every worker writes them, in
a private directory on the machine: one directory for each store, one file for each process, named after its lease
owner. A clean exit removes the file. The files of crashed processes are removed by the next worker on the machine,
after their jobs are reclaimed.

The file also has a heartbeat, which a thread advances while it can get the GIL, and names the job that the event loop
runs, so that a watchdog in another process can see a stall and its cause (`stall_watch`).

The file grows by whole chunks. If it cannot grow, it is flagged incomplete and its marks are not used.
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
from glob import escape as glob_escape
from pathlib import Path
from threading import Lock, current_thread
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from forebay.core.lease import Fence

_log = logging.getLogger("forebay.work")

RUN_DIRECTORY: Final = "FOREBAY_RUN_DIR"
_MAGIC: Final = b"FBMARKS1"
_HEADER: Final = struct.Struct("<8sQQQ")
"""Magic, process id, start time of the process, whether marks are missing."""

_INCOMPLETE_AT: Final = 24
_BEAT: Final = struct.Struct("<QQ")
"""The number of heartbeats, and the thread that makes them."""

_BEAT_AT: Final = 32
_NUMBER_AND_FENCE: Final = struct.Struct("<QQQ")
"""The loop's thread and the job that it runs; or the milliseconds of a stall and the job that caused it."""

_LOOP_AT: Final = 48
_STALL_AT: Final = 72
_NAMESPACE: Final = struct.Struct("<Q")
"""The PID namespace of the process id: containers may share the directory."""

_NAMESPACE_AT: Final = 96
_HEADER_BYTES: Final = 128
_MARK: Final = struct.Struct("<QQQ")
_CHILDREN: Final = "children"
_STACKS: Final = "stacks"
_ON_LOOP: Final = 2**63
NOTHING: Final[Fence] = (0, 0)
NEWEST: Final[Fence] = (2**64 - 1, 0)
IN_QUARANTINE: Final = 2**64 - 1
"""The thread of a job that runs in a child process: it cannot have killed the worker."""

_CHUNK: Final = 65_536

_Slot = tuple[mmap.mmap, int]


class StartMarks:
    """Writes the marks of this process. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._maps: list[mmap.mmap] = []
        self._free: list[_Slot] = []
        self._slot_of: dict[Fence, _Slot] = {}
        self._failed = False
        self._beats = 0
        self._loop_thread = 0
        self._loop_number = _ON_LOOP

    def open(self) -> None:
        """Create the file. If that fails the worker runs without it, and a crash leaves no record of what had begun."""
        with self._lock:
            self._grow()

    def started(self, fence: Fence, thread: int = 0) -> None:
        """`thread` 0: on the event loop. Those jobs get increasing numbers, so that the last one to begin is known."""
        with self._lock:
            if not thread:
                thread = self._loop_number = self._loop_number + 1
            if self._free or self._grow():
                slot = self._slot_of[fence] = self._free.pop()
                _MARK.pack_into(slot[0], slot[1], *fence, thread)

    def ended(self, fence: Fence) -> None:
        with self._lock:
            slot = self._slot_of.pop(fence, None)
            if slot is not None:
                _MARK.pack_into(slot[0], slot[1], 0, 0, 0)
                self._free.append(slot)

    def beat(self) -> None:
        """Advance the heartbeat: this thread could get the GIL."""
        with self._lock:
            if self._maps:
                self._beats += 1
                _BEAT.pack_into(self._maps[0], _BEAT_AT, self._beats, current_thread().native_id or 0)

    def on_loop(self, fence: Fence) -> None:
        """Set the job that the loop runs, `NEWEST` for the one that began last, or `NOTHING`. Call on its thread."""
        if self._maps:
            if not self._loop_thread:
                self._loop_thread = current_thread().native_id or 0
            _NUMBER_AND_FENCE.pack_into(self._maps[0], _LOOP_AT, self._loop_thread, *fence)

    def close(self) -> None:
        """Remove the file: the process holds no jobs any more."""
        with self._lock:
            self._failed = True
            self._free.clear()
            self._slot_of.clear()
            for each in self._maps:
                each.close()
            self._maps.clear()
        remove_marks(self.path.parent, unquote(self.path.name))

    def _grow(self) -> bool:
        """Add a chunk of slots. Its disk space is reserved, since writing to an unbacked page raises SIGBUS."""
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
            _log.warning("start marks: %s; after a crash it will be unknown which jobs had begun", error)
            if self._maps:
                self._maps[0][_INCOMPLETE_AT] = 1
            return False
        if number == 0:
            _HEADER.pack_into(chunk, 0, _MAGIC, os.getpid(), _started_at(os.getpid()), 0)
            _NAMESPACE.pack_into(chunk, _NAMESPACE_AT, _namespace())
        self._maps.append(chunk)
        self._free += [(chunk, at) for at in reversed(_slot_offsets(number))]
        return True


class Stall(Struct, frozen=True):
    """The GIL was held for this long, by the handler of this job if that is known."""

    seconds: float
    holder: Fence | None = None


class ProcessMarks(Struct, frozen=True):
    """The marks of one process.

    begun  the jobs that it had begun, each with its thread; None: the file is incomplete
    alive  whether the process is still running
    stall  the stall for which a watchdog aborted it
    """

    begun: dict[Fence, int] | None
    alive: bool
    stall: Stall | None = None


class ProcessHeartbeat(Struct, frozen=True):
    """The heartbeat of a process: how many beats, and in which thread."""

    pid: int
    alive: bool
    beats: int
    thread: int


def read_marks(path: Path) -> ProcessMarks | None:
    """None: the file does not exist or is still empty."""
    try:
        data = path.read_bytes()
        magic, pid, started_at, incomplete = _HEADER.unpack_from(data)
    except (OSError, struct.error):
        return None
    if magic != _MAGIC:
        return None
    held_ms, *fence = _NUMBER_AND_FENCE.unpack_from(data, _STALL_AT)
    stall = Stall(held_ms / 1_000, (fence[0], fence[1]) if fence[0] else None) if held_ms else None
    return ProcessMarks(None if incomplete else dict(_marks_in(data)), _may_run(data, pid, started_at), stall)


def read_heartbeat(path: Path) -> ProcessHeartbeat | None:
    head = _read_head(path)
    if head is None:
        return None
    _, pid, started_at, _ = _HEADER.unpack_from(head)
    return ProcessHeartbeat(pid, _may_run(head, pid, started_at), *_BEAT.unpack_from(head, _BEAT_AT))


def read_running(path: Path) -> dict[int, Fence]:
    """The job that each thread runs now, including the event loop's."""
    marks, head = read_marks(path), _read_head(path)
    if marks is None or marks.begun is None or head is None:
        return {}
    running = {thread: fence for fence, thread in marks.begun.items() if thread < _ON_LOOP}
    on_loop = {number: fence for fence, number in marks.begun.items() if _ON_LOOP < number < IN_QUARANTINE}
    loop_thread, *fence = _NUMBER_AND_FENCE.unpack_from(head, _LOOP_AT)
    current = (fence[0], fence[1])
    if current == NEWEST:
        current = on_loop[max(on_loop)] if on_loop else NOTHING
    return running if current == NOTHING else {**running, loop_thread: current}


def _read_head(path: Path) -> bytes | None:
    with suppress(OSError), path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
        return head if len(head) == _HEADER_BYTES and head.startswith(_MAGIC) else None
    return None


def record_stall(path: Path, stall: Stall) -> None:
    """Write the stall into the marks, for the recovery of the jobs."""
    with suppress(OSError), path.open("r+b") as file:
        file.seek(_STALL_AT)
        file.write(_NUMBER_AND_FENCE.pack(max(1, int(stall.seconds * 1_000)), *(stall.holder or NOTHING)))


def remove_marks(directory: Path, owner: str) -> None:
    """Remove all files of a process."""
    for path in (marks_path(directory, owner), stacks_path(directory, owner)):
        path.unlink(missing_ok=True)
    for path in (directory / _CHILDREN).glob(f"{glob_escape(marks_path(directory, owner).name)}.*"):
        path.unlink(missing_ok=True)


def marks_directory(url: str) -> Path | None:
    """The directory of the marks for this store on this machine; None for an in-memory store.

    The directory name is a hash of the URL. A directory owned by another user is not used.
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
        for name in (_CHILDREN, _STACKS):
            (directory / name).mkdir(mode=0o700, exist_ok=True)
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


def stacks_path(directory: Path, owner: str) -> Path:
    """The file to which a process that is ended by a signal dumps its stacks."""
    return directory / _STACKS / quote(owner, safe=":")


def child_path(marks: Path, slot: int) -> Path:
    """The marks of a quarantine child of the process with these marks."""
    return marks.parent / _CHILDREN / f"{marks.name}.{slot}"


def marks_of(directory: Path | None, owner: str) -> ProcessMarks | None:
    return None if directory is None else read_marks(marks_path(directory, owner))


def owners_of(directory: Path) -> dict[str, Path]:
    """The owners that have marks in the directory, dead or alive."""
    with suppress(OSError):
        return {unquote(path.name): path for path in sorted(directory.iterdir()) if path.is_file()}
    return {}


def _reserve(descriptor: int, offset: int, length: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, offset, length)
    else:
        os.ftruncate(descriptor, offset + length)


def _slot_offsets(number: int) -> list[int]:
    """The offsets of the slots in a chunk; the first chunk begins with the header."""
    return list(range(_HEADER_BYTES if number == 0 else 0, _CHUNK - _MARK.size + 1, _MARK.size))


def _marks_in(data: bytes) -> Iterator[tuple[Fence, int]]:
    for number in range(len(data) // _CHUNK):
        for at in _slot_offsets(number):
            job_id, delivery, thread = _MARK.unpack_from(data, number * _CHUNK + at)
            if job_id:
                yield (job_id, delivery), thread


def _may_run(head: bytes, pid: int, started_at: int) -> bool:
    """Whether the process runs. A process of another container is not visible here and counts as running."""
    (namespace,) = _NAMESPACE.unpack_from(head, _NAMESPACE_AT)
    return namespace != _namespace() or _runs(pid, started_at)


def _namespace() -> int:
    """The PID namespace of this process; 0 on systems without one."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def _runs(pid: int, started_at: int) -> bool:
    """Whether the process with this id and start time runs; the id alone may have been reused."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return not started_at
    return not started_at or _started_at(pid) == started_at


def _started_at(pid: int) -> int:
    """The start time of a process in clock ticks since boot; 0 if unknown, or if it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
