"""Enqueue and process together: one producer and one worker, flat out, or at four fifths of that.

The producer holds the depth: it puts a batch whenever fewer than so many jobs wait. So neither side outruns the other,
and the rate is what both sides and the server do together. Values are taken in a window after a warm-up.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic

from bench.crew import ours
from bench.crew.cell import OFFERED, Values, Window
from bench.crew.client import queue_of
from bench.crew.load import BATCH
from bench.crew.place import Ground, P
from bench.crew.processes import Clients

DEPTH: Final = 20_000
CALLS: Final = ("claim-p50", "claim-p99", "enqueue-p50", "enqueue-p99")
MAX_START: Final = 60.0
WARM_UP: Final = 2.0
SHARE: Final = 0.8


class Flow(Generic[P]):
    """Both sides at work in one database."""

    def __init__(self, place: P, clients: Clients) -> None:
        self.place = place
        self.clients = clients

    def measured(self, seconds: float) -> dict[str, float]:
        window = Window(self.place, self.clients)
        time.sleep(seconds)
        return window.close()


@contextmanager
def flowing(
    ground: Ground[P],
    *,
    kind: str = "email",
    depth: int = DEPTH,
    rate: int = 0,
    size: tuple[int, int] = ours.FLOW,
    processes: int = 0,
    ledger: bool = True,
) -> Iterator[Flow[P]]:
    with ground.database() as place, Clients() as clients:
        ours.prepare(place, ledger)
        workers = clients.tallies("worker")
        ours.start_client(place, clients, "producer", "produce", kind, BATCH, depth, rate)
        ours.start_worker(place, clients, size, processes, queue_of(kind))
        busy = max(1, processes)
        clients.wait_until(lambda: workers.busy() >= busy, MAX_START, "every process at work")
        time.sleep(WARM_UP)
        yield Flow(place, clients)
        clients.stop()


def together(
    ground: Ground[P], seconds: float, kind: str = "email", ledger: bool = True, size: tuple[int, int] = ours.FLOW
) -> Values:
    with flowing(ground, kind=kind, ledger=ledger, size=size) as flow:
        values = flow.measured(seconds)
        return {**values, **flow.place.traces()}


def at_share(
    ground: Ground[P], seconds: float, ceiling_of: Callable[[], float], size: tuple[int, int] = ours.FLOW
) -> Values:
    """At four fifths of what both sides reached flat out."""
    offered = round(SHARE * ceiling_of())
    with flowing(ground, rate=offered, size=size) as flow:
        return {**flow.measured(seconds), OFFERED: float(offered)}
