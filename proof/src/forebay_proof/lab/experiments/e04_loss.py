"""Experiment 4: the job-loss test. A steady load, `kill -9` of workers all the while, and the count afterwards."""

import os
import random
import signal
import time
from contextlib import suppress
from typing import Any, Final

from forebay_proof.histogram import percentile
from forebay_proof.lab.audit import audit, audit_quickly
from forebay_proof.lab.experiments.backlogs import depth
from forebay_proof.lab.experiments.base import (
    Chart,
    Conclusion,
    Experiment,
    ExperimentCase,
    ExperimentResults,
    ExperimentScale,
    TimeChart,
    missing,
    zero,
)
from forebay_proof.lab.experiments.stage import Stage
from forebay_proof.lab.watch import Watch
from forebay_proof.load.app import QUEUE, SPEC
from forebay_proof.load.fleet import Fleet
from forebay_proof.load.generator import Load
from forebay_proof.load.handler_log import read_records
from forebay_proof.load.mix import parse_mix

_MIX: Final = "s1@0.1"
_RATES: Final = {
    "quick": {"postgres": 500, "redis": 500, "sqlite": 200},
    "full": {"postgres": 1_000, "redis": 1_500, "sqlite": 500},
}
"""What a fleet holds that loses a process every two seconds: behind a backlog, a recovery is the age of the backlog."""

_LEASE: Final = 2.0
_WARY: Final = 5.0
"""New processes start, and reap nothing for three seconds: others may just have had an outage."""

_CERTAIN: Final = ("fast", "slow")
"""Kinds that always have an effect: a start without one is a start that was cut off."""

_MAX_DRAIN: Final = 120.0


def _cases(scale: ExperimentScale) -> list[ExperimentCase]:
    seconds, every, rounds = {"quick": (6, 1.0, 1), "full": (40, 2.0, 1), "release": (300, 2.0, 2)}[scale]
    cases = []
    for store, rate in _RATES["quick" if scale == "quick" else "full"].items():
        settings: dict[str, Any] = {
            "rate": rate,
            "seconds": seconds,
            "every": every,
            "victim": "worker",
            "mix": _MIX,
            "lease": _LEASE,
        }
        settings |= {
            "recovery": _LEASE + 1,
            "processes": 3,
            "concurrency": 256,
            "spark": scale != "quick" and store == "postgres",
        }
        cases.append(ExperimentCase(f"{store}-worker", store, settings, seconds + 12 + 60 * settings["spark"], rounds))
    settings = {
        **cases[0].settings,
        "recovery": _LEASE + _WARY + 1,
        "victim": "all",
        "every": 4.0 if scale == "quick" else 2 * _WARY,
        "rate": cases[0].settings["rate"] // 2,
        "spark": False,
    }
    return [*cases, ExperimentCase("postgres-all", "postgres", settings, seconds + 14, rounds)]


def _run(case: ExperimentCase, stage: Stage) -> None:
    given, mix = case.settings, parse_mix(case.settings["mix"])
    lab_server = stage.lab_server()
    app = stage.app(lab_server)
    app.store.put_spec(SPEC)
    shape = {name: given[name] for name in ("processes", "concurrency", "lease")}
    fleet = stage.fleet(lab_server, **shape, starts=True).fleet
    shape = {name: given[name] for name in ("rate", "seconds")}
    load = Load(lab_server.url, **shape, directory=stage.directory, mix=mix, seed=stage.seed, keys=True)
    began = time.monotonic()
    with load, Watch(lab_server.url, fleet=fleet, load=load, lab_server=lab_server) as watch:
        load.start()
        kills = _kill(fleet, load, random.Random(stage.seed), given["every"], given["victim"])
        report = load.wait()
        fleet.start()
        stage.wait_until(lambda: depth(app) == 0, _MAX_DRAIN, "the end of all jobs", 0.2)
    code = fleet.stop()
    for sample in watch.samples:
        for name in ("depth", "workers", "accepted", "acked"):
            if (value := getattr(sample, name)) is not None:
                stage.sample(name, began + sample.at, value)
    stage.record("kills", len(kills), "kills")
    stage.record("exit code", code, "")
    stage.record("enqueue p99", 1e3 * report.latency.percentile(99), "ms")
    _prove(case, stage, load, lab_server.url, len(kills))
    _recovery(case, stage, kills)


def _kill(fleet: Fleet, load: Load, rng: random.Random, every: float, victim: str) -> list[tuple[int, float]]:
    """Until the load has ended: pids and moments."""
    kills: list[tuple[int, float]] = []
    due = time.monotonic() + 1.0 + every
    while load.running():
        if time.monotonic() < due:
            time.sleep(0.02)
            continue
        due = time.monotonic() + every * rng.uniform(0.7, 1.3)
        pids = fleet.workers()
        if victim == "all":
            pids += [fleet.kill_supervisor()]
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            kills += [(pid, time.time()) for pid in pids]
            fleet.start()
        elif pid := fleet.kill_one(rng):
            kills.append((pid, time.time()))
    return kills


