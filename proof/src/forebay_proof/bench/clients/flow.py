"""Enqueue and process together: one producer and a worker of one or more processes, flat out, or at 4/5 of that.

The producer holds the depth: it puts a batch whenever fewer than so many jobs are unfinished. So neither side outruns
the other, and the rate is what both sides and the server do together. Values are taken in a window after a warm-up.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic

from forebay_proof.bench.clients import ours
from forebay_proof.bench.clients.cell import OFFERED, ClientWindow, Values
from forebay_proof.bench.clients.processes import Clients
from forebay_proof.bench.clients.server import BenchServer, D
from forebay_proof.load.mix import EMAIL, Mix

DEPTH: Final = 20_000
CALLS: Final = ("claim-p50", "claim-p99", "enqueue-p50", "enqueue-p99")
MAX_START: Final = 60.0
WARM_UP: Final = 2.0
SHARE: Final = 0.8


class RunningFlow(Generic[D]):
    """Both sides at work in one database."""

    def __init__(self, database: D, clients: Clients) -> None:
        self.database = database
        self.clients = clients

    def measured(self, seconds: float) -> dict[str, float]:
        window = ClientWindow(self.database, self.clients)
        time.sleep(seconds)
        return window.close()


@contextmanager
def flowing(
    server: BenchServer[D],
    *,
    mix: Mix = EMAIL,
    queue: str = ours.QUEUE,
    depth: int = DEPTH,
    rate: int | None = None,
    size: tuple[int, int] = ours.FLOW,
    processes: int = 0,
    ledger: bool = True,
) -> Iterator[RunningFlow[D]]:
    with server.database() as database, Clients() as clients:
        ours.prepare(database, ledger)
        workers = clients.tallies("worker")
        ours.start_load(database, clients, mix=mix, queue=queue, rate=rate, depth=0 if rate else depth)
        ours.start_worker(database, clients, size, processes, (queue,))
        busy = max(1, processes)
        clients.wait_until(lambda: workers.busy() >= busy, MAX_START, "every process at work")
        time.sleep(WARM_UP)
        yield RunningFlow(database, clients)
        clients.stop()


def together(
    server: BenchServer[D],
    seconds: float,
    *,
    mix: Mix = EMAIL,
    queue: str = ours.QUEUE,
    ledger: bool = True,
    size: tuple[int, int] = ours.FLOW,
    processes: int = 0,
) -> Values:
    with flowing(server, mix=mix, queue=queue, ledger=ledger, size=size, processes=processes) as flow:
        values = flow.measured(seconds)
        return {**values, **flow.database.traces()}


def at_share(
    server: BenchServer[D],
    seconds: float,
    ceiling_of: Callable[[], float],
    size: tuple[int, int] = ours.FLOW,
    processes: int = 0,
) -> Values:
    """At four fifths of what both sides reached flat out."""
    offered = round(SHARE * ceiling_of())
    with flowing(server, rate=offered, size=size, processes=processes) as flow:
        return {**flow.measured(seconds), OFFERED: float(offered)}
