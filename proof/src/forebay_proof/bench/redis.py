"""The Redis store, synced always and every second: beside its peers, bare designs and bare commands on the same server.

make bench-redis PEERS=1                       all of it, about twenty minutes; the peers are installed first
make bench-redis ARGS="--quick"                a first look, without peers that are not there
make bench-redis ARGS="--json --only cycle"    one object a figure

drain/        a backlog put and worked off, everysec; a peer's name: ours over theirs, NAME-rate what it reaches
end_to_end/   a producer and a worker together, batches of 100; 80-percent: at four fifths of that

The server is a real one, started for this (see docs/internals/servers.md). "always" is the default of the store: every
response is synced to disk. "everysec" is what an operator may choose instead. The bound of a design is a bare one of
the same kind that keeps nothing else; that of the server is XADD in pipelines of 100, by the driver and by
redis-benchmark.
"""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from forebay import Store, open_store
from forebay_proof.bench.cycles import work
from forebay_proof.bench.measure import Figure, arguments, race, run
from forebay_proof.bench.memory import BATCH, cycle, drafts, fill, rate
from forebay_proof.bench.rd.comparison import SETTINGS, drain_figures, flow_figures
from forebay_proof.bench.rd.peers.programs import PEERS
from forebay_proof.bench.rd.server import MODES, RedisBench, commands, find_benchmark
from forebay_proof.bench.redis_designs import LISTS, SETS, STREAMS, live


