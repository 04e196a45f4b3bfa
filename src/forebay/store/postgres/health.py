"""How a server is: facts for `doctor` and `migrate`, as values. What they mean to people is the command line's to say.

Every look is bounded and changes nothing: it takes no lock that a job could wait for and reads no table of jobs, only
the server's own statistics. What this user may not see is left out, and `Health.sees_others` says so.
"""

from functools import cache
from secrets import token_hex
from typing import Final

import psycopg
from msgspec import Struct

from forebay.core.errors import ForebayError
from forebay.store.postgres.connect import Server
from forebay.store.postgres.migrate import Migration, migrations
from forebay.store.protocol import Vitals
from forebay.store.sql_files import read_statements

MIN_VERSION: Final = 14
"""The oldest major version that the functions work with."""

HELD_SECONDS: Final = 60.0
"""A transaction that is open for longer keeps dead rows from being cleared away for too long."""

_MAX_HELD: Final = 5


class Open(Struct, frozen=True):
    """A transaction that is open for long; `pid` is empty for one that was prepared. `age` counts those since then."""

    pid: str
    name: str
    user: str
    state: str
    seconds: float
    age: int


class Table(Struct, frozen=True):
    """`cleared` are the seconds since the last vacuum; None: never since the statistics began."""

    name: str
    live: int
    dead: int
    cleared: float | None
    vacuumed: bool


class Health(Struct, frozen=True):
    """One look at a server."""

    version: int
    version_name: str
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    autovacuum: bool
    in_recovery: bool
    read_only: bool
    connections: int
    connections_most: int
    sees_others: bool
    held: list[Open]
    tables: list[Table]

    @property
    def major(self) -> int:
        return self.version // 10_000

    def table(self, name: str) -> Table | None:
        """None where there is no schema yet."""
        return next((table for table in self.tables if table.name == name), None)


class Step(Struct, frozen=True):
    """A migration, and when it was applied, in seconds since 1970; None: it is pending."""

    migration: Migration
    applied_at: float | None


def look(server: Server) -> Health:
    ask = statements()
    number, name, fsync, pages, commits, vacuum, counts, recovery, read_only = server.query(ask["server"])[0]
    ((connections, most),) = server.query(ask["connections"])
    ((sees_others,),) = server.query(ask["sees_others"])
    held = [Open(*row) for row in server.query(ask["held"], (HELD_SECONDS, _MAX_HELD))]
    for gid, user, seconds, age in server.query(ask["prepared"], (HELD_SECONDS, _MAX_HELD)):
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
        connections,
        most,
        sees_others,
        sorted(held, key=lambda one: -one.seconds)[:_MAX_HELD],
        [Table(*row) for row in server.query(ask["tables"])],
    )


def vitals_of(health: Health, hears: bool | None) -> Vitals:
    """What of a look is worth telling again and again."""
    onoff = {True: "on", False: "off"}
    settings = {"fsync": onoff[health.fsync], "full_page_writes": onoff[health.full_page_writes]}
    return Vitals(
        settings | {"synchronous_commit": health.synchronous_commit},
        not (health.in_recovery or health.read_only),
        max((one.seconds for one in health.held), default=0.0),
        {table.name: table.dead for table in health.tables},
        health.connections,
        health.connections_most,
        hears,
    )


def steps(server: Server) -> list[Step]:
    """Every migration that this program knows, in order."""
    applied: dict[int, float] = {}
    if server.query("SELECT to_regclass('forebay.migration') IS NOT NULL")[0][0]:
        applied = {number: at for number, _, at in server.query(statements()["applied"])}
    return [Step(migration, applied.get(migration.number)) for migration in migrations()]


def hears(server: Server, patience: float = 2.0) -> bool:
    """Whether a notification arrives. Behind a pooler in transaction mode none does."""
    channel = f"forebay_doctor_{token_hex(8)}"
    try:
        with server.connect() as connection:
            connection.execute(f"LISTEN {channel}")
            server.query("SELECT pg_notify(%s, '')", (channel,))
            return any(notice.channel == channel for notice in connection.notifies(timeout=patience, stop_after=1))
    except (ForebayError, psycopg.Error):
        return False


@cache
def statements() -> dict[str, str]:
    """Every statement by its name."""
    return read_statements("forebay.store.postgres", ("health.sql",), {})
