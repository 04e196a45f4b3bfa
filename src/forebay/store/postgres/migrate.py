"""The schema: numbered files, applied in order in one transaction, under an advisory lock.

A file is tagged `pre` (applied before the new program starts: the old one still works with it) or `post` (applied when
no old program runs any more: the new one works without it). Applied files are listed with their checksums. Opening a
store creates the schema in an empty database and otherwise only compares; `forebay migrate` upgrades an older one.
"""

from functools import cache
from typing import Any, Final

import psycopg

from forebay.core.errors import Invalid
from forebay.store.postgres.connect import Server
from forebay.store.sql_files import Migration as File
from forebay.store.sql_files import check_applied, read_migrations

_LOCK: Final = 0x46424159
_PHASES: Final = ("pre", "post")
_MIGRATION_SECONDS: Final = 3_600.0
"""It may build an index on a large table, or wait while another process does."""


class Migration(File, frozen=True):
    """One file, tagged with its phase: `0001_words.pre.sql`."""

    @property
    def phase(self) -> str:
        return self.name.split(".")[1]


@cache
def migrations() -> tuple[Migration, ...]:
    found = read_migrations("forebay.store.postgres", Migration)
    untagged = [migration.name for migration in found if migration.phase not in _PHASES]
    if untagged:
        raise LookupError(f"migrations are tagged pre or post: {untagged}")
    return found


def pending(server: Server) -> list[Migration]:
    """Files that are not applied yet; raises if the schema is newer than this program, or was changed."""
    applied = _applied(server)
    return [migration for migration in migrations() if migration.number not in applied]


def migrate(server: Server, *, phase: str | None = None) -> list[Migration]:
    """Apply all pending files, or those before the first of another phase."""

    def work(connection: psycopg.Connection[Any]) -> list[Migration]:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        done = []
        for migration in pending(server):
            if phase is not None and migration.phase != phase:
                break
            connection.execute(migration.text.encode())
            connection.execute(
                "INSERT INTO forebay.migration (number, name, checksum) VALUES (%s, %s, %s)",
                (migration.number, migration.name, migration.checksum),
            )
            done.append(migration)
        return done

    return server.transact(work, marked=False, within=_MIGRATION_SECONDS)


def prepare(server: Server) -> None:
    """Create the schema in an empty database; refuse one of another version."""
    applied = _applied(server)
    if not applied:
        migrate(server)
        return
    missing = [each.name for each in migrations() if each.number not in applied and each.phase == "pre"]
    if missing:
        reason = f"the schema of {server.name} is older: {', '.join(missing)}"
        raise Invalid("store URL", reason, "run: forebay migrate")


def _applied(server: Server) -> dict[int, str]:
    exists = server.query("SELECT to_regclass('forebay.migration') IS NOT NULL")[0][0]
    applied: dict[int, str] = {}
    if exists:
        applied = dict(server.query("SELECT number, checksum FROM forebay.migration"))
    check_applied(server.name, applied, migrations())
    return applied