class BenchServers:
    """A server of each kind, emptied for every figure."""

    def __init__(self, stack: ExitStack) -> None:
        self.benches = {mode: RedisBench(mode) for mode in MODES}
        self.servers = {mode: stack.enter_context(bench.server) for mode, bench in self.benches.items()}

    def store(self, mode: str, work: Callable[[Store], float], delivery: str = "sets") -> float:
        self.servers[mode].clear()
        store = open_store(self.servers[mode].url(durability=mode, delivery=delivery))
        try:
            return work(store)
        finally:
            store.close()

    def cycles(self, mode: str, jobs: int, batch: int, delivery: str = "sets") -> float:
        return self.store(mode, lambda store: rate(jobs, lambda: cycle(store, jobs, batch)), delivery)

    def enqueued(self, mode: str, jobs: int, batch: int) -> float:
        return self.store(mode, lambda store: rate(jobs, lambda: fill(store, jobs, batch)))

    def worked(self, mode: str, jobs: int) -> float:
        """Enqueue, and verdicts that ride on the next claim: what a worker does."""
        return self.store(mode, lambda store: rate(jobs, lambda: work(store, jobs, BATCH)))

    def processes(self, mode: str, jobs: int, count: int) -> float:
        """Whole cycles by several processes at one server; the clock runs from the first start to the last end."""
        self.servers[mode].clear()
        url = self.servers[mode].url(durability=mode)
        with race(count, "forebay_proof.bench.cycles", url, str(jobs // count), str(BATCH)) as run:
            return rate(jobs // count * count, run)

    def bytes_of_a_job(self, jobs: int, delivery: str = "sets") -> float:
        def grown(store: Store) -> float:
            with self.servers["everysec"].client() as client:
                before = client.info("memory")["used_memory"]
                fill(store, jobs)
                return float(client.info("memory")["used_memory"] - before) / jobs

        return self.store("everysec", grown, delivery)

    def design(self, scripts: tuple[str, str, str], jobs: int) -> float:
        with self.servers["everysec"].client() as client:
            return rate(jobs, lambda: live(client, scripts, jobs, BATCH, drafts(1)[0].body))

    def commands(self, mode: str, count: int) -> float:
        """XADD in pipelines: what the server and the driver do with one command a job."""
        body = drafts(1)[0].body
        self.servers[mode].clear()
        with self.servers[mode].client() as client:

            def add() -> None:
                for _ in range(count // BATCH):
                    pipeline = client.pipeline(transaction=False)
                    for _ in range(BATCH):
                        pipeline.xadd("s", {"b": body})
                    pipeline.execute()

            return rate(count, add)


def bounds(servers: BenchServers, scale: int) -> list[Figure]:
    """By the server's own load generator; none if it is not here."""
    program = find_benchmark()
    if program is None:
        return []
    found = []
    for mode in MODES:
        for clients in (1, 50):
            measure = partial(commands, servers.servers[mode], program, 40_000 * scale, clients)
            found.append(Figure(f"bound/redis-benchmark-{mode}-{clients}", "commands/s", measure))
    return found


def by_streams(servers: BenchServers, mode: str, jobs: int, few: int) -> list[Figure]:
    """The same store where it delivers by streams, beside sets."""
    return [
        Figure(
            f"cycle/streams-{mode}-{name}",
            "jobs/s",
            lambda count=count, batch=batch: servers.cycles(mode, count, batch, "streams"),  # type: ignore[misc]
            f"cycle/{mode}-{name}",
        )
        for name, count, batch in (("batch-100", jobs, BATCH), ("single", few, 1))
    ]


def figures(servers: BenchServers, scale: int) -> list[Figure]:
    n, few = 4_000 * scale, 100 * scale
    found = [
        Figure("bound/xadd-everysec", "commands/s", lambda: servers.commands("everysec", n)),
        Figure("bound/xadd-always", "commands/s", lambda: servers.commands("always", n)),
        Figure("design/lists", "jobs/s", lambda: servers.design(LISTS, n), "bound/xadd-everysec"),
        Figure("design/sets", "jobs/s", lambda: servers.design(SETS, n), "design/lists"),
        Figure("design/streams", "jobs/s", lambda: servers.design(STREAMS, n), "design/lists"),
        Figure("memory/job", "bytes", lambda: servers.bytes_of_a_job(n)),
        Figure("memory/streams-job", "bytes", lambda: servers.bytes_of_a_job(n, "streams"), "memory/job"),
    ]
    goals = {"everysec": "≥ 25,000", "always": "≥ 15,000"}
    for mode in MODES:
        base = f"cycle/{mode}-batch-100"
        found += [
            Figure(base, "jobs/s", lambda mode=mode: servers.cycles(mode, n, BATCH), "design/sets"),  # type: ignore[misc]
            Figure(f"work/{mode}-batch-100", "jobs/s", lambda mode=mode: servers.worked(mode, n), base, goals[mode]),  # type: ignore[misc]
            Figure(f"work/{mode}-2-processes", "jobs/s", lambda mode=mode: servers.processes(mode, n, 2), base),  # type: ignore[misc]
            Figure(f"enqueue/{mode}-batch-100", "jobs/s", lambda mode=mode: servers.enqueued(mode, n, BATCH), base),  # type: ignore[misc]
            Figure(f"cycle/{mode}-single", "jobs/s", lambda mode=mode: servers.cycles(mode, few, 1), base),  # type: ignore[misc]
            *by_streams(servers, mode, n, few),
        ]
    return found


def preface() -> None:
    output = [f"forebay: {SETTINGS}", *PEERS.described("make bench-redis PEERS=1")]
    if find_benchmark() is None:
        output.append("no redis-benchmark here: bound/redis-benchmark is left out (make bench-redis PEERS=1 gets it)")
    print("\n".join(output), file=sys.stderr, flush=True)


def main() -> None:
    args = arguments(__doc__)
    with ExitStack() as stack:
        servers = BenchServers(stack)
        with servers.servers["always"].client() as client:
            about = client.info("server")
        version = about.get("valkey_version") or about["redis_version"]
        print(
            f"{about.get('server_name', 'redis')} {version}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
            file=sys.stderr,
        )
        preface()
        scale, rounds, jobs, seconds = (1, 2, 20_000, 4.0) if args.quick else (5, 5, 60_000, 8.0)
        longer = min(3, rounds)
        themes = (
            (bounds(servers, scale) + figures(servers, scale), rounds),
            (drain_figures(servers.benches["everysec"], jobs), longer),
            (flow_figures(list(servers.benches.values()), seconds), longer),
        )
        for theme, times in themes:
            run(theme, rounds=times, only=args.only, as_json=args.json)


if __name__ == "__main__":
    main()
