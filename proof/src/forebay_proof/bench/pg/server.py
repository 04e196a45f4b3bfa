"""The server under test: one durable Postgres for ours and for all peers, a fresh database for every measurement.

fsync, full_page_writes and synchronous_commit are on. What else is set is printed above the figures and is the same for
all. `PostgresDatabase` shows what a measurement did to it: WAL written, dead rows left, what its sessions waited
for.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from forebay_proof.bench.clients.cell import DEAD
from forebay_proof.lab.lab_server import POSTGRES
from forebay_proof.processes import cpu_seconds
from forebay_proof.servers.postgres import PostgresServer

SETTINGS: Final = {name: value for name, value in POSTGRES.items() if name != "track_functions"}
_SAMPLE_EVERY: Final = 0.02
_WAL: Final = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"
_DEAD: Final = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_all_tables WHERE schemaname NOT IN ('pg_catalog')"
_WAITS: Final = """
    SELECT coalesce(wait_event_type || ':' || wait_event, 'CPU') FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()
        AND backend_type = 'client backend'
"""


class PostgresDatabase:
    def __init__(self, server: "Bench", url: str) -> None:
        self.url = url
        self._server = server
        self._connection = psycopg.connect(url, autocommit=True)

    @property
    def plain_url(self) -> str:
        return self.url

    def fetch(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []

    def number(self, statement: str) -> float:
        return float(self.fetch(statement)[0][0])

    def wal(self) -> float:
        """Bytes of WAL that the server has written so far. Only the measurement writes."""
        return self.number(_WAL)

    def traces(self) -> dict[str, float]:
        return {DEAD: self.number(_DEAD)}

    def settle_down(self, *, analyze: bool = False) -> None:
        """After the seeding: what it left to vacuum and to write is done before the clock starts.

        `analyze` for peers, whose plans may gain by it; our own tables are never analysed, as in production.
        """
        self.fetch("VACUUM ANALYZE" if analyze else "VACUUM")
        self.fetch("CHECKPOINT")

    def server_cpu(self) -> float:
        return cpu_seconds([self._server.pid])

    @contextmanager
    def waits(self) -> Iterator[Counter[str]]:
        """What active sessions wait for, sampled until the block ends."""
        found: Counter[str] = Counter()
        done = Event()

        def sample() -> None:
            with psycopg.connect(self.url, autocommit=True) as connection:
                while not done.wait(_SAMPLE_EVERY):
                    found.update(name for (name,) in connection.execute(_WAITS))

        watcher = Thread(target=sample, name="waits")
        watcher.start()
        try:
            yield found
        finally:
            done.set()
            watcher.join()

    def close(self) -> None:
        self._connection.close()


class Bench:
    """The server. Databases come and go; nothing of it is left at the end."""

    def __init__(self) -> None:
        self._server = PostgresServer(durable=True, private=True, settings=SETTINGS)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.close()

    @property
    def pid(self) -> int:
        return self._server.pid

    def version(self) -> str:
        with psycopg.connect(self._server.url()) as connection:
            return str(connection.info.server_version // 10_000) + "." + str(connection.info.server_version % 10_000)

    @contextmanager
    def database(self) -> Iterator[PostgresDatabase]:
        database = PostgresDatabase(self, self._server.create_database())
        try:
            yield database
        finally:
            database.close()
            self._server.drop_database(database.url)


def described() -> str:
    """The settings, for people."""
    return "fsync=on full_page_writes=on synchronous_commit=on " + " ".join(
        f"{name}={value}" for name, value in SETTINGS.items()
    )


def top(waits: Counter[str], most: int = 3) -> str:
    """The commonest waits with their shares."""
    total = sum(waits.values()) or 1
    return ", ".join(f"{name} {count / total:.0%}" for name, count in waits.most_common(most))
