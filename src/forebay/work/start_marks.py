"""Which jobs a process has begun, in a memory-mapped file that outlives even `kill -9` of that process.

A mark (job id, delivery, thread) is written just before the handler's first line and removed when the store has the
verdict. Whoever takes back the jobs of the process can so tell what had begun from what was only held. Every worker
writes marks: the files lie in a private directory of the machine, one directory a store, one file a process, named
after the owner of its leases. A clean exit removes the file; the next worker on the machine removes those that
crashed processes left, once their jobs are taken back.

The file also has a heartbeat, which a thread advances as long as the interpreter lets it run, and says which job the
loop runs just now: so a watchdog outside the interpreter sees that it is held, and by whom (`stall_watch`).

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
"""Magic, process id, when the process was started, whether marks are missing."""

_INCOMPLETE_AT: Final = 24
_BEAT: Final = struct.Struct("<QQ")
"""How often the heartbeat beat, and in which thread."""

_BEAT_AT: Final = 32
_TURN: Final = struct.Struct("<QQQ")
"""A number, and a fence: the loop's thread and what it runs; the milliseconds of a stall and who held."""

_LOOP_AT: Final = 48
_STALL_AT: Final = 72
_NAMESPACE: Final = struct.Struct("<Q")
"""The process namespace in which the process id means something: containers may share the directory."""

_NAMESPACE_AT: Final = 96
_HEADER_BYTES: Final = 128
_MARK: Final = struct.Struct("<QQQ")
_CHILDREN: Final = "children"
_STACKS: Final = "stacks"
_ON_LOOP: Final = 2**63
NOTHING: Final[Fence] = (0, 0)
NEWEST: Final[Fence] = (2**64 - 1, 0)
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
        self._beats = 0
        self._loop_thread = 0
        self._turn = _ON_LOOP

    def open(self) -> None:
        """Create the file. Without it the worker goes on, and nobody can tell what it had begun if it crashes."""
        with self._lock:
            self._grow()

    def started(self, fence: Fence, thread: int = 0) -> None:
        """`thread` 0: on the loop. Such jobs are numbered, so that the last one that began there is known."""
        with self._lock:
            if not thread:
                thread = self._turn = self._turn + 1
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
        """The interpreter lets this thread run."""
        with self._lock:
            if self._maps:
                self._beats += 1
                _BEAT.pack_into(self._maps[0], _BEAT_AT, self._beats, current_thread().native_id or 0)

    def on_loop(self, fence: Fence) -> None:
        """What the loop runs from now on: a handler, `NEWEST` for what begins, or `NOTHING`. Called on its thread."""
        if self._maps:
            if not self._loop_thread:
                self._loop_thread = current_thread().native_id or 0
            _TURN.pack_into(self._maps[0], _LOOP_AT, self._loop_thread, *fence)

    def close(self) -> None:
        """The process gives back all it holds, or has: nobody will ask."""
        with self._lock:
            self._failed = True
            self._free.clear()
            self._slot_of.clear()
            for each in self._maps:
                each.close()
            self._maps.clear()
        remove_marks(self.path.parent, unquote(self.path.name))

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
            _NAMESPACE.pack_into(chunk, _NAMESPACE_AT, _namespace())
        self._maps.append(chunk)
        self._free += [(chunk, at) for at in reversed(_slots_of(number))]
        return True


class Stall(Struct, frozen=True):
    """The interpreter was held so long; by the handler of this job, if that is known."""

    seconds: float
    holder: Fence | None = None


class ProcessMarks(Struct, frozen=True):
    """What the file of a process says.

    begun  the jobs that it had begun, each with its thread; None: the file does not tell
    alive  whether the process still lives
    stall  why a watchdog ended it
    """

    begun: dict[Fence, int] | None
    alive: bool
    stall: Stall | None = None


class Pulse(Struct, frozen=True):
    """The heartbeat of a process: how often it beat, and in which thread."""

    pid: int
    alive: bool
    beats: int
    thread: int


def read_marks(path: Path) -> ProcessMarks | None:
    """None: there is no such file, or nothing in it yet."""
    try:
        data = path.read_bytes()
        magic, pid, started_at, incomplete = _HEADER.unpack_from(data)
    except (OSError, struct.error):
        return None
    if magic != _MAGIC:
        return None
    held_ms, *fence = _TURN.unpack_from(data, _STALL_AT)
    stall = Stall(held_ms / 1_000, (fence[0], fence[1]) if fence[0] else None) if held_ms else None
    return ProcessMarks(None if incomplete else dict(_marks_in(data)), _may_live(data, pid, started_at), stall)


def read_pulse(path: Path) -> Pulse | None:
    head = _read_head(path)
    if head is None:
        return None
    _, pid, started_at, _ = _HEADER.unpack_from(head)
    return Pulse(pid, _may_live(head, pid, started_at), *_BEAT.unpack_from(head, _BEAT_AT))


def read_running(path: Path) -> dict[int, Fence]:
    """The jobs of each thread that runs one just now, the loop's included."""
    marks, head = read_marks(path), _read_head(path)
    if marks is None or marks.begun is None or head is None:
        return {}
    running = {thread: fence for fence, thread in marks.begun.items() if thread < _ON_LOOP}
    turns = {turn: fence for fence, turn in marks.begun.items() if _ON_LOOP < turn < IN_QUARANTINE}
    loop_thread, *fence = _TURN.unpack_from(head, _LOOP_AT)
    now = (fence[0], fence[1])
    if now == NEWEST:
        now = turns[max(turns)] if turns else NOTHING
    return running if now == NOTHING else {**running, loop_thread: now}


def _read_head(path: Path) -> bytes | None:
    with suppress(OSError), path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
        return head if len(head) == _HEADER_BYTES and head.startswith(_MAGIC) else None
    return None


def note_stall(path: Path, stall: Stall) -> None:
    """For whoever takes back the jobs of the process."""
    with suppress(OSError), path.open("r+b") as file:
        file.seek(_STALL_AT)
        file.write(_TURN.pack(max(1, int(stall.seconds * 1_000)), *(stall.holder or NOTHING)))


def remove_marks(directory: Path, owner: str) -> None:
    """All that a process has left here."""
    for path in (marks_path(directory, owner), stacks_path(directory, owner)):
        path.unlink(missing_ok=True)
    for path in (directory / _CHILDREN).glob(f"{glob_escape(marks_path(directory, owner).name)}.*"):
        path.unlink(missing_ok=True)


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
    """Where a process that is ended by a signal writes its stacks."""
    return directory / _STACKS / quote(owner, safe=":")


def child_path(marks: Path, place: int) -> Path:
    """The file of a child process of the one that has these marks."""
    return marks.parent / _CHILDREN / f"{marks.name}.{place}"


def marks_of(directory: Path | None, owner: str) -> ProcessMarks | None:
    return None if directory is None else read_marks(marks_path(directory, owner))


def owners_of(directory: Path) -> dict[str, Path]:
    """The processes that have files here, dead or alive."""
    with suppress(OSError):
        return {unquote(path.name): path for path in sorted(directory.iterdir()) if path.is_file()}
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


def _may_live(head: bytes, pid: int, started_at: int) -> bool:
    """Whether the process lives. One of another container cannot be seen from here, and is taken to live."""
    (namespace,) = _NAMESPACE.unpack_from(head, _NAMESPACE_AT)
    return namespace != _namespace() or _lives(pid, started_at)


def _namespace() -> int:
    """The process namespace of this process; 0 where there is none."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


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
