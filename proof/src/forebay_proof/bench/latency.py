"""From the call to the handler: one idle worker, single jobs at a steady pace, beside graphile-worker and BullMQ.

make bench-latency PEERS=1                    all of it, about eight minutes; the peers are installed first
make bench-latency ARGS="--quick"             a first look, without peers that are not there
make bench-latency ARGS="--json --only postgres"    one object a figure

latency/STORE        the median of the time from just before the enqueue to the first line of the handler
latency/STORE/p95    of the same jobs; latency/PEER-time: of the peer's

Fifty jobs a second, one call each, from a process of their own; handlers only note the time. Ours are `forebay worker`
with its defaults, and so are the peers. Servers are real ones that sync before they answer, on this machine.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

from forebay_proof.bench.clients import ours
from forebay_proof.bench.clients.cell import Measurement, Values
from forebay_proof.bench.clients.peer import Peer
from forebay_proof.bench.clients.processes import Clients
from forebay_proof.bench.clients.server import HasUrl
from forebay_proof.bench.compared_stores import ComparedStore, Postgres, Redis, Sqlite
from forebay_proof.bench.measure import Figure, arguments, run
from forebay_proof.bench.pg.peers.programs import PEERS as POSTGRES_PEERS
from forebay_proof.bench.rd.peers.programs import PEERS as REDIS_PEERS
from forebay_proof.load.mix import MIXES
from forebay_proof.tally import LATE

RATE: Final = 50
_WARM_UP: Final = 2.0
_MAX_START: Final = 60.0
_NO_LOCAL_QUEUE: Final = -1

StartFleet = Callable[[HasUrl, Clients], None]


def dripped(fresh: Callable[[], AbstractContextManager[HasUrl]], seconds: float, start: StartFleet) -> Values:
    """How late jobs begin that come one by one, in milliseconds."""
    with fresh() as site, Clients() as clients:
        start(site, clients)
        workers = clients.tallies("worker")
        clients.wait_until(lambda: workers.histogram(LATE).total > 0, _MAX_START, "the first job")
        time.sleep(_WARM_UP)
        before = workers.histogram(LATE)
        time.sleep(seconds)
        clients.check()
        late = workers.histogram(LATE).minus(before)
        clients.stop()
    return {f"p{percent}": 1e3 * late.percentile(percent) for percent in (50, 95)}


def start_ours(site: HasUrl, clients: Clients) -> None:
    ours.prepare(site)
    ours.start_worker(site, clients, ours.DEFAULTS)
    ours.start_load(site, clients, mix=MIXES["timed"], rate=RATE, batch=1)


def start_peer(peer: Peer, site: HasUrl, clients: Clients) -> None:
    url = site.url.partition("?")[0]
    peer.prepare(url, clients)
    peer.start(url, clients)
    peer.drip(url, clients, RATE)


def peers() -> dict[str, Peer]:
    """By the store that they are beside: one process each, as ours."""
    every = [*POSTGRES_PEERS.here(), *REDIS_PEERS.here()]
    found = {peer.name: replace(peer, processes=1) for peer in every if peer.name in ("graphile", "bullmq")}
    if "graphile" in found:
        found["graphile"] = replace(found["graphile"], work=[_NO_LOCAL_QUEUE, 24])
    return found


def figures(stack: ExitStack, seconds: float) -> list[Figure]:
    postgres, redis = Postgres(stack), Redis(stack, "always")
    found: list[Figure] = []

    def add(
        name: str, compared: ComparedStore, start: StartFleet, baseline: str, goals: tuple[str, str] = ("", "")
    ) -> None:
        cell = Measurement(f"latency/{name}", partial(dripped, compared.fresh, seconds, start))
        for key, suffix, goal in (("p50", "", goals[0]), ("p95", "/p95", goals[1])):
            base = f"latency/{baseline}{suffix}" if baseline else None
            figure = f"{cell.name}{suffix}"
            found.append(Figure(figure, "ms", partial(cell.read, key, figure), base, goal))

    theirs = peers()
    for name, compared in (("graphile", postgres), ("bullmq", redis)):
        if name in theirs:
            add(f"{name}-time", compared, partial(start_peer, theirs[name]), "")
    add("postgres", postgres, start_ours, "graphile-time", ("≤ 4", "≤ 8"))
    add("redis", redis, start_ours, "bullmq-time", ("≤ 5", "≤ 10"))
    add("sqlite", Sqlite(), start_ours, "postgres", ("≤ 5", "≤ 10"))
    return found


def main() -> None:
    args = arguments(__doc__)
    missing = sorted({"graphile", "bullmq"} - set(peers()))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {RATE} jobs a second", file=sys.stderr)
    if missing:
        print(f"not installed, so left out: {', '.join(missing)} (make bench-latency PEERS=1)", file=sys.stderr)
    with ExitStack() as stack:
        wanted = figures(stack, 6.0 if args.quick else 15.0)
        run(wanted, rounds=2 if args.quick else 5, only=args.only, as_json=args.json)


if __name__ == "__main__":
    main()
