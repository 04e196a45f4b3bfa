"""The few operations that the journal needs of a disk, and the real disk.

Promise: `Disk` is every system call the journal makes, so a test or a simulator
can stand in for the machine and fail, lose or reorder any one of them. `RealDisk`
keeps files at mode 0600 and directories at 0700 whatever the umask, never follows
a symbolic link in the last part of a name, and writes all bytes or raises.

Authority: the operating system. `sync` means fdatasync, and on macOS, which has none,
the full flush, because fsync there stops at the drive's own cache. The man page of
fdatasync promises that a changed size is flushed too, so it is enough after an append
and after a truncation.

What can go wrong: every method may raise OSError. After one from `write` or `sync`
the bytes of that handle are unknown for ever; a later `sync` that succeeds proves
nothing about them. `lock` raises StoreLocked when any open handle, in this process
or another, holds the lock. A lock held before a fork is not held by the child:
`held` says so, and the child must not write.
"""

import fcntl
import os
import sys
from typing import Protocol

from forebay.core.errors import StoreLocked

_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class DirectoryLock(Protocol):
    """A held lock; one process, until `release`."""

    def held(self) -> bool: ...

    def release(self) -> None: ...


class Disk(Protocol):
    """What the journal may call; handles are small integers, offsets count from zero."""

    def make_directory(self, path: str) -> None: ...

    def lock(self, path: str) -> DirectoryLock: ...

    def entries(self, directory: str) -> list[str]: ...

    def size(self, path: str) -> int: ...

    def read(self, path: str, offset: int, length: int) -> bytes: ...

    def create(self, path: str) -> int: ...

    def open(self, path: str) -> int: ...

    def write(self, handle: int, offset: int, data: bytes) -> None: ...

    def truncate(self, handle: int, size: int) -> None: ...

    def sync(self, handle: int) -> None: ...

    def close(self, handle: int) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def free(self, path: str) -> int:
        """How many bytes may still be written where this directory is."""

    def salt(self) -> int: ...


class RealDisk:
    """The machine's own file system."""

    def make_directory(self, path: str) -> None:
        path = os.path.abspath(path)
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_directory(parent)
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)
        self.sync_directory(parent)

    def lock(self, path: str) -> DirectoryLock:
        descriptor = os.open(path, _OPEN | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise StoreLocked(path, holder or "a process that is still starting") from None
        except BaseException:
            os.close(descriptor)
            raise
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)
        return _FileLock(descriptor)

    def entries(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def size(self, path: str) -> int:
        return os.stat(path, follow_symlinks=False).st_size

    def read(self, path: str, offset: int, length: int) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            pieces = []
            while length > 0:
                piece = os.pread(descriptor, length, offset)
                if not piece:
                    break
                pieces.append(piece)
                offset += len(piece)
                length -= len(piece)
        finally:
            os.close(descriptor)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def create(self, path: str) -> int:
        """A new file; one that is there already is an error, never overwritten."""
        descriptor = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        os.fchmod(descriptor, 0o600)
        return descriptor

    def open(self, path: str) -> int:
        """The file at `path`, made empty if it is not there."""
        descriptor = os.open(path, _OPEN | os.O_CREAT, 0o600)
        os.fchmod(descriptor, 0o600)
        return descriptor

    def write(self, handle: int, offset: int, data: bytes) -> None:
        written = os.pwrite(handle, data, offset)
        while written < len(data):
            written += os.pwrite(handle, memoryview(data)[written:], offset + written)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        if sys.platform == "darwin":
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def salt(self) -> int:
        return int.from_bytes(os.urandom(4), "little")


class _FileLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._process = os.getpid()

    def held(self) -> bool:
        return self._descriptor >= 0 and os.getpid() == self._process

    def release(self) -> None:
        # Closing, not LOCK_UN: a forked child that closes its copy must not
        # unlock the directory under its parent.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
