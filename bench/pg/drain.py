"""Drain and bulk: a backlog worked off, and many jobs put at once; ours beside the peers.

The clock of a drain runs from the tenth part of the backlog to its last job, as handlers see them, so that no start of
a process counts, nor how late the second one comes. Afterwards the table must be empty: every job was acknowledged.
CPU is that of the server with all its backends and of all client processes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.measure import Figure
from bench.pg import ours
from bench.pg.cell import CLIENT, CPU, DEAD, RATE, SERVER, WAL, Cell, Values, Window, costs, latencies, ratio
from bench.pg.peers.programs import Peer, peers
from bench.pg.processes import Clients
from bench.pg.server import Bench, Database

_COSTS: Final = (CPU, SERVER, CLIENT, WAL)
_KEYS: Final = (*_COSTS, "claim-p50", "claim-p99", DEAD)
_START_MOST: Final = 60.0
_DRAIN_MOST: Final = 600.0
_EMPTY_MOST: Final = 30.0

Prepare = Callable[[Database, Clients], None]
Put = Callable[[Database, Clients, int], None]


@dataclass(frozen=True)
class Queue:
    """A way to drain: how its backlog comes into a database, who works, and what tells how many jobs are left."""

    seed: Put
    start: Prepare
    left: str
    analyze: bool = False


def drained(bench: Bench, queue: Queue, jobs: int) -> Values:
    with bench.database() as database, Clients() as clients:
        queue.seed(database, clients, jobs)
        database.settle_down(analyze=queue.analyze)
        workers = clients.tallies("worker")
        queue.start(database, clients)
        clients.wait_until(lambda: workers.jobs() >= jobs // 10, _START_MOST, "the first tenth of the backlog")
        window = Window(database, clients)
        clients.wait_until(lambda: workers.jobs() >= jobs, _DRAIN_MOST, "the end of the backlog")
        values = window.close()
        clients.wait_until(lambda: database.number(queue.left) == 0, _EMPTY_MOST, "every job acknowledged", step=0.05)
        clients.stop()
        return {**values, DEAD: database.dead()}


def put_in_bulk(bench: Bench, prepare: Prepare, put: Put, jobs: int) -> Values:
    with bench.database() as database, Clients() as clients:
        prepare(database, clients)
        spent, wal = database.server_cpu(), database.wal()
        put(database, clients, jobs)
        server = database.server_cpu() - spent
        (tally,) = clients.tallies("bulk").all()
        (took,), (client,) = tally.samples("whole", 0), tally.samples("cpu", 0)
        return {
            RATE: jobs / took,
            **costs(jobs, server, client, database.wal() - wal),
            **latencies("enqueue", tally.samples("enqueue", 0)),
        }


def _seeded(batch: int) -> Put:
    return lambda database, _, jobs: ours.seed(database, jobs, batch)


def _our_bulk(database: Database, clients: Clients, jobs: int) -> None:
    ours.run_client(database, clients, "bulk", "bulk", jobs)


def _worker(size: tuple[int, int], processes: int = 0, rows_of: int = 100) -> Queue:
    return Queue(_seeded(rows_of), lambda db, clients: ours.start_worker(db, clients, size, processes), ours.LEFT)


_OURS: Final = {
    "forebay": _worker(ours.DRAIN),
    "forebay-2-processes": _worker(ours.DRAIN, processes=2),
    "forebay-defaults": _worker(ours.DEFAULTS),
    "forebay-singles": _worker(ours.DRAIN, rows_of=1),
    "store": Queue(
        _seeded(100), lambda db, clients: ours.start_client(db, clients, "worker", "loop", ours.DRAIN[1]), ours.LEFT
    ),
}


def figures(bench: Bench, jobs: int) -> list[Figure]:
    found: list[Figure] = []
    cells = {name: Cell(f"drain/{name}", _drain_of(bench, queue, jobs)) for name, queue in _OURS.items()}
    theirs = {peer.name: Cell(f"drain/{peer.name}", _drain_of_peer(bench, peer, jobs)) for peer in peers()}
    for name, cell in cells.items():
        found += cell.figures(_KEYS, None if name == "forebay" else "drain/forebay")
    for cell in theirs.values():
        found += cell.figures(_KEYS, "drain/forebay")
    mine = [cells["forebay"], cells["forebay-2-processes"]]
    for name, goal in (("graphile", "≥ 2.5 (4)"), ("pgqueuer", "≥ 3 (5)"), ("procrastinate", "")):
        if layouts := [theirs[peer.name] for peer in peers() if peer.project == name]:
            found.append(ratio(f"drain/over-{name}", mine, layouts, goal))
    return found


def bulk_figures(bench: Bench, jobs: int) -> list[Figure]:
    mine = Cell("bulk/forebay", lambda: put_in_bulk(bench, lambda db, _: ours.prepare(db), _our_bulk, jobs))
    projects = [peer for peer in peers() if peer.name == peer.project]
    theirs = [Cell(f"bulk/{peer.name}", _bulk_of_peer(bench, peer, jobs)) for peer in projects]
    found = mine.figures(_COSTS, rate="≥ 100,000")
    for cell in theirs:
        found += cell.figures((*_COSTS, "enqueue-p50", "enqueue-p99"), "bulk/forebay")
    if theirs:
        found.append(ratio("bulk/over-best-peer", [mine], theirs, "(4)"))
    return found


def _drain_of(bench: Bench, queue: Queue, jobs: int) -> Callable[[], Values]:
    return lambda: drained(bench, queue, jobs)


def _drain_of_peer(bench: Bench, peer: Peer, jobs: int) -> Callable[[], Values]:
    def seed(database: Database, clients: Clients, count: int) -> None:
        peer.prepare(database.url, clients)
        peer.put(database.url, clients, "seed", count)

    queue = Queue(seed, lambda database, clients: peer.start(database.url, clients), peer.left, analyze=True)
    return lambda: drained(bench, queue, jobs // peer.slower)


def _bulk_of_peer(bench: Bench, peer: Peer, jobs: int) -> Callable[[], Values]:
    def put(database: Database, clients: Clients, count: int) -> None:
        peer.put(database.url, clients, "bulk", count)

    return lambda: put_in_bulk(bench, lambda db, clients: peer.prepare(db.url, clients), put, jobs // peer.slower)
