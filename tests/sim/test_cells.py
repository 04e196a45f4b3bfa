"""Seeds hold over cells: stores that fall, links that are cut, queues that move while their movers are killed.

`make test` runs a few seeds of four cells, `make test-nightly` hundreds of them, and some of 64.
"""

from collections import Counter

import pytest

from forebay.core.errors import Invalid
from forebay_proof.sim import Kind, simulate
from forebay_proof.sim.faults import OF_CELLS
from tests.sim.test_simulation import hold

CHUNK = 4
SEEDS = 8
NIGHTLY = 400
LARGE = 12


def missing(seen: Counter[str], least: int) -> list[str]:
    return [kind.value for kind in OF_CELLS if seen[kind.value] < least]


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_of_four_cells_hold(first: int) -> None:
    seen = hold(range(first, first + CHUNK), 4)
    assert seen["accepted"] >= CHUNK * 30
    assert not missing(seen, 1)


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + NIGHTLY, 50))
def test_hundreds_of_seeds_hold(first: int) -> None:
    seen = hold(range(first, first + 50), 2 + first % 7)
    assert not missing(seen, 10)


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("first", range(0, LARGE, 4))
def test_sixty_four_cells_hold(first: int) -> None:
    seen = hold(range(first, first + 4), 64)
    assert seen["accepted"] >= 4 * 200
    assert not missing(seen, 1)


def test_without_faults_nothing_is_refused_and_nothing_runs_twice() -> None:
    result = simulate(7, cells=4, chosen=[])
    assert result.ok
    assert result.faults == {}
    assert result.starts == result.done


def test_queues_move_and_movers_die_without_any_other_fault() -> None:
    result = simulate(5, cells=3, chosen=[Kind.MOVE, Kind.MOVE_KILL])
    assert result.ok
    assert set(result.faults) == {"queue-moves", "mover-crash"}


def test_more_cells_than_are_simulated_are_refused() -> None:
    with pytest.raises(Invalid, match="cells: 65 is not in 0 … 64"):
        simulate(0, cells=65)
