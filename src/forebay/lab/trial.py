"""`Trial`: one load on one ground with one fleet, watched, drained and judged. `forebay lab load` is this.

    outcome = Trial(store="postgres", rate=10_000, seconds=60).run(folder)
    outcome.verdict.answer, outcome.acked_rate, outcome.cpu

While the load lasts, whoever is given as `disturb` is called again and again: a place for kills. After it the queue is
drained; what is still open when the patience is over is `unfinished` in the verdict.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from forebay.client import Forebay
from forebay.core.errors import Invalid
from forebay.lab.draw import S1, Mix
from forebay.lab.fleet import APP, EFFECTS_FOLDER, Fleet
from forebay.lab.ground import Ground
from forebay.lab.load import Load, Told
from forebay.lab.mix import QUEUE, SPEC
from forebay.lab.proof import Verdict, audit_quickly
from forebay.lab.watch import Sample, Watch
from forebay.store.open import open_store

_STEP: Final = 0.1
_WARM_SHARE: Final = 0.2
"""Of the load's time: what is before it does not count for rates."""


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of a trial. Rates are jobs a second, taken while the load lasted and was no longer new.

    depth    the median in the second and in the last quarter of the load: flat is when the last is not the larger
    cpu      cores in use meanwhile, by who used them: fleet, producers, server
    drained  seconds from the end of the load until nothing was open
    """

    told: Told
    accepted_rate: float
    acked_rate: float
    depth: tuple[float, float]
    cpu: dict[str, float]
    drained: float
    exit_code: int
    verdict: Verdict
    samples: list[Sample]
    evidence: dict[str, float]
    waits: str

    @property
    def flat(self) -> bool:
        """The queue did not grow by more than a second's worth."""
        return self.depth[1] <= self.depth[0] + self.accepted_rate

    def cpu_per_job(self, who: str) -> float:
        """In microseconds."""
        return 1e6 * self.cpu[who] / self.acked_rate if self.acked_rate else 0.0


class Trial(Struct, frozen=True, kw_only=True):
    """`processes` 0: no fleet, the load alone; then nothing is drained or judged. `patience` is for the drain."""

    store: str = "postgres"
    rate: float = 1_000.0
    seconds: float = 60.0
    mix: Mix = S1
    seed: int = 7
    batch: int = 100
    producers: int = 1
    threads: int = 4
    keys: bool = False
    queue: str = QUEUE
    processes: int = 2
    supervisors: int = 1
    concurrency: int = 64
    claim_batch: int = 100
    lease: float = 5.0
    patience: float = 60.0
    settings: dict[str, str] = {}

    def run(
        self,
        directory: Path,
        *,
        hear: Callable[[Sample], object] | None = None,
        disturb: Callable[[Fleet, Ground], object] | None = None,
        afterwards: Callable[[Ground, "Outcome"], object] | None = None,
    ) -> Outcome:
        """`afterwards` is called while the ground is still there."""
        directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            ground = stack.enter_context(Ground(self.store, settings=self.settings))
            if ground.kind == "memory":
                raise Invalid("store", "memory belongs to one process", "use sqlite, postgres or redis")
            prepare(ground.url)
            fleet = stack.enter_context(self.fleet(ground.url, directory)) if self.processes else None
            load = stack.enter_context(self.load(ground.url, directory))
            if fleet is not None:
                fleet.start()
            watch = Watch(ground.url, queue=self.queue, fleet=fleet, load=load, ground=ground, on_sample=hear)
            stack.enter_context(watch)
            load.start()
            with ground.evidence() as evidence:
                while load.running():
                    if disturb is not None and fleet is not None:
                        disturb(fleet, ground)
                    time.sleep(_STEP)
            ended = time.monotonic()
            during = list(watch.samples)
            code = self._drain(watch, fleet)
            drained = time.monotonic() - ended
            outcome = Outcome(
                told=load.told(),
                drained=drained,
                exit_code=code,
                verdict=self._judged(ground.url, load, directory),
                samples=watch.samples,
                evidence=evidence.facts,
                waits=evidence.top_waits(),
                **_rates(during),
            )
            if afterwards is not None:
                afterwards(ground, outcome)
            return outcome

    def fleet(self, url: str, directory: Path) -> Fleet:
        return Fleet(
            APP,
            url,
            directory,
            processes=self.processes,
            concurrency=self.concurrency,
            claim_batch=self.claim_batch,
            lease=self.lease,
            queues=(self.queue,),
            supervisors=self.supervisors,
        )

    def load(self, url: str, directory: Path) -> Load:
        return Load(
            url,
            rate=self.rate,
            seconds=self.seconds,
            directory=directory,
            seed=self.seed,
            batch=self.batch,
            processes=self.producers,
            mix=self.mix,
            queue=self.queue,
            keys=self.keys,
            threads=self.threads,
        )

    def _drain(self, watch: Watch, fleet: Fleet | None) -> int:
        if fleet is None:
            return 0
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline and watch.look().depth != 0:
            time.sleep(_STEP)
        return fleet.stop()

    def _judged(self, url: str, load: Load, directory: Path) -> Verdict:
        if not self.processes:
            return Verdict(answer="INVALID", reasons=["what handlers elsewhere did is not known here"])
        with closing(open_store(url)) as store:
            return audit_quickly(load.receipts, directory / EFFECTS_FOLDER, store, queue=self.queue)


def prepare(url: str) -> None:
    """The store is there, and knows the lab's queue."""
    app = Forebay(url)
    app.queue(SPEC)
    app.store.now()
    app.close()


def _rates(during: list[Sample]) -> dict[str, Any]:
    """What a second of the load was like, once it was no longer new."""
    warm = during[round(_WARM_SHARE * len(during)) :]
    first, last = warm[0], warm[-1]
    length = max(1e-9, last.at - first.at)

    def rate(before: float | None, after: float | None) -> float:
        return ((after or 0) - (before or 0)) / length

    return {
        "accepted_rate": rate(first.accepted, last.accepted),
        "acked_rate": rate(first.acked, last.acked),
        "depth": (_depth(during, 1), _depth(during, 3)),
        "cpu": {
            "fleet": rate(first.fleet_cpu, last.fleet_cpu),
            "producers": rate(first.producers_cpu, last.producers_cpu),
            "server": rate(first.server_cpu, last.server_cpu),
        },
    }


def _depth(samples: list[Sample], quarter: int) -> float:
    """The median depth in one of four quarters."""
    part = samples[len(samples) * quarter // 4 : len(samples) * (quarter + 1) // 4]
    return float(statistics.median([each.depth for each in part if each.depth is not None] or [0]))
