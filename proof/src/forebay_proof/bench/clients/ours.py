"""Starting our own side of a measurement: workers as users start them, bare claimers, and the load."""

import sys
from collections.abc import Sequence
from typing import Any, Final

from forebay import open_store
from forebay.core.ledger import LedgerRule
from forebay_proof.bench.clients.processes import Clients
from forebay_proof.bench.clients.server import HasUrl
from forebay_proof.load.app import EFFECTS
from forebay_proof.load.claimer import APART
from forebay_proof.load.fleet import APP, Fleet
from forebay_proof.load.generator import Load, ProducerReport
from forebay_proof.load.mix import EMAIL
from forebay_proof.load.payloads import BATCH
from forebay_proof.tally import FOLDER

WORKER: Final = "worker"
"""The group of the processes that do the jobs."""

QUEUE: Final = "default"
DEFAULTS: Final = (64, 500)
DRAIN: Final = (2_000, 1_000)
FLOW: Final = (1_000, 500)
"""Jobs at once in a process, and jobs in one claim at most: a worker's own, and the best for two kinds of load."""

_DRAIN_SECONDS: Final = 5.0


def start_worker(
    database: HasUrl, clients: Clients, size: tuple[int, int], processes: int = 0, queues: Sequence[str] = (QUEUE,)
) -> None:
    """`forebay worker`; without `processes` it does the work itself."""
    concurrency, claim_batch = size
    tallies = clients.directory / WORKER
    clients.start_fleet(
        Fleet(
            APP,
            database.url,
            clients.directory / "fleet",
            processes=processes,
            concurrency=concurrency,
            claim_batch=claim_batch,
            lease=None,
            queues=tuple(queues),
            env={FOLDER: str(tallies), EFFECTS: ""},
            drain=_DRAIN_SECONDS,
        )
    )


def start_claimer(database: HasUrl, clients: Clients, batch: int) -> None:
    """Claims and acknowledges without a worker; a claim and its acknowledgement are two calls."""
    command = [sys.executable, "-m", "forebay_proof.load.claimer", QUEUE, str(batch), APART]
    clients.start(WORKER, command, {"FOREBAY_URL": database.url})


def load_on(database: HasUrl, clients: Clients, **given: Any) -> Load:
    """A load by one thread, without receipts; `email` jobs in batches of a hundred unless something else is `given`.

    With a rate, batches that are more than a tenth of a second late are left out rather than sent in a burst.
    """
    shape: dict[str, Any] = {"mix": EMAIL, "batch": BATCH, "queue": QUEUE, "threads": 1, "receipts": False}
    shape |= {"max_behind": 0.1, **given}
    return Load(database.url, directory=clients.new_directory("load"), consumers=clients.directory / WORKER, **shape)


def start_load(database: HasUrl, clients: Clients, **given: Any) -> None:
    clients.start_load(load_on(database, clients, **given))


def run_load(database: HasUrl, clients: Clients, jobs: int, **given: Any) -> ProducerReport:
    """The report of so many jobs, once all of them are accepted."""
    with load_on(database, clients, jobs=jobs, **given) as load:
        load.start()
        report = load.wait()
    if report.accepted != jobs:
        raise RuntimeError(f"{report.accepted} of {jobs} jobs were accepted")
    return report


def prepare(database: HasUrl, ledger: bool = True) -> None:
    """A store with nothing in it."""
    store = open_store(database.url)
    if not ledger:
        store.put_ledger_rule(LedgerRule(on=False))
    store.close()
