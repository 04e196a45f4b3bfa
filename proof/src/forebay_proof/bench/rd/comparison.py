"""Our worker beside the peers, and claims under a steady load.

A backlog is put by one client and worked off; `put-and-drained` is jobs by the time of both. The steady load is four
fifths of what producer and worker do flat out together.
"""

from collections.abc import Callable, Sequence
from typing import Final

from forebay_proof.bench.clients import ours
from forebay_proof.bench.clients.cell import BOTH, CLIENT, CPU, OFFERED, PUT, RATE, SERVER, Measurement, Values, ratio
from forebay_proof.bench.clients.drain import Queue, drain_of, rate_of_peer
from forebay_proof.bench.clients.flow import CALLS, at_share, together
from forebay_proof.bench.measure import Figure
from forebay_proof.bench.rd.peers.programs import PEERS
from forebay_proof.bench.rd.server import Keyspace, RedisBench
from forebay_proof.load.payloads import BULK

FLOW: Final = (400, 200)
"""Jobs at once, and in one claim at most: a claim holds the server's only thread as long as it is large."""

SETTINGS: Final = (
    f"drain: --concurrency {ours.DRAIN[0]} --claim-batch {ours.DRAIN[1]}, put by one enqueue_many; enqueue and process "
    f"together: --concurrency {FLOW[0]} --claim-batch {FLOW[1]}, batches of 100"
)
GOALS: Final = {"bullmq": "≥ 2.5", "dramatiq": "≥ 5", "celery": "≥ 8", "rq": ""}
_KEYS: Final = (PUT, BOTH, CPU, SERVER, CLIENT)
_LEFT: Final = "return redis.call('ZCARD', '{forebay}:lease') + redis.call('ZCARD', '{forebay}:r:default|')"


def _worker(processes: int) -> Queue[Keyspace]:
    return Queue(
        lambda place, clients, jobs: ours.run_load(place, clients, jobs, batch=BULK).seconds,
        lambda place, clients: ours.start_worker(place, clients, ours.DRAIN, processes),
        _LEFT,
    )


def drain_figures(bench: RedisBench, jobs: int) -> list[Figure]:
    mine = [
        Measurement("drain/forebay", drain_of(bench, _worker(0), jobs)),
        Measurement("drain/forebay-2-processes", drain_of(bench, _worker(2), jobs)),
    ]
    theirs = {peer.name: rate_of_peer(bench, peer, jobs) for peer in PEERS.here()}
    found: list[Figure] = []
    for cell in [*mine, *theirs.values()]:
        first = cell is mine[0]
        found += cell.figures(_KEYS, None if first else "drain/forebay", rate="≥ 40,000" if first else "")
    for project, goal in GOALS.items():
        if layouts := [theirs[peer.name] for peer in PEERS.layouts(project)]:
            found.append(ratio(f"drain/{project}", mine, layouts, ""))
            found.append(ratio(f"drain/{project}/put-and-drained", mine, layouts, goal, BOTH))
    return found


def flow_figures(benches: Sequence[RedisBench], seconds: float) -> list[Figure]:
    found: list[Figure] = []
    for bench in benches:
        flat_out = Measurement(f"end_to_end/{bench.mode}", _together(bench, seconds))
        name = f"end_to_end/{bench.mode}-80-percent"
        found += flat_out.figures((CPU, SERVER, CLIENT, *CALLS))
        eased = Measurement(name, _eased(bench, seconds, flat_out, name))
        found += eased.figures((OFFERED, *CALLS), claim_p99="< 10")
    return found


def _together(bench: RedisBench, seconds: float) -> Callable[[], Values]:
    return lambda: together(bench, seconds, size=FLOW)


def _eased(bench: RedisBench, seconds: float, flat_out: Measurement, name: str) -> Callable[[], Values]:
    return lambda: at_share(bench, seconds, lambda: flat_out.read(RATE, name), FLOW)
