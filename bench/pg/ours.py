"""Starting our own processes for a measurement: workers as users start them, clients, and backlogs of any depth.

A backlog can be put through the front door, or multiplied inside the database from one row that came through it: the
rows are the same, and five million take a minute.
"""

import sys
from pathlib import Path
from typing import Final

from bench.pg.client import WORKERS, drafts
from bench.pg.load import BATCH
from bench.pg.processes import Clients
from bench.pg.server import Database
from forebay import open_store
from forebay.core.ledger import LedgerRule
from forebay.store.postgres.store import PostgresStore

DEFAULTS: Final = (64, 100)
DRAIN: Final = (2_000, 1_000)
FLOW: Final = (1_000, 500)
"""Jobs at once in a process, and jobs in one claim at most: a worker's own, and the best for two kinds of load."""

SETTINGS: Final = (
    f"one process; drain: --concurrency {DRAIN[0]} --claim-batch {DRAIN[1]}, a backlog of rows of 100 jobs "
    f"(singles: of one); enqueue and process together: --concurrency {FLOW[0]} --claim-batch {FLOW[1]}, batches of 100"
)
LEFT: Final = "SELECT coalesce(sum(n), 0) FROM forebay.run"
_COLUMNS: Final = """
    SELECT column_name FROM information_schema.columns
    WHERE table_schema = 'forebay' AND table_name = 'run' ORDER BY ordinal_position
"""


def environment(database: Database, clients: Clients) -> dict[str, str]:
    return {"FOREBAY_URL": database.url, WORKERS: str(clients.directory / "worker")}


def start_worker(
    database: Database, clients: Clients, size: tuple[int, int], processes: int = 0, queue: str = "default"
) -> None:
    """`forebay worker`; without `processes` it does the work itself."""
    concurrency, claim_batch = size
    command: list[str | Path] = [sys.executable, "-m", "forebay", "worker", "bench.pg.app:fb"]
    command += ["--concurrency", str(concurrency), "--claim-batch", str(claim_batch), "--drain-timeout", "5"]
    command += ["--queues", queue]
    if processes:
        command += ["--processes", str(processes)]
    clients.start("worker", command, environment(database, clients))


def start_client(database: Database, clients: Clients, group: str, *words: object) -> None:
    command = [sys.executable, "-m", "bench.pg.client", *map(str, words)]
    clients.start(group, command, environment(database, clients))


def run_client(database: Database, clients: Clients, group: str, *words: object) -> None:
    command = [sys.executable, "-m", "bench.pg.client", *map(str, words)]
    clients.run(group, command, environment(database, clients))


def prepare(database: Database, ledger: bool = True) -> None:
    """Our schema, and nothing in it."""
    store = PostgresStore(database.url)
    if not ledger:
        store.put_ledger_rule(LedgerRule(on=False))
    store.close()


def seed(database: Database, jobs: int, batch: int = BATCH) -> None:
    """A backlog of rows of `batch` jobs each, in the default queue."""
    store = open_store(database.url)
    (first, *_) = store.enqueue(drafts(batch))
    store.close()
    columns = [name for (name,) in database.fetch(_COLUMNS)]
    values = ["r.last_id + 1000::bigint * g" if name == "last_id" else f"r.{name}" for name in columns]
    copies = jobs // batch - 1
    database.fetch(
        f"INSERT INTO forebay.run ({', '.join(columns)}) SELECT {', '.join(values)} "
        "FROM forebay.run AS r, generate_series(1, %s) AS g WHERE r.last_id = %s",
        (copies, first.id + batch - 1),
    )
    database.fetch("SELECT setval('forebay.job_id', %s)", (first.id + 1000 * (copies + 1),))
