"""The embedded store on SQLite at `synchronous=FULL`: beside bare SQLite, bare syncs, and huey if it is here.

forebay bench run sqlite                        all of it, a few minutes
forebay bench run sqlite --quick                a first look
forebay bench run sqlite --json --only drain    one object a figure

Every figure is durable before it counts. The bound of batches is SQLite's own work in one thread ("bare": one narrow
table, one index, no keys, gates, counters or memory of settles); the bound of single calls is one sync a call.
"""

import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from forebay import Store, Want, open_store
from forebay.core.lease import Settlement
from forebay.core.outcome import Ack
from forebay.store.protocol import Pipelining
from forebay_proof.bench.clients.peer import PYTHON, version_of
from forebay_proof.bench.clients.processes import ROOT
from forebay_proof.bench.measure import Figure, arguments, race, run
from forebay_proof.bench.memory import BATCH, LEASE, cycle, drafts, drain, fill, rate, raw_syncs

THREADS = 16


def on_disk(work: Callable[[Store], float]) -> float:
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        store = open_store(f"sqlite:///{directory}/jobs.db")
        try:
            return work(store)
        finally:
            store.close()


def enqueue(jobs: int, batch: int) -> float:
    return on_disk(lambda store: rate(jobs, lambda: fill(store, jobs, batch)))


def cycles(jobs: int, batch: int) -> float:
    return on_disk(lambda store: rate(jobs, lambda: cycle(store, jobs, batch)))


def drained(jobs: int, backlog: int, batch: int) -> float:
    """Claim and acknowledge so many of a backlog."""

    def work(store: Store) -> float:
        fill(store, backlog, min(backlog, 1_000))
        return rate(jobs, lambda: drain(store, jobs) if batch == BATCH else drain_singly(store, jobs))

    return on_disk(work)


def pipelined(jobs: int, batch: int) -> float:
    """Drain as a worker does: verdicts ride on the next claim, so a batch is one commit."""

    def work(store: Store) -> float:
        fill(store, jobs, min(jobs, 1_000))
        return rate(jobs, lambda: drain_pipelined(store, batch))

    return on_disk(work)


def drain_pipelined(store: Store, batch: int) -> None:
    assert isinstance(store, Pipelining)
    want, settled = [Want("default", batch)], list[Settlement]()
    while True:
        _, leases = store.settle_and_claim(settled, want, "bench", LEASE)
        if not leases:
            return
        settled = [(lease, Ack()) for lease in leases]


def drain_singly(store: Store, jobs: int) -> None:
    want = [Want("default", 1)]
    for _ in range(jobs):
        store.settle([(lease, Ack()) for lease in store.claim(want, "bench", LEASE)])


