"""Experiment 3: throughput and latency over the jobs in one claim, and what big claims cost the others."""

from typing import Final

from forebay_proof.lab.experiments.backlogs import flat_out
from forebay_proof.lab.experiments.base import (
    Chart,
    Conclusion,
    Experiment,
    ExperimentCase,
    ExperimentResults,
    ExperimentScale,
    rounds_of,
)
from forebay_proof.lab.experiments.stage import Stage

_BATCHES: Final = (1, 10, 50, 200, 1_000)
_QUICK: Final = {"postgres": (1, 50, 1_000), "redis": (1, 200), "sqlite": (1, 200)}
_PROCESSES, _CONCURRENCY = 2, 1_000
_NEAR: Final = 0.9


def _backlog(store: str, batch: int) -> int:
    """Jobs a second that no fleet here works off: single claims are far slower, and seeding takes its time."""
    return min(80_000 if store != "sqlite" else 30_000, 8_000 + 2_000 * batch)


def _case(store: str, batch: int, scale: ExperimentScale) -> ExperimentCase:
    seconds, warm_up = {"quick": (1.5, 0.5), "full": (5.0, 2.0), "release": (15.0, 3.0)}[scale]
    jobs = round(_backlog(store, batch) * (seconds + 2 * warm_up))
    settings = {
        "claim_batch": batch,
        "processes": _PROCESSES,
        "concurrency": _CONCURRENCY,
        "jobs": jobs,
        "seconds": seconds,
        "warm_up": warm_up,
    }
    takes = seconds + warm_up + 4 + jobs / 100_000
    return ExperimentCase(f"{store}-{batch}", store, settings, takes, rounds_of(scale, store))


def _cases(scale: ExperimentScale) -> list[ExperimentCase]:
    chosen = _QUICK if scale == "quick" else dict.fromkeys(("postgres", "redis", "sqlite"), _BATCHES)
    return [_case(store, batch, scale) for store, batches in chosen.items() for batch in batches]


def _run(case: ExperimentCase, stage: Stage) -> None:
    names = ("jobs", "processes", "concurrency", "claim_batch", "warm_up", "seconds")
    flat_out(stage, **{name: case.settings[name] for name in names})


def _judge(found: ExperimentResults) -> list[Conclusion]:
    sentences = []
    for store in ("postgres", "redis", "sqlite"):
        rates = {found.cases[case]["claim_batch"]: case for case in found.of("jobs/s", store=store)}
        if len(rates) < 2:
            continue
        value = {batch: found.value(case, "jobs/s") or 0.0 for batch, case in rates.items()}
        best = max(value.values())
        knee = min(batch for batch in value if value[batch] >= _NEAR * best)
        one, most = min(value), max(value)
        p99 = {batch: found.value(case, "claim p99") or 0.0 for batch, case in rates.items()}
        even = found.value(rates[most], "evenness") or 0.0
        sentences.append(
            Conclusion(
                f"{store}: {value[one]:,.0f} jobs/s with claims of {one}, {best:,.0f} at best; the knee is at {knee}. "
                f"Claim p99 {p99[one]:.1f} ms at {one}, {p99[knee]:.1f} ms at the knee, {p99[most]:.1f} ms at {most}, "
                f"where the evenness between processes is {even:.2f}",
                value[knee] > value[one] or knee == one,
            )
        )
    return sentences


EXPERIMENT: Final = Experiment(
    3,
    "Jobs a claim",
    "A claim costs a round trip, a commit and a sync, whatever it brings: throughput grows with the batch until the "
    "work a job dominates. Beyond the knee a claim takes longer, holds more, and leaves less for the others.",
    "Below the knee the commit: microseconds of server CPU a job and syncs a job fall with the batch. Above it the CPU "
    "that a job costs by itself, which no batch takes away.",
    _cases,
    _run,
    _judge,
    (
        Chart("Jobs a second", "Two processes of 1,000 jobs each.", "jobs/s", "/s", "claim_batch"),
        Chart("Claim p99", "The price of a big claim.", "claim p99", " ms", "claim_batch"),
        Chart("CPU of the server", "Microseconds a job.", "server", " µs", "claim_batch"),
        Chart("Evenness", "Jain's index of the jobs by process; 1 is even.", "evenness", "", "claim_batch"),
    ),
)
