"""`forebay capacity`: exact arithmetic on a fixed bill, plans that grow with what is asked, and what is refused."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cli import main
from forebay.cli.capacity import CapacityPlan, Demand
from forebay.cli.job_bill import BillFigure, JobBill, job_bill, job_bills
from forebay.core.errors import Invalid
from tests.command_result import CommandResult

ROOT = Path(__file__).parents[2]
VALUES = {
    "producer_cpu": 10.0,
    "worker_cpu": 100.0,
    "server_cpu": 80.0,
    "payload_bytes": 100.0,
    "log_bytes": 400.0,
    "log_factor": 2.0,
    "ledger_bytes": 40.0,
    "waiting_bytes": 50.0,
    "waiting_factor": 1.5,
    "worker_memory": 64.0,
    "worker_connections": 4.0,
    "producer_connections": 2.0,
    "cell_rate": 10_000.0,
}


def fixed_bill(**changes: float) -> JobBill:
    figures: dict[str, Any] = {
        name: BillFigure(value, "unit", (value, value), 1, "the command", "2030-01-01", "the machine")
        for name, value in (VALUES | changes).items()
    }
    return JobBill("postgres", "fixed", **figures)


def planned(demand: Demand, **changes: float) -> dict[str, float]:
    return {line.name: line.value for line in CapacityPlan(demand, fixed_bill(**changes)).lines()}


def test_a_million_jobs_a_second_is_computed_exactly() -> None:
    demand = Demand(1_000_000, headroom=0.5, retention=timedelta(days=1), backlog=timedelta(seconds=10))
    assert planned(demand) == {
        "cells": 100,
        "cores of a cell's server": 2,
        "cores of all servers": 400,
        "worker processes, a core each": 200,
        "producer processes, a core each": 20,
        "memory of workers": 200 * 64 * 2**20,
        "log written": 400e6,
        "log of a cell": 4e6,
        "log of a cell in a day": 4e6 * 86_400,
        "replication traffic": 400e6,
        "ledger of a cell": 10_000 * 40 * 86_400,
        "backlog of a cell": 10_000 * 50 * 10,
        "disk of all servers": (10_000 * 40 * 86_400 + 10_000 * 50 * 10) * 200,
        "connections to a cell": 200 * 4 + 20 * 2,
        "sessions of a cell's server": 200,
        "memory of a cell's server": 2**30 + 200 * 10 * 2**20,
    }


def test_more_payload_costs_its_factors_and_less_costs_nothing() -> None:
    base = planned(Demand(1_000))
    larger = planned(Demand(1_000, payload=1_100))
    assert larger["log written"] == 1_000 * (400 + 1_000 * 2)
    assert larger["backlog of a cell"] == 1_000 * (50 + 1_000 * 1.5) * 3_600
    assert larger["ledger of a cell"] == base["ledger of a cell"]
    assert planned(Demand(1_000, payload=1)) == base


def test_one_copy_has_no_traffic_and_a_share_of_a_core_is_a_core() -> None:
    small = planned(Demand(1, copies=1))
    assert small["replication traffic"] == 0
    assert (small["cells"], small["cores of all servers"], small["worker processes, a core each"]) == (1, 1, 1)
    assert small["sessions of a cell's server"] == small["connections to a cell"] == 6


def test_a_core_that_is_full_to_the_last_digit_is_one_core() -> None:
    """0.6 cores of work at 0.6 of a core: the binary quotient is a little more than 1."""
    assert planned(Demand(6_000), worker_cpu=100.0)["worker processes, a core each"] == 1


@given(
    rates=st.tuples(st.integers(1, 10_000_000), st.integers(1, 10_000_000)),
    payload=st.integers(0, 100_000),
    copies=st.integers(1, 5),
    headroom=st.floats(0.05, 1.0),
)
def test_a_higher_rate_never_needs_less(rates: tuple[int, int], payload: int, copies: int, headroom: float) -> None:
    low, high = (
        planned(Demand(rate, payload=payload, copies=copies, headroom=headroom), cell_rate=20_000.0)
        for rate in sorted(rates)
    )
    whole = ("cells", "worker processes", "producer processes", "memory of workers", "log written", "replication")
    for name in low:
        if name.startswith(whole):
            assert high[name] >= low[name], name


@pytest.mark.parametrize(
    ("change", "grows"),
    [
        ({"payload": 5_000}, "log written"),
        ({"copies": 3}, "cores of all servers"),
        ({"headroom": 0.3}, "worker processes, a core each"),
        ({"retention": timedelta(days=30)}, "disk of all servers"),
        ({"backlog": timedelta(days=1)}, "disk of all servers"),
        ({"cell_rate": 5_000.0}, "cells"),
        ({"connections": 500}, "memory of a cell's server"),
    ],
)
def test_each_option_counts(change: dict[str, Any], grows: str) -> None:
    assert planned(Demand(1_000_000, **change))[grows] > planned(Demand(1_000_000))[grows]


def test_more_cells_than_ids_have_room_for_are_refused_with_the_rate_that_fits() -> None:
    with pytest.raises(Invalid, match=r"100,000 cells, at most 1,024; give each cell at least 976,563"):
        CapacityPlan(Demand(1e9), fixed_bill())
    assert planned(Demand(1e9, cell_rate=976_563.0))["cells"] == 1_024


def test_every_recorded_figure_has_its_source() -> None:
    for bill in job_bills():
        for name in VALUES:
            figure = getattr(bill, name)
            low, high = figure.spread
            assert low <= figure.value <= high, name
            assert figure.value > 0, name
            assert figure.command.startswith("forebay lab "), name
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", figure.date), name
            assert figure.machine, name


def test_the_cpu_of_a_job_is_that_of_the_findings() -> None:
    bill, page = job_bill("postgres", "s1"), (ROOT / "docs/internals/findings.md").read_text("utf-8")
    assert bill.worker_cpu.command in page
    shown = f"{bill.worker_cpu.value:g} µs in the fleet, {bill.producer_cpu.value:g} in the producer"
    assert f"{shown}, {bill.server_cpu.value:g} in the server" in page


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    def call(*arguments: str) -> CommandResult:
        code = main(["capacity", *arguments])
        said = capsys.readouterr()
        return CommandResult(code, said.out, said.err)

    return call


def test_the_page_has_arithmetic_sources_and_assumptions(run: Callable[..., CommandResult]) -> None:
    found = run("--rate", "1000000", "--mix", "s1")
    assert found.code == 0
    assert re.search(r"cells +100 +1,000,000 jobs/s ÷ 10,000 jobs/s a cell", found.out)
    assert re.search(r"worker processes, a core each +170 +1,000,000 jobs/s × 102 µs ÷ 0.6 headroom", found.out)
    assert "[1] forebay lab headline --mix s1 --rate 10000" in found.out
    assert re.search(r"--headroom +0.6 of a core", found.out)
    assert "handlers" in found.out


def test_json_has_the_same_plan(run: Callable[..., CommandResult]) -> None:
    (found,) = run("--rate", "60000000/m", "--store", "postgres", "--json").json
    plan = {line["name"]: line["value"] for line in found["plan"]}
    assert (plan["cells"], plan["worker processes, a core each"]) == (100, 170)
    assert found["demand"]["rate"] == 1_000_000
    assert found["bill"]["log_bytes"]["unit"] == "B/job"
    assert found["assumptions"]["--replication"].startswith("2 copies")


def test_a_cell_rate_above_what_was_measured_is_called_that(run: Callable[..., CommandResult]) -> None:
    assert "above the 10,000 that were measured" in run("--rate", "1000", "--cell-rate", "20000").out
    assert "above" not in run("--rate", "1000").out.partition("assumed")[2]


def test_a_bill_of_ones_own_is_used(run: Callable[..., CommandResult], tmp_path: Path) -> None:
    file = tmp_path / "bill.json"
    file.write_bytes(msgspec.json.encode(fixed_bill(cell_rate=500.0)))
    (found,) = run("--rate", "1000", "--bill", str(file), "--json").json
    assert found["plan"][0] == {
        "name": "cells",
        "value": 2,
        "unit": "",
        "arithmetic": "1,000 jobs/s ÷ 500 jobs/s a cell, rounded up",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rate", "0"], "'0' is not a rate"),
        ([], "--rate"),
        (["--rate", "2000000000"], "--rate: 2,000,000,000 is more than 1,000,000,000"),
        (["--rate", "10", "--mix", "banana"], "the mix 'banana' was not measured on 'postgres'"),
        (["--rate", "10", "--store", "sqlite"], "the mix 's1' was not measured on 'sqlite'"),
        (["--rate", "10", "--payload", "1T"], "--payload"),
        (["--rate", "10", "--payload", "much"], "'much' is not a number of bytes"),
        (["--rate", "10", "--headroom", "1.5"], "'1.5' is not a fraction"),
        (["--rate", "10", "--replication", "11"], "--replication: 11 is more than 10"),
        (["--rate", "10", "--retention", "soon"], "'soon' is not a duration"),
        (["--rate", "10000000", "--cell-rate", "10"], "1,000,000 cells, at most 1,024"),
        (["--rate", "90000", "--store", "redis", "--cell-rate", "30000"], "and a cell on redis has one"),
        (["--rate", "10", "--bill", "missing.json"], "'missing.json' is not a bill"),
    ],
)
def test_bad_input_is_refused_by_name(run: Callable[..., CommandResult], arguments: list[str], said: str) -> None:
    found = run(*arguments)
    assert (found.code, found.out) == (2, "")
    assert said in found.err
    assert "Traceback" not in found.err


@pytest.mark.parametrize("option", ["--store", "--mix"])
def test_a_bill_of_something_else_is_refused(run: Callable[..., CommandResult], tmp_path: Path, option: str) -> None:
    file = tmp_path / "bill.json"
    file.write_text(json.dumps(msgspec.to_builtins(fixed_bill())))
    found = run("--rate", "10", "--bill", str(file), option, "redis")
    assert found.code == 2
    assert f"{option}: 'redis' is given" in found.err
