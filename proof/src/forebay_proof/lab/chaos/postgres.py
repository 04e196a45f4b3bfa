"""Faults of a server: killed, its sessions ended; and what only Postgres can suffer: read-only, full, out of
connections, in conflict, without room for its log."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Final, LiteralString

from forebay_proof.lab.chaos.fault import ChaosFault
from forebay_proof.lab.chaos.plan import Kept
from forebay_proof.lab.chaos.scene import Bite, Impossible, Scene, pause

if TYPE_CHECKING:
    import psycopg

_SESSIONS: Final = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> ALL (%s)"
_TERMINATE: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_port IS NOT NULL AND pid <> ALL (%s)"
)
_LINES_A_SECOND: Final = 1.0
_VOLUME_BYTES: Final = 80 * 2**20


@contextmanager
def admin(scene: Scene) -> "Iterator[psycopg.Connection[tuple[Any, ...]]]":
    """A session beside the store's, on the direct way."""
    import psycopg

    with psycopg.connect(scene.lab_server.url, autocommit=True) as connection:
        yield connection


@contextmanager
def setting(scene: Scene, name: LiteralString, value: LiteralString) -> Iterator[None]:
    """For the whole server, for new and running sessions, as an operator does it."""
    with admin(scene) as connection:
        connection.execute(f"ALTER SYSTEM SET {name} = {value}")
        connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            connection.execute(f"ALTER SYSTEM RESET {name}")
            connection.execute("SELECT pg_reload_conf()")


class KillStore(ChaosFault, frozen=True):
    """kill -9 of the server, and its return after up to `away` seconds."""

    stores: ClassVar[tuple[Kept, ...]] = ("postgres", "redis")
    away: float = 0.5

    def strike(self, scene: Scene, rng: Random) -> Bite:
        pid = scene.lab_server.pid
        scene.lab_server.kill()
        pause(rng.uniform(0, self.away))
        scene.lab_server.start()
        return Bite(scene.lab_server.pid != pid, f"kill -9 {pid}")


class EndSessions(ChaosFault, frozen=True):
    """All sessions of the database are ended by the server at once."""

    stores: ClassVar[tuple[Kept, ...]] = ("postgres",)

    def strike(self, scene: Scene, rng: Random) -> Bite:
        with admin(scene) as connection:
            me = [connection.info.backend_pid]
            ended = connection.execute(f"SELECT pg_terminate_backend(pid) {_SESSIONS}", (me,)).rowcount
        return Bite(ended > 0, f"{ended} sessions ended")


class ReadOnly(ChaosFault, frozen=True):
    """The server refuses to write for a while, as a standby does. Workers say so once a second at most."""

    stores: ClassVar[tuple[Kept, ...]] = ("postgres",)
    lasts: float = 3.0

    def strike(self, scene: Scene, rng: Random) -> Bite:
        before, refused = _said(scene), scene.load.report().unknown
        with setting(scene, "default_transaction_read_only", "on"):
            pause(self.lasts)
        output, processes = _said(scene) - before, 1 + len(scene.fleet.workers())
        if output > processes * _LINES_A_SECOND * (self.lasts + 2):
            scene.report_failure(f"{output} lines of log in {self.lasts:g} s by {processes} processes")
        refused = scene.load.report().unknown - refused
        return Bite(output > 0, f"read-only for {self.lasts:g} s: {refused} jobs not taken, {output} lines of log")


def _said(scene: Scene) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in scene.directory.glob("fleet-*.log"))


class TakeConnections(ChaosFault, frozen=True):
    """Another client takes every connection that the server has, and keeps them for a while."""

    stores: ClassVar[tuple[Kept, ...]] = ("postgres",)
    lasts: float = 2.0

    def strike(self, scene: Scene, rng: Random) -> Bite:
        import psycopg

        taken: list[int] = []
        with ExitStack() as stack:
            with suppress(psycopg.OperationalError):
                while True:
                    connection = stack.enter_context(psycopg.connect(scene.lab_server.url, autocommit=True))
                    taken.append(connection.info.backend_pid)
                    connection.execute(_TERMINATE, (taken,))
            pause(self.lasts)
        return Bite(len(taken) > 10, f"all {len(taken)} connections taken for {self.lasts:g} s")


