"""`LabServer`: the store of an experiment, made for it and removed after it, or one that runs elsewhere.

    with LabServer("postgres") as lab_server:
        fb = Forebay(lab_server.url)

"postgres" and "redis" start a private server that syncs every commit, as in production; "sqlite" is a new
file and "memory" a journal in a new folder. Anything else is the URL of a store that runs elsewhere: it is used as it
is, and neither killed nor cleared. A server can be killed with -9 and comes back with its data; `through_proxy` puts a
proxy before it that breaks connections on demand. `close` leaves no process and no file behind.

What can go wrong: `ServerUnavailable` if this machine has no such server; `Invalid` for what the store cannot do.
"""

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from forebay.core.errors import Invalid
from forebay_proof.lab.server_stats import PostgresStats, RedisStats, ServerStats
from forebay_proof.processes import cpu_seconds, parent_of
from forebay_proof.servers.lifetime import Lifetime
from forebay_proof.servers.proxy import Proxy

if TYPE_CHECKING:
    from forebay_proof.servers.server import LocalServer

KINDS: Final = ("postgres", "redis", "sqlite", "memory")
POSTGRES: Final = {
    "shared_buffers": "1GB",
    "wal_buffers": "64MB",
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "max_connections": "200",
    "autovacuum_naptime": "5s",
    "jit": "off",
    "track_functions": "pl",
}
"""Of a private server, besides its durability."""

_UNSYNCED: Final = {"postgres": {"synchronous_commit": "off"}, "redis": {"appendfsync": "no"}}


class LabServer(Lifetime):
    """`settings` go to a private server, before those of the lab; `unsynced`: it answers before the disk has it."""

    def __init__(self, kind: str, *, settings: dict[str, str] | None = None, unsynced: bool = False) -> None:
        if kind not in KINDS and "://" not in kind:
            raise Invalid("store", f"{kind!r} is not known", f"use {', '.join(KINDS)}, or a URL")
        self.kind = kind if kind in KINDS else _scheme(kind)
        self.private = kind in KINDS
        self._settings = {**(_UNSYNCED.get(self.kind, {}) if unsynced else {}), **(settings or {})}
        self._trusted = {"durability": "trusted"} if unsynced else {}
        self._url = "" if self.private else kind
        self._stack = ExitStack()
        self._server: LocalServer | None = None
        self._watchdog_pid = 0
        self.proxy: Proxy | None = None

    def _begin(self) -> None:
        if not self.private:
            return
        if self.kind == "postgres":
            from forebay_proof.servers.postgres import PostgresServer

            postgres = PostgresServer(durable=True, private=True, settings={**POSTGRES, **self._settings})
            self._server = self._stack.enter_context(postgres)
            self._url = postgres.create_database()
        elif self.kind == "redis":
            from forebay_proof.servers.redis import RedisServer

            redis = RedisServer(durable=True, private=True, settings=self._settings)
            self._server = self._stack.enter_context(redis)
            self._url = redis.url(**self._trusted)
        else:
            folder = tempfile.mkdtemp(prefix="forebay-lab-")
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
            place = quote(str(Path(folder).resolve()))
            self._url = f"sqlite:///{place}/jobs.db" if self.kind == "sqlite" else f"memory://{place}/journal"
        if self._server is not None:
            self._watchdog_pid = parent_of(self._server.pid)

    @property
    def url(self) -> str:
        """Straight to the store, past any proxy."""
        if not self._url:
            raise Invalid("lab server", "it is not open", "use it in a with statement")
        return self._url

    @property
    def server(self) -> "LocalServer":
        """The private server; `Invalid` where there is none."""
        if self._server is None:
            raise Invalid("lab server", f"{self.kind} has no server of its own here", "use postgres or redis")
        return self._server

    def through_proxy(self) -> str:
        """The URL through a proxy, which is started at the first call; it is `proxy` then."""
        if self.proxy is None:
            server = self.server
            self.proxy = self._stack.enter_context(Proxy(server.host, server.port))
        return self.proxy.url(self.url)

    @property
    def pid(self) -> int:
        """Of the server's first process."""
        return self.server.pid

    def kill(self) -> None:
        """kill -9 of the server; returns when no process of it is left."""
        self.server.stop_by(SIGKILL)

    def start(self) -> None:
        """The server comes back, with the same data on the same port; nothing happens if it runs."""
        self.server.start()

    def server_cpu_seconds(self) -> float:
        """Of the server's processes, over all its restarts; 0 where it is not ours."""
        return cpu_seconds([self._watchdog_pid]) if self._watchdog_pid else 0.0

    def evidence(self) -> ServerStats:
        """What bounds it: `with lab_server.evidence() as evidence:` and then `evidence.facts`."""
        roots = [self._watchdog_pid] if self._watchdog_pid else []
        if self.kind == "postgres":
            return PostgresStats(self.url, roots)
        if self.kind == "redis":
            return RedisStats(self.url, roots)
        return ServerStats(roots)

    def close(self) -> None:
        self._stack.close()
        self._server = None
        self.proxy = None


def _scheme(url: str) -> str:
    """The kind of store that a URL leads to."""
    scheme = url.partition(":")[0]
    return {"postgresql": "postgres", "rediss": "redis", "unix": "redis"}.get(scheme, scheme)
