"""Experiment 7: one job in twenty never works. What becomes of it, and what it costs the others."""

from typing import Final

from forebay.core.job import State
from forebay.store.protocol import Query
from forebay_proof.lab.experiments.backlogs import depth, mixed_drafts, seeded
from forebay_proof.lab.experiments.base import (
    Chart,
    Conclusion,
    Experiment,
    ExperimentCase,
    ExperimentResults,
    ExperimentScale,
    missing,
    ratio,
    rounds_of,
    zero,
)
from forebay_proof.lab.experiments.stage import Stage
from forebay_proof.lab.experiments.window import FleetWindow
from forebay_proof.load.app import QUEUE, SPEC
from forebay_proof.load.generator import Load
from forebay_proof.load.handler_log import by_seq
from forebay_proof.load.mix import MAX_ATTEMPTS, MIXES, Mix

_SHAPE: Final = {"processes": 2, "concurrency": 500, "claim_batch": 200}
_MIXES: Final = {"healthy": Mix((("idle", 100),)), "poisoned": Mix((("idle", 95), ("poison", 5)))}
_AT_RATE: Final = {"healthy": MIXES["fast"], "poisoned": MIXES["poison"]}
_PATIENCE: Final = 90.0


def _cases(scale: ExperimentScale) -> list[ExperimentCase]:
    jobs = {"quick": 30_000, "full": 300_000, "release": 1_000_000}[scale]
    rate, seconds = {"quick": (1_000, 4), "full": (4_000, 15), "release": (5_000, 60)}[scale]
    cases = []
    for store in ("postgres",) if scale == "quick" else ("postgres", "redis"):
        for mix in _MIXES:
            size = jobs if store == "postgres" else jobs // 3
            settings = {**_SHAPE, "jobs": size, "mix": mix, "load": "flat out"}
            cases.append(
                ExperimentCase(f"{store}-flat-out-{mix}", store, settings, 6 + size / 12_000, rounds_of(scale, store))
            )
    for mix in _AT_RATE:
        settings = {**_SHAPE, "rate": rate, "seconds": seconds, "mix": mix, "load": "at a rate"}
        cases.append(
            ExperimentCase(f"postgres-at-rate-{mix}", "postgres", settings, 8 + seconds, rounds_of(scale, "postgres"))
        )
    return cases


def _run(case: ExperimentCase, stage: Stage) -> None:
    given = case.settings
    lab_server = stage.lab_server()
    app = stage.app(lab_server)
    app.store.put_spec(SPEC)
    shape = {name: given[name] for name in _SHAPE}
    if given["load"] == "flat out":
        mix, jobs = _MIXES[given["mix"]], given["jobs"]
        seeded(app, mixed_drafts(mix, stage.seed, jobs))
        tallied = stage.fleet(lab_server, **shape, starts=True)
        window = FleetWindow(stage, lab_server, tallied)
    else:
        mix = _AT_RATE[given["mix"]]
        tallied = stage.fleet(lab_server, **shape, starts=True)
        window = FleetWindow(stage, lab_server, tallied)
        schedule = {name: given[name] for name in ("rate", "seconds")}
        load = Load(lab_server.url, **schedule, directory=stage.directory, mix=mix, seed=stage.seed)
        with load:
            load.start()
            jobs = load.wait().accepted
    stage.wait_until(lambda: depth(app) == 0, _PATIENCE, "the end of all jobs", 0.1)
    window.close()
    poison = {seq for seq in range(jobs) if mix.kind(stage.seed, seq) == "poison"}
    times = sorted(each[0][1] for each in by_seq(stage.effects).values())
    low, high = times[len(times) // 20], times[-1 - len(times) // 20]
    stage.record("healthy", 0.9 * len(times) / max(1e-6, high - low), "jobs/s")
    stage.record("healthy missing", jobs - len(poison) - len(times), "jobs")
    runs = by_seq(stage.starts)
    stage.record("poison runs", sum(len(runs.get(seq, ())) for seq in poison) / max(1, len(poison)), "runs")
    _letters(stage, app.jobs(Query(queue=QUEUE, state=State.DEAD)), poison)


def _letters(stage: Stage, jobs: object, poison: set[int]) -> None:
    """Every poison is a dead letter with exactly its attempts used, and no other job is."""
    allowed = MAX_ATTEMPTS["poison"]
    dead = {job.payload["seq"]: job for job in jobs}  # type: ignore[attr-defined]
    stage.record("poison not dead", len(poison - dead.keys()), "jobs")
    stage.record("dead but not poison", len(dead.keys() - poison), "jobs")
    wrong = sum(job.attempt != allowed or len(job.errors) != allowed for job in dead.values())
    stage.record("wrong attempts", wrong, "jobs")


def _judge(found: ExperimentResults) -> list[Conclusion]:
    sentences = [
        zero(found, "poison not dead", "poison that is no dead letter"),
        zero(found, "dead but not poison", "dead letters that are no poison"),
        zero(found, "wrong attempts", "dead letters with more or fewer attempts than allowed"),
        zero(found, "healthy missing", "healthy jobs without an effect"),
    ]
    rate = ratio(found, ("postgres-at-rate-poisoned", "healthy"), ("postgres-at-rate-healthy", "healthy"))
    if rate is None:
        sentences.append(missing("a rate with and without poison"))
    else:
        sentence = f"at a fixed rate the healthy run at {rate / 0.95:.0%} of what they do alone, goal 90 %"
        sentences.append(Conclusion(sentence, rate / 0.95 >= 0.9))
    for store in ("postgres", "redis"):
        flat = ratio(found, (f"{store}-flat-out-poisoned", "healthy"), (f"{store}-flat-out-healthy", "healthy"))
        if flat is not None:
            sentences.append(
                Conclusion(
                    f"{store}, flat out: {flat:.0%} of the healthy throughput; one job in twenty that fails three "
                    "times costs so much CPU"
                )
            )
    return sentences


EXPERIMENT: Final = Experiment(
    7,
    "Dead letters under poison",
    "Poison ends in the dead letters after exactly the allowed attempts; below the ceiling the others do not notice. "
    "At the ceiling each failure costs CPU: a try, an error that is described, a wait.",
    "CPU: what a failed run costs the worker and the server, three times for each poison.",
    _cases,
    _run,
    _judge,
    (
        Chart("Healthy, flat out", "Jobs a second with an effect.", "healthy", "/s", "mix", only={"load": "flat out"}),
        Chart(
            "Healthy, at a rate", "Jobs a second with an effect.", "healthy", "/s", "mix", only={"load": "at a rate"}
        ),
        Chart(
            "CPU of the workers", "Microseconds a run, flat out.", "workers", " µs", "mix", only={"load": "flat out"}
        ),
    ),
)
