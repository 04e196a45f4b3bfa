"""The tables of the headline in docs/internals/findings.md are those of docs/results/headline, row by row."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay_proof.lab.experiments.base import ExperimentResults
from forebay_proof.lab.headline import NAME as HEADLINE
from tests.docs.curves import results_of

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "findings.md"
FOUND = results_of(HEADLINE, HEADLINE)
TABLES = {
    "fast": ("## The headline\n", "**Five million"),
    "s1": ("**With the mix of a busy day**", "## The ten experiments\n"),
}
"""Where the table of a mix begins and ends."""

QUARTERS = ("second quarter", "last quarter")
RUNS = [case for case in FOUND.cases if "rate" in FOUND.cases[case]]


def phrases(found: ExperimentResults, case: str) -> Iterator[str]:
    """What the table has to say of a run."""

    def value(metric: str) -> float:
        return found.cells[case, metric].median

    done = value("done a second")
    yield f"| {value('accepted'):,.0f}; "
    yield f"{value('kills'):.0f} workers killed"
    yield f"{done:,.0f}"
    yield f"| {value('lost'):.0f}, {value('doubled'):.0f}"
    yield f"{value('redelivered'):,.0f} redelivered"
    if dead := value("dead"):
        yield f"{dead:,.0f} dead letters"
    second, last = (f"{value(f'depth, {quarter}'):,.0f}" for quarter in QUARTERS)
    yield f"{second} open in the second quarter, {last} in the last"
    second, last = (f"{value(f'memory, {quarter}'):.0f}" for quarter in QUARTERS)
    yield f"| {second} to {last} MiB, "
    yield f" MiB, {value('open files, last quarter'):.0f} throughout"
    for call in ("enqueue", "claim"):
        if (case, f"{call} p50") in found.cells:
            yield f"p50 {value(f'{call} p50'):.1f} ms, p99 {value(f'{call} p99'):.3g} ms"
    fleet, producer, server = (value(f"cpu of {part}") for part in ("fleet", "producers", "server"))
    costs = [f"{cores * 1e6 / done:.0f}" for cores in (fleet, producer, server)]
    yield f"{costs[0]} µs in the fleet, {costs[1]} in the producer, {costs[2]} in the server"
    yield f": {fleet + producer + server:.1f} of the two cores"


def table_of(mix: str) -> str:
    begin, end = TABLES[mix]
    return PAGE.read_text().partition(begin)[2].partition(end)[0]


@pytest.mark.parametrize("case", RUNS)
def test_the_table_of_a_long_run_is_that_of_its_results(case: str) -> None:
    table = table_of(case.split("-")[1])
    assert [phrase for phrase in phrases(FOUND, case) if phrase not in table] == []


@pytest.mark.parametrize("case", RUNS)
def test_what_spark_counted_is_what_was_seen(case: str) -> None:
    for name in ("accepted", "effects", "dead", "lost", "unfinished", "doubled", "redelivered", "unknown"):
        assert FOUND.value(case, f"{name}, by Spark") == FOUND.value(case, name), name
    assert FOUND.value(case, "exit code") == 0


def test_the_long_run_with_fast_jobs_and_the_drain_are_there() -> None:
    assert "postgres-fast-10000" in RUNS
    cold = {name: cell.median for (case, name), cell in FOUND.cells.items() if case == "postgres-cold"}
    text = PAGE.read_text().partition("**Five million")[2].partition("**With the mix")[0]
    wanted = [
        f"drained in {cold['drain time']:.1f} s",
        f"{round(cold['drained'], -2):,.0f} jobs/s",
        f"{round(cold['seeded'], -2):,.0f} jobs/s",
        f"{cold['effects']:,.0f} effects",
        "{:.0f} % of the two cores and the server {:.0f} %".format(cold["workers' share"], cold["server's share"]),
        f"{cold['workers']:.0f} and {cold['server']:.0f} µs a job",
    ]
    assert [phrase for phrase in wanted if phrase not in text] == []
    assert (cold["left"], cold["effects twice"]) == (0, 0)
