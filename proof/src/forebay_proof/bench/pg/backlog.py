"""Backlogs of any depth in Postgres.

A backlog can be put through the front door, or multiplied inside the database from one row that came through it: the
rows are the same. A deep one is put without the indexes, which are built afterwards.
"""

from typing import Final

from forebay import open_store
from forebay_proof.bench.clients.ours import DRAIN, FLOW
from forebay_proof.bench.pg.server import PostgresDatabase
from forebay_proof.load.mix import email_drafts
from forebay_proof.load.payloads import BATCH

SETTINGS: Final = (
    f"drain: one process or two, --concurrency {DRAIN[0]} --claim-batch {DRAIN[1]}, a backlog of rows of 100 jobs "
    f"(singles: of one); enqueue and process together: two processes, --concurrency {FLOW[0]} --claim-batch {FLOW[1]}, "
    "batches of 100"
)
LEFT: Final = (
    "SELECT (SELECT coalesce(sum(n), 0) FROM forebay.run) "
    "+ (SELECT coalesce(sum(n - coalesce(bit_count(settled), 0)), 0) FROM forebay.pack)"
)
_COLUMNS: Final = """
    SELECT column_name FROM information_schema.columns
    WHERE table_schema = 'forebay' AND table_name = 'run' ORDER BY ordinal_position
"""
_DEEP: Final = 200_000
"""Rows from which on building the indexes is cheaper than keeping them."""

_INDEXES: Final = """
    SELECT indexname, indexdef FROM pg_indexes
    WHERE schemaname = 'forebay' AND tablename = 'run' AND indexname <> 'run_pkey' ORDER BY indexname
"""


def seed(database: PostgresDatabase, jobs: int, batch: int = BATCH) -> None:
    """A backlog of rows of `batch` jobs each, in the default queue."""
    store = open_store(database.url)
    (first, *_) = store.enqueue(email_drafts(batch))
    store.close()
    columns = [name for (name,) in database.fetch(_COLUMNS)]
    values = ["r.last_id + 1000::bigint * g" if name == "last_id" else f"r.{name}" for name in columns]
    copies = jobs // batch - 1
    indexes = database.fetch(_INDEXES) if copies >= _DEEP else []
    for name, _ in indexes:
        database.fetch(f"DROP INDEX forebay.{name}")
    database.fetch(
        f"INSERT INTO forebay.run ({', '.join(columns)}) SELECT {', '.join(values)} "
        "FROM forebay.run AS r, generate_series(1, %s) AS g WHERE r.last_id = %s",
        (copies, first.id + batch - 1),
    )
    for _, definition in indexes:
        database.fetch(definition)
    database.fetch("SELECT setval('forebay.job_id', %s)", (first.id + 1000 * (copies + 1),))
