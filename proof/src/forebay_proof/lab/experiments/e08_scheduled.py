"""Experiment 8: how late scheduled jobs start while a deep backlog of the same queue is worked off."""

import random
import time
from typing import Final

from forebay.client import Forebay
from forebay.core.job import Draft
from forebay_proof.lab.experiments.backlogs import MAX_START, depth, seeded
from forebay_proof.lab.experiments.base import (
    Chart,
    Conclusion,
    Experiment,
    ExperimentCase,
    ExperimentResults,
    ExperimentScale,
    at_most,
    rounds_of,
    zero,
)
from forebay_proof.lab.experiments.stage import Stage
from forebay_proof.lab.experiments.window import FleetWindow
from forebay_proof.load.app import QUEUE
from forebay_proof.load.handler_log import by_seq

_SECOND: Final = 1_000_000
_MS: Final = 20
"""So long takes a job of the backlog: a slot comes free often enough."""

_FIRST: Final = 1_000_000_000
"""Seqs of scheduled jobs begin here."""

_QUICK: Final = {"postgres": (0, 100_000)}
_FULL: Final = {"postgres": (0, 10_000, 100_000, 1_000_000), "redis": (0, 200_000), "sqlite": (0, 200_000)}
_PER_STEP: Final = 10
_STEP: Final = 0.05


def _cases(scale: ExperimentScale) -> list[ExperimentCase]:
    ahead, seconds = {"quick": (1.5, 2.0), "full": (5.0, 10.0), "release": (5.0, 60.0)}[scale]
    depths = _QUICK if scale == "quick" else _FULL
    cases = []
    for store, backlogs in depths.items():
        for backlog in backlogs:
            settings = {"backlog": backlog, "ahead": ahead, "seconds": seconds, "processes": 2, "concurrency": 64}
            takes = 6 + ahead + seconds + backlog / 60_000
            cases.append(ExperimentCase(f"{store}-{backlog}", store, settings, takes, rounds_of(scale, store)))
    return cases


def _run(case: ExperimentCase, stage: Stage) -> None:
    given = case.settings
    lab_server = stage.lab_server()
    app = stage.app(lab_server)
    body = b'{"seq":%d,"ms":%d}'
    seeded(app, (Draft("fast", queue=QUEUE, body=body % (seq, _MS)) for seq in range(given["backlog"])))
    tallied = stage.fleet(lab_server, **{name: given[name] for name in ("processes", "concurrency")})
    if given["backlog"]:
        stage.wait_until(lambda: tallied.claimed() > 0, MAX_START, "the first job")
    before = depth(app)
    window = FleetWindow(stage, lab_server, tallied)
    due = _schedule(app, random.Random(stage.seed), given["ahead"], given["seconds"])
    time.sleep(given["ahead"] + 1.0)
    window.close()
    after = depth(app)
    done = by_seq(stage.effects)
    late = sorted(done[seq][0][1] - at for seq, at in due.items() if seq in done)
    stage.record("scheduled", len(due), "jobs")
    stage.record("not fired", len(due) - len(late), "jobs")
    stage.record("fired twice", sum(len(done[seq]) > 1 for seq in due if seq in done), "jobs")
    stage.record("depth before", before, "jobs")
    stage.record("depth after", after, "jobs")
    for percent in (50, 99, 100):
        stage.record(f"late p{percent}", 1e3 * late[min(len(late) - 1, len(late) * percent // 100)], "ms")
    stage.record("too early", sum(each < -0.001 for each in late), "jobs")


def _schedule(app: Forebay, rng: random.Random, ahead: float, seconds: float) -> dict[int, float]:
    """A few at a time, due at random moments around `ahead` seconds from then; their seqs and moments."""
    due: dict[int, float] = {}
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        moments = [time.time() + ahead + rng.uniform(0, _STEP) for _ in range(_PER_STEP)]
        first = _FIRST + len(due)
        app.store.enqueue(
            [
                Draft("idle", {"seq": first + n, "ms": 0}, QUEUE, run_at=round(moment * _SECOND))
                for n, moment in enumerate(moments)
            ]
        )
        due |= {first + n: moment for n, moment in enumerate(moments)}
        time.sleep(_STEP)
    return due


def _judge(found: ExperimentResults) -> list[Conclusion]:
    deep = max((settings["backlog"] for settings in found.cases.values()), default=0)
    sentences = [at_most(found, "late p99", 1_000.0, "lateness p99")]
    if deep:
        claim = f"lateness p99 behind a backlog of {deep:,}"
        sentences.append(at_most(found, "late p99", 1_000.0, claim, backlog=deep))
    sentences += [
        zero(found, "not fired", "scheduled jobs that did not run"),
        zero(found, "fired twice", "fired twice"),
    ]
    return [*sentences, zero(found, "too early", "jobs that ran before their time")]


EXPERIMENT: Final = Experiment(
    8,
    "Scheduled latency at depth",
    "A job that is due goes before those that were never delayed, however many there are: lateness is the time until a "
    "slot is free and a claim is made, and does not grow with the backlog.",
    "The length of the running jobs: a slot must come free, and a claim be made. Depth costs one index lookup.",
    _cases,
    _run,
    _judge,
    (
        Chart("Lateness p99", "From due to done, milliseconds.", "late p99", " ms", "backlog"),
        Chart("Lateness p50", "From due to done, milliseconds.", "late p50", " ms", "backlog"),
    ),
)