class Clash(ChaosFault, frozen=True):
    """Transactions conflict: every session becomes serializable, and another one takes the tables' locks in turn."""

    stores: ClassVar[tuple[Kept, ...]] = ("postgres",)
    lasts: float = 1.5

    def strike(self, scene: Scene, rng: Random) -> Bite:
        with (
            setting(scene, "default_transaction_isolation", "'serializable'"),
            setting(scene, "deadlock_timeout", "'20ms'"),
            admin(scene) as connection,
        ):
            before = _clashes(connection)
            tables = [name for (name,) in connection.execute(_TABLES).fetchall()]
            for _ in range(round(self.lasts / 0.1)):
                rng.shuffle(tables)
                self._lock(connection, tables[:4])
                pause(0.05)
            pause(0.7)
            after = _clashes(connection)
        rollbacks, deadlocks = (now - then for now, then in zip(after, before, strict=True))
        return Bite(
            rollbacks + deadlocks > 0, f"{rollbacks} transactions rolled back, {deadlocks} of them by deadlocks"
        )

    @staticmethod
    def _lock(connection: "psycopg.Connection[tuple[Any, ...]]", tables: list[str]) -> None:
        import psycopg
        from psycopg import sql

        with suppress(psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure), connection.transaction():
            for table in tables:
                connection.execute(
                    sql.SQL("LOCK TABLE forebay.{} IN SHARE ROW EXCLUSIVE MODE").format(sql.Identifier(table))
                )
                pause(0.02)


_LOCK: Final = "LOCK TABLE forebay.{} IN SHARE ROW EXCLUSIVE MODE"
_TABLES: Final = "SELECT relname FROM pg_class WHERE relnamespace = 'forebay'::regnamespace AND relkind = 'r'"
_COUNTS: Final = "SELECT xact_rollback, deadlocks FROM pg_stat_database WHERE datname = current_database()"


def _clashes(connection: "psycopg.Connection[tuple[Any, ...]]") -> tuple[int, int]:
    connection.execute("SELECT pg_stat_clear_snapshot()")
    row = connection.execute(_COUNTS).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


class FillLog(ChaosFault, frozen=True):
    """The volume of the write-ahead log is full: the server panics and cannot come back until there is room again.

    The volume is a small tmpfs, so this wants the right to mount: root, as on a build machine.
    """

    stores: ClassVar[tuple[Kept, ...]] = ("postgres",)
    lasts: float = 1.0

    def prepare(self, scene: Scene) -> None:
        server = scene.lab_server.server
        volume, log = server.directory / "volume", server.directory / "data" / "pg_wal"
        volume.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={_VOLUME_BYTES},mode=0777", "forebay-lab", str(volume)]
        mounted = subprocess.run(words, capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            raise Impossible(f"a small volume cannot be mounted: {mounted.stderr.strip()}; run it as root")
        scene.parts.callback(subprocess.run, ["umount", "-l", str(volume)], check=False)
        scene.lab_server.kill()
        _move(log, volume / "pg_wal")
        log.symlink_to(volume / "pg_wal")
        scene.lab_server.start()
        scene.memo["volume"] = volume

    def strike(self, scene: Scene, rng: Random) -> Bite:
        import psycopg

        volume: Path = scene.memo["volume"]
        filler, log = volume / "filler", scene.lab_server.server.directory / "postgres.log"
        before = _no_space(log)
        with filler.open("wb", buffering=0) as out, suppress(OSError):
            while True:
                out.write(bytes(2**16))
        try:
            with suppress(psycopg.Error), admin(scene) as connection:
                for _ in range(20):
                    connection.execute("SELECT pg_logical_emit_message(false, 'lab', repeat('x', 1000))")
                    connection.execute("SELECT pg_switch_wal()")
            pause(self.lasts)
        finally:
            filler.unlink()
        with suppress(Exception):
            scene.lab_server.kill()
        scene.lab_server.start()
        met = _no_space(log) - before
        return Bite(met > 0, f"no room for the log: the server said so {met} times")


def _no_space(log: Path) -> int:
    return log.read_bytes().count(b"No space left on device")


def _move(folder: Path, target: Path) -> None:
    """As `mv` across volumes, with owners."""
    owner = folder.stat()
    shutil.copytree(folder, target)
    for path in (target, *target.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    target.chmod(0o700)
    shutil.rmtree(folder)


class RestartPooler(ChaosFault, frozen=True):
    """PgBouncer ends at once and comes back: all that went through it is cut off in the middle."""

    stores: ClassVar[tuple[Kept, ...]] = ("postgres",)

    def strike(self, scene: Scene, rng: Random) -> Bite:
        pooler = scene.memo.get("pooler")
        if pooler is None:
            raise Impossible('the plan goes through no pooler: say through = "pooler"')
        with admin(scene) as connection:
            through = connection.execute(f"SELECT 1 {_SESSIONS}", ([connection.info.backend_pid],)).rowcount
        pooler.stop()
        pause(rng.uniform(0, 0.3))
        pooler.start()
        return Bite(through > 0, f"the pooler was killed with {through} sessions behind it")
