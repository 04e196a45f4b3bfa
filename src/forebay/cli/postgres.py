"""The checks of `doctor` for a Postgres server, and its migrations for `migrate`. Only `apply` writes.

The module needs psycopg, so it is imported inside `resolve_store.connecting`, which reports a missing driver. The facts
come from `forebay.store.postgres.health`; this module adds the status and the remedy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from forebay.cli.diagnosis import Diagnosis
from forebay.core.humanize import SECOND, format_duration, many
from forebay.store.postgres.connect import Server
from forebay.store.postgres.health import (
    HELD_SECONDS,
    MIN_VERSION,
    Health,
    MigrationStep,
    Open,
    inspect,
    receives_notifications,
    steps,
)
from forebay.store.postgres.migrate import Migration, migrate, pending

_DEAD_ROWS: Final = 200_000
_CONNECTIONS_SHARE: Final = 0.9


@contextmanager
def _server(url: str) -> Iterator[Server]:
    """The server behind the URL; its tables are not checked."""
    server = Server(url)
    try:
        yield server
    finally:
        server.close()


def steps_of(url: str) -> list[MigrationStep]:
    """All migrations, applied or pending. Raises for a schema that is newer than this version."""
    with _server(url) as server:
        pending(server)
        return steps(server)


def apply(url: str, phase: str | None) -> list[Migration]:
    """Apply the pending migrations, or those of one phase; returns what was applied."""
    with _server(url) as server:
        return migrate(server, phase=phase)


def diagnoses(url: str) -> Iterator[Diagnosis]:
    """All checks of the server."""
    with _server(url) as server:
        health = inspect(server)
        yield _version(health)
        yield from _durable(health)
        yield from _role(health)
        yield from _standbys(health)
        yield from _held(health)
        yield from _slots(health)
        yield from _vacuum(health)
        yield _connections(health)
        if receives_notifications(server):
            yield Diagnosis("ok", "notifies", "notifications arrive: workers are notified of new jobs at once")
        else:
            remedy = "connect to the server itself, or through a pooler in session mode"
            fact = "no notification arrives, as behind a pooler: idle workers poll ten times a second instead"
            yield Diagnosis("warn", "notifies", fact, remedy)


def _version(health: Health) -> Diagnosis:
    if health.major < MIN_VERSION:
        fact = f"PostgreSQL {health.version_name} is older than {MIN_VERSION}"
        return Diagnosis("fail", "server", fact, f"upgrade it to {MIN_VERSION} or newer")
    return Diagnosis("ok", "server", f"PostgreSQL {health.version_name}")


def _durable(health: Health) -> Iterator[Diagnosis]:
    loose = []
    if not health.fsync:
        loose.append(("fsync", "a power failure can lose or destroy everything"))
    if not health.full_page_writes:
        loose.append(("full_page_writes", "a power failure can leave torn pages"))
    if health.synchronous_commit == "off":
        loose.append(("synchronous_commit", "a crash of the server loses the last accepted jobs"))
    for setting, danger in loose:
        remedy = f"ALTER SYSTEM SET {setting} = on; SELECT pg_reload_conf()"
        yield Diagnosis("warn", "durable", f"{setting} is off: {danger}", remedy)
    if not loose:
        yield Diagnosis("ok", "durable", "accepted jobs survive a crash of the machine")


def _role(health: Health) -> Iterator[Diagnosis]:
    if health.in_recovery:
        yield Diagnosis("fail", "role", "the server is a standby: it cannot write", "name the primary in the store URL")
    elif health.read_only:
        remedy = "ALTER SYSTEM SET default_transaction_read_only = off; SELECT pg_reload_conf()"
        yield Diagnosis("fail", "role", "transactions are read-only here (default_transaction_read_only)", remedy)


def _standbys(health: Health) -> Iterator[Diagnosis]:
    risk = health.fail_over_risk
    if risk is not None:
        remedy = f"{risk[1]}; SELECT pg_reload_conf()"
        yield Diagnosis("warn", "standby", f"{risk[0]}: a fail-over can lose acknowledged jobs", remedy)
    if health.hosts > 1 and not health.standbys:
        remedy = "start a standby that streams from this server, or name one host"
        yield Diagnosis("warn", "standby", f"the URL names {health.hosts} hosts, and no standby is connected", remedy)
    for one in health.standbys:
        lag = "lag not visible to this user" if one.behind is None else f"{one.behind:,} bytes behind"
        yield Diagnosis("ok", "standby", f"{one.name} ({one.sync_state or 'unknown'}), {lag}")


def _held(health: Health) -> Iterator[Diagnosis]:
    for one in health.held:
        yield Diagnosis("warn", "held", _held_fact(one), _held_remedy(one))
    if not health.held:
        seen = "" if health.sees_others else " of this user, and others are not shown to it (grant pg_read_all_stats)"
        yield Diagnosis(
            "ok", "held", f"no transaction{seen} has been open for {format_duration(int(HELD_SECONDS * SECOND))}"
        )


def _slots(health: Health) -> Iterator[Diagnosis]:
    for one in health.slots:
        kept = f"{one.kept:,} bytes of the log{' and dead rows' if one.holds_rows else ''}"
        fact = f"nothing reads the replication slot {one.name}: the server keeps {kept} for it"
        remedy = f"start what reads it, or: SELECT pg_drop_replication_slot('{one.name}')"
        yield Diagnosis("warn", "slot", fact, remedy)


def _held_fact(one: Open) -> str:
    holder = f"pid {one.pid} ({one.name}, user {one.user}, {one.state})" if one.pid else f"prepared {one.name!r}"
    since = f"{many(one.age, 'transaction')} began since"
    return (
        f"{holder} holds a transaction open for {format_duration(int(one.seconds * SECOND))}: dead rows stay, {since}"
    )


def _held_remedy(one: Open) -> str:
    if not one.pid:
        return f"ROLLBACK PREPARED '{one.name}', or COMMIT PREPARED"
    return f"end it: SELECT pg_terminate_backend({one.pid}); idle_in_transaction_session_timeout prevents it"


def _vacuum(health: Health) -> Iterator[Diagnosis]:
    table = health.table("run")
    if not health.autovacuum:
        remedy = "ALTER SYSTEM SET autovacuum = on, and track_counts = on; SELECT pg_reload_conf()"
        yield Diagnosis("warn", "vacuum", "autovacuum is off: dead rows pile up and claims slow down", remedy)
    elif table is not None and not table.vacuumed:
        remedy = "ALTER TABLE forebay.run RESET (autovacuum_enabled)"
        yield Diagnosis("warn", "vacuum", "autovacuum is off for forebay.run: claims slow down", remedy)
    elif table is not None:
        last = "never yet" if table.cleared is None else f"{format_duration(int(table.cleared * SECOND))} ago"
        fact = f"forebay.run has {many(table.dead, 'dead row')} beside {table.live:,} live ones, cleared {last}"
        many_dead = table.dead > max(_DEAD_ROWS, table.live)
        remedy = "find the open transaction (held); then VACUUM forebay.run" if many_dead else ""
        yield Diagnosis("warn" if many_dead else "ok", "vacuum", fact, remedy)


def _connections(health: Health) -> Diagnosis:
    fact = f"{health.connections} of {health.max_connections} connections are in use"
    if health.connections >= health.max_connections * _CONNECTIONS_SHARE:
        return Diagnosis("warn", "sessions", fact, "raise max_connections, or put a pooler in front")
    return Diagnosis("ok", "sessions", fact)
