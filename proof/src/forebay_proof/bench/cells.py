"""The price of cells: whole cycles (enqueue, claim, acknowledge) through 1, 2, 4 and 8 of them, and beside a lost one.

forebay bench run cells            Postgres databases of one server, SQLite files, a cell that is killed or hangs
forebay bench run cells --quick    a first look

`cells/postgres-N` and `cells/sqlite-N` are CPU a job, of this process and the server. `cells/sqlite-rate-N` is the rate
of two processes on one file, or on two. `cells/dead-rate` and `cells/dead-p99` are what living cells do while another
one is down, and `cells/hanging-…` while its server is stopped (SIGSTOP) and its connections stay open, beside
`cells/alive-…`, the same with all of them up; p99 is of a cycle of 100 jobs.
`cells/move-rate` are the jobs that leave a cell in a second, from a backlog of a million whose queue moves, while 2,000
a second are enqueued (`cells/move-flow`).
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Literal, TypeAlias

from forebay import open_store
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.store.protocol import Store, Want
from forebay_proof.bench import cell_moves
from forebay_proof.bench.measure import Figure, arguments, run
from forebay_proof.bench.memory import BATCH, LEASE, drafts
from forebay_proof.histogram import percentile
from forebay_proof.processes import cpu_seconds, tree_of
from forebay_proof.servers.postgres import PostgresServer, StopMode

ROUNDS = 5
CELLS = (1, 2, 4, 8)
MOVED = 1_000_000
_LIVING = 2

Third: TypeAlias = Literal["alive", "dead", "hanging"]
"""What becomes of the third cell."""


@contextmanager
def cells_of(urls: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The URL of a store over these, and a queue in each."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        queues = [f"q{number}" for number in range(len(urls))]
        lines = ["version = 1"]
        for number, url in enumerate(urls):
            lines.append(f'[cells.c{number}]\nnumber = {number}\nurl = "{url}"')
        lines += ["[queues]", '"*" = "c0"', *(f'q{number} = "c{number}"' for number in range(len(urls)))]
        file = Path(directory, "cells.toml")
        file.write_text("\n".join(lines))
        yield f"cells:{file}", queues


def cycle(store: Store, queue: str, batch: int = BATCH) -> None:
    store.enqueue([Draft(each.kind, each.payload, queue=queue) for each in drafts(batch)])
    done = store.settle([(lease, Ack()) for lease in store.claim([Want(queue, batch)], "bench", LEASE)])
    assert len(done) == batch


def cpu(urls: list[str], jobs: int, pids: list[int]) -> float:
    """Microseconds of CPU a job, of this process and of these."""
    with cells_of(urls) as (url, queues):
        store = open_store(url)
        try:
            for queue in queues:
                cycle(store, queue)
            began = cpu_seconds([os.getpid(), *pids])
            for number in range(max(len(queues), jobs // BATCH)):
                cycle(store, queues[number % len(queues)])
            spent = cpu_seconds([os.getpid(), *pids]) - began
        finally:
            store.close()
    return spent / (max(len(queues), jobs // BATCH) * BATCH) * 1_000_000


def postgres(server: PostgresServer, cells: int, jobs: int) -> float:
    urls = [server.create_database() for _ in range(cells)]
    try:
        return cpu(urls, jobs, [server.pid])
    finally:
        for url in urls:
            server.drop_database(url)


def sqlite(cells: int, jobs: int) -> float:
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        return cpu([f"sqlite:///{directory}/{number}.db" for number in range(cells)], jobs, [])


def sqlite_rate(files: int, jobs: int) -> float:
    """Jobs a second of two processes on one file, or of one on each of two."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        urls = [f"sqlite:///{directory}/{number}.db" for number in range(files)]
        with cells_of(urls) as (url, queues):
            open_store(url).close()
            work = [
                Popen(
                    [
                        sys.executable,
                        "-m",
                        "forebay_proof.bench.cells",
                        "--work",
                        url,
                        queues[number % files],
                        str(jobs // 2),
                    ],
                    stdin=PIPE,
                    stdout=PIPE,
                )
                for number in range(2)
            ]
            for each in work:
                assert each.stdout is not None
                each.stdout.readline()
            began = time.perf_counter()
            for each in work:
                each.communicate(b"\n")
            took = time.perf_counter() - began
            assert not any(each.returncode for each in work)
    return jobs // 2 // BATCH * BATCH * 2 / took


def work(url: str, queue: str, jobs: int) -> None:
    """A process of `sqlite_rate`."""
    store = open_store(url)
    cycle(store, queue)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(jobs // BATCH):
        cycle(store, queue)
    store.close()


class Outage:
    """Two living cells on one server, a third on another that is killed or stopped; claims visit all three."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._seen: dict[Third, tuple[float, float]] = {}

    def rate(self, third: Third) -> float:
        self._seen[third] = self._measure(third)
        return self._seen[third][0]

    def p99(self, third: Third) -> float:
        """Milliseconds; of the round that `rate` has measured just before, if it has."""
        if third not in self._seen:
            self.rate(third)
        return self._seen[third][1]

    def _measure(self, third: Third) -> tuple[float, float]:
        with ExitStack() as stack:
            alive = stack.enter_context(PostgresServer(private=True))
            other = stack.enter_context(PostgresServer(private=True))
            urls = [*(alive.create_database() for _ in range(_LIVING)), other.create_database()]
            url, queues = stack.enter_context(cells_of(urls))
            store = open_store(url)
            stack.callback(store.close)
            for queue in queues:
                cycle(store, queue)
            if third == "dead":
                other.stop(StopMode.KILL)
            elif third == "hanging":
                for process in tree_of([other.pid]):
                    process.suspend()
                    stack.callback(process.resume)
            return self._work(store, queues)

    def _work(self, store: Store, queues: list[str]) -> tuple[float, float]:
        """The first calls find the cell down, one of them after its deadline. The rates of a minute are not made of
        them, so they are not counted.
        """
        wants = [Want(queue, BATCH) for queue in queues]
        times: list[float] = []
        for turn in range(self._jobs // BATCH + _LIVING):
            began = time.perf_counter()
            store.enqueue([Draft(each.kind, each.payload, queue=queues[turn % _LIVING]) for each in drafts(BATCH)])
            left = BATCH
            while left:
                leases = store.claim(wants, "bench", LEASE)
                store.settle([(lease, Ack()) for lease in leases])
                left -= len(leases)
            times.append(time.perf_counter() - began)
        counted = times[_LIVING:]
        return len(counted) * BATCH / sum(counted), percentile(counted, 99) * 1_000


def figures(scale: int, server: PostgresServer) -> list[Figure]:
    found = []
    jobs = 20_000 // scale
    for cells in CELLS:
        goal = "" if cells == 1 else "at most 1.15"
        for name, measure in (
            ("postgres", partial(postgres, server, cells, jobs)),
            ("sqlite", partial(sqlite, cells, jobs)),
        ):
            base = None if cells == 1 else f"cells/{name}-1"
            found.append(Figure(f"cells/{name}-{cells}", "µs/job", measure, base, goal))
    outage, rate = Outage(jobs), "cells/sqlite-rate"
    return [
        *found,
        Figure(f"{rate}-1", "jobs/s", partial(sqlite_rate, 1, 2 * jobs)),
        Figure(f"{rate}-2", "jobs/s", partial(sqlite_rate, 2, 2 * jobs), f"{rate}-1", "at least 1.6"),
        Figure("cells/alive-rate", "jobs/s", partial(outage.rate, "alive")),
        Figure("cells/alive-p99", "ms", partial(outage.p99, "alive")),
        Figure("cells/dead-rate", "jobs/s", partial(outage.rate, "dead"), "cells/alive-rate", "at least 0.95"),
        Figure("cells/dead-p99", "ms", partial(outage.p99, "dead"), "cells/alive-p99", "at most 50 ms more"),
        Figure("cells/hanging-rate", "jobs/s", partial(outage.rate, "hanging"), "cells/alive-rate", "at least 0.95"),
        Figure("cells/hanging-p99", "ms", partial(outage.p99, "hanging"), "cells/alive-p99", "at most 50 ms more"),
        *cell_moves.figures(server, MOVED // scale),
    ]


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    args = arguments(__doc__)
    with PostgresServer(private=True) as server:
        run(
            figures(10 if args.quick else 1, server),
            rounds=2 if args.quick else ROUNDS,
            only=args.only,
            as_json=args.json,
        )


if __name__ == "__main__":
    main()
