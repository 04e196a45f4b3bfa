"""Starting our own processes for a measurement: workers as users start them, and clients."""

import sys
from pathlib import Path
from typing import Final

from bench.crew.client import WORKERS
from bench.crew.place import Located
from bench.crew.processes import Clients
from forebay import open_store
from forebay.core.ledger import LedgerRule

DEFAULTS: Final = (64, 500)
DRAIN: Final = (2_000, 1_000)
FLOW: Final = (1_000, 500)
"""Jobs at once in a process, and jobs in one claim at most: a worker's own, and the best for two kinds of load."""


def environment(place: Located, clients: Clients) -> dict[str, str]:
    return {"FOREBAY_URL": place.url, WORKERS: str(clients.directory / "worker")}


def start_worker(
    place: Located, clients: Clients, size: tuple[int, int], processes: int = 0, queue: str = "default"
) -> None:
    """`forebay worker`; without `processes` it does the work itself."""
    concurrency, claim_batch = size
    command: list[str | Path] = [sys.executable, "-m", "forebay", "worker", "bench.crew.app:fb"]
    command += ["--concurrency", str(concurrency), "--claim-batch", str(claim_batch), "--drain-timeout", "5"]
    command += ["--queues", queue]
    if processes:
        command += ["--processes", str(processes)]
    clients.start("worker", command, environment(place, clients))


def start_client(place: Located, clients: Clients, group: str, *words: object) -> None:
    command = [sys.executable, "-m", "bench.crew.client", *map(str, words)]
    clients.start(group, command, environment(place, clients))


def run_client(place: Located, clients: Clients, group: str, *words: object) -> None:
    command = [sys.executable, "-m", "bench.crew.client", *map(str, words)]
    clients.run(group, command, environment(place, clients))


def prepare(place: Located, ledger: bool = True) -> None:
    """A store with nothing in it."""
    store = open_store(place.url)
    if not ledger:
        store.put_ledger_rule(LedgerRule(on=False))
    store.close()
