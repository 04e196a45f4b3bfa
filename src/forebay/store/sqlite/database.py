"""Connections to the file, patience with other processes' locks, and SQLite's errors as the store's.

WAL and `synchronous=FULL`: a transaction becomes visible to others only after its sync, so whatever can be read is
durable. The built-in busy handler is off, because it starves processes; a call that finds the file locked pauses for a
random moment and tries again, for half a minute in all. Every failure of the file is `StoreFailed`: the transaction
was rolled back and nothing of it was acknowledged. A lock that is let go needs no reopening, and neither does a disk
that has room again.
"""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import uniform
from threading import Condition, Lock
from time import sleep
from typing import Final, TypeVar
from urllib.parse import quote

from forebay.core.clock import Clock
from forebay.core.errors import Closed, Invalid, StoreFailed, Unsupported
from forebay.core.instant import Instant
from forebay.store.sqlite.tables import statement

PATIENCE_SECONDS: Final = 30.0
_MIN_PAUSE: Final = 0.0002
_MAX_PAUSE: Final = 0.002
_PAUSE_GROWTH: Final = 1.25
_OLDEST_SQLITE: Final = (3, 35, 0)
_PAGES_BEFORE_CHECKPOINT: Final = 4_000
_WAL_BYTES_KEPT: Final = 64 * 1024 * 1024
_READERS_KEPT: Final = 8
_MAX_CLOSE: Final = 1.0
_LAST_AT: Final = statement("last_at")

_REASONS: Final = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk failed to carry out an operation",
    sqlite3.SQLITE_CORRUPT: "the file is damaged",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database",
    sqlite3.SQLITE_READONLY: "the file cannot be written",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
}

T = TypeVar("T")


class Time:
    """The store's clock: the injected one, never behind the last instant that any process has written.

    A process whose clock is behind continues from that instant instead of waiting for its clock to catch up.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = Lock()
        self._shift = 0

    def now(self) -> Instant:
        return self._clock.now() + self._shift

    def after(self, last_at: Instant) -> Instant:
        """Now, which is not before `last_at`."""
        now = self._clock.now() + self._shift
        if now >= last_at:
            return now
        with self._guard:
            self._shift = max(self._shift, last_at - self._clock.now())
        return max(last_at, self.now())


class Database:
    """One file, as one process uses it. Readers borrow connections that can only read."""

    def __init__(self, path: str, patience: float = PATIENCE_SECONDS) -> None:
        _check_library()
        self.path = _prepared(path)
        self.name = f"sqlite {path}"
        self._patience = patience
        self._process = os.getpid()
        self._guard = Lock()
        self._returned = Condition(self._guard)
        self._idle: list[sqlite3.Connection] = []
        self._lent = 0
        self._closed = False

    def connect(self) -> sqlite3.Connection:
        """A new connection; closing it is up to the caller."""
        with self.failing():
            # mode=rw: a file that was deleted under us is an error, not a new and empty store.
            connection = sqlite3.connect(
                f"file:{quote(self.path)}?mode=rw",
                uri=True,
                timeout=0,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
            try:
                self.retry_while_locked(lambda: _configure(connection))
            except BaseException:
                connection.close()
                raise
        return connection

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """A connection that can only read, outside any transaction."""
        connection = self._borrow()
        try:
            with self.failing():
                yield connection
        finally:
            self._give_back(connection)
            self._count_returned()

    @contextmanager
    def reading(self) -> Iterator[tuple[sqlite3.Connection, Instant]]:
        """One durable state for as long as the block lasts, and the last instant written in it."""
        with self.reader() as connection:
            yield connection, self.retry_while_locked(lambda: _begin(connection))

    def retry_while_locked(self, action: Callable[[], T]) -> T:
        """Do it as soon as no other process has the lock; counted in pauses, so that no clock is read."""
        waited, maximum = 0.0, 2 * _MIN_PAUSE
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                if not _is_busy(error):
                    raise
                if waited >= self._patience:
                    reason = f"locked by another process for {self._patience:g} s"
                    raise StoreFailed(self.name, reason) from error
            pause = uniform(_MIN_PAUSE, maximum)
            sleep(pause)
            waited += pause
            maximum = min(maximum * _PAUSE_GROWTH, _MAX_PAUSE)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """What SQLite says about the file, said as `StoreFailed`."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            failed = self.failure(error)
            if failed is error:
                raise
            raise failed from error

    def failure(self, error: BaseException) -> BaseException:
        """A mistake of ours in a statement stays what it is."""
        if not isinstance(error, sqlite3.DatabaseError) or isinstance(
            error, sqlite3.ProgrammingError | sqlite3.IntegrityError
        ):
            return error
        reason = _REASONS.get(_primary_code(error))
        return StoreFailed(self.name, f"{reason} ({error})" if reason else str(error))

    def check_process(self) -> None:
        """A connection does not survive a fork: parent and child would tear each other's transactions apart."""
        if not self.ours:
            raise StoreFailed(
                self.name, f"it was opened by process {self._process} and is used by process {os.getpid()} after a fork"
            )

    @property
    def ours(self) -> bool:
        """Whether this is the process that opened it."""
        return os.getpid() == self._process

    def close(self) -> None:
        if not self.ours:
            return
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def wait_until_unused(self) -> None:
        """After `close`, until the readers that were lent are closed too, for a second at most.

        The last connection to a file removes its log by name, so one that ends late would remove the log of a store
        that has been put at the same path since.
        """
        if self.ours:
            with self._returned:
                self._returned.wait_for(lambda: not self._lent, _MAX_CLOSE)

    def _borrow(self) -> sqlite3.Connection:
        self.check_process()
        with self._guard:
            if self._closed:
                raise Closed("the store")
            self._lent += 1
            if self._idle:
                return self._idle.pop()
        try:
            connection = self.connect()
            connection.execute("PRAGMA query_only = 1")
        except BaseException:
            self._count_returned()
            raise
        return connection

    def _count_returned(self) -> None:
        with self._returned:
            self._lent -= 1
            if self._closed:
                self._returned.notify_all()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            connection.rollback()
        with self._guard:
            keep = not self._closed and not connection.in_transaction and len(self._idle) < _READERS_KEPT
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()


