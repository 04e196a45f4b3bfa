"""Single jobs: one enqueue after the other, and the time from the call to the handler of an idle worker."""

from functools import partial

from bench.crew import ours
from bench.crew.cell import Cell, Values
from bench.crew.drain import COSTS
from bench.crew.peer import Peer
from bench.crew.processes import Clients
from bench.latency import Start, dripped, peers, start_ours, start_peer
from bench.measure import Figure
from bench.pg.drain import put_in_bulk, put_ours, put_theirs
from bench.pg.peers.programs import PEERS
from bench.pg.server import Bench, Database
from forebay_proof.histogram import Histogram


def _ours(bench: Bench, jobs: int) -> Values:
    return put_in_bulk(bench, lambda database, _: ours.prepare(database), partial(put_ours, batch=1), jobs)


def _theirs(bench: Bench, peer: Peer, jobs: int) -> Values:
    def enqueue(database: Database, clients: Clients, count: int) -> tuple[float, float, Histogram]:
        return put_theirs(clients, lambda group: peer.singles(database.url, clients, group, count))

    return put_in_bulk(bench, lambda database, clients: peer.prepare(database.url, clients), enqueue, jobs)


def figures(bench: Bench, jobs: int, seconds: float) -> list[Figure]:
    found: list[Figure] = []
    keys = (*COSTS, "enqueue-p50", "enqueue-p99")
    base = None
    for peer in (each for each in PEERS.here() if each.name == "pgqueuer"):
        base = f"single_enqueue/{peer.name}"
        found += Cell(base, partial(_theirs, bench, peer, jobs)).figures(keys)
    mine = Cell("single_enqueue/forebay", partial(_ours, bench, jobs))
    found += mine.figures(keys, base, rate="≥ 1 ×")
    starts: dict[str, Start] = {name: partial(start_peer, peer) for name, peer in peers().items() if name == "graphile"}
    for name, start in {**starts, "forebay": start_ours}.items():
        cell = Cell(f"latency/{name}", partial(dripped, bench.database, seconds, start))
        ahead = "latency/graphile" if name == "forebay" and starts else None
        read = partial(cell.read, "p50", cell.name)
        found.append(Figure(cell.name, "ms", read, ahead, "≤ 0.8 ×" if ahead else ""))
    return found
