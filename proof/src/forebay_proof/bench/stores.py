"""The four stores side by side, in one run: memory with its journal, SQLite, Postgres, and Redis in two modes.

make bench-stores                            all of it, about ten minutes
make bench-stores ARGS="--quick"             a first look
make bench-stores ARGS="--only recovery"     one theme: cycle, ceiling, latency, bytes, recovery

cycle/      a job is enqueued, claimed and acknowledged, one client, batches of 100 and one by one
ceiling/    the same by two processes, batches of 1,000; memory is one process's own
latency/    claims of up to 100 at four fifths of what one producer and one claimer do flat out together
bytes/      what a waiting job with a payload of about 100 bytes takes, put by hundreds or one by one
recovery/   kill -9 with 100,000 jobs inside, to the first claim that is answered

All sync before they answer but `redis-everysec`. Servers are real ones, started for this, on the same machine.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from typing import Final

import msgspec

from forebay import Store, Want, open_store
from forebay_proof.bench.clients import ours
from forebay_proof.bench.clients.cell import OFFERED, RATE, Measurement, Values, latencies
from forebay_proof.bench.clients.flow import DEPTH, MAX_START, SHARE, WARM_UP
from forebay_proof.bench.clients.processes import Clients
from forebay_proof.bench.compared_stores import ComparedStore, Site, compared_stores, fill
from forebay_proof.bench.measure import Figure, arguments, race, run
from forebay_proof.bench.memory import BATCH, LEASE, bytes_per_job, cycle, rate
from forebay_proof.load.claimer import claim_until
from forebay_proof.load.generator import Load
from forebay_proof.load.producer import LoadProducer
from forebay_proof.tally import CLAIM, TallyFile

_MANY: Final = 1_000
_PROCESSES: Final = 2


@dataclass(frozen=True)
class Amounts:
    jobs: int
    singles: int
    many: int
    seconds: float
    backlog: int


QUICK: Final = Amounts(jobs=4_000, singles=200, many=20_000, seconds=2.0, backlog=10_000)
FULL: Final = Amounts(jobs=20_000, singles=1_000, many=60_000, seconds=4.0, backlog=100_000)


def cycles(compared: ComparedStore, jobs: int, batch: int) -> float:
    with compared.fresh() as site, closing(open_store(site.url)) as store:
        return rate(jobs, lambda: cycle(store, jobs, batch))


def ceiling(compared: ComparedStore, jobs: int) -> float:
    count = _PROCESSES if compared.shared else 1
    with compared.fresh() as site:
        open_store(site.url).close()
        with race(count, "forebay_proof.bench.cycles", site.url, str(jobs // count), str(_MANY)) as go:
            return rate(jobs // count * count, go)


def flow(compared: ComparedStore, seconds: float, offered: int = 0) -> Values:
    """One producer and one claimer, flat out or at a rate; in one process if the store is one process's own."""
    with compared.fresh() as site, Clients() as clients, ExitStack() as stack:
        open_store(site.url).close()
        load = ours.load_on(site, clients, rate=offered or None, depth=0 if offered else DEPTH)
        done = clients.tallies(ours.WORKER)
        if compared.shared:
            clients.start_load(load)
            ours.start_claimer(site, clients, BATCH)
        else:
            stack.enter_context(in_this_process(site, clients, load))
        clients.wait_until(lambda: done.jobs() > 0, MAX_START, "the first job")
        time.sleep(WARM_UP)
        claims, jobs, began = done.histogram(CLAIM), done.jobs(), time.perf_counter()
        time.sleep(seconds)
        jobs, took = done.jobs() - jobs, time.perf_counter() - began
        clients.check()
        claimed = latencies("claim", done.histogram(CLAIM).minus(claims))
        found = {RATE: jobs / took, OFFERED: float(offered), **claimed}
        clients.stop()
        return found


@contextmanager
def in_this_process(site: Site, clients: Clients, load: Load) -> Iterator[None]:
    """The load and a claimer as two threads."""
    order = msgspec.structs.replace(load.order, report=str(load.directory / "report"))
    stopped = Event()
    with closing(open_store(site.url)) as store:
        producer = LoadProducer(order, store)
        tally = TallyFile.of_this_process(clients.directory / ours.WORKER)
        threads = [
            Thread(target=producer.run, args=(time.time(),)),
            Thread(target=claim_until, args=(store, tally, ours.QUEUE, BATCH, True, stopped.is_set)),
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            producer.stop()
            stopped.set()
            for thread in threads:
                thread.join()


def eased(compared: ComparedStore, seconds: float, flat_out: Measurement, name: str) -> Values:
    return flow(compared, seconds, round(SHARE * flat_out.read(RATE, name)))


def bytes_of_a_job(compared: ComparedStore, jobs: int, batch: int) -> float:
    with compared.fresh() as site:
        fill(site.url, batch, batch)
        before = compared.size(site)
        fill(site.url, jobs, batch)
        return (compared.size(site) - before) / jobs


def recovery(compared: ComparedStore, jobs: int) -> float:
    """Milliseconds. A claim brings jobs, or it does not count."""
    with compared.fresh() as site:
        compared.crash(site, jobs)
        began = time.perf_counter()
        compared.reopen()
        with closing(open_store(site.url)) as store:
            claimed = first_claim(store)
            took = time.perf_counter() - began
        assert claimed == BATCH, f"{claimed} jobs came back"
        return 1e3 * took


def first_claim(store: Store) -> int:
    return len(store.claim([Want("default", BATCH)], "bench", LEASE))


def figures(every: list[ComparedStore], amounts: Amounts) -> list[Figure]:
    """By theme, so that stores are measured one after the other in each."""
    found: list[Figure] = []

    def each(theme: str, unit: str, measure: Callable[[ComparedStore], float]) -> None:
        names = [theme.replace("*", compared.name) for compared in every]
        base = names[1]
        for compared, name in zip(every, names, strict=True):
            found.append(Figure(name, unit, partial(measure, compared), None if name == base else base))

    each("cycle/*-batch-100", "jobs/s", lambda compared: cycles(compared, amounts.jobs, BATCH))
    each("cycle/*-single", "jobs/s", lambda compared: cycles(compared, amounts.singles, 1))
    each("ceiling/*", "jobs/s", lambda compared: ceiling(compared, amounts.many))
    for compared in every:
        found += latency_figures(compared, amounts.seconds)
    each("bytes/*-batch-100", "bytes", lambda compared: bytes_of_a_job(compared, amounts.jobs, BATCH))
    each("bytes/*-single", "bytes", lambda compared: bytes_of_a_job(compared, amounts.jobs // 10, 1))
    found.append(Figure("bytes/memory-resident", "bytes", lambda: bytes_per_job(amounts.jobs)))
    each("recovery/*", "ms", lambda compared: recovery(compared, amounts.backlog))
    return found


def latency_figures(compared: ComparedStore, seconds: float) -> list[Figure]:
    flat_out = Measurement(f"latency/{compared.name}-flat-out", partial(flow, compared, seconds))
    name = f"latency/{compared.name}-80-percent"
    steady = Measurement(name, partial(eased, compared, seconds, flat_out, name))
    return flat_out.figures(()) + steady.figures((OFFERED, "claim-p50", "claim-p99"), claim_p99="< 10")


def main() -> None:
    args = arguments(__doc__)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    with ExitStack() as stack:
        wanted = figures(compared_stores(stack), QUICK if args.quick else FULL)
        run(wanted, rounds=2 if args.quick else 3, only=args.only, as_json=args.json)


if __name__ == "__main__":
    main()
