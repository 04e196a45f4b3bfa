"""Experiment 1: throughput over workers. Idle jobs, a backlog that never runs dry, 16 … 1024 claimers."""

from typing import Final

from forebay_proof.lab.experiments.backlogs import flat_out
from forebay_proof.lab.experiments.base import (
    Chart,
    Conclusion,
    Experiment,
    ExperimentCase,
    ExperimentResults,
    ExperimentScale,
    missing,
    rounds_of,
)
from forebay_proof.lab.experiments.stage import Stage

_SWEEP: Final = {16: (1, 16), 64: (1, 64), 256: (4, 64), 512: (8, 64), 1024: (16, 64)}
_LAYOUTS: Final = ((1, 512), (2, 256), (4, 128))
"""Of 512, beside 8 × 64."""

_QUICK: Final = {"postgres": (16, 64, 512), "redis": (64, 512), "sqlite": (64,)}
_FULL: Final = {"postgres": (16, 64, 256, 512, 1024), "redis": (16, 64, 256, 512, 1024), "sqlite": (16, 64, 256)}
_BACKLOG: Final = {"postgres": 60_000, "redis": 60_000, "sqlite": 25_000}
"""Jobs a second that no fleet here works off."""

_NEAR: Final = 0.9


def _case(store: str, processes: int, concurrency: int, scale: ExperimentScale) -> ExperimentCase:
    seconds, warm_up = {"quick": (1.5, 0.5), "full": (5.0, 2.0), "release": (15.0, 5.0)}[scale]
    jobs = round(_BACKLOG[store] * (seconds + 2 * warm_up))
    settings = {
        "workers": processes * concurrency,
        "processes": processes,
        "concurrency": concurrency,
        "claim_batch": 100,
        "jobs": jobs,
        "seconds": seconds,
        "warm_up": warm_up,
        "layout": f"{processes}×{concurrency}",
    }
    takes = seconds + warm_up + 2.5 + 0.45 * processes + jobs / 100_000
    return ExperimentCase(f"{store}-{processes}x{concurrency}", store, settings, takes, rounds_of(scale, store))


def _cases(scale: ExperimentScale) -> list[ExperimentCase]:
    chosen = _QUICK if scale == "quick" else _FULL
    cases = [_case(store, *_SWEEP[workers], scale) for store, sweep in chosen.items() for workers in sweep]
    layouts = _LAYOUTS[1:2] if scale == "quick" else _LAYOUTS
    return cases + [_case("postgres", processes, concurrency, scale) for processes, concurrency in layouts]


def _run(case: ExperimentCase, stage: Stage) -> None:
    names = ("jobs", "processes", "concurrency", "claim_batch", "warm_up", "seconds")
    flat_out(stage, **{name: case.settings[name] for name in names})


def _judge(found: ExperimentResults) -> list[Conclusion]:
    sentences = []
    for store in ("postgres", "redis", "sqlite"):
        rates = found.of("jobs/s", store=store)
        if not rates:
            continue
        best = max(rates, key=lambda case: rates[case].median)
        near = [case for case in rates if rates[case].median >= _NEAR * rates[best].median]
        knee = min(near, key=lambda case: found.cases[case]["workers"])
        busy = found.value(best, "machine") or 0.0
        server, workers = found.value(best, "server") or 0.0, found.value(best, "workers") or 0.0
        sentences.append(
            Conclusion(
                f"{store}: {rates[best].median:,.0f} jobs/s at best ({best}), within a tenth of it from "
                f"{found.cases[knee]['workers']} workers on; the machine was {busy:.0f} % busy, a job took "
                f"{server:.0f} µs of the server's CPU and {workers:.0f} of the workers'"
            )
        )
    layouts = found.of("jobs/s", store="postgres", workers=512)
    wide = layouts.get("postgres-8x64")
    if wide is None or len(layouts) < 2:
        return [*sentences, missing("8 × 64 beside another layout of 512")]
    share = wide.median / max(cell.median for cell in layouts.values())
    return [*sentences, Conclusion(f"8 × 64 claimers reach {share:.0%} of the best layout, goal 80 %", share >= 0.8)]


EXPERIMENT: Final = Experiment(
    1,
    "Throughput over workers",
    "More workers help until the cores are busy; then claimers cost each other little, because they skip locked rows "
    "and a claim takes a hundred jobs. Without handlers that wait, the ceiling comes with the first processes.",
    "CPU: the machine is busy to the last core at the knee, and no session waits for a lock (evidence/…). Experiment 2 "
    "takes the suspects away one by one.",
    _cases,
    _run,
    _judge,
    (
        Chart("Jobs a second", "Idle jobs, claims of 100, one queue.", "jobs/s", "/s", "workers"),
        Chart("Claim p99", "As a worker sees it, verdicts of the jobs before included.", "claim p99", " ms", "workers"),
        Chart("CPU of the server", "Microseconds a job.", "server", " µs", "workers"),
        Chart("CPU of the workers", "Microseconds a job.", "workers", " µs", "workers"),
        Chart("512 claimers by layout", "Postgres.", "jobs/s", "/s", "layout", only={"workers": 512}),
    ),
)
