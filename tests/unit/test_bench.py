"""The bench runs what it says it runs, and leaves nothing behind."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from forebay.cli import main
from forebay.store.memory.store import MemoryStore
from forebay_proof import bench
from forebay_proof.bench.guarantees import GUARANTEES, Rounds, parked_price, prices
from forebay_proof.bench.lines import files_passed
from forebay_proof.cli.bench import BENCHMARKS

LOAD = Rounds(jobs=40, pairs=2, batch=20)


def test_every_guarantee_has_a_price() -> None:
    store = MemoryStore()
    found = list(prices(store, GUARANTEES.values(), LOAD))
    assert [price.guarantee for price in found] == list(GUARANTEES)
    for price in found:
        assert 0 < price.minimum <= price.ratio <= price.maximum
    assert {backlog.depth for backlog in store.backlog()} == {0}


def test_parked_jobs_are_put_there_and_taken_away() -> None:
    store = MemoryStore()
    price = parked_price(store, 1_500, LOAD)
    assert price.guarantee == "1500 parked"
    assert price.ratio > 0
    assert {backlog.depth for backlog in store.backlog()} == {0}


def test_the_command_prints_a_table_and_knows_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "guarantees", "--with", "key,cap", "--jobs", "20", "--rounds", "1", "--batch", "10"]) == 0
    shown = capsys.readouterr()
    assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [
        ["memory", "key"],
        ["memory", "cap"],
        ["sqlite", "key"],
        ["sqlite", "cap"],
    ]
    assert main(["bench", "guarantees", "--with", "magic"]) == 2
    assert "there is no such guarantee" in capsys.readouterr().err


def test_figures_are_objects_with_a_name_a_value_a_spread_and_a_baseline() -> None:
    options = "--with cap --jobs 20 --rounds 2 --batch 10 --store memory:// --json"
    for command in (f"bench guarantees {options}", "bench run ledger --quick --json --only memory/batch-100"):
        done = subprocess.run(
            [sys.executable, "-m", "forebay", *command.split()], capture_output=True, check=True, timeout=120
        )
        figures = {figure["name"]: figure for figure in map(msgspec.json.decode, done.stdout.splitlines())}
        for figure in figures.values():
            assert {"name", "value", "unit", "spread", "baseline", "ratio"} <= figure.keys()
            assert figure["spread"][0] <= figure["value"] <= figure["spread"][1]
        assert [figure["baseline"] for figure in figures.values()][-1] in (*figures, "memory/plain")


def test_every_benchmark_has_a_name_in_the_command() -> None:
    folder = Path(bench.__file__).parent
    makes_a_parser = re.compile(r"^    .*(\barguments|\bbench_parser|ArgumentParser)\(", re.MULTILINE)
    modules = {path.stem for path in folder.glob("*.py") if makes_a_parser.search(path.read_text())} - {"measure"}
    assert modules == set(BENCHMARKS.values())
    assert main(["bench", "run", "magic"]) == 2


@pytest.mark.parametrize("module", sorted(BENCHMARKS.values()))
def test_every_benchmark_takes_quick_and_json(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"forebay_proof.bench.{module}").main()
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "--quick" in shown
    assert "--json" in shown
    assert re.search("one JSON object a (figure|run)", shown)


@pytest.mark.parametrize("scheme", ["memory://", "sqlite:///"])
def test_a_plain_job_passes_sixteen_files_at_most(scheme: str, tmp_path: Path) -> None:
    """What a reader has to open to follow one; `make lines` has the figure of Postgres, too."""
    passed = files_passed(scheme if scheme == "memory://" else f"{scheme}{tmp_path}/jobs.db")
    assert {"store/shell.py", "core/job.py"} < set(passed)
    assert len(passed) <= 16, passed
