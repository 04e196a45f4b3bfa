"""What bounds a run, by the word of the server and of the kernel: wait events, WAL, syncs, calls, CPU, bytes written.

    with lab_server.evidence() as evidence:
        …
    evidence.facts["wal_bytes"], evidence.waits

Promise. Figures are differences between the two ends of the block; waits are sampled while it lasts, 50 times a second,
from a connection of their own. A server that is out of reach, or lacks a view, gives fewer figures, never an error.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, LiteralString, Self

from forebay_proof.processes import cpu_seconds, written_bytes

_EVERY: Final = 0.02
_CONNECT_SECONDS: Final = 5
_WAITS: Final[LiteralString] = """
    SELECT coalesce(wait_event_type || ':' || wait_event, 'CPU') FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()
        AND backend_type = 'client backend'
"""
_COUNTS: Final[dict[str, LiteralString]] = {
    "wal_bytes": "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')",
    "wal_syncs": "SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal'",
    "wal_writes": "SELECT coalesce(sum(writes), 0) FROM pg_stat_io WHERE object = 'wal'",
    "commits": "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()",
    "rollbacks": "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()",
    "blocks_read": "SELECT blks_read FROM pg_stat_database WHERE datname = current_database()",
    "dead_rows": "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables",
    "autovacuums": "SELECT coalesce(sum(autovacuum_count), 0) FROM pg_stat_user_tables",
    "deadlocks": "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
}
_FUNCTIONS: Final[LiteralString] = "SELECT schemaname || '.' || funcname, calls, self_time FROM pg_stat_user_functions"


class ServerStats:
    """What every store has: the CPU and the disk of its server's processes, as far as they are ours."""

    def __init__(self, roots: Sequence[int]) -> None:
        self._roots = roots
        self._before: dict[str, float] = {}
        self._done = Event()
        self._watcher = Thread(target=self._watch, name="evidence", daemon=True)
        self.facts: dict[str, float] = {}
        self.waits: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._before = dict(self._counts())
        self._watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._watcher.join()
        after = dict(self._counts())
        self.facts = {name: value - self._before.get(name, 0.0) for name, value in after.items()}

    def top_waits(self, most: int = 5) -> str:
        """The commonest with their shares: `CPU 61 %, IO:WalSync 22 %`."""
        total = sum(self.waits.values()) or 1
        return ", ".join(f"{name} {count / total:.0%}" for name, count in self.waits.most_common(most))

    def _counts(self) -> Iterator[tuple[str, float]]:
        yield "seconds", time.monotonic()
        if self._roots:
            yield "server_cpu_seconds", cpu_seconds(self._roots)
            yield "server_written_bytes", float(written_bytes(self._roots))

    def _watch(self) -> None:
        """Sample until done; wait a little after a server failed."""
        while not self._done.is_set():
            try:
                self._sample()
            except Exception:
                # Drivers raise errors of many classes for a server that is being killed, which is what a lab does.
                self._done.wait(0.5)

    def _sample(self) -> None:
        self._done.wait()


class PostgresStats(ServerStats):
    def __init__(self, url: str, roots: Sequence[int]) -> None:
        super().__init__(roots)
        self._url = url

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(self._url, autocommit=True, connect_timeout=_CONNECT_SECONDS)

    def _sample(self) -> None:
        with self._connect() as connection:
            while not self._done.wait(_EVERY):
                self.waits.update(name for (name,) in connection.execute(_WAITS))

    def _counts(self) -> Iterator[tuple[str, float]]:
        import psycopg

        yield from super()._counts()
        try:
            with self._connect() as connection:
                for name, statement in _COUNTS.items():
                    try:
                        yield name, float(connection.execute(statement).fetchone()[0])
                    except psycopg.DatabaseError:
                        # A view of another version, or none of this user's business.
                        continue
                for name, calls, self_time in connection.execute(_FUNCTIONS):
                    yield f"calls of {name}", float(calls)
                    yield f"ms in {name}", float(self_time)
        except psycopg.Error:
            return


class RedisStats(ServerStats):
    def __init__(self, url: str, roots: Sequence[int]) -> None:
        super().__init__(roots)
        self._url = url.partition("?")[0]

    def _counts(self) -> Iterator[tuple[str, float]]:
        import redis

        yield from super()._counts()
        try:
            with redis.Redis.from_url(self._url, protocol=2, socket_connect_timeout=_CONNECT_SECONDS) as client:
                stats: dict[str, Any] = client.info("all")
        except (redis.RedisError, OSError):
            return
        for name in ("total_commands_processed", "used_memory", "aof_delayed_fsync", "total_net_input_bytes"):
            if name in stats:
                yield name, float(stats[name])
        for name, value in stats.items():
            if name.startswith("cmdstat_"):
                yield f"calls of {name.removeprefix('cmdstat_')}", float(value["calls"])
                yield f"ms in {name.removeprefix('cmdstat_')}", float(value["usec"]) / 1_000
