"""The contract of a store as cases: one body, any store. This is what "it is a Forebay store" means.

    from forebay_proof.conformance import run

    results = run(lambda clock: MyStore(clock=clock))
    assert not [result for result in results if result.status == "failed"]

The opener is given a `ManualClock` and opens the store on it; each case gets a fresh store. Some cases open a durable
store twice: its opener opens the same location each time, and `reset` moves on to an empty one between cases. A store
that owns its clock (a server) is run with `virtual_time=False`: the opener is given None, and time really passes.
From a shell: `python -m forebay_proof.conformance memory://`. Assertions must be on: never run it with `python -O`.
"""

from collections.abc import Callable
from fnmatch import fnmatchcase

from forebay_proof.conformance import (
    acceptance,
    bad_calls,
    bad_input,
    blocked_backlog,
    browsing,
    capacity,
    contract,
    costs,
    dead_letter_queues,
    dead_letters,
    explaining,
    gate_pages,
    gates,
    ingest,
    keys,
    lane_races,
    lanes,
    leases,
    ledger,
    ledger_keeping,
    lines,
    logs,
    logs_groups,
    logs_window,
    merging,
    milliseconds,
    observing,
    order,
    pipelining,
    presence,
    progress,
    queue_pages,
    quiet_period,
    rates,
    reclaiming,
    releasing,
    results,
    routing,
    schedules,
    settling,
    shares,
    shedding,
    threads,
    timing,
    turns,
    unique,
    watching,
)
from forebay_proof.conformance.case import Case, Need, case, case_if, refused
from forebay_proof.conformance.harness import Harness, Opener
from forebay_proof.conformance.runner import CaseResult, Status, run_cases

__all__ = [
    "Case",
    "Harness",
    "Need",
    "Opener",
    "CaseResult",
    "Status",
    "case",
    "case_if",
    "cases",
    "refused",
    "run",
]

_THEMES = (
    contract,
    acceptance,
    bad_input,
    bad_calls,
    keys,
    unique,
    order,
    pipelining,
    timing,
    milliseconds,
    leases,
    settling,
    results,
    reclaiming,
    watching,
    progress,
    gates,
    gate_pages,
    costs,
    rates,
    releasing,
    explaining,
    lines,
    shares,
    turns,
    lanes,
    lane_races,
    capacity,
    shedding,
    merging,
    quiet_period,
    routing,
    dead_letters,
    dead_letter_queues,
    blocked_backlog,
    ingest,
    schedules,
    logs,
    logs_groups,
    logs_window,
    browsing,
    observing,
    presence,
    queue_pages,
    ledger,
    ledger_keeping,
    threads,
)


def cases(only: str | None = None) -> list[Case]:
    """Every case, theme by theme; with a pattern (`a_lease*`, `theme/*`, or a part of a name) those that match."""
    every = [case for theme in _THEMES for case in vars(theme).values() if isinstance(case, Case)]
    return every if only is None else [case for case in every if _matches(case, only)]


def run(
    opener: Opener,
    *,
    reset: Callable[[], None] | None = None,
    only: str | None = None,
    virtual_time: bool = True,
    report: Callable[[CaseResult], None] | None = None,
) -> list[CaseResult]:
    """Check a store; `report` is called with each result."""
    results = []
    for result in run_cases(cases(only), opener, reset, virtual_time):
        results.append(result)
        if report is not None:
            report(result)
    return results


def _matches(case: Case, pattern: str) -> bool:
    full = f"{case.theme}/{case.name}"
    return pattern in full or fnmatchcase(case.name, pattern) or fnmatchcase(full, pattern)
