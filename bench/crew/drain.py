"""Drain: a backlog is put and worked off, by ours or by a peer.

The clock of a drain runs from the tenth part of the backlog to its last job, as handlers see them, so that no start of
a process counts, nor how late the second one comes. Afterwards nothing may be left: every job was acknowledged. CPU is
that of the server with all its processes and of all client processes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic

from bench.crew.cell import BOTH, CLIENT, CPU, PUT, RATE, SERVER, WAL, Values, Window
from bench.crew.peer import Peer
from bench.crew.place import Ground, P
from bench.crew.processes import Clients
from forebay_proof.tally import WHOLE

COSTS: Final = (CPU, SERVER, CLIENT, WAL)
SEED: Final = "seed"
_MAX_START: Final = 60.0
_MAX_DRAIN: Final = 600.0
_MAX_EMPTY: Final = 30.0

Prepare = Callable[[P, Clients], None]
Put = Callable[[P, Clients, int], None]


@dataclass(frozen=True)
class Queue(Generic[P]):
    """A way to drain: how its backlog comes into a place, who works, and what tells how many jobs are left."""

    seed: Put[P]
    start: Prepare[P]
    left: str
    analyze: bool = False


def drained(ground: Ground[P], queue: Queue[P], jobs: int) -> Values:
    with ground.database() as place, Clients() as clients:
        queue.seed(place, clients, jobs)
        place.settle_down(analyze=queue.analyze)
        workers = clients.tallies("worker")
        queue.start(place, clients)
        clients.wait_until(lambda: workers.jobs() >= jobs // 10, _MAX_START, "the first tenth of the backlog")
        window = Window(place, clients)
        clients.wait_until(lambda: workers.jobs() >= jobs, _MAX_DRAIN, "the end of the backlog")
        values = window.close()
        clients.wait_until(lambda: place.number(queue.left) == 0, _MAX_EMPTY, "every job acknowledged", step=0.05)
        clients.stop()
        return {**values, **_put(clients, jobs, values[RATE]), **place.traces()}


def _put(clients: Clients, jobs: int, rate: float) -> dict[str, float]:
    """If the backlog was put by a client: at which rate, and jobs by the time of both, one after the other."""
    took = clients.tallies(SEED).seconds(WHOLE)
    return {PUT: jobs / took, BOTH: 1 / (took / jobs + 1 / rate)} if took else {}


def drain_of(ground: Ground[P], queue: Queue[P], jobs: int) -> Callable[[], Values]:
    return lambda: drained(ground, queue, jobs)


def drain_of_peer(ground: Ground[P], peer: Peer, jobs: int) -> Callable[[], Values]:
    def seed(place: P, clients: Clients, count: int) -> None:
        peer.prepare(place.plain_url, clients)
        peer.put(place.plain_url, clients, SEED, count)

    queue = Queue[P](seed, lambda place, clients: peer.start(place.plain_url, clients), peer.left, analyze=True)
    return drain_of(ground, queue, jobs // peer.slower)
