"""One job's life in microseconds: from the draft to its end, by part, in Python and in the store.

Two passes over as many idle jobs. In the first the verbs are called from here, one phase after the other: what a phase
took on the clock is split into the CPU of this process, that of the server, and the rest: disk, wake-ups, the way
between. In the second a worker of one process does them; what its CPU went into is the share of a profiler by the
thread's own CPU time, scaled to what the same worker took without a profiler.
"""

import pstats
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from forebay.client import Forebay
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.lease import Lease
from forebay.core.outcome import Ack
from forebay.store.protocol import Store, Want
from forebay_proof.lab.lab_server import LabServer
from forebay_proof.lab.profiled_app import PROFILE
from forebay_proof.lab.trial import prepare
from forebay_proof.load.app import EFFECTS, QUEUE
from forebay_proof.load.fleet import Fleet

APP: Final = "forebay_proof.lab.profiled_app:fb"
BATCHES: Final = (100, 1)
_PATIENCE: Final = 300.0
_LEASE: Final = seconds(600)
_SHOWN: Final = 12
_FUNCTIONS: Final = 4
_WORKING: Final = {
    "claimer": "claim: what to ask for",
    "capacity": "claim: what to ask for",
    "pool": "pool: start, watch, end",
    "start_marks": "pool: start, watch, end",
    "threads": "pool: start, watch, end",
    "handler": "handler: payload, context, outcome",
    "signature": "handler: payload, context, outcome",
    "context": "handler: payload, context, outcome",
    "settler": "settle: gather verdicts",
}


class CostPart(Struct, frozen=True):
    """Microseconds of one job. `where`: python, server, or between, which is no CPU at all.

    `besides`: not part of a job's life but an observation of it, such as a verb that the worker calls, too.
    """

    what: str
    where: str
    micros: float
    besides: bool = False


class JobCost(Struct, frozen=True):
    """Of one store, in batches of so many."""

    store: str
    batch: int
    jobs: int
    parts: list[CostPart]

    def cpu(self) -> float:
        return sum(part.micros for part in self.parts if part.where != "between" and not part.besides)


def measure_job_cost(store: str, batch: int, jobs: int, directory: Path) -> JobCost:
    parts = list(_verbs(store, batch, jobs))
    parts += _worked(store, batch, jobs, directory)
    return JobCost(store, batch, jobs, parts)


def _verbs(kind: str, batch: int, jobs: int) -> Iterator[CostPart]:
    """The producer's side; claim and settle are called too, as the store alone does them."""
    with LabServer(kind) as lab_server:
        prepare(lab_server.url)
        app = Forebay(lab_server.url)
        try:
            clock = _Clock(lab_server, jobs)
            drafts: list[Draft] = []
            yield from clock.took("draft: make and check", lambda: drafts.extend(_drafts(jobs)))
            store = app.store
            yield from clock.took("enqueue", lambda: _each(store.enqueue, drafts, batch))
            leases: list[Lease] = []
            yield from clock.took("(claim, called alone)", lambda: _claimed(store, leases, batch, jobs), besides=True)
            acks = [(lease, Ack()) for lease in leases]
            yield from clock.took("(settle, called alone)", lambda: _each(store.settle, acks, batch), besides=True)
        finally:
            app.close()


def _drafts(jobs: int) -> Iterator[Draft]:
    return (Draft("idle", {"seq": seq, "ms": 0}, QUEUE) for seq in range(jobs))


def _each(verb: Callable[[Any], object], things: Sequence[Any], batch: int) -> None:
    for start in range(0, len(things), batch):
        verb(things[start : start + batch])


def _claimed(store: Store, leases: list[Lease], batch: int, jobs: int) -> None:
    while len(leases) < jobs and (found := store.claim([Want(QUEUE, batch)], "life", _LEASE)):
        leases += found


class _Clock:
    """What a phase took, by process."""

    def __init__(self, lab_server: LabServer, jobs: int) -> None:
        self._lab_server = lab_server
        self._scale = 1e6 / jobs

    def took(self, what: str, work: Callable[[], object], *, besides: bool = False) -> Iterator[CostPart]:
        server, own, at = self._lab_server.server_cpu_seconds(), time.process_time(), time.perf_counter()
        work()
        wall = self._scale * (time.perf_counter() - at)
        python = self._scale * (time.process_time() - own)
        spent = self._scale * (self._lab_server.server_cpu_seconds() - server)
        yield CostPart(what, "python", python, besides)
        if spent:
            yield CostPart(what, "server", spent, besides)
        yield CostPart(what, "between", max(0.0, wall - python - spent), besides)


