"""Drain and bulk: a backlog worked off, and many jobs put at once; ours beside the peers."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from forebay_proof.bench.clients import ours
from forebay_proof.bench.clients.cell import DEAD, RATE, Measurement, Values, costs, latencies, ratio
from forebay_proof.bench.clients.drain import COSTS, Prepare, Put, Queue, drain_of, rate_of_peer
from forebay_proof.bench.clients.peer import Peer
from forebay_proof.bench.clients.processes import Clients
from forebay_proof.bench.measure import Figure
from forebay_proof.bench.pg import backlog
from forebay_proof.bench.pg.peers.programs import PEERS
from forebay_proof.bench.pg.server import Bench, PostgresDatabase
from forebay_proof.histogram import LatencyHistogram
from forebay_proof.load.payloads import BULK
from forebay_proof.tally import CPU as CPU_TIME
from forebay_proof.tally import ENQUEUE, WHOLE

_PUT: Final = "put"
"""The group of the client that puts many jobs."""

_KEYS: Final = (*COSTS, "claim-p50", "claim-p99", DEAD)


PutTimed = Callable[[PostgresDatabase, Clients, int], tuple[float, float, LatencyHistogram]]
"""Puts so many jobs; returns the seconds and the CPU seconds that it took, and the latencies of its calls."""


def put_in_bulk(bench: Bench, prepare: Prepare[PostgresDatabase], put: PutTimed, jobs: int) -> Values:
    with bench.database() as database, Clients() as clients:
        prepare(database, clients)
        spent, wal = database.server_cpu(), database.wal()
        seconds, cpu, latency = put(database, clients, jobs)
        server = database.server_cpu() - spent
        return {
            RATE: jobs / seconds,
            **costs(jobs, server, cpu, database.wal() - wal),
            **latencies("enqueue", latency),
        }


def _seeded(batch: int) -> Put[PostgresDatabase]:
    return lambda database, _, jobs: backlog.seed(database, jobs, batch)


def put_ours(
    database: PostgresDatabase, clients: Clients, jobs: int, **given: Any
) -> tuple[float, float, LatencyHistogram]:
    report = ours.run_load(database, clients, jobs, **given)
    return report.seconds, report.cpu, report.latency


def put_theirs(clients: Clients, put: Callable[[str], None]) -> tuple[float, float, LatencyHistogram]:
    """`put` gets the group of processes to count it in."""
    put(_PUT)
    tallies = clients.tallies(_PUT)
    return tallies.seconds(WHOLE), tallies.seconds(CPU_TIME), tallies.histogram(ENQUEUE)


def _worker(size: tuple[int, int], processes: int = 0, rows_of: int = 100) -> Queue[PostgresDatabase]:
    return Queue(_seeded(rows_of), lambda db, clients: ours.start_worker(db, clients, size, processes), backlog.LEFT)


_OURS: Final = {
    "forebay": _worker(ours.DRAIN),
    "forebay-2-processes": _worker(ours.DRAIN, processes=2),
    "forebay-defaults": _worker(ours.DEFAULTS),
    "forebay-singles": _worker(ours.DRAIN, rows_of=1),
    "store": Queue[PostgresDatabase](
        _seeded(100), lambda db, clients: ours.start_claimer(db, clients, ours.DRAIN[1]), backlog.LEFT
    ),
}


def figures(bench: Bench, jobs: int) -> list[Figure]:
    found: list[Figure] = []
    cells = {name: Measurement(f"drain/{name}", drain_of(bench, queue, jobs)) for name, queue in _OURS.items()}
    theirs = {peer.name: rate_of_peer(bench, peer, jobs) for peer in PEERS.here()}
    for name, cell in cells.items():
        found += cell.figures(_KEYS, None if name == "forebay" else "drain/forebay")
    for cell in theirs.values():
        found += cell.figures(_KEYS, "drain/forebay")
    found.append(ratio("defaults/tuned", [cells["forebay-defaults"]], [cells["forebay"]], "≥ 0.8"))
    unlike = Measurement("drain_unlike/forebay", drain_of(bench, _worker(ours.DRAIN, processes=2, rows_of=1), jobs))
    found += unlike.figures(_KEYS, "drain/forebay-2-processes", rate="≥ 60,000")
    if layouts := [theirs[peer.name] for peer in PEERS.layouts("graphile")]:
        found.append(ratio("drain_unlike/graphile", [unlike], layouts, "≥ 3.5"))
    for name, goal in (("graphile", "≥ 5"), ("pgqueuer", "≥ 5"), ("procrastinate", "")):
        if layouts := [theirs[peer.name] for peer in PEERS.layouts(name)]:
            found.append(ratio(f"drain/{name}", [cells["forebay-2-processes"]], layouts, goal))
    return found


def bulk_figures(bench: Bench, jobs: int) -> list[Figure]:
    mine = Measurement(
        "bulk/forebay", lambda: put_in_bulk(bench, lambda db, _: ours.prepare(db), partial(put_ours, batch=BULK), jobs)
    )
    projects = [peer for peer in PEERS.here() if peer.name == peer.project]
    theirs = [Measurement(f"bulk/{peer.name}", _bulk_of_peer(bench, peer, jobs)) for peer in projects]
    found = mine.figures(COSTS, rate="≥ 100,000")
    for cell in theirs:
        found += cell.figures((*COSTS, "enqueue-p50", "enqueue-p99"), "bulk/forebay")
    if theirs:
        found.append(ratio("bulk/over-best-peer", [mine], theirs, "≥ 4"))
    return found


def _bulk_of_peer(bench: Bench, peer: Peer, jobs: int) -> Callable[[], Values]:
    def put(database: PostgresDatabase, clients: Clients, count: int) -> tuple[float, float, LatencyHistogram]:
        return put_theirs(clients, lambda group: peer.put(database.url, clients, group, count))

    return lambda: put_in_bulk(bench, lambda db, clients: peer.prepare(db.url, clients), put, jobs // peer.slower)
