"""Drain and bulk: a backlog worked off, and many jobs put at once; ours beside the peers."""

from collections.abc import Callable
from typing import Final

from bench.crew import ours
from bench.crew.cell import DEAD, RATE, Cell, Values, costs, latencies, ratio
from bench.crew.drain import COSTS, Prepare, Put, Queue, drain_of, drain_of_peer
from bench.crew.peer import Peer
from bench.crew.processes import Clients
from bench.measure import Figure
from bench.pg import backlog
from bench.pg.peers.programs import PEERS
from bench.pg.server import Bench, Database
from forebay_proof.tally import CPU as CPU_TIME
from forebay_proof.tally import ENQUEUE, WHOLE

BULK: Final = "bulk"
"""The group of the client that puts many jobs."""

_KEYS: Final = (*COSTS, "claim-p50", "claim-p99", DEAD)


def put_in_bulk(bench: Bench, prepare: Prepare[Database], put: Put[Database], jobs: int) -> Values:
    with bench.database() as database, Clients() as clients:
        prepare(database, clients)
        spent, wal = database.server_cpu(), database.wal()
        put(database, clients, jobs)
        server = database.server_cpu() - spent
        tallies = clients.tallies(BULK)
        return {
            RATE: jobs / tallies.seconds(WHOLE),
            **costs(jobs, server, tallies.seconds(CPU_TIME), database.wal() - wal),
            **latencies("enqueue", tallies.histogram(ENQUEUE)),
        }


def _seeded(batch: int) -> Put[Database]:
    return lambda database, _, jobs: backlog.seed(database, jobs, batch)


def _our_bulk(database: Database, clients: Clients, jobs: int) -> None:
    ours.run_client(database, clients, BULK, "bulk", jobs)


def _worker(size: tuple[int, int], processes: int = 0, rows_of: int = 100) -> Queue[Database]:
    return Queue(_seeded(rows_of), lambda db, clients: ours.start_worker(db, clients, size, processes), backlog.LEFT)


_OURS: Final = {
    "forebay": _worker(ours.DRAIN),
    "forebay-2-processes": _worker(ours.DRAIN, processes=2),
    "forebay-defaults": _worker(ours.DEFAULTS),
    "forebay-singles": _worker(ours.DRAIN, rows_of=1),
    "store": Queue[Database](
        _seeded(100), lambda db, clients: ours.start_client(db, clients, "worker", "loop", ours.DRAIN[1]), backlog.LEFT
    ),
}


def figures(bench: Bench, jobs: int) -> list[Figure]:
    found: list[Figure] = []
    cells = {name: Cell(f"drain/{name}", drain_of(bench, queue, jobs)) for name, queue in _OURS.items()}
    theirs = {peer.name: Cell(f"drain/{peer.name}", drain_of_peer(bench, peer, jobs)) for peer in PEERS.here()}
    for name, cell in cells.items():
        found += cell.figures(_KEYS, None if name == "forebay" else "drain/forebay")
    for cell in theirs.values():
        found += cell.figures(_KEYS, "drain/forebay")
    mine = [cells["forebay"], cells["forebay-2-processes"]]
    unlike = Cell("drain_unlike/forebay", drain_of(bench, _worker(ours.DRAIN, processes=2, rows_of=1), jobs))
    found += unlike.figures(_KEYS, "drain/forebay")
    if layouts := [theirs[peer.name] for peer in PEERS.layouts("graphile")]:
        found.append(ratio("drain_unlike/graphile", [unlike], layouts, "≥ 3.5"))
    for name, goal in (("graphile", "≥ 2.5 (4)"), ("pgqueuer", "≥ 3 (5)"), ("procrastinate", "")):
        if layouts := [theirs[peer.name] for peer in PEERS.layouts(name)]:
            found.append(ratio(f"drain/over-{name}", mine, layouts, goal))
    return found


def bulk_figures(bench: Bench, jobs: int) -> list[Figure]:
    mine = Cell("bulk/forebay", lambda: put_in_bulk(bench, lambda db, _: ours.prepare(db), _our_bulk, jobs))
    projects = [peer for peer in PEERS.here() if peer.name == peer.project]
    theirs = [Cell(f"bulk/{peer.name}", _bulk_of_peer(bench, peer, jobs)) for peer in projects]
    found = mine.figures(COSTS, rate="≥ 100,000")
    for cell in theirs:
        found += cell.figures((*COSTS, "enqueue-p50", "enqueue-p99"), "bulk/forebay")
    if theirs:
        found.append(ratio("bulk/over-best-peer", [mine], theirs, "(4)"))
    return found


def _bulk_of_peer(bench: Bench, peer: Peer, jobs: int) -> Callable[[], Values]:
    def put(database: Database, clients: Clients, count: int) -> None:
        peer.put(database.url, clients, BULK, count)

    return lambda: put_in_bulk(bench, lambda db, clients: peer.prepare(db.url, clients), put, jobs // peer.slower)
