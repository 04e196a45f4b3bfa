"""The stores that are compared, each with what is specific to it: a fresh location, its size, a crash.

Bytes are all that a store keeps of its jobs, its ledger included: files for stores on disk, memory for Redis. A crash
is kill -9, of the process that has an embedded store open, or of the server.
"""

import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import psycopg

from forebay import Store, open_store
from forebay_proof.bench.pg.server import SETTINGS
from forebay_proof.bench.rd.server import MODES, RedisBench
from forebay_proof.load.mix import email_drafts
from forebay_proof.servers.postgres import PostgresServer, StopMode

_BULK: Final = 1_000
_ANSWERS: Final = "{forebay}:t:*"


@dataclass(frozen=True)
class Site:
    """A fresh location of one store."""

    url: str


class ComparedStore(ABC):
    name: str
    shared: ClassVar[bool] = True
    """Whether several processes may have it open."""

    @contextmanager
    @abstractmethod
    def fresh(self) -> Iterator[Site]:
        """A location that is removed after the block."""
        yield Site("")

    @abstractmethod
    def size(self, site: Site) -> int:
        """Bytes, while no store is open on it."""

    @abstractmethod
    def crash(self, site: Site, jobs: int) -> None:
        """Enqueue this many jobs and kill the process that keeps them."""

    @abstractmethod
    def reopen(self) -> None:
        """Start again what was killed, and wait until it responds."""


class Embedded(ComparedStore):
    """In a directory, opened by the processes themselves."""

    path: ClassVar[str]

    @contextmanager
    def fresh(self) -> Iterator[Site]:
        with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
            yield Site(f"{self.path}{directory}/jobs")

    def size(self, site: Site) -> int:
        place = Path(site.url.removeprefix(self.path))
        return sum(file.stat().st_size for file in place.parent.rglob("*") if file.is_file())

    def crash(self, site: Site, jobs: int) -> None:
        filler = [sys.executable, "-m", "forebay_proof.bench.compared_stores", site.url, str(jobs)]
        with subprocess.Popen(filler, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.kill()
        if line != b"full\n":
            raise RuntimeError("the process that fills the store failed")

    def reopen(self) -> None:
        """Opening it is all there is to do."""


class JournalStore(Embedded):
    name = "memory"
    path = "memory://"
    shared = False


class Sqlite(Embedded):
    name = "sqlite"
    path = "sqlite:///"


class Postgres(ComparedStore):
    name = "postgres"

    def __init__(self, stack: ExitStack) -> None:
        self._server = stack.enter_context(PostgresServer(durable=True, private=True, settings=SETTINGS))

    @contextmanager
    def fresh(self) -> Iterator[Site]:
        url = self._server.create_database()
        try:
            yield Site(url)
        finally:
            self._server.drop_database(url)

    def size(self, site: Site) -> int:
        with psycopg.connect(site.url) as connection:
            ((size,),) = connection.execute("SELECT pg_database_size(current_database())").fetchall()
            return int(size)

    def crash(self, site: Site, jobs: int) -> None:
        fill(site.url, jobs)
        self._server.stop(StopMode.KILL)

    def reopen(self) -> None:
        self._server.start()


class Redis(ComparedStore):
    def __init__(self, stack: ExitStack, mode: str) -> None:
        self.name = f"redis-{mode}"
        self._bench = RedisBench(mode)
        self._server = stack.enter_context(self._bench.server)

    @contextmanager
    def fresh(self) -> Iterator[Site]:
        with self._bench.database() as keyspace:
            yield Site(keyspace.url)

    def size(self, site: Site) -> int:
        """Of memory, without the answers that are remembered for a minute."""
        with self._server.client() as client:
            for answer in client.scan_iter(_ANSWERS, count=_BULK):
                client.delete(answer)
            return int(client.info("memory")["used_memory"])

    def crash(self, site: Site, jobs: int) -> None:
        fill(site.url, jobs)
        self._server.kill()

    def reopen(self) -> None:
        self._server.start()


def compared_stores(stack: ExitStack) -> list[ComparedStore]:
    return [JournalStore(), Sqlite(), Postgres(stack), *(Redis(stack, mode) for mode in MODES)]


def fill(url: str, jobs: int, batch: int = _BULK) -> None:
    """Waiting jobs with payloads of about a hundred bytes, no two neighbours alike."""
    with closing(open_store(url)) as store:
        put(store, jobs, batch)


def put(store: Store, jobs: int, batch: int = _BULK) -> None:
    drafts = email_drafts(batch)
    for _ in range(jobs // batch):
        store.enqueue(drafts)


def fill_and_wait(url: str, jobs: int) -> None:
    """To be killed, with the store open."""
    put(open_store(url), jobs)
    print("full", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    fill_and_wait(sys.argv[1], int(sys.argv[2]))