def threads(jobs: int) -> float:
    """Single enqueues of many threads: they share commits."""

    def work(store: Store) -> float:
        each = [
            threading.Thread(target=lambda: [store.enqueue(drafts(1)) for _ in range(jobs // THREADS)])
            for _ in range(THREADS)
        ]

        def race() -> None:
            for thread in each:
                thread.start()
            for thread in each:
                thread.join()

        return rate(jobs // THREADS * THREADS, race)

    return on_disk(work)


def processes(jobs: int, count: int) -> float:
    """Whole cycles in batches by several processes on one file; the clock runs from the first start to the last end."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        url = f"sqlite:///{directory}/jobs.db"
        open_store(url).close()
        with race(count, "forebay_proof.bench.cycles", url, str(jobs // count), str(BATCH)) as run:
            return rate(jobs // count * count, run)


def bare(jobs: int, *, whole: bool) -> float:
    """What SQLite does with one narrow table and nothing around it: enqueue, or enqueue, claim and acknowledge."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        connection = sqlite3.connect(f"{directory}/bare.db", isolation_level=None)
        for text in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 4000"):
            connection.execute(f"PRAGMA {text}").fetchall()
        connection.execute("CREATE TABLE j (id INTEGER PRIMARY KEY, state INT, rank INT, body BLOB, n INT, until INT)")
        connection.execute("CREATE INDEX j_ready ON j (rank) WHERE state = 1")
        body = drafts(1)[0].body

        def work() -> None:
            for number in range(jobs // BATCH):
                connection.execute("BEGIN IMMEDIATE")
                rows = [(number, body)] * BATCH
                connection.executemany("INSERT INTO j (state, rank, body, n) VALUES (1, ?, ?, 0)", rows)
                connection.execute("COMMIT")
                if whole:
                    _take(connection)

        try:
            return rate(jobs, work)
        finally:
            connection.close()


def _take(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    rows = connection.execute(
        "UPDATE j SET state = 2, n = n + 1, until = 9 WHERE id IN "
        f"(SELECT id FROM j WHERE state = 1 ORDER BY rank, id LIMIT {BATCH}) RETURNING id, n, body"
    ).fetchall()
    connection.execute("COMMIT")
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("DELETE FROM j WHERE id = ? AND n = ?", [row[:2] for row in rows])
    connection.execute("COMMIT")


def huey(jobs: int, *, draining: bool) -> float:
    """Jobs a second, by huey's own client and consumer calls in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        put, take = (_huey(what, f"{directory}/huey.db", jobs) for what in ("put", "take"))
        return jobs / (take if draining else put)


def _huey(what: str, file: str, jobs: int) -> float:
    command: list[str | Path] = [PYTHON, "-m", "forebay_proof.bench.huey_peer", what, file, str(jobs)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "proof" / "src")}
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def idle_share(seconds: float) -> float:
    """Percent of a core that a worker uses while it waits for another process."""

    def work(store: Store) -> float:
        used = time.process_time()
        store.wait(["default"], timedelta(seconds=seconds))
        return 100 * (time.process_time() - used) / seconds

    return on_disk(work)


def figures(scale: int, beside_huey: bool) -> list[Figure]:
    n, few = 10_000 * scale, 200 * scale
    found = [
        Figure("bound/raw-fdatasync", "syncs/s", lambda: raw_syncs(50 * scale, 20_000)),
        Figure("bound/bare-enqueue-batch-100", "jobs/s", lambda: bare(n, whole=False)),
        Figure("bound/bare-cycle-batch-100", "jobs/s", lambda: bare(n, whole=True)),
        Figure("enqueue/batch-100", "jobs/s", lambda: enqueue(n, BATCH), "bound/bare-enqueue-batch-100"),
        Figure("cycle/batch-100", "jobs/s", lambda: cycles(n, BATCH), "bound/bare-cycle-batch-100", "≥ 15,000"),
        Figure("cycle/batch-1000", "jobs/s", lambda: cycles(n, 1_000), "bound/bare-cycle-batch-100"),
        Figure("cycle/2-processes", "jobs/s", lambda: processes(n, 2), "cycle/batch-100"),
        Figure("cycle/4-processes", "jobs/s", lambda: processes(n, 4), "cycle/batch-100"),
        Figure("cycle/single", "jobs/s", lambda: cycles(few, 1), "bound/raw-fdatasync"),
        Figure(f"enqueue/single-{THREADS}-threads", "jobs/s", lambda: threads(few * 4), "bound/raw-fdatasync"),
        Figure(
            "enqueue/single",
            "jobs/s",
            lambda: enqueue(few, 1),
            "huey/enqueue" if beside_huey else "bound/raw-fdatasync",
            "≥ 1 ×",
        ),
        Figure(
            "drain/batch-100",
            "jobs/s",
            lambda: drained(n, n, BATCH),
            "huey/drain" if beside_huey else "bound/bare-cycle-batch-100",
            "≥ 4 ×",
        ),
        Figure("drain/pipelined-100", "jobs/s", lambda: pipelined(n, BATCH), "drain/batch-100"),
        Figure("drain/pipelined-500", "jobs/s", lambda: pipelined(n, 500), "drain/batch-100", "≥ 40,000"),
        Figure(
            "drain/pipelined-single",
            "jobs/s",
            lambda: pipelined(few, 1),
            "huey/drain" if beside_huey else "bound/raw-fdatasync",
        ),
        Figure(
            "drain/single",
            "jobs/s",
            lambda: drained(few, few, 1),
            "huey/drain" if beside_huey else "bound/raw-fdatasync",
        ),
        Figure("drain/backlog-10x", "jobs/s", lambda: drained(n, 10 * n, BATCH), "drain/batch-100"),
        Figure("idle/wait", "% core", lambda: idle_share(3), goal="≤ 0.5"),
    ]
    if beside_huey:
        found.append(Figure("huey/enqueue", "jobs/s", lambda: huey(few, draining=False), "bound/raw-fdatasync"))
        found.append(Figure("huey/drain", "jobs/s", lambda: huey(few, draining=True), "bound/raw-fdatasync"))
    return found


def main() -> None:
    args = arguments(__doc__)
    huey_version = version_of("huey")
    if not huey_version:
        print("huey is not installed: its figures are left out (make bench-sqlite PEERS=1)", file=sys.stderr)
    print(f"SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    run(
        figures(1 if args.quick else 5, bool(huey_version)),
        rounds=2 if args.quick else 5,
        only=args.only,
        as_json=args.json,
    )


if __name__ == "__main__":
    main()
