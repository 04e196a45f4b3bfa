"""Drain: a backlog is put and worked off, by ours or by a peer.

The clock of a drain runs from the tenth part of the backlog to its last job, as handlers see them, so that no start of
a process counts, nor how late the second one comes. Afterwards nothing may be left: every job was acknowledged. CPU is
that of the server with all its processes and of all client processes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic

from forebay_proof.bench.clients.cell import (
    BOTH,
    CLIENT,
    CPU,
    PUT,
    RATE,
    SERVER,
    WAL,
    ClientWindow,
    Measurement,
    Values,
)
from forebay_proof.bench.clients.peer import Peer
from forebay_proof.bench.clients.processes import Clients
from forebay_proof.bench.clients.server import BenchServer, D
from forebay_proof.tally import WHOLE

COSTS: Final = (CPU, SERVER, CLIENT, WAL)
_SEED: Final = "seed"
_MAX_START: Final = 60.0
_MAX_DRAIN: Final = 600.0
_MAX_EMPTY: Final = 30.0

Prepare = Callable[[D, Clients], None]
Put = Callable[[D, Clients, int], float | None]


@dataclass(frozen=True)
class Queue(Generic[D]):
    """A way to drain: what puts the backlog into a database, the workers, and the query for the jobs that are left.

    `seed` returns the seconds that a client took to put it, or None where it came into being in another way.
    """

    seed: Put[D]
    start: Prepare[D]
    left: str
    analyze: bool = False


def drained(server: BenchServer[D], queue: Queue[D], jobs: int) -> Values:
    with server.database() as database, Clients() as clients:
        took = queue.seed(database, clients, jobs)
        database.settle_down(analyze=queue.analyze)
        workers = clients.tallies("worker")
        queue.start(database, clients)
        clients.wait_until(lambda: workers.jobs() >= jobs // 10, _MAX_START, "the first tenth of the backlog")
        window = ClientWindow(database, clients)
        clients.wait_until(lambda: workers.jobs() >= jobs, _MAX_DRAIN, "the end of the backlog")
        values = window.close()
        clients.wait_until(lambda: database.number(queue.left) == 0, _MAX_EMPTY, "every job acknowledged", step=0.05)
        clients.stop()
        return {**values, **_put(took, jobs, values[RATE]), **database.traces()}


def _put(took: float | None, jobs: int, rate: float) -> dict[str, float]:
    """If the backlog was put by a client: at which rate, and jobs by the time of both, one after the other."""
    return {PUT: jobs / took, BOTH: 1 / (took / jobs + 1 / rate)} if took else {}


def drain_of(server: BenchServer[D], queue: Queue[D], jobs: int) -> Callable[[], Values]:
    return lambda: drained(server, queue, jobs)


def rate_of_peer(server: BenchServer[D], peer: Peer, jobs: int) -> Measurement:
    """`drain/NAME` is ours over theirs, so what they reach has another name."""

    def seed(database: D, clients: Clients, count: int) -> float:
        peer.prepare(database.plain_url, clients)
        peer.put(database.plain_url, clients, _SEED, count)
        return clients.tallies(_SEED).seconds(WHOLE)

    queue = Queue[D](seed, lambda database, clients: peer.start(database.plain_url, clients), peer.left, analyze=True)
    return Measurement(f"drain/{peer.name}-rate", drain_of(server, queue, jobs // peer.slower))
