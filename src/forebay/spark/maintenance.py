"""Upkeep of a lake: small files are joined, old days are dropped, and files that no version refers to are removed.

Each step is a Delta commit, so readers and writers continue meanwhile; a writer that loses a race repeats its batch.
"""

from datetime import UTC, datetime, timedelta

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.spark.lake import EVENTS, MAX_TABLE_ROWS, TABLES, Lake, LakeTable
from forebay.store.clock import SystemClock

AUDIT = ("receipts", "effects", "proof")
"""Tables of the audit: their files are replaced, never joined."""


class Maintenance(Struct, frozen=True):
    """`every`: seconds. `keep`: days of acceptance, of claims, of events that are older are dropped; None: none are.
    `grace`: how long a replaced file stays for its readers, in hours, rounded up."""

    every: float = 3600.0
    keep: timedelta | None = None
    grace: timedelta = timedelta(hours=1)

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < timedelta(days=1):
            raise Invalid("keep", f"{self.keep} is less than a day", "a lake keeps whole days: give at least 1d")


class Maintained(Struct, frozen=True):
    """How many files were joined, rows dropped, and files removed."""

    joined: int
    rows_dropped: int
    files_removed: int

    def __str__(self) -> str:
        return (
            f"{self.joined:,} small files joined, {self.rows_dropped:,} rows of old days dropped, "
            f"{self.files_removed:,} files removed"
        )


def maintain(lake: Lake, maintenance: Maintenance) -> Maintained:
    """All tables of a lake."""
    dropped = 0 if maintenance.keep is None else _drop(lake, maintenance.keep)
    tables = lake.tables([EVENTS, *TABLES, *AUDIT])
    joined = sum(
        table.compact(None if name == EVENTS else MAX_TABLE_ROWS) for name, table in tables.items() if name not in AUDIT
    )
    hours = -(-maintenance.grace // timedelta(hours=1))
    removed = sum(lake.table(name).vacuum(hours) for name in tables)
    return Maintained(joined, dropped, removed)


def _drop(lake: Lake, keep: timedelta) -> int:
    """Events are dropped by offset, up to the last one of the expired days, so that the rest stays dense."""
    now = datetime.fromtimestamp(SystemClock().now() / 1e6, UTC)
    first_day = (now - keep).date().isoformat()
    tables: dict[str, LakeTable] = lake.tables([EVENTS, *TABLES])
    old = [file.max_values["offset"] for file in tables[EVENTS].files if file.day < first_day]
    dropped = tables[EVENTS].delete(f"offset <= {max(old)}") if old else 0
    for name in TABLES:
        if name in tables and any(file.day < first_day for file in tables[name].files):
            dropped += tables[name].delete(f"day < '{first_day}'")
    return dropped
