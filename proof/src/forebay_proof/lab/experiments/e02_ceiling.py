"""Experiment 2: the ceiling, named. At the knee the suspects are taken away one by one; then a load of a fixed rate."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Final

from forebay.core.ledger import LedgerRule
from forebay_proof.lab.experiments.backlogs import at_work, depth, idle_drafts, saturated, seeded
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
)
from forebay_proof.lab.experiments.stage import Stage, TalliedFleet
from forebay_proof.lab.experiments.window import FleetWindow
from forebay_proof.lab.lab_server import LabServer
from forebay_proof.load.app import QUEUE, SPEC
from forebay_proof.load.generator import Load
from forebay_proof.load.mix import MIXES
from forebay_proof.tally import FOLDER

_SHAPE: Final = {"processes": 2, "concurrency": 256, "claim_batch": 100}
_WITHOUT: Final = {
    "postgres": ("nothing", "a-core", "sync", "ledger", "workers"),
    "redis": ("nothing", "a-core", "sync", "workers"),
    "sqlite": ("nothing", "a-core", "workers"),
}
_RATES: Final = {"quick": (2_000, 8_000), "full": (2_500, 5_000, 10_000, 15_000, 20_000)}
_MAX_RATE: Final = {"postgres": 80_000, "redis": 80_000, "sqlite": 30_000}
_FLAT: Final = 0.5
"""Seconds' worth of jobs by which a depth may grow in a window and still count as flat."""


def _cases(scale: ExperimentScale) -> list[ExperimentCase]:
    seconds, warm_up = {"quick": (1.5, 0.5), "full": (5.0, 2.0), "release": (15.0, 5.0)}[scale]
    stores = {"postgres": ("nothing", "a-core", "sync"), "redis": ("nothing",)} if scale == "quick" else _WITHOUT
    cases = []
    for store, suspects in stores.items():
        jobs = round(_MAX_RATE[store] * (seconds + 2 * warm_up))
        for suspect in suspects:
            settings = {**_SHAPE, "without": suspect, "jobs": jobs, "seconds": seconds, "warm_up": warm_up}
            takes = seconds + 6 + jobs / 80_000
            cases.append(ExperimentCase(f"{store}-without-{suspect}", store, settings, takes, rounds_of(scale, store)))
    for rate in _RATES["quick" if scale == "quick" else "full"]:
        length = 2 * seconds
        settings = {**_SHAPE, "claim_batch": 500, "concurrency": 500, "rate": rate, "seconds": length, "mix": "fast"}
        cases.append(
            ExperimentCase(f"postgres-at-{rate}", "postgres", settings, length + 9, rounds_of(scale, "postgres"))
        )
    return cases


def _run(case: ExperimentCase, stage: Stage) -> None:
    if "rate" in case.settings:
        _steady(case, stage)
    else:
        with ExitStack() as stack:
            if case.settings["without"] == "a-core":
                stack.enter_context(stage.on_cores(1))
            _drained(case, stage)


def _drained(case: ExperimentCase, stage: Stage) -> None:
    given, without = case.settings, case.settings["without"]
    lab_server = stage.lab_server(unsynced=without == "sync")
    app = stage.app(lab_server)
    seeded(app, idle_drafts(given["jobs"]))
    if without == "ledger":
        app.store.put_ledger_rule(LedgerRule(on=False))
    if without == "workers":
        _bare(case, stage, lab_server)
        return
    shape = {name: given[name] for name in _SHAPE}
    tallied = stage.fleet(lab_server, **shape, queues=(QUEUE,), effects=False)
    at_work(stage, tallied, given["processes"])
    saturated(stage, lab_server, tallied, given["jobs"], given["warm_up"], given["seconds"])


class _Bare:
    """Claimers without workers, as a fleet."""

    def __init__(self, stage: Stage, lab_server: LabServer, count: int, batch: int) -> None:
        claims = stage.directory / "bare"
        claims.mkdir()
        env = {**os.environ, "FOREBAY_URL": lab_server.url, FOLDER: str(claims)}
        command = [sys.executable, "-m", "forebay_proof.load.claimer", QUEUE, str(batch)]
        self._running = [subprocess.Popen(command, env=env) for _ in range(count)]
        self.tallied = TalliedFleet(self, claims)

    def cpu_seconds(self) -> float:
        from forebay_proof.processes import cpu_seconds

        return cpu_seconds(process.pid for process in self._running)

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