def _prove(case: ExperimentCase, stage: Stage, load: Load, url: str, kills: int) -> None:
    from forebay.store.open import open_store

    store = open_store(url)
    try:
        given: dict[str, Any] = {"min_jobs": 100, "faults": kills, "min_faults": 2}
        verdict = audit_quickly(load.receipts, stage.effects, store, queue=QUEUE, **given)
    finally:
        store.close()
    stage.say(f"{verdict.answer}: {verdict.accepted:,} accepted, {verdict.lost} lost, {verdict.doubled} doubled")
    for name in (
        "accepted",
        "effects",
        "dead",
        "lost",
        "unfinished",
        "doubled",
        "redelivered",
        "unexpected",
        "unknown",
    ):
        stage.record(name, getattr(verdict, name), "jobs")
    stage.record("passed", float(verdict.answer == "PASS"), "")
    if case.settings["spark"]:
        lake = stage.directory / "lake"
        output = audit(load.receipts, stage.effects, url, lake, **given)
        stage.say(
            f"{output.answer} on Spark: {output.lost} lost, {output.doubled} doubled, {output.redelivered} redelivered"
        )
        stage.record("passed on Spark", float(output.answer == "PASS"), "")


def _recovery(case: ExperimentCase, stage: Stage, kills: list[tuple[int, float]]) -> None:
    """From the kill of a process to the next start of what it had started and not finished."""
    mix = parse_mix(case.settings["mix"])
    killed = dict(kills)
    done = {(line.seq, line.delivery) for line in read_records(stage.effects)}
    starts = [line for line in read_records(stage.starts) if mix.kind(stage.seed, line.seq) in _CERTAIN]
    held = {line.seq: line for line in starts if line.pid in killed and (line.seq, line.delivery) not in done}
    at = {line.seq: killed[line.pid] for line in starts if held.get(line.seq) == line}
    again: dict[int, float] = {}
    for line in starts:
        if line.seq in held and line.delivery > held[line.seq].delivery:
            again[line.seq] = min(again.get(line.seq, line.seconds), line.seconds)
    lengths = [again[seq] - at[seq] for seq in again]
    stage.record("cut off", len(held), "jobs")
    stage.record("cut off and never again", len(held.keys() - again.keys()), "jobs")
    if lengths:
        stage.record("recovery p50", percentile(lengths, 50), "s")
        stage.record("recovery p99", percentile(lengths, 99), "s")


def _judge(found: ExperimentResults) -> list[Conclusion]:
    if not found.of("lost"):
        return [missing("a run with kills")]
    accepted, kills, again = (found.total(name) for name in ("accepted", "kills", "redelivered"))
    sentences = [
        Conclusion(
            f"{accepted:,.0f} jobs accepted, {kills:,.0f} processes killed with -9, {again:,.0f} effects redelivered"
        ),
        zero(found, "lost", "accepted jobs that are neither done nor dead"),
        zero(found, "doubled", "effects that one delivery applied twice, or two jobs for one seq"),
        zero(found, "unfinished", "jobs left open"),
        zero(found, "cut off and never again", "jobs that were cut off and never ran again"),
    ]
    for case, cell in found.of("recovery p99").items():
        bound = found.cases[case]["recovery"]
        sentence = f"{case}: what a killed process held ran again within {cell.maximum:.2f} s (p99), goal {bound:g}"
        sentences.append(Conclusion(sentence, cell.maximum <= bound))
    passed = [cell.minimum for name in ("passed", "passed on Spark") for cell in found.of(name).values()]
    return [*sentences, Conclusion(f"{sum(passed):.0f} of {len(passed)} audits passed", all(passed))]


EXPERIMENT: Final = Experiment(
    4,
    "Job loss",
    "Nothing that was accepted is lost, however often workers are killed: what a dead process held is handed out again "
    "by its supervisor at once, or when its lease ends where no supervisor is left. Each effect is applied once.",
    "How often the supervisor polls its children bounds the recovery; the lease does where supervisors die too.",
    _cases,
    _run,
    _judge,
    (
        Chart("Recovery p99", "From the kill to the next start.", "recovery p99", " s", "victim"),
        Chart("Redelivered", "Jobs with effects by several deliveries.", "redelivered", "", "victim"),
    ),
    (
        TimeChart("Depth", "Jobs without an end.", ("depth",)),
        TimeChart("Workers", "Processes that live.", ("workers",)),
    ),
)
