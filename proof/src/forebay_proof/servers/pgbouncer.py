"""`PgBouncer`: a real PgBouncer in transaction mode in front of a `PostgresServer`, to test what breaks behind one.

Promise. Every transaction may run on another session: what is kept in a session (LISTEN, advisory locks, SET, prepared
statements) is lost or met by another client, as in production. Prepared statements stay unsupported also in versions
that could carry them, so that tests do not depend on the version. Any database of the server can be reached, also one
that is made later. It ends as the other servers do.

Where it comes from, the first that is there: `pgbouncer` on PATH, in the usual folders for daemons, or the copy that
`make servers` unpacks into the environment from the package of Debian or Ubuntu, without root. No wheel carries it.

What can go wrong: `ServerUnavailable` if there is none.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL
from typing import Final
from urllib.parse import unquote, urlsplit

import psycopg

from forebay_proof.servers.account import Account, Programs, settle
from forebay_proof.servers.postgres import PostgresServer, database_of
from forebay_proof.servers.process import LOOPBACK, ProcessHandle, ServerUnavailable, ServerWatchdog
from forebay_proof.servers.server import LocalServer

UNPACKED: Final = Path(sys.prefix) / "pgbouncer"
"""Where `make servers` unpacks it."""

_DAEMONS: Final = os.pathsep.join(["/usr/sbin", "/usr/local/sbin"])
_CARRIES_PREPARED: Final = (1, 21)
_WAY_OUT: Final = "put another pgbouncer on PATH"


def find_programs() -> Programs:
    """`pgbouncer` and the libraries that came with it, without starting anything."""
    if found := shutil.which("pgbouncer") or shutil.which("pgbouncer", path=_DAEMONS):
        return Programs(Path(found).resolve().parent)
    if (UNPACKED / "usr" / "sbin" / "pgbouncer").exists():
        libraries = sorted([*UNPACKED.glob("lib/*-*"), *UNPACKED.glob("usr/lib/*-*")])
        return Programs(UNPACKED / "usr" / "sbin", (UNPACKED,), tuple(libraries))
    raise ServerUnavailable(
        f"no pgbouncer on PATH, in {_DAEMONS} or in {UNPACKED}: install one, or run `make servers` on Debian or Ubuntu."
    )


class PgBouncer(LocalServer):
    program = "pgbouncer"

    def __init__(self, server: PostgresServer, *, pool: int = 10) -> None:
        """`pool` is the number of sessions for one user and database."""
        super().__init__()
        self._server = server
        self._pool = pool

    def url(self, database: str = "postgres") -> str:
        """The way through the pooler to the database with this name or URL; `pgbouncer` is its own console."""
        parts = urlsplit(self._server.url(database_of(database)))
        login = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{login}@{LOOPBACK}:{self._port}").geturl()

    def stop(self) -> None:
        """End it at once: its clients see a closed connection, its sessions end with it."""
        self.stop_by(SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _prepare(self, watchdog: ServerWatchdog) -> Account:
        account = settle(watchdog, find_programs(), self.program, _WAY_OUT)
        login = urlsplit(self._server.url())
        users = watchdog.directory / "users.txt"
        users.write_text(f'"{unquote(login.username or "")}" "{unquote(login.password or "")}"\n')
        account.own(users)
        return account

    def _command(self, account: Account, directory: Path) -> Sequence[str | Path]:
        configuration = directory / "pgbouncer.ini"
        options = {
            "listen_addr": LOOPBACK,
            "listen_port": self._port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": directory / "users.txt",
            "admin_users": unquote(urlsplit(self._server.url()).username or ""),
            "pool_mode": "transaction",
            "default_pool_size": self._pool,
            "max_client_conn": 500,
            "server_tls_sslmode": "prefer",
        }
        if tuple(map(int, re.findall(r"\d+", account.version)[:2])) >= _CARRIES_PREPARED:
            options["max_prepared_statements"] = 0
        lines = ["[databases]", f"* = host={self._server.host} port={self._server.port}", "[pgbouncer]"]
        configuration.write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in options.items()), ""]))
        account.own(configuration)
        return account.command("pgbouncer", configuration)

    def _is_ready(self, child: ProcessHandle) -> bool:
        try:
            psycopg.connect(self.url("pgbouncer"), autocommit=True, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
