"""Our clients, a process each: `python -m bench.crew.client WHAT …`. They count and time what they do in their tally.

    bulk JOBS                      enqueue_many, once
    produce KIND BATCH DEPTH RATE  batches until stopped, while fewer than DEPTH wait; or, if not 0, RATE jobs a second
    schedule RATE                  single jobs due within a second or so, until stopped
    drip RATE                      single jobs that carry the time of their call, evenly spaced, until stopped
    singles JOBS                   one thread, one job a call
    threads JOBS                   64 threads, each enqueueing one job a call
    loop BATCH                     claim and acknowledge without a worker, until stopped
    both KIND BATCH DEPTH RATE     produce and loop in one process, for a store that only one may have
    cycle BATCH SINGLES CYCLES     enqueue, claim, acknowledge, and the times of the claims but for the first tenth

The store is FOREBAY_URL, the workers' tallies are in the folder that FOREBAY_BENCH_WORKERS names.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from threading import Thread

from bench.crew.load import BATCH, payloads
from forebay import Draft, Forebay, Store, Want, open_store
from forebay.core.instant import seconds
from forebay.core.outcome import Ack
from forebay_proof.tally import CLAIM, ENQUEUE, Tallies, Tally

THREADS = 64
WORKERS = "FOREBAY_BENCH_WORKERS"
PRODUCER = "producer"
LEASE = seconds(600)
_PAUSE = 0.001
_MAX_BEHIND = 0.1


def queue_of(kind: str) -> str:
    return "flaky" if kind == "flaky" else "default"


def drafts(count: int, *, singles: bool = False) -> list[Draft]:
    """`singles`: unlike their neighbours, so that each becomes a row of its own."""
    if singles:
        return [Draft("email", load, max_attempts=24 + n % 2) for n, load in enumerate(payloads(count))]
    return [Draft("email", load) for load in payloads(count)]


def paced(rate: float) -> Iterator[None]:
    """`rate` times a second; what is more than a tenth of a second late is not caught up."""
    due_at = time.perf_counter()
    while True:
        time.sleep(max(0.0, due_at - time.perf_counter()))
        yield
        due_at = max(due_at + 1 / rate, time.perf_counter() - _MAX_BEHIND)


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
    place = 0
    for _ in paced(rate / batch) if rate else repeat(None):
        while not rate and tally.jobs - done.jobs() >= depth:
            time.sleep(_PAUSE)
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
    for _ in paced(10):
        dues = [time.time() + draw.uniform(0.5, 1.5) for _ in range(rate // 10)]
        store.enqueue([Draft("scheduled", {"due": due}, run_at=int(due * 1e6)) for due in dues])


def drip(rate: int) -> None:
    fb = Forebay()
    for _ in paced(rate):
        fb.enqueue("scheduled", {"due": time.time()})


def singles(tally: Tally, jobs: int) -> None:
    fb = Forebay()
    loads = payloads(jobs)
    fb.enqueue("email", loads[0])
    with tally.whole(jobs):
        for load in loads:
            began = time.perf_counter()
            fb.enqueue("email", load)
            tally.add(ENQUEUE, time.perf_counter() - began)
    fb.close()


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
    for number in range(count):
        store.enqueue(drafts(batch, singles=singles))
        _claim_and_ack(store, tally if number >= count // 10 else None, batch)
    store.close()


def _claim_and_ack(store: Store, tally: Tally | None, batch: int) -> int:
    began = time.perf_counter()
    leases = store.claim([Want("default", batch)], "bench", LEASE)
    took = time.perf_counter() - began
    if leases:
        store.settle([(lease, Ack()) for lease in leases])
    if leases and tally is not None:
        tally.add(CLAIM, took)
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
        "singles": lambda: singles(tally, numbers[0]),
        "threads": lambda: threads(tally, numbers[0]),
        "loop": lambda: loop(open_store(os.environ["FOREBAY_URL"]), tally, numbers[0] if numbers else BATCH),
        "both": lambda: both(tally, given[0], *numbers),
        "cycle": lambda: cycles(tally, numbers[0], bool(numbers[1]), numbers[2]),
    }
    does[what]()


if __name__ == "__main__":
    main(*sys.argv[1:])
