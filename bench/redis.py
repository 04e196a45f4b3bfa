"""The Redis store, synced always and every second: beside bare designs and bare commands on the same server.

python -m bench.redis                        all of it, a few minutes
python -m bench.redis --quick                a first look
python -m bench.redis --json --only cycle    one object a figure

The server is a real one, started for this (see docs/servers.md). "always" is the store as it comes: every answer is
synced to disk. "everysec" is what an operator may choose instead. The bound of a design is a bare one of the same kind
that keeps nothing else; that of the server is XADD in pipelines of 100.
"""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack

from bench.measure import Figure, arguments, race, run
from bench.memory import BATCH, LEASE, cycle, drafts, fill, rate
from bench.redis_designs import LISTS, SETS, STREAMS, live
from forebay import Store, Want, open_store
from forebay.core.lease import Settlement
from forebay.core.outcome import Ack
from forebay.store.protocol import Exchanging
from forebay.testing.servers.redis import RedisServer


class Ground:
    """A server of each kind, emptied for every figure."""

    def __init__(self, stack: ExitStack) -> None:
        self.servers = {
            mode: stack.enter_context(RedisServer(durable=True, private=True, settings={"appendfsync": mode}))
            for mode in ("always", "everysec")
        }

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
        return self.store(mode, lambda store: rate(jobs, lambda: work(store, jobs)))

    def processes(self, mode: str, jobs: int, count: int) -> float:
        """Whole cycles by several processes at one server; the clock runs from the first start to the last end."""
        self.servers[mode].clear()
        url = self.servers[mode].url(durability=mode)
        with race(count, "bench.redis", "--cycles", url, str(jobs // count)) as run:
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


def work(store: Store, jobs: int) -> None:
    assert isinstance(store, Exchanging)
    want, settled = [Want("default", BATCH)], list[Settlement]()
    for _ in range(jobs // BATCH):
        store.enqueue(drafts(BATCH))
        _, leases = store.exchange(settled, want, "bench", LEASE)
        settled = [(lease, Ack()) for lease in leases]
    store.settle(settled)


def cycle_when_told(url: str, jobs: int) -> None:
    store = open_store(url)
    print("ready", flush=True)
    sys.stdin.readline()
    work(store, jobs)
    store.close()


def by_streams(ground: Ground, mode: str, jobs: int, few: int) -> list[Figure]:
    """The same store where it delivers by streams, beside sets."""
    return [
        Figure(
            f"cycle/streams-{mode}-{name}",
            "jobs/s",
            lambda count=count, batch=batch: ground.cycles(mode, count, batch, "streams"),  # type: ignore[misc]
            f"cycle/{mode}-{name}",
        )
        for name, count, batch in (("batch-100", jobs, BATCH), ("single", few, 1))
    ]


def figures(ground: Ground, scale: int) -> list[Figure]:
    n, few = 4_000 * scale, 100 * scale
    found = [
        Figure("bound/xadd-everysec", "commands/s", lambda: ground.commands("everysec", n)),
        Figure("bound/xadd-always", "commands/s", lambda: ground.commands("always", n)),
        Figure("design/lists", "jobs/s", lambda: ground.design(LISTS, n), "bound/xadd-everysec"),
        Figure("design/sets", "jobs/s", lambda: ground.design(SETS, n), "design/lists"),
        Figure("design/streams", "jobs/s", lambda: ground.design(STREAMS, n), "design/lists"),
        Figure("memory/job", "bytes", lambda: ground.bytes_of_a_job(n)),
        Figure("memory/streams-job", "bytes", lambda: ground.bytes_of_a_job(n, "streams"), "memory/job"),
    ]
    goals = {"everysec": "≥ 25,000", "always": "≥ 15,000"}
    for mode in ("everysec", "always"):
        base = f"cycle/{mode}-batch-100"
        found += [
            Figure(base, "jobs/s", lambda mode=mode: ground.cycles(mode, n, BATCH), "design/sets"),  # type: ignore[misc]
            Figure(f"work/{mode}-batch-100", "jobs/s", lambda mode=mode: ground.worked(mode, n), base, goals[mode]),  # type: ignore[misc]
            Figure(f"work/{mode}-2-processes", "jobs/s", lambda mode=mode: ground.processes(mode, n, 2), base),  # type: ignore[misc]
            Figure(f"enqueue/{mode}-batch-100", "jobs/s", lambda mode=mode: ground.enqueued(mode, n, BATCH), base),  # type: ignore[misc]
            Figure(f"cycle/{mode}-single", "jobs/s", lambda mode=mode: ground.cycles(mode, few, 1), base),  # type: ignore[misc]
            *by_streams(ground, mode, n, few),
        ]
    return found


def main() -> None:
    if sys.argv[1:2] == ["--cycles"]:
        cycle_when_told(sys.argv[2], int(sys.argv[3]))
        return
    args = arguments(__doc__)
    with ExitStack() as stack:
        ground = Ground(stack)
        with ground.servers["always"].client() as client:
            about = client.info("server")
        version = about.get("valkey_version") or about["redis_version"]
        print(
            f"{about.get('server_name', 'redis')} {version}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
            file=sys.stderr,
        )
        run(figures(ground, 1 if args.quick else 5), rounds=2 if args.quick else 5, only=args.only, as_json=args.json)


if __name__ == "__main__":
    main()