def _worked(kind: str, batch: int, jobs: int, directory: Path) -> Iterator[CostPart]:
    """The worker's side: CPU without the profiler, shares with it."""
    python, server, functions = _drained(kind, batch, jobs, directory / "plain", None)
    file = directory / "profile"
    _drained(kind, batch, jobs, directory / "profiled", file)
    shares = _shares(file)
    for what, share in sorted(shares.items(), key=lambda pair: -pair[1])[:_SHOWN]:
        yield CostPart(f"worker, {what}", "python", share * python)
    rest = 1 - sum(sorted(shares.values(), reverse=True)[:_SHOWN])
    yield CostPart("worker, others", "python", rest * python)
    if not server:
        return
    # A function's time is by the clock, and counts of the enqueues before may come late.
    shown = {name: spent for name, spent in functions.items() if not name.endswith(".put")}
    scale = min(1.0, server / max(1e-9, sum(shown.values())))
    for name, micros in sorted(shown.items(), key=lambda pair: -pair[1])[:_FUNCTIONS]:
        yield CostPart(f"claim and settle: in {name}", "server", scale * micros)
        server -= scale * micros
    yield CostPart("claim and settle: the rest of it", "server", max(0.0, server))


def _drained(
    kind: str, batch: int, jobs: int, directory: Path, profile: Path | None
) -> tuple[float, float, dict[str, float]]:
    """CPU a job of the worker and of the server, and of the server's functions; without the worker's start."""
    directory.mkdir(parents=True, exist_ok=True)
    env = {EFFECTS: str(directory / "effects"), **({PROFILE: str(profile)} if profile else {})}
    size: dict[str, Any] = {"processes": 0, "concurrency": 200, "claim_batch": batch}
    with LabServer(kind) as lab_server, Fleet(APP, lab_server.url, directory, **size, env=env) as fleet:
        prepare(lab_server.url)
        app = Forebay(lab_server.url)
        try:
            fleet.start()
            _each(app.store.enqueue, list(_drafts(batch)), batch)
            _wait_until_empty(app)
            app.store.pause(QUEUE)
            _each(app.store.enqueue, list(_drafts(jobs)), batch)
            with lab_server.evidence() as evidence:
                worker, server = fleet.cpu_seconds(), lab_server.server_cpu_seconds()
                app.store.resume(QUEUE)
                _wait_until_empty(app)
                worker, server = fleet.cpu_seconds() - worker, lab_server.server_cpu_seconds() - server
            fleet.stop()
        finally:
            app.close()
    inside = {name: spent for name, spent in evidence.facts.items() if name.startswith("ms in ")}
    scale = 1e6 / jobs
    return scale * worker, scale * server, {name[6:]: 1e-3 * scale * spent for name, spent in inside.items()}


def _wait_until_empty(app: Forebay) -> None:
    deadline = time.monotonic() + _PATIENCE
    while app.backlog(QUEUE)[0].depth:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the worker did not end within {_PATIENCE:g} s")
        time.sleep(0.05)


def _shares(profile: Path) -> dict[str, float]:
    """By group, of the CPU that was profiled; what is built in counts for its caller."""
    spent: dict[str, float] = defaultdict(float)
    stats: dict[Any, Any] = pstats.Stats(str(profile)).stats  # type: ignore[attr-defined]
    for (file, _, _), (_, _, own, _, callers) in stats.items():
        if file == "~" and callers:
            for (caller, _, _), numbers in callers.items():
                spent[group_of(caller)] += numbers[2]
        else:
            spent[group_of(file)] += own
    whole = sum(spent.values()) or 1.0
    return {group: own / whole for group, own in spent.items()}


def group_of(file: str) -> str:
    """What a source file is about."""
    parts = Path(file).parts
    if "forebay" in parts:
        room = parts[len(parts) - parts[::-1].index("forebay")]
        name = Path(parts[-1]).stem
        if room == "work":
            return _WORKING.get(name, f"work/{name}")
        return {"store": "store: Python", "core": "core: leases, verdicts", "lab": "the handler itself"}.get(room, room)
    for package, group in (
        ("psycopg", "driver"),
        ("redis", "driver"),
        ("sqlite3", "driver"),
        ("asyncio", "event loop"),
    ):
        if any(part.startswith(package) for part in parts):
            return group
    return "standard library and built in"
