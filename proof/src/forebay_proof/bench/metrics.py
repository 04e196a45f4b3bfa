"""What watching costs: the store's own pace with a server that follows its ledger and polls its queues, beside it
alone; how fast a ledger is counted; how long a scrape takes; what an unused trace costs; what it costs to
hide secrets: in what is kept of a failure, and in a large payload that is shown.

forebay bench run metrics            SQLite, and Postgres if one can be started here
forebay bench run metrics --quick    a first look

The watcher is a process of its own, as a server is. `count` reads from a ledger that is there already.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from timeit import timeit

from forebay import open_store
from forebay.core.ledger import Change, JobRange, LedgerEntry, Record
from forebay.core.payload import encode_payload
from forebay.serve.metrics import Metrics
from forebay.serve.metrics.follower import LedgerFollower
from forebay.serve.metrics.server_metrics import exposition
from forebay.serve.metrics.tally import MAX_PAIRS, MAX_QUEUES, EventTally, LabelNames
from forebay.serve.security.redact import redact
from forebay.tracing import carried, spans
from forebay.work.handler import Handler
from forebay.work.signature import Signature
from forebay.work.trace import format_trace
from forebay_proof.bench.measure import Figure, arguments, run
from forebay_proof.bench.memory import BATCH, cycle
from forebay_proof.servers.postgres import PostgresServer
from forebay_proof.servers.process import ServerUnavailable

ROUNDS = 5
WATCHER = """
import sys
from forebay.serve.metrics import Metrics
from forebay.store.open import open_store
from forebay.work.role import RoleThread
store = open_store(sys.argv[1])
beats = [RoleThread(role) for role in Metrics(store).roles]
for beat in beats:
    beat.start()
print("watching", flush=True)
sys.stdin.read()
"""


@contextmanager
def watched(url: str, on: bool) -> Iterator[None]:
    if not on:
        yield
        return
    words = [sys.executable, "-c", WATCHER, url]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdin is not None
        watcher.stdout.readline()
        try:
            yield
        finally:
            watcher.stdin.close()


def pace(fresh: Callable[[], str], jobs: int, batch: int, *, on: bool) -> float:
    """Jobs a second through a whole cycle: enqueue, claim, acknowledge."""
    url = fresh()
    store = open_store(url)
    with watched(url, on):
        began = time.perf_counter()
        cycle(store, jobs, batch)
        spent = time.perf_counter() - began
    store.close()
    return jobs / spent


def counted(jobs: int) -> float:
    """Records a second, of batches of 100 jobs."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        store = open_store(f"sqlite:///{directory}/jobs.db")
        cycle(store, jobs, BATCH)
        tally = EventTally(LabelNames())
        follower = LedgerFollower(store, tally, whole=True)
        began = time.perf_counter()
        while follower.step() < 1.0:
            pass
        spent = time.perf_counter() - began
        store.close()
    return tally.records / spent


def scrape() -> float:
    """Milliseconds, with as many series as there can be."""
    store = open_store("memory://")
    metrics = Metrics(store)
    ranges = [
        JobRange(change, n, 1, f"q{n % (2 * MAX_QUEUES)}", f"k{n}", 1, 1, 1, 1, 1, 1)
        for n in range(4 * MAX_PAIRS)
        for change in (Change.ACCEPTED, Change.CLAIMED, Change.ACKED)
    ]
    metrics.tally.take([LedgerEntry(0, Record(1_000_000, "enqueue", ranges))])
    from forebay.serve.metrics.families import fleet

    began = time.perf_counter()
    exposition("", fleet(metrics.tally), process=True)
    spent = time.perf_counter() - began
    store.close()
    return spent * 1_000


class Broken(Exception):
    """A failure with a trace of some depth."""


def failing(depth: int) -> None:
    if depth:
        failing(depth - 1)
    raise Broken("host 10.0.0.7 said no to token=abcdefgh12345678 after 3 tries")


def failed() -> Broken:
    try:
        failing(10)
    except Broken as error:
        return error
    raise AssertionError


def hiding(number: int) -> list[Figure]:
    """µs for a failure as it is kept, beside its trace alone; ms for a payload of 256 KiB of short strings."""
    error, handler = failed(), Handler("send", failing, Signature("send", failing))
    body = encode_payload({"depth": 1, "to": "ada@example.com", "password": "hunter2-and-more", "note": "x" * 100})
    large = [f"item {place}: a short text" for place in range(9_000)]
    micros = partial(timeit, number=number)
    return [
        Figure("hide/trace-alone", "µs", lambda: micros(lambda: format_trace(error)) / number * 1e6),
        Figure(
            "hide/failure",
            "µs",
            lambda: micros(lambda: handler.outcome_of(error, body)) / number * 1e6,
            "hide/trace-alone",
        ),
        Figure("hide/256-KiB", "ms", lambda: timeit(lambda: redact("send", large), number=3) / 3 * 1e3),
    ]


def figures(scale: int, postgres: PostgresServer | None, directory: Path) -> list[Figure]:
    number = iter(range(1_000_000))
    places: dict[str, Callable[[], str]] = {"sqlite": lambda: f"sqlite:///{directory}/{next(number)}.db"}
    if postgres is not None:
        places["postgres"] = postgres.create_database
    found = []
    for name, fresh in places.items():
        for batch, jobs in ((BATCH, 40_000), (1, 2_000)):
            for on in (False, True):
                own = f"{name}/batch-{batch}/{'watched' if on else 'alone'}"
                measure = partial(pace, fresh, max(batch, jobs // scale), batch, on=on)
                base = f"{name}/batch-{batch}/alone" if on else None
                found.append(Figure(own, "jobs/s", measure, base, "at least 0.95 of it alone" if on else ""))
    found.append(Figure("count/batch-100", "records/s", partial(counted, 200_000 // scale)))
    found.append(Figure("scrape/full", "ms", scrape, goal="< 250"))
    found.append(Figure("trace/enqueue", "ns", lambda: timeit(lambda: carried(None), number=200_000) / 200_000 * 1e9))
    found += hiding(20_000 // scale)
    found.append(Figure("trace/claim", "ns", lambda: timeit(spans, number=200_000) / 200_000 * 1e9))
    return found


def main() -> None:
    args = arguments(__doc__)
    scale, rounds = (10, 2) if args.quick else (1, ROUNDS)
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        try:
            with PostgresServer(durable=True) as postgres:
                run(figures(scale, postgres, Path(directory)), rounds=rounds, only=args.only, as_json=args.json)
        except ServerUnavailable:
            run(figures(scale, None, Path(directory)), rounds=rounds, only=args.only, as_json=args.json)


if __name__ == "__main__":
    main()
