"""Our clients, a process each: `python -m bench.crew.client WHAT …`. They count and time what they do in their tally.

    bulk JOBS                      enqueue_many, once
    produce KIND BATCH DEPTH RATE  batches until stopped, while fewer than DEPTH wait; or, if not 0, RATE jobs a second
    schedule RATE                  single jobs due within a second or so, until stopped
    drip RATE                      single jobs that carry the time of their call, evenly spaced, until stopped
    threads JOBS                   64 threads, each enqueueing one job a call
    loop BATCH                     claim and acknowledge without a worker, until stopped
    both KIND BATCH DEPTH RATE     produce and loop in one process, for a store that only one may have
    cycle BATCH SINGLES CYCLES     enqueue, claim, acknowledge, and the times of the claims

The store is FOREBAY_URL, the workers' tallies are in the folder that FOREBAY_BENCH_WORKERS names.
"""

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from bench.crew.load import BATCH, payloads
from bench.crew.tally import CLAIM, ENQUEUE, Tallies, Tally
from forebay import Draft, Forebay, Store, Want, open_store
from forebay.core.instant import seconds
from forebay.core.outcome import Ack

THREADS = 64
WORKERS = "FOREBAY_BENCH_WORKERS"
PRODUCER = "producer"
LEASE = seconds(600)
_PAUSE = 0.001
_BEHIND_MOST = 0.1


def queue_of(kind: str) -> str:
    return "flaky" if kind == "flaky" else "default"


def drafts(count: int, *, singles: bool = False) -> list[Draft]:
    """`singles`: unlike their neighbours, so that each becomes a row of its own."""
    if singles:
        return [Draft("email", load, max_attempts=24 + n % 2) for n, load in enumerate(payloads(count))]
    return [Draft("email", load) for load in payloads(count)]


def bulk(tally: Tally, jobs: int) -> None:
    fb = Forebay()
    loads = payloads(jobs)
    fb.store.now()
    with tally.whole(jobs):
        fb.enqueue_many(Draft("email", load) for load in loads)
    fb.close()


def produce(store: Store, tally: Tally, kind: str, batch: int, depth: int, rate: int) -> None:
    done = Tallies(Path(os.environ[WORKERS]))
    loads = payloads(1_000)
    queue = queue_of(kind)
    place, due_at = 0, time.perf_counter()
    while True:
        if rate:
            due_at = max(due_at + batch / rate, time.perf_counter() - _BEHIND_MOST)
            time.sleep(max(0.0, due_at - time.perf_counter()))
        elif tally.jobs - done.jobs() >= depth:
            time.sleep(_PAUSE)
            continue
        made = [Draft(kind, loads[(place + n) % 1_000], queue) for n in range(batch)]
        place += batch
        began = time.perf_counter()
        store.enqueue(made)
        tally.add(ENQUEUE, time.perf_counter() - began)
        tally.count(batch)


def schedule(rate: int) -> None:
    """A tenth of a second's worth at a time, due at random moments half a second to one and a half from now."""
    store = open_store(os.environ["FOREBAY_URL"])
    draw = random.Random(11)
    next_at = time.perf_counter()
    while True:
        dues = [time.time() + draw.uniform(0.5, 1.5) for _ in range(rate // 10)]
        store.enqueue([Draft("scheduled", {"due": due}, run_at=int(due * 1e6)) for due in dues])
        next_at += 0.1
        time.sleep(max(0.0, next_at - time.perf_counter()))


def drip(rate: int) -> None:
    fb = Forebay()
    next_at = time.perf_counter()
    while True:
        fb.enqueue("scheduled", {"due": time.time()})
        next_at = max(next_at + 1 / rate, time.perf_counter() - _BEHIND_MOST)
        time.sleep(max(0.0, next_at - time.perf_counter()))


def threads(tally: Tally, jobs: int) -> None:
    """Times are put together at the end: a tally has one writer."""
    store = open_store(os.environ["FOREBAY_URL"])
    store.enqueue(drafts(1))
    times: list[list[float]] = [[] for _ in range(THREADS)]

    def one(mine: list[float]) -> None:
        for draft in drafts(jobs // THREADS):
            began = time.perf_counter()
            store.enqueue([draft])
            mine.append(time.perf_counter() - began)

    crew = [Thread(target=one, args=(mine,)) for mine in times]
    with tally.whole(jobs // THREADS * THREADS):
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
    for mine in times:
        for taken in mine:
            tally.add(ENQUEUE, taken)
    store.close()


def loop(store: Store, tally: Tally, batch: int) -> None:
    while True:
        if not _claim_and_ack(store, tally, batch):
            time.sleep(_PAUSE)


def both(tally: Tally, kind: str, batch: int, depth: int, rate: int) -> None:
    store = open_store(os.environ["FOREBAY_URL"])
    other = Tally.of_this_process(Path(os.environ[WORKERS]).parent / PRODUCER)
    Thread(target=produce, args=(store, other, kind, batch, depth, rate), daemon=True).start()
    loop(store, tally, batch)


def cycles(tally: Tally, batch: int, singles: bool, count: int) -> None:
    store = open_store(os.environ["FOREBAY_URL"])
    for _ in range(count):
        store.enqueue(drafts(batch, singles=singles))
        _claim_and_ack(store, tally, batch)
    store.close()


def _claim_and_ack(store: Store, tally: Tally, batch: int) -> int:
    began = time.perf_counter()
    leases = store.claim([Want("default", batch)], "bench", LEASE)
    if leases:
        tally.add(CLAIM, time.perf_counter() - began)
        store.settle([(lease, Ack()) for lease in leases])
        tally.count(len(leases))
    return len(leases)


def main(what: str, *given: str) -> None:
    tally = Tally.of_this_process()
    numbers = [int(word) for word in given if word.isdigit()]
    does: dict[str, Callable[[], None]] = {
        "bulk": lambda: bulk(tally, numbers[0]),
        "produce": lambda: produce(open_store(os.environ["FOREBAY_URL"]), tally, given[0], *numbers),
        "schedule": lambda: schedule(numbers[0]),
        "drip": lambda: drip(numbers[0]),
        "threads": lambda: threads(tally, numbers[0]),
        "loop": lambda: loop(open_store(os.environ["FOREBAY_URL"]), tally, numbers[0] if numbers else BATCH),
        "both": lambda: both(tally, given[0], *numbers),
        "cycle": lambda: cycles(tally, numbers[0], bool(numbers[1]), numbers[2]),
    }
    does[what]()


if __name__ == "__main__":
    main(*sys.argv[1:])
