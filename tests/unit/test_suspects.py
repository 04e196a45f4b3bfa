"""The board of the quarantine: one suspect at a time in a place, the next one after the verdict is durable."""

from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from forebay import Draft, Forebay, Want
from forebay.core.instant import seconds
from forebay.core.outcome import Interrupted, Outcome, Succeeded
from forebay.work.options import Options
from forebay.work.quarantine import Quarantine, SuspectBoard
from forebay.work.run import Run, Stop
from tests.waiting import PATIENCE

A, B, C, D = (1, 1), (2, 1), (3, 1), (4, 1)


def test_a_place_has_one_suspect_at_a_time() -> None:
    board = SuspectBoard(2, 8)
    starts = board.admit([A, B, C, D])
    assert [suspect for suspect, _ in starts] == [A, B]
    assert len({place for _, place in starts}) == 2
    assert board.capacity == 6


def test_the_next_one_begins_where_a_verdict_is_durable() -> None:
    board = SuspectBoard(2, 8)
    places = dict(board.admit([A, B, C, D]))
    assert board.settled(B) == [(C, places[B])]
    assert board.settled(A) == [(D, places[A])]
    assert board.settled(C) == board.settled(D) == []
    assert board.capacity == 10


def test_one_that_leaves_while_it_waits_never_begins() -> None:
    board = SuspectBoard(1, 8)
    board.admit([A, B, C])
    assert board.settled(B) == []
    assert B not in board
    assert [suspect for suspect, _ in board.settled(A)] == [C]


def test_what_it_does_not_know_changes_nothing() -> None:
    board = SuspectBoard(1, 1)
    board.admit([A])
    assert board.settled(D) == []
    assert (board.capacity, A in board) == (1, True)


# The quarantine around it, with children that do nothing


class IdleChild:
    """A child that runs what it is given until it is stopped."""

    def __init__(self, target: str, pulse: Path | None = None) -> None:
        self.pulse = None
        self.ends = SimpleQueue[Outcome]()

    def prepare(self) -> None: ...

    def let_go_of_dead(self) -> None: ...

    def run(self, run: Run) -> Outcome:
        return self.ends.get(timeout=PATIENCE)

    def kill(self) -> None:
        self.ends.put(Interrupted())

    def close(self, grace: float = 0.0) -> None: ...


@pytest.fixture
def runs() -> list[Run]:
    fb = Forebay("memory://")

    @fb.job
    def job() -> None: ...

    fb.store.enqueue([Draft("job")] * 3)
    return [Run(lease, fb.registry["job"]) for lease in fb.store.claim([Want("default", 3)], "ada", seconds(60))]


def test_one_that_is_stopped_while_it_waits_leaves_its_place_to_the_next(
    runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.work.quarantine.IsolatedProcess", IdleChild)
    begun: SimpleQueue[Run] = SimpleQueue()
    ended: SimpleQueue[Run] = SimpleQueue()

    def begin(run: Run) -> bool:
        begun.put(run)
        return True

    def finish(run: Run, outcome: Outcome) -> bool:
        run.over = True
        ended.put(run)
        return True

    quarantine = Quarantine(Options(quarantine_processes=1), "app:fb", begin, finish)
    first, second, third = runs
    quarantine.submit(runs)
    assert begun.get(timeout=PATIENCE) is first
    assert quarantine.waiting() == [second, third]
    second.stop = Stop.CANCEL
    quarantine.interrupt(second)
    assert ended.get(timeout=PATIENCE) is second, "it does not wait for a child"
    quarantine._children[0].ends.put(Succeeded())  # type: ignore[attr-defined]
    assert ended.get(timeout=PATIENCE) is first
    with pytest.raises(Empty):
        begun.get(timeout=0.1)
    quarantine.settled(first.fence)
    assert begun.get(timeout=PATIENCE) is third, "the verdict about the second one may still be on its way"
    quarantine.close()
