"""The headline: a fixed rate for a long time while workers are killed, and the audit of all of it.

    Headline(rate=10_000, seconds=1_200, kill_every=30).run(folder)

One trial, disturbed: kill -9 of a worker at random moments, a picture of the dashboard half way, and afterwards the
proof, quickly and then by `forebay audit` on Spark from the ledger. What was seen second by second and what came of it
is written down as results, so that the report can show it.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Final

from msgspec import Struct

from forebay.core.errors import ForebayError
from forebay_proof.lab.audit import AuditResult, audit
from forebay_proof.lab.lab_server import LabServer
from forebay_proof.lab.results import Results
from forebay_proof.lab.screenshot import BrowserMissing, take_screenshot
from forebay_proof.lab.trial import Trial, TrialResult
from forebay_proof.lab.watch import StoreSample
from forebay_proof.load.fleet import Fleet

NAME: Final = "headline"
PICTURE, AUDIT = "dashboard.png", "audit.html"
_SERIES: Final = ("depth", "accepted", "acked", "dead", "workers", "oldest_age", "fleet_rss", "fleet_descriptors")
_MAX_FOLLOWED: Final = 120.0
_FLAT: Final = 1.25
"""What is flat may be so much more in its last quarter than in its second."""


class HeadlineResult(Struct, frozen=True, kw_only=True):
    """What came of it: the trial's own outcome, the kills, and the audit's verdict if it ran."""

    outcome: TrialResult
    kills: int
    spark: AuditResult | None
    picture: str
    rss: tuple[float, float]
    descriptors: tuple[float, float]

    @property
    def flat(self) -> bool:
        """Depth, memory and open files did not grow."""
        grown = [after <= _FLAT * before + 1 for before, after in (self.rss, self.descriptors)]
        return self.outcome.flat and all(grown)

    @property
    def exit_code(self) -> int:
        return max(self.outcome.verdict.exit_code, 0 if self.spark is None else self.spark.exit_code)


class Headline(Struct, frozen=True, kw_only=True):
    """`kill_every` 0: no worker is killed. `spark`: the audit on Spark too. `picture`: of the dashboard, half way."""

    trial: Trial
    kill_every: float = 30.0
    spark: bool = True
    picture: bool = True

    def run(
        self, directory: Path, results: Results, on_sample: Callable[[StoreSample], object], say: Callable[[str], None]
    ) -> HeadlineResult:
        chaos = _Chaos(self, directory, say)
        verdicts: list[AuditResult] = []

        def afterwards(lab_server: LabServer, outcome: TrialResult) -> None:
            say(f"{outcome.verdict.answer}: {outcome.verdict.accepted:,} accepted, {outcome.verdict.lost} lost")
            if self.spark:
                say("auditing the ledger on Spark: this takes a while")
                verdicts.append(self._audited(directory, lab_server.url, chaos.kills))

        outcome = self.trial.run(directory, on_sample=on_sample, disturb=chaos, afterwards=afterwards)
        result = HeadlineResult(
            outcome=outcome,
            kills=chaos.kills,
            spark=verdicts[0] if verdicts else None,
            picture=chaos.pictured(),
            rss=_quarters([each.fleet_rss for each in outcome.samples if each.workers]),
            descriptors=_quarters([each.fleet_descriptors for each in outcome.samples if each.workers]),
        )
        self._record(result, results)
        return result

    def _audited(self, directory: Path, url: str, kills: int) -> AuditResult:
        given = directory / "receipts", directory / "effects"
        return audit(
            *given,
            url,
            directory / "lake",
            min_jobs=round(0.5 * self.trial.rate * self.trial.seconds),
            faults=kills,
            min_faults=1 if self.kill_every else 0,
            report=directory / AUDIT,
        )

    def _record(self, result: HeadlineResult, results: Results) -> None:
        outcome, verdict = result.outcome, result.outcome.verdict
        case = f"{self.trial.store}-{self.trial.mix.name}-{self.trial.rate:g}"
        facts = {"store": self.trial.store, "mix": str(self.trial.mix), "kill_every": self.kill_every}
        facts |= {
            name: getattr(self.trial, name) for name in ("rate", "seconds", "processes", "concurrency", "claim_batch")
        }

        def row(metric: str, value: float, unit: str) -> None:
            results.row(NAME, case, 1, metric, value, unit, **facts)

        row("accepted a second", outcome.accepted_rate, "jobs/s")
        row("done a second", outcome.acked_rate, "jobs/s")
        for percent in (50, 99, 99.9):
            row(f"enqueue p{percent:g}", 1e3 * outcome.producers.latency.percentile(percent), "ms")
            row(f"claim p{percent:g}", 1e3 * outcome.claims.percentile(percent), "ms")
        for place, word in enumerate(("second quarter", "last quarter")):
            row(f"depth, {word}", outcome.depth[place], "jobs")
            row(f"memory, {word}", result.rss[place] / 2**20, "MiB")
            row(f"open files, {word}", result.descriptors[place], "files")
        row("kills", result.kills, "kills")
        row("exit code", outcome.exit_code, "")
        for part, cores in outcome.cpu.items():
            row(f"cpu of {part}", cores, "cores")
        for name in ("accepted", "effects", "dead", "lost", "unfinished", "doubled", "redelivered", "unknown"):
            row(name, getattr(verdict, name), "jobs")
            if result.spark is not None:
                row(f"{name}, by Spark", getattr(result.spark, name), "jobs")
        for sample in outcome.samples:
            results.sample(NAME, case, 1, sample.at, **{name: getattr(sample, name) for name in _SERIES})
        results.finish(NAME, case, 1)


class _Chaos:
    """Called again and again while the load lasts."""

    def __init__(self, headline: Headline, directory: Path, say: Callable[[str], None]) -> None:
        self._every = headline.kill_every
        self._rng = random.Random(headline.trial.seed)
        self._say = say
        self._out = directory / PICTURE
        self._began = time.monotonic()
        self._next = self._began + self._every
        self._picture_at = self._began + headline.trial.seconds / 2 if headline.picture else float("inf")
        self._followed = min(_MAX_FOLLOWED, headline.trial.seconds / 4)
        self._camera: Thread | None = None
        self.kills = 0

    def __call__(self, fleet: Fleet, lab_server: LabServer) -> None:
        now = time.monotonic()
        if self._every and now >= self._next:
            self._next = now + self._every * self._rng.uniform(0.7, 1.3)
            if pid := fleet.kill_one(self._rng):
                self.kills += 1
                self._say(f"{now - self._began:6.0f} s  kill -9 {pid}")
        if now >= self._picture_at:
            self._picture_at = float("inf")
            self._camera = Thread(target=self._photograph, args=(lab_server.url,), name="camera")
            self._camera.start()

    def _photograph(self, url: str) -> None:
        try:
            take_screenshot(url, self._out, self._followed)
        except (BrowserMissing, ForebayError, OSError) as error:
            self._say(f"no picture of the dashboard: {error}")

    def pictured(self) -> str:
        """Where the picture is; nothing where there is none."""
        if self._camera is not None:
            self._camera.join()
        return str(self._out) if self._out.exists() else ""


def _quarters(values: Sequence[float]) -> tuple[float, float]:
    """The medians of the second and of the last quarter."""
    size = max(1, len(values) // 4)
    return float(statistics.median(values[size : 2 * size] or [0])), float(statistics.median(values[-size:] or [0]))
