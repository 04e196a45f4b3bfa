"""`Trial`: one load on one store with one fleet, watched, drained and judged. `forebay lab load` is this.

    outcome = Trial(store="postgres", rate=10_000, seconds=60).run(folder)
    outcome.verdict.answer, outcome.acked_rate, outcome.cpu

While the load lasts, `disturb` is called again and again: it may kill workers. After it the queue is
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
from forebay.store.open import open_store
from forebay_proof.histogram import LatencyHistogram
from forebay_proof.lab.audit import AuditResult, audit_quickly
from forebay_proof.lab.lab_server import LabServer
from forebay_proof.lab.watch import StoreSample, Watch
from forebay_proof.load.app import QUEUE, SPEC
from forebay_proof.load.fleet import APP, EFFECTS_FOLDER, Fleet
from forebay_proof.load.generator import Load, ProducerReport
from forebay_proof.load.mix import S1, Mix
from forebay_proof.tally import CLAIM, FOLDER, Tallies

_TALLIES: Final = "tallies"
_STEP: Final = 0.1
_WARM_SHARE: Final = 0.2
"""Of the load's time: what is before it does not count for rates."""


class TrialResult(Struct, frozen=True, kw_only=True):
    """What came of a trial. Rates are jobs a second, taken while the load lasted and was no longer new.

    claims   how long claims took that brought jobs, while the load lasted
    depth    the median in the second and in the last quarter of the load: flat is when the last is not the larger
    cpu      cores in use meanwhile, by part used them: fleet, producers, server
    drained  seconds from the end of the load until nothing was open
    """

    producers: ProducerReport
    accepted_rate: float
    acked_rate: float
    claims: LatencyHistogram
    depth: tuple[float, float]
    cpu: dict[str, float]
    drained: float
    exit_code: int
    verdict: AuditResult
    samples: list[StoreSample]
    evidence: dict[str, float]
    waits: str

    @property
    def flat(self) -> bool:
        """The queue did not grow by more than a second's worth."""
        return self.depth[1] <= self.depth[0] + self.accepted_rate

    def cpu_per_job(self, part: str) -> float:
        """In microseconds."""
        return 1e6 * self.cpu[part] / self.acked_rate if self.acked_rate else 0.0


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
        on_sample: Callable[[StoreSample], object] | None = None,
        disturb: Callable[[Fleet, LabServer], object] | None = None,
        afterwards: Callable[[LabServer, "TrialResult"], object] | None = None,
    ) -> TrialResult:
        """`afterwards` is called while the store is still there."""
        directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            lab_server = stack.enter_context(LabServer(self.store, settings=self.settings))
            if lab_server.kind == "memory":
                raise Invalid("store", "memory belongs to one process", "use sqlite, postgres or redis")
            prepare(lab_server.url)
            fleet = stack.enter_context(self.fleet(lab_server.url, directory)) if self.processes else None
            load = stack.enter_context(self.load(lab_server.url, directory))
            if fleet is not None:
                fleet.start()
            watch = Watch(
                lab_server.url, queue=self.queue, fleet=fleet, load=load, lab_server=lab_server, on_sample=on_sample
            )
            stack.enter_context(watch)
            load.start()
            with lab_server.evidence() as evidence:
                while load.running():
                    if disturb is not None and fleet is not None:
                        disturb(fleet, lab_server)
                    time.sleep(_STEP)
            ended = time.monotonic()
            during, claims = list(watch.samples), Tallies(directory / _TALLIES).histogram(CLAIM)
            code = self._drain(watch, fleet)
            drained = time.monotonic() - ended
            outcome = TrialResult(
                producers=load.report(),
                claims=claims,
                drained=drained,
                exit_code=code,
                verdict=self._judged(lab_server.url, load, directory),
                samples=watch.samples,
                evidence=evidence.facts,
                waits=evidence.top_waits(),
                **_rates(during),
            )
            if afterwards is not None:
                afterwards(lab_server, outcome)
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
            env={FOLDER: str((directory / _TALLIES).resolve())},
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
        while time.monotonic() < deadline and watch.sample().depth != 0:
            time.sleep(_STEP)
        watch.finish()
        return fleet.stop()

    def _judged(self, url: str, load: Load, directory: Path) -> AuditResult:
        if not self.processes:
            return AuditResult(answer="INVALID", reasons=["what handlers elsewhere did is not known here"])
        with closing(open_store(url)) as store:
            return audit_quickly(load.receipts, directory / EFFECTS_FOLDER, store, queue=self.queue)


def prepare(url: str) -> None:
    """The store is there, and has the spec of the lab's queue."""
    app = Forebay(url)
    app.queue(SPEC)
    app.store.now()
    app.close()


def _rates(during: list[StoreSample]) -> dict[str, Any]:
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


def _depth(samples: list[StoreSample], quarter: int) -> float:
    """The median depth in one of four quarters."""
    part = samples[len(samples) * quarter // 4 : len(samples) * (quarter + 1) // 4]
    return float(statistics.median([each.depth for each in part if each.depth is not None] or [0]))
