"""What a case works with: a lab_server, fleets, a directory of its own, and a place for what it finds.

Nothing that was started here outlives the case, whatever happens in it. Every row carries the case's settings, so that
the report needs nothing but the rows.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from forebay.client import Forebay
from forebay.store.protocol import Store
from forebay_proof.histogram import LatencyHistogram
from forebay_proof.lab.experiments.base import ExperimentCase
from forebay_proof.lab.lab_server import LabServer
from forebay_proof.lab.results import Results
from forebay_proof.load.app import EFFECTS, STARTS
from forebay_proof.load.fleet import APP, Fleet
from forebay_proof.load.probed_store import UNRENEWED
from forebay_proof.tally import CLAIM, FOLDER, Tallies

_STEP: Final = 0.02

W_co = TypeVar("W_co", bound="Working", covariant=True)


class Stage:
    def __init__(
        self,
        experiment: str,
        case: ExperimentCase,
        round_number: int,
        seed: int,
        results: Results,
        say: Callable[[str], None],
    ) -> None:
        self.case = case
        self.seed = seed
        self.say = say
        self._experiment = experiment
        self._round = round_number
        self._results = results
        self._began = time.monotonic()
        self._stack = ExitStack()
        self._fleets = 0

    def __enter__(self) -> Self:
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-lab-")))
        self.effects, self.starts = self.directory / "effects", self.directory / "starts"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def record(self, metric: str, value: float, unit: str) -> None:
        facts = {"store": self.case.store, **self.case.settings}
        self._results.row(self._experiment, self.case.name, self._round, metric, float(value), unit, **facts)

    def sample(self, name: str, at: float, value: float) -> None:
        """`at`: of time.monotonic()."""
        self._results.sample(self._experiment, self.case.name, self._round, at - self._began, **{name: value})

    def lab_server(self, *, unsynced: bool = False) -> LabServer:
        """A server that syncs, or a file, of the case's store; it ends with the case."""
        return self._stack.enter_context(LabServer(self.case.store, unsynced=unsynced))

    def app(self, lab_server: LabServer) -> Forebay:
        """The way in, as users have it."""
        fb = Forebay(lab_server.url)
        self._stack.callback(fb.close)
        return fb

    def store(self, lab_server: LabServer) -> Store:
        return self.app(lab_server).store

    def fleet(
        self, lab_server: LabServer, *, effects: bool = True, starts: bool = False, renewing: bool = True, **given: Any
    ) -> "TalliedFleet[Fleet]":
        """Workers, started, with their claims watched; all fleets of a case testify in the same place."""
        self._fleets += 1
        home = self.directory / f"fleet-{self._fleets}"
        claims = home / "claims"
        claims.mkdir(parents=True)
        env = {FOLDER: str(claims), EFFECTS: str(self.effects) if effects else "", **given.pop("env", {})}
        env |= {STARTS: str(self.starts)} if starts else {}
        env |= {} if renewing else {UNRENEWED: "1"}
        fleet = self._stack.enter_context(Fleet(APP, lab_server.url, home, env=env, **given))
        fleet.start()
        return TalliedFleet(fleet, claims)

    def wait_until(self, ready: Callable[[], bool], seconds: float, what: str, step: float = _STEP) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {seconds:g} s")
            time.sleep(step)

    @contextmanager
    def on_cores(self, count: int) -> Iterator[None]:
        """What is started in this block, servers too, has so many cores."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(before)[:count])
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


class Working(Protocol):
    """A fleet, or what does its work."""

    def cpu_seconds(self) -> float: ...


class ClaimCount(NamedTuple):
    """What a process has claimed: jobs, and the latencies of the claims that brought some."""

    jobs: int
    latency: LatencyHistogram

    def since(self, before: "ClaimCount") -> "ClaimCount":
        return ClaimCount(self.jobs - before.jobs, self.latency.minus(before.latency))


class TalliedFleet(Generic[W_co]):
    """A fleet and the tallies of its processes' claims."""

    def __init__(self, fleet: W_co, folder: Path) -> None:
        self.fleet = fleet
        self._tallies = Tallies(folder)

    def claims(self) -> dict[str, ClaimCount]:
        """Of all processes that ever claimed."""
        found = self._tallies.all().items()
        return {name: ClaimCount(tally.claimed, tally.histogram(CLAIM)) for name, tally in found if tally.claimed}

    def claimed(self) -> int:
        return self._tallies.claimed()
