"""The in-process store: throughput with and without its journal, cost with much in flight, recovery, memory.

make bench                       all of it, about two minutes
make bench ARGS="--quick"        a first look
make bench ARGS="--json"         one object a figure
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from forebay import Draft, Store, Want, open_store
from forebay.core.instant import seconds
from forebay.core.outcome import Ack
from forebay_proof.bench.measure import Figure, arguments, run
from forebay_proof.bench.textbook import TextbookQueue
from forebay_proof.processes import rss_bytes

BATCH = 100
PAYLOAD = {"seq": 123456, "to": "ada@example.com", "data": "x" * 56}
LEASE = seconds(600)


def drafts(count: int) -> list[Draft]:
    return [Draft("email", PAYLOAD) for _ in range(count)]


def rate(jobs: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return jobs / (time.perf_counter() - began)


def fill(store: Store, jobs: int, batch: int = BATCH) -> None:
    for _ in range(jobs // batch):
        store.enqueue(drafts(batch))


def cycle(store: Store, jobs: int, batch: int) -> None:
    want = [Want("default", batch)]
    for _ in range(jobs // batch):
        store.enqueue(drafts(batch))
        store.settle([(lease, Ack()) for lease in store.claim(want, "bench", LEASE)])


def drain(store: Store, jobs: int) -> None:
    want = [Want("default", BATCH)]
    for _ in range(jobs // BATCH):
        store.settle([(lease, Ack()) for lease in store.claim(want, "bench", LEASE)])


def enqueue(jobs: int, batch: int) -> float:
    store = open_store("memory://")
    return rate(jobs, lambda: fill(store, jobs, batch))


def cycles(jobs: int, batch: int) -> float:
    store = open_store("memory://")
    return rate(jobs, lambda: cycle(store, jobs, batch))


def textbook_enqueue(jobs: int) -> float:
    queue = TextbookQueue()
    return rate(jobs, lambda: [queue.enqueue(PAYLOAD) for _ in range(jobs)])


def textbook_cycles(jobs: int, in_flight: int = 0) -> float:
    queue = TextbookQueue(visibility=600)
    for _ in range(in_flight):
        queue.enqueue(PAYLOAD)
        queue._in_flight[in_flight + len(queue._in_flight)] = (queue._visible.popleft(), time.monotonic() + 600)

    def work() -> None:
        for _ in range(jobs):
            queue.enqueue(PAYLOAD)
            job_id = queue.dequeue()
            assert job_id is not None
            queue.ack(job_id)

    return rate(jobs, work)


def claim_microseconds(in_flight: int, jobs: int) -> float:
    """One claim and ack of one job while so many others are in flight."""
    store = open_store("memory://")
    fill(store, in_flight + jobs)
    for _ in range(in_flight // BATCH):
        store.claim([Want("default", BATCH)], "others", LEASE)
    want = [Want("default", 1)]

    def work() -> None:
        for _ in range(jobs):
            store.settle([(lease, Ack()) for lease in store.claim(want, "bench", LEASE)])

    return 1e6 / rate(jobs, work)


def journaled(work: Callable[[Store], float]) -> float:
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        store = open_store(f"memory://{directory}/journal")
        try:
            return work(store)
        finally:
            store.close()


def journaled_threads(jobs: int, threads: int = 64) -> float:
    def work(store: Store) -> float:
        def produce() -> None:
            for _ in range(jobs // threads):
                store.enqueue(drafts(1))

        producers = [threading.Thread(target=produce) for _ in range(threads)]

        def together() -> None:
            for each in producers:
                each.start()
            for each in producers:
                each.join()

        return rate(jobs // threads * threads, together)

    return journaled(work)


def raw_syncs(count: int, size: int) -> float:
    """Appends of so many bytes with an fdatasync each: the ceiling of one durable caller."""
    with tempfile.NamedTemporaryFile() as file:
        body = os.urandom(size)

        def work() -> None:
            for _ in range(count):
                os.write(file.fileno(), body)
                os.fdatasync(file.fileno())

        return rate(count, work)


def recovery(jobs: int, batch: int) -> float:
    """Job changes recovered a second: each job was enqueued, claimed and half of them acknowledged."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        url = f"memory://{directory}/journal"
        store = open_store(url)
        changes = 0
        while changes < jobs:
            store.enqueue(drafts(batch))
            leases = store.claim([Want("default", batch)], "bench", LEASE)
            store.settle([(lease, Ack()) for lease in leases[: max(1, batch // 2)]])
            changes += 2 * batch + max(1, batch // 2)
        store.close()
        began = time.perf_counter()
        store = open_store(url)
        took = time.perf_counter() - began
        store.close()
        return changes / took


def bytes_per_job(jobs: int) -> float:
    """Resident memory a waiting job costs, measured in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "forebay_proof.bench.memory", "--resident", str(jobs)],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def print_resident(jobs: int) -> None:
    store = open_store("memory://")
    fill(store, 1_000)
    before = rss_bytes([os.getpid()])
    fill(store, jobs)
    print((rss_bytes([os.getpid()]) - before) / jobs)


def figures(scale: int) -> list[Figure]:
    n = 20_000 * scale
    return [
        Figure("enqueue/textbook", "jobs/s", lambda: textbook_enqueue(n)),
        Figure("enqueue/batch-100", "jobs/s", lambda: enqueue(n, BATCH), "enqueue/textbook", "≥ 150,000"),
        Figure("enqueue/single", "jobs/s", lambda: enqueue(n // 2, 1), "enqueue/textbook"),
        Figure("cycle/textbook", "jobs/s", lambda: textbook_cycles(n)),
        Figure("cycle/batch-100", "jobs/s", lambda: cycles(n, BATCH), "cycle/textbook", "≥ 80,000"),
        Figure("cycle/single", "jobs/s", lambda: cycles(n // 2, 1), "cycle/textbook", "≥ 40,000"),
        Figure("claim+ack/100-in-flight", "µs", lambda: claim_microseconds(100, n // 4)),
        Figure(
            "claim+ack/100k-in-flight",
            "µs",
            lambda: claim_microseconds(100_000, n // 4),
            "claim+ack/100-in-flight",
            "≤ 1.5 ×",
        ),
        Figure("cycle/textbook-1k-in-flight", "jobs/s", lambda: textbook_cycles(n // 20, 1_000), "cycle/textbook"),
        Figure(
            "cycle/textbook-100k-in-flight", "jobs/s", lambda: textbook_cycles(20 * scale, 100_000), "cycle/textbook"
        ),
        Figure("durable/raw-fdatasync", "syncs/s", lambda: raw_syncs(50 * scale, 20_000)),
        Figure(
            "durable/enqueue-batch-100",
            "jobs/s",
            lambda: journaled(lambda store: rate(n, lambda: fill(store, n))),
            "durable/raw-fdatasync",
            "≥ 100,000",
        ),
        Figure(
            "durable/enqueue-64-threads",
            "jobs/s",
            lambda: journaled_threads(n // 4),
            "durable/raw-fdatasync",
            "≥ 10,000",
        ),
        Figure(
            "durable/cycle-batch-100",
            "jobs/s",
            lambda: journaled(lambda store: rate(n // 2, lambda: cycle(store, n // 2, BATCH))),
            "cycle/batch-100",
        ),
        Figure("recovery/batch-100", "changes/s", lambda: recovery(n * 2, BATCH), goal="≥ 200,000"),
        Figure("recovery/single", "changes/s", lambda: recovery(n // 4, 1), "recovery/batch-100"),
        Figure("memory/waiting-job", "bytes", lambda: bytes_per_job(n), goal="≤ 1,024"),
    ]


def main() -> None:
    if sys.argv[1:2] == ["--resident"]:
        print_resident(int(sys.argv[2]))
        return
    args = arguments(__doc__)
    run(figures(1 if args.quick else 4), rounds=2 if args.quick else 3, only=args.only, as_json=args.json)


if __name__ == "__main__":
    main()
