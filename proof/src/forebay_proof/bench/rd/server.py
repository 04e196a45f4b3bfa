"""The server under test: one private Redis or Valkey for ours and for all peers, emptied for every measurement."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from forebay_proof.bench.clients.peer import DIRECTORY
from forebay_proof.load.payloads import BATCH
from forebay_proof.processes import cpu_seconds
from forebay_proof.servers.redis import RedisServer

MODES: Final = ("everysec", "always")
_PAYLOAD: Final = 103
_UNPACKED: Final = DIRECTORY / "redis-benchmark" / "run"
_REWRITING: Final = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
_PAUSE: Final = 0.01
_RATE: Final = re.compile(r"([\d.]+) requests per second")


class Keyspace:
    """The server's database; `number` reads by a script."""

    def __init__(self, server: RedisServer, mode: str) -> None:
        self.url = server.url(durability=mode)
        self.plain_url = server.url().partition("?")[0]
        self._server = server
        self._client = server.client()

    def wal(self) -> float:
        """Of the append-only file; nothing is rewritten meanwhile."""
        return float(self._client.info("persistence")["aof_current_size"])

    def rewrite(self) -> None:
        """What is gone leaves the append-only file, too."""
        self._client.bgrewriteaof()
        while any(self._client.info("persistence")[name] for name in _REWRITING):
            time.sleep(_PAUSE)

    def server_cpu(self) -> float:
        return cpu_seconds([self._server.pid])

    def number(self, question: str) -> float:
        return float(self._client.eval(question, 0))

    def settle_down(self, *, analyze: bool = False) -> None:
        """Nothing is left to do."""

    def traces(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._client.close()


class RedisBench:
    """The server in one mode. Its file is rewritten between measurements, not when it falls on one of them."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.server = RedisServer(
            durable=True, private=True, settings={"appendfsync": mode, "auto-aof-rewrite-percentage": "0"}
        )

    @contextmanager
    def database(self) -> Iterator[Keyspace]:
        self.server.clear()
        keyspace = Keyspace(self.server, self.mode)
        keyspace.rewrite()
        try:
            yield keyspace
        finally:
            keyspace.close()
            self.server.clear()


def find_benchmark() -> Path | None:
    """The server's own load generator: on PATH, or unpacked by PEERS=1."""
    for name in ("valkey-benchmark", "redis-benchmark"):
        if found := shutil.which(name):
            return Path(found)
    return _UNPACKED if _UNPACKED.exists() else None


def commands(server: RedisServer, program: Path, count: int, clients: int) -> float:
    """XADD of a payload as ours in pipelines of a hundred, a second."""
    server.clear()
    place = server.url().partition("@")
    password = place[0].rpartition(":")[2]
    options = ["-h", server.host, "-p", str(server.port), "-a", password, "-q"]
    load = ["-n", str(count), "-c", str(clients), "-P", str(BATCH), "XADD", "s", "*", "b", "x" * _PAYLOAD]
    done = subprocess.run([program, *options, *load], capture_output=True, text=True, check=True)
    rates = _RATE.findall(done.stdout)
    if not rates:
        raise RuntimeError(f"{program.name} printed no rate:\n{done.stdout}{done.stderr}")
    return float(rates[-1])