def _check_library() -> None:
    library = f"SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise Unsupported(library, "UPDATE … RETURNING", "use a Python with SQLite 3.35 or newer")
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("SELECT value FROM json_each('[1]')").fetchall()
        except sqlite3.OperationalError:
            raise Unsupported(library, "JSON", "use a Python whose SQLite has json_each, or 3.38 or newer") from None


def _begin(connection: sqlite3.Connection) -> Instant:
    if not connection.in_transaction:
        connection.execute("BEGIN")
    last_at: Instant = connection.execute(_LAST_AT).fetchone()[0]
    return last_at


def _configure(connection: sqlite3.Connection) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise Invalid("store URL", f"its file system cannot do WAL, SQLite chose {mode!r}", "use a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_PAGES_BEFORE_CHECKPOINT}")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_KEPT}")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -32768")


def _prepared(path: str) -> str:
    """The absolute path of a file that exists, made with mode 0600 if it did not.

    A file that exists is never opened here: closing it would let go of every lock that this process holds on it by
    other connections, and a process elsewhere would then take the log away from under them.
    """
    file = Path(os.path.abspath(path))
    if not file.parent.is_dir():
        raise Invalid("store URL", f"the directory {str(file.parent)!r} does not exist", "create it, or name another")
    try:
        with suppress(FileExistsError):
            os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
        mode = file.stat().st_mode
    except OSError as error:
        raise StoreFailed(f"sqlite {path}", f"the file cannot be opened ({error.strerror})") from error
    if stat.S_ISDIR(mode):
        raise Invalid("store URL", f"{path!r} is a directory", "name a file in it: sqlite:///jobs.db")
    if not stat.S_ISREG(mode):
        raise Invalid("store URL", f"{path!r} is not a regular file", "name a file on a local disk")
    return str(file)


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _primary_code(error: sqlite3.Error) -> int:
    """Extended codes carry the primary one in their low byte."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