def _bare(case: ExperimentCase, stage: Stage, lab_server: LabServer) -> None:
    given = case.settings
    bare = _Bare(stage, lab_server, given["processes"], given["claim_batch"])
    try:
        at_work(stage, bare.tallied, given["processes"])
        saturated(stage, lab_server, bare.tallied, given["jobs"], given["warm_up"], given["seconds"])
    finally:
        bare.close()


def _steady(case: ExperimentCase, stage: Stage) -> None:
    """Enqueue and process at a fixed rate, whether or not the store keeps up."""
    given = case.settings
    lab_server = stage.lab_server()
    app = stage.app(lab_server)
    app.store.put_spec(SPEC)
    tallied = stage.fleet(lab_server, **{name: given[name] for name in _SHAPE}, queues=(QUEUE,))
    load = Load(
        lab_server.url, rate=given["rate"], seconds=given["seconds"] + 3, directory=stage.directory, mix=MIXES["fast"]
    )
    with load:
        load.start()
        at_work(stage, tallied, given["processes"])
        time.sleep(1.0)
        window, deep = FleetWindow(stage, lab_server, tallied), depth(app)
        time.sleep(given["seconds"])
        rate, grown = window.close(), depth(app) - deep
        report = load.stop()
    stage.record("served", 100 * rate / given["rate"], "%")
    stage.record("depth grown", grown, "jobs")
    stage.record("enqueue p50", 1e3 * report.latency.percentile(50), "ms")
    stage.record("enqueue p99", 1e3 * report.latency.percentile(99), "ms")
    stage.record("missed", report.missed, "jobs")
    stage.record("flat", float(grown <= _FLAT * given["rate"] and not report.missed), "")


def _judge(found: ExperimentResults) -> list[Conclusion]:
    sentences = []
    for store, suspects in _WITHOUT.items():
        base = (f"{store}-without-nothing", "jobs/s")
        claim = []
        for suspect in suspects[1:]:
            times = ratio(found, (f"{store}-without-{suspect}", "jobs/s"), base)
            if times is not None:
                claim.append(f"without {suspect.replace('-', ' ')} {times:.2f} ×")
        if found.value(*base) is not None:
            busy = found.value(base[0], "machine") or 0.0
            sentences.append(
                Conclusion(
                    f"{store}: {found.value(*base):,.0f} jobs/s with {busy:.0f} % of the CPU; {', '.join(claim)}"
                )
            )
    core = ratio(found, ("postgres-without-a-core", "jobs/s"), ("postgres-without-nothing", "jobs/s"))
    if core is None:
        sentences.append(missing("Postgres with a core less"))
    else:
        sentences.append(Conclusion(f"CPU bounds Postgres: half the cores, {core:.2f} × the rate", core <= 0.7))
    return [*sentences, *_of_rates(found)]


def _of_rates(found: ExperimentResults) -> list[Conclusion]:
    flat = [case for case, cell in found.of("flat").items() if cell.minimum == 1]
    if not flat:
        return [missing("a rate with flat depth")]
    rates = {found.cases[case]["rate"]: case for case in flat}
    ceiling = max(rates)
    eased = rates[max((rate for rate in rates if rate <= 0.85 * ceiling), default=ceiling)]
    claim, enqueue = found.value(eased, "claim p99") or 0.0, found.value(eased, "enqueue p99") or 0.0
    return [
        Conclusion(f"enqueue and process together, depth stays flat up to {ceiling:,} jobs/s offered"),
        Conclusion(f"claim p99 {claim:.1f} ms at {found.cases[eased]['rate']:,} jobs/s, goal below 10", claim < 10),
        Conclusion(f"enqueue p99 {enqueue:.1f} ms from the intended instant there, goal below 25", enqueue < 25),
    ]


EXPERIMENT: Final = Experiment(
    2,
    "The ceiling, named",
    "The bound is the CPU of two cores, shared by server and workers, not locks and not the disk: with half the cores "
    "the rate halves, without syncs it hardly moves, and claimers without a worker show how much of it is Python.",
    "Each suspect is removed alone: a core, the sync of commits, the ledger, the worker around the claims. What "
    "changes the rate is the bound; wait events and syncs a second are recorded with it (evidence/…).",
    _cases,
    _run,
    _judge,
    (
        Chart("What is taken away", "Idle jobs, flat out, 2 × 256 workers.", "jobs/s", "/s", "without"),
        Chart("Machine", "How busy all cores were.", "machine", " %", "without"),
        Chart("Served", "Of the jobs offered, at a fixed rate.", "served", " %", "rate"),
        Chart("Enqueue p99", "From the instant at which it was due.", "enqueue p99", " ms", "rate"),
        Chart("Claim p99", "At a fixed rate.", "claim p99", " ms", "rate"),
    ),
)
