"""Seeds of the simulation hold, replay to the same history, and each fault kind really happens.

`make test` runs 300 seeds, `make test-nightly` ten thousand more. A failing seed prints its story and the command that
replays it.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from forebay.core.decide import decide
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.lease import Settled
from forebay.core.outcome import Abandoned
from forebay.core.policy import Routing
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Want
from forebay.testing.clock import ManualClock
from forebay_proof.sim import Kind, simulate
from forebay_proof.sim.__main__ import main
from forebay_proof.sim.faults import OF_CELLS
from forebay_proof.sim.report import command, history

SRC = Path(__file__).parents[2] / "src"
CHUNK = 30
SEEDS = 300
NIGHTLY = 10_000


def hold(seeds: range, cells: int = 0) -> Counter[str]:
    """Every seed holds; what happened in all of them."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        result = simulate(seed, cells=cells)
        if not result.ok:
            reported = "\n".join(history(simulate(seed, cells=cells, keep=True)))
            pytest.fail(f"seed {seed}\n{reported}\nreplay: {command(seed, None, None, cells)}", pytrace=False)
        seen.update(result.faults)
        seen.update({"accepted": result.accepted, "stale verdicts": result.stale, "suspects alone": result.alone})
    return seen


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_hold(first: int) -> None:
    seen = hold(range(first, first + CHUNK))
    assert seen["accepted"] >= CHUNK * 30
    assert seen["stale verdicts"] >= 1
    assert seen["suspects alone"] >= CHUNK
    assert seen.total() >= CHUNK * 100


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + NIGHTLY, 250))
def test_ten_thousand_seeds_hold(first: int) -> None:
    seen = hold(range(first, first + 250))
    missing = [kind.value for kind in Kind if kind not in OF_CELLS and seen[kind.value] < 10]
    assert not missing


def test_every_kind_of_fault_happens() -> None:
    seen = hold(range(1_000_000, 1_000_040))
    missing = [kind.value for kind in Kind if kind not in OF_CELLS and not seen[kind.value]]
    assert not missing


@pytest.mark.parametrize(("seed", "cells"), [(3, 0), (14, 0), (15, 0), (3, 3)])
def test_a_seed_is_a_full_account(seed: int, cells: int) -> None:
    """The same history here, again, and in a process whose hashes of strings are others."""
    first, again = simulate(seed, cells=cells), simulate(seed, cells=cells)
    assert first == again
    code = f"from forebay_proof.sim import simulate; print(simulate({seed}, cells={cells}).digest)"
    for hash_seed in ("1", "4242"):
        environment = {**os.environ, "PYTHONPATH": str(SRC), "PYTHONHASHSEED": hash_seed}
        run = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert run.stdout.strip() == first.digest


def test_seeds_differ() -> None:
    assert len({simulate(seed, chaos_seconds=10).digest for seed in range(8)}) == 8


def test_without_faults_nothing_is_refused_and_nothing_runs_twice() -> None:
    result = simulate(7, chosen=[])
    assert result.ok
    assert result.faults == {}
    assert result.stale == 0
    assert result.starts == result.done


def test_only_chosen_faults_happen() -> None:
    result = simulate(5, chosen=[Kind.LOST_REPLY, Kind.POWER])
    assert result.ok
    assert set(result.faults) <= {"lost-reply", "power-cut"}
    assert result.faults["power-cut"] >= 1


def test_the_command_says_how_to_replay(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:2"]) == 0
    out = capsys.readouterr().out
    assert "seed 0" in out
    assert "2 seeds, 0 failed" in out
    assert command(7, 0.5, ["power-cut"]) == "python -m forebay_proof.sim --seed 7 --hours 0.5 --faults power-cut"


def test_the_command_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert '"violations":[]' in lines[0]


@pytest.mark.parametrize(
    "arguments", [["--seeds", "5:5"], ["--seed", "x"], ["--faults", "gremlins"], ["--cells", "65"], ["--cells", "0"]]
)
def test_nonsense_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_a_late_reaper_takes_nothing_that_was_renewed() -> None:
    """Found by seed 6: the reaper reads, the holder renews, the reaper's verdict arrives."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    store.enqueue([Draft("k", queue="q")])
    held = store.claim([Want("q", 1)], "holder", seconds(2))
    clock.advance(3_000_000)
    (late,) = store.overdue(10)
    assert store.extend(held, seconds(2))
    verdict = decide(late.job, Abandoned(expired=True), Routing(), 0.0)
    assert store.settle([(late, verdict)]) == [Settled.STALE]
