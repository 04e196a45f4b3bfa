"""The state of a server as values, for `doctor` and `migrate`; the command line interprets them.

An inspection is bounded and changes nothing: it takes no lock that a job could wait for and reads no table of jobs,
only the server's own statistics. Without the right to see sessions of other users these are left out, and
`Health.sees_others` is false.
"""

from secrets import token_hex
from typing import Final

import psycopg
from msgspec import Struct

from forebay.core.errors import ForebayError
from forebay.store.postgres.connect import Server
from forebay.store.postgres.migrate import Migration, migrations
from forebay.store.protocol import Vitals
from forebay.store.sql_files import Statements

MIN_VERSION: Final = 14
"""The oldest major version that the functions work with."""

HELD_SECONDS: Final = 60.0
"""A transaction that is open for longer keeps vacuum from removing dead rows for too long."""

SQL: Final = Statements("forebay.store.postgres", ("health.sql",), {})
_MAX_HELD: Final = 5
_MAX_STANDBYS: Final = 20
_MAX_SLOTS: Final = 20
_REPLICATED: Final = ("on", "remote_apply")
"""Values of `synchronous_commit` with which a commit waits until a synchronous standby has it on disk."""


class Open(Struct, frozen=True):
    """A long transaction; `pid` is empty for a prepared one. `age`: how many transactions began since."""

    pid: str
    name: str
    user: str
    state: str
    seconds: float
    age: int


class TableHealth(Struct, frozen=True):
    """`cleared`: seconds since the last vacuum; None: never since the statistics began."""

    name: str
    live: int
    dead: int
    cleared: float | None
    vacuumed: bool


class Standby(Struct, frozen=True):
    """A server that follows this one. `behind`: bytes that it has yet to replay; None: not visible to this user."""

    name: str
    sync_state: str
    behind: int | None


class IdleSlot(Struct, frozen=True):
    """A replication slot that nothing reads. `kept`: bytes of the log that the server keeps for it."""

    name: str
    kept: int
    holds_rows: bool


class Health(Struct, frozen=True):
    """One inspection of a server. `hosts`: how many servers its URL names."""

    version: int
    version_name: str
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    autovacuum: bool
    in_recovery: bool
    read_only: bool
    standby_names: str
    hosts: int
    standbys: list[Standby]
    connections: int
    max_connections: int
    sees_others: bool
    held: list[Open]
    slots: list[IdleSlot]
    tables: list[TableHealth]

    @property
    def major(self) -> int:
        return self.version // 10_000

    @property
    def fail_over_risk(self) -> tuple[str, str] | None:
        """A setting by which a fail-over to another host of the URL can lose acknowledged jobs, and its remedy."""
        if self.hosts > 1 and not self.standby_names:
            return "synchronous_standby_names is empty", "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'"
        if self.hosts > 1 and self.synchronous_commit not in _REPLICATED:
            return f"synchronous_commit is {self.synchronous_commit}", "ALTER SYSTEM SET synchronous_commit = on"
        return None

    def table(self, name: str) -> TableHealth | None:
        """None where there is no schema yet."""
        return next((table for table in self.tables if table.name == name), None)


class MigrationStep(Struct, frozen=True):
    """A migration, and when it was applied, in seconds since 1970; None: it is pending."""

    migration: Migration
    applied_at: float | None


def inspect(server: Server) -> Health:
    number, name, fsync, pages, commits, vacuum, counts, recovery, read_only, names = server.query(SQL.server)[0]
    ((connections, max_connections),) = server.query(SQL.connections)
    ((sees_others,),) = server.query(SQL.sees_others)
    held = [Open(*row) for row in server.query(SQL.held, (HELD_SECONDS, _MAX_HELD))]
    for gid, user, seconds, age in server.query(SQL.prepared, (HELD_SECONDS, _MAX_HELD)):
        held.append(Open("", gid, user, "prepared", seconds, age))
    return Health(
        number,
        name,
        fsync == "on",
        pages == "on",
        commits,
        vacuum == counts == "on",
        recovery,
        read_only == "on",
        names,
        len(server.hosts),
        [Standby(*row) for row in server.query(SQL.standbys, (_MAX_STANDBYS,))],
        connections,
        max_connections,
        sees_others,
        sorted(held, key=lambda one: -one.seconds)[:_MAX_HELD],
        [IdleSlot(*row) for row in server.query(SQL.slots, (_MAX_SLOTS,))],
        [TableHealth(*row) for row in server.query(SQL.tables)],
    )


def vitals_of(health: Health, listening: bool | None) -> Vitals:
    """What of an inspection is exported as metrics."""
    onoff = {True: "on", False: "off"}
    settings = {"fsync": onoff[health.fsync], "full_page_writes": onoff[health.full_page_writes]}
    return Vitals(
        settings | {"synchronous_commit": health.synchronous_commit},
        not (health.in_recovery or health.read_only),
        max((one.seconds for one in health.held), default=0.0),
        {table.name: table.dead for table in health.tables},
        health.connections,
        health.max_connections,
        listening,
        {each.name: each.behind for each in health.standbys if each.behind is not None},
        {each.name: each.kept for each in health.slots},
    )


def steps(server: Server) -> list[MigrationStep]:
    """Every migration of this program, in order."""
    applied: dict[int, float] = {}
    if server.query("SELECT to_regclass('forebay.migration') IS NOT NULL")[0][0]:
        applied = {number: at for number, _, at in server.query(SQL.applied)}
    return [MigrationStep(migration, applied.get(migration.number)) for migration in migrations()]


def receives_notifications(server: Server, timeout: float = 2.0) -> bool:
    """Whether a notification arrives. Behind a pooler in transaction mode none does."""
    channel = f"forebay_doctor_{token_hex(8)}"
    try:
        with server.connect() as connection:
            connection.execute(f"LISTEN {channel}")
            server.query("SELECT pg_notify(%s, '')", (channel,))
            return any(notice.channel == channel for notice in connection.notifies(timeout=timeout, stop_after=1))
    except (ForebayError, psycopg.Error):
        return False
