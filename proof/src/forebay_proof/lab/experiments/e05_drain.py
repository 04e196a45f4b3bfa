"""Experiment 5: a deep backlog from a cold start, beside the same fleet while producers are at work too."""

import time
from typing import Final

from forebay_proof.lab.audit import Effect, NdjsonLines
from forebay_proof.lab.experiments.backlogs import at_work, depth, idle_drafts, seeded
from forebay_proof.lab.experiments.base import (
    Chart,
    Conclusion,
    Experiment,
    ExperimentCase,
    ExperimentResults,
    ExperimentScale,
    TimeChart,
    missing,
    rounds_of,
)
from forebay_proof.lab.experiments.stage import Stage
from forebay_proof.lab.experiments.window import FleetWindow
from forebay_proof.load.app import QUEUE, SPEC
from forebay_proof.load.generator import Load
from forebay_proof.load.mix import MIXES

_SHAPE: Final = {"processes": 2, "concurrency": 2_000, "claim_batch": 1_000}
_JOBS: Final = {
    "quick": {"postgres": 100_000, "redis": 60_000, "sqlite": 30_000},
    "full": {"postgres": 1_000_000, "redis": 500_000, "sqlite": 200_000},
    "release": {"postgres": 5_000_000, "redis": 1_000_000, "sqlite": 1_000_000},
}
_SLOWEST: Final = {"postgres": 12_000, "redis": 8_000, "sqlite": 4_000}
"""Jobs a second below which something is wrong."""

_LOOK_EVERY: Final = 0.5


def cold_case(store: str, jobs: int, *, rounds: int = 1, proof: bool = False) -> ExperimentCase:
    """`proof`: every handler testifies, and every effect is counted."""
    takes = 5 + jobs / 80_000 + jobs / (30_000 if store != "sqlite" else 10_000)
    settings = {**_SHAPE, "jobs": jobs, "flow": "drain", "proof": proof}
    return ExperimentCase(f"{store}-cold", store, settings, takes, rounds)


def _cases(scale: ExperimentScale) -> list[ExperimentCase]:
    cases = [cold_case(store, jobs, rounds=rounds_of(scale, store)) for store, jobs in _JOBS[scale].items()]
    seconds = {"quick": 3.0, "full": 15.0, "release": 60.0}[scale]
    for store in ("postgres",) if scale == "quick" else ("postgres", "redis"):
        settings = {**_SHAPE, "seconds": seconds, "flow": "steady"}
        cases.append(ExperimentCase(f"{store}-steady", store, settings, seconds + 6, rounds_of(scale, store)))
    return cases


def _run(case: ExperimentCase, stage: Stage) -> None:
    if case.settings["flow"] == "drain":
        cold(case, stage)
    else:
        _steady(case, stage)


def cold(case: ExperimentCase, stage: Stage) -> bool:
    """Whether all are done, each once. The clock starts with the fleet's first process, Python's own start included."""
    jobs, proof = case.settings["jobs"], case.settings["proof"]
    lab_server = stage.lab_server()
    app = stage.app(lab_server)
    took = seeded(app, idle_drafts(jobs))
    stage.record("seeded", jobs / took, "jobs/s")
    began = time.monotonic()
    tallied = stage.fleet(lab_server, **{name: case.settings[name] for name in _SHAPE}, effects=proof)
    window = FleetWindow(stage, lab_server, tallied)
    deadline = began + 30 + jobs / _SLOWEST[case.store]
    while (left := depth(app)) and time.monotonic() < deadline:
        stage.sample("left", time.monotonic(), left)
        time.sleep(_LOOK_EVERY)
    seconds = time.monotonic() - began
    stage.sample("left", time.monotonic(), left)
    window.close()
    (end,) = app.backlog(QUEUE)
    stage.record("left", left, "jobs")
    stage.record("drained", (jobs - left) / seconds, "jobs/s")
    stage.record("drain time", seconds, "s")
    stage.record("dead", end.dead, "jobs")
    return not left and not end.dead and (not proof or _each_once(stage, jobs))


def _each_once(stage: Stage, jobs: int) -> bool:
    """Every seq has its effect, and none has two."""
    done = bytearray(jobs)
    twice = 0
    for lines in NdjsonLines(stage.effects, "effects").read(Effect):
        for line in lines:
            twice += done[line.seq]
            done[line.seq] = 1
    stage.record("effects", sum(done), "jobs")
    stage.record("effects twice", twice, "jobs")
    return sum(done) == jobs and not twice


def _steady(case: ExperimentCase, stage: Stage) -> None:
    """One producer, as fast as its batches are taken, and the same fleet."""
    lab_server = stage.lab_server()
    app = stage.app(lab_server)
    app.store.put_spec(SPEC)
    tallied = stage.fleet(lab_server, **{name: case.settings[name] for name in _SHAPE}, effects=False)
    with Load(lab_server.url, jobs=10_000_000, directory=stage.directory, mix=MIXES["idle"], threads=2) as load:
        load.start()
        at_work(stage, tallied, case.settings["processes"])
        time.sleep(1.0)
        window, deep = FleetWindow(stage, lab_server, tallied), depth(app)
        time.sleep(case.settings["seconds"])
        rate, grown = window.close(), depth(app) - deep
        stage.record("drained", rate, "jobs/s")
        stage.record("depth grown", grown / case.settings["seconds"], "jobs/s")


def _judge(found: ExperimentResults) -> list[Conclusion]:
    sentences = []
    for store in ("postgres", "redis", "sqlite"):
        rate, seconds = found.value(f"{store}-cold", "drained"), found.value(f"{store}-cold", "drain time")
        if rate is None or seconds is None:
            continue
        jobs = found.cases[f"{store}-cold"]["jobs"]
        steady = found.value(f"{store}-steady", "drained")
        beside = f", {rate / steady:.1f} × what it does beside a producer" if steady else ""
        left = found.of("left", store=store)[f"{store}-cold"].maximum
        sentences.append(
            Conclusion(
                f"{store}: {jobs:,} jobs in {seconds:.1f} s, {rate:,.0f} a second{beside}; {left:,.0f} left", not left
            )
        )
    return sentences or [missing("a drain")]


EXPERIMENT: Final = Experiment(
    5,
    "Backlog drain",
    "A backlog drains faster than a steady flow runs on the same machine: no producer takes CPU, every claim is full, "
    "and rows of a hundred alike jobs are claimed whole.",
    "CPU of the two cores, as in experiment 2; the producer's share of it is the difference to the steady flow.",
    _cases,
    _run,
    _judge,
    (
        Chart("Drained", "Jobs a second, from a cold start and beside a producer.", "drained", "/s", "flow"),
        Chart("CPU of the workers", "Microseconds a job.", "workers", " µs", "flow"),
        Chart("CPU of the server", "Microseconds a job.", "server", " µs", "flow"),
    ),
    (TimeChart("Left", "Jobs that are still to be done.", ("left",)),),
)
