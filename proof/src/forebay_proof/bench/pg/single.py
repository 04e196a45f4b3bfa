"""Single jobs: enqueues one by one, claims of one, and the time from the call to the handler of an idle worker."""

import asyncio
import time
from functools import partial
from typing import Final

from forebay import Forebay, Want, open_store
from forebay.core.instant import minutes
from forebay_proof.bench.clients import ours
from forebay_proof.bench.clients.cell import Measurement, Values, ratio
from forebay_proof.bench.clients.drain import COSTS
from forebay_proof.bench.clients.peer import Peer
from forebay_proof.bench.clients.processes import Clients
from forebay_proof.bench.latency import StartFleet, dripped, peers, start_ours, start_peer
from forebay_proof.bench.measure import Figure
from forebay_proof.bench.pg import backlog
from forebay_proof.bench.pg.drain import put_in_bulk, put_ours, put_theirs
from forebay_proof.bench.pg.peers.programs import PEERS
from forebay_proof.bench.pg.server import Bench, PostgresDatabase
from forebay_proof.histogram import LatencyHistogram
from forebay_proof.load.payloads import payloads

_COROUTINES: Final = 1_000


def _ours(bench: Bench, jobs: int) -> Values:
    return put_in_bulk(bench, lambda database, _: ours.prepare(database), partial(put_ours, batch=1), jobs)


def _theirs(bench: Bench, peer: Peer, jobs: int) -> Values:
    def enqueue(database: PostgresDatabase, clients: Clients, count: int) -> tuple[float, float, LatencyHistogram]:
        return put_theirs(clients, lambda group: peer.singles(database.url, clients, group, count))

    return put_in_bulk(bench, lambda database, clients: peer.prepare(database.url, clients), enqueue, jobs)


def _by_coroutines(database: PostgresDatabase, _: Clients, jobs: int) -> tuple[float, float, LatencyHistogram]:
    """Coroutines of one loop, a job a call."""
    fb, loads, latency = Forebay(database.url), iter(payloads(jobs)), LatencyHistogram()
    fb.store.now()

    async def one() -> None:
        for load in loads:
            began = time.perf_counter()
            await fb.aenqueue("email", load)
            latency.add(time.perf_counter() - began)

    async def all_of_them() -> None:
        await asyncio.gather(*[one() for _ in range(_COROUTINES)])

    began, spent = time.perf_counter(), time.process_time()
    asyncio.run(all_of_them())
    took, spent = time.perf_counter() - began, time.process_time() - spent
    fb.close()
    return took, spent, latency


def _claimed(database: PostgresDatabase, _: Clients, jobs: int) -> tuple[float, float, LatencyHistogram]:
    """Claims of one job from a backlog."""
    store = open_store(database.url)
    began, spent = time.perf_counter(), time.process_time()
    for _number in range(jobs):
        store.claim([Want("default", 1)], "bench", minutes(10))
    took, spent = time.perf_counter() - began, time.process_time() - spent
    store.close()
    return took, spent, LatencyHistogram()


def figures(bench: Bench, jobs: int, seconds: float) -> list[Figure]:
    found: list[Figure] = []
    keys = (*COSTS, "enqueue-p50", "enqueue-p99")
    mine = Measurement("single_enqueue/forebay", partial(_ours, bench, jobs))
    base = None
    for peer in (each for each in PEERS.here() if each.name == "pgqueuer"):
        theirs = Measurement(f"single_enqueue/{peer.name}-rate", partial(_theirs, bench, peer, jobs))
        base = theirs.name
        found += theirs.figures(keys)
        found.append(ratio(f"single_enqueue/{peer.name}", [mine], [theirs], "≥ 1"))
    found += mine.figures(keys, base)
    shared = partial(put_in_bulk, bench, lambda database, _: ours.prepare(database), _by_coroutines, 10 * jobs)
    found += Measurement("aenqueue/1000-coroutines", shared).figures(keys, "single_enqueue/forebay")
    claims = partial(put_in_bulk, bench, lambda database, _: backlog.seed(database, jobs, 1), _claimed, jobs)
    found += Measurement("single_claim/forebay", claims).figures(COSTS, server_cpu="≤ 200")
    return [*found, *_latencies(bench, seconds)]


def _latencies(bench: Bench, seconds: float) -> list[Figure]:
    """Ours, theirs if they are here, and ours over theirs."""
    starts: dict[str, StartFleet] = {"forebay": start_ours}
    if graphile := peers().get("graphile"):
        starts["graphile-time"] = partial(start_peer, graphile)
    cells = [
        Measurement(f"latency/{name}", partial(dripped, bench.database, seconds, each)) for name, each in starts.items()
    ]
    found = [Figure(cell.name, "ms", partial(cell.read, "p50", cell.name)) for cell in cells]
    return [*found, *([ratio("latency/graphile", cells[:1], cells[1:], "≤ 0.8", "p50")] if cells[1:] else [])]
