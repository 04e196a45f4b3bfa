"""The figures of the audit's benchmark, with the goals of the history's size, for `--json` and for recordings."""

from collections.abc import Iterator
from typing import Any

from forebay_proof.bench.audit_data import whole_periods

_RATIOS = {"cpu beside DuckDB": "<= 4 ×", "the last 1 %": "<= 0.1 ×"}
GOALS = {2_000_000: {"seconds": "<= 25", "cpu": "<= 45"} | _RATIOS, 12_000_000: {"seconds": "<= 120"} | _RATIOS}
"""By the jobs that they are about."""

_LINEAR = "<= 1.25 ×"
"""Of the CPU's growth beside that of the jobs."""


def figures_of(jobs: int, runs: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The figures of all runs of one history. Goals are given where it has as many jobs as they are about."""
    goals = next((own for size, own in GOALS.items() if jobs == whole_periods(size)), {})
    whole, duckdb_cpu = runs["audit"], runs["duckdb"]["cpu"]

    def figure(name: str, unit: str, value: float, baseline: str | None = None, base: float = 0.0) -> dict[str, Any]:
        head = f"audit/{jobs:,}/"
        known = {"name": head + name, "value": value, "unit": unit, "spread": [value, value], "rounds": 1}
        compared = {"baseline": baseline and head + baseline, "ratio": value / base if base else None}
        return known | compared | {"goal": goals.get(name, "")}

    yield figure("seconds", "s", whole["seconds"])
    yield figure("cpu", "CPU s", whole["all_cpu"])
    yield figure("cpu beside DuckDB", "CPU s", whole["all_cpu"], "duckdb", duckdb_cpu)
    yield figure("executors", "CPU s", whole["cpu"], "duckdb", duckdb_cpu)
    yield from (figure(name, "CPU s", cpu) for name, cpu in whole["stages"].items())
    yield figure("quick", "CPU s", runs["audit --quick"]["all_cpu"], "cpu", whole["all_cpu"])
    for name in ("the last 1 %", "nothing new"):
        yield figure(name, "CPU s", runs[name]["all_cpu"], "cpu", whole["all_cpu"])
    yield figure("spark alone", "CPU s", runs["spark alone"]["cpu"])
    yield figure("duckdb", "CPU s", duckdb_cpu)


def growth_of(cpu: dict[int, float]) -> Iterator[dict[str, Any]]:
    """How many times the CPU and the jobs of the larger history are those of the smaller one. `cpu`: by the jobs."""
    if len(cpu) < 2:
        return
    small, large = min(cpu), max(cpu)
    head = f"audit/{large:,}/"
    jobs, grown = large / small, cpu[large] / cpu[small]
    for name, value, baseline in (("growth of jobs", jobs, None), ("growth", grown, f"{head}growth of jobs")):
        known = {"name": head + name, "value": value, "unit": "×", "spread": [value, value], "rounds": 1}
        compared = {"baseline": baseline, "ratio": value / jobs if baseline else None}
        yield known | compared | {"goal": _LINEAR if baseline else ""}
