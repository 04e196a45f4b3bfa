"""Events and ledgers of several cells: merged, resumable at every event, and not held up by a cell that is down."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from forebay.cli import main
from forebay.core.errors import Invalid, OffsetGone, StoreFailed, Unsupported
from forebay.core.instant import to_datetime
from forebay.core.ledger import LedgerRule
from forebay.events import Event, EventFilter, EventReader, EventStream, Since
from forebay.store.cells.ids import cell_of
from tests.stores.breakable_cells import QUEUES, Fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.store.close()


def by_cell(events: list[Event]) -> dict[int, list[tuple[int, str]]]:
    """What happened in each cell, in order."""
    found: dict[int, list[tuple[int, str]]] = {0: [], 1: []}
    for event in events:
        found[cell_of(event.job_id)].append((event.job_id, event.change))
    return found


def test_the_events_of_all_cells_are_read_once_from_any_of_them_on(fleet: Fleet) -> None:
    for _ in range(3):
        fleet.work("a", 4)
        fleet.work("b", 3)
    seen = fleet.events("start")
    assert {cell: len(events) for cell, events in by_cell(seen).items()} == {0: 36, 1: 27}
    assert [event.at for event in seen] == sorted(event.at for event in seen)
    for place, event in enumerate(seen):
        assert by_cell(fleet.events(event.id)) == by_cell(seen[place + 1 :]), event.id
    assert by_cell(fleet.events(to_datetime(seen[0].at))) == by_cell(seen)
    assert fleet.events(to_datetime(seen[-1].at) + timedelta(seconds=1)) == []
    reader, read = EventReader(fleet.store, EventFilter(), "start"), []
    while found := reader.read(7):
        read += found
        assert len(found) <= 7
    assert by_cell(read) == by_cell(seen)


def test_a_filter_moves_on_in_every_cell(fleet: Fleet) -> None:
    fleet.work("a", 3)
    fleet.work("b", 3)
    reader = EventReader(fleet.store, EventFilter.of("b-jobs", None, "acked"), "start")
    assert {event.change for event in reader.read()} == {"acked"}
    assert reader.offsets == {name: cell.ledger_extent()[1] for name, cell in fleet.store.cells().items()}
    fleet.work("b", 1)
    (last,) = reader.read()
    assert by_cell(fleet.events(last.id)) == {0: [], 1: []}


def test_a_dead_cell_is_named_and_its_events_follow_when_it_is_back(fleet: Fleet) -> None:
    reader = EventReader(fleet.store, EventFilter(), "start")
    fleet.work("b", 2)
    fleet.stop("b")
    fleet.work("a", 2)
    seen = reader.read()
    assert (len(seen), reader.left_out, reader.caught_up) == (6, ["b"], True)
    meanwhile = {event.id: seen[place + 1 :] for place, event in enumerate(seen)}
    fleet.start("b")
    late = reader.read()
    assert (len(late), reader.left_out) == (6, [])
    assert [len(events) for events in by_cell(late).values()] == [0, 6]
    for event_id, rest in meanwhile.items():
        assert by_cell(fleet.events(event_id)) == by_cell([*rest, *late])


def test_a_cell_that_is_down_at_the_start_is_read_from_then_on(fleet: Fleet) -> None:
    fleet.work("a", 1)
    fleet.work("b", 1)
    fleet.stop("b")
    stream = EventStream(reader := EventReader(fleet.store, EventFilter()), follow=False)
    assert (list(stream), stream.left_out, reader.offsets["b"]) == ([], ["b"], -1)
    fleet.work("a", 1)
    last = reader.read()[-1]
    fleet.start("b")
    fleet.work("b", 1)
    assert len(reader.read()) == 3
    assert by_cell(fleet.events(last.id)) == by_cell(fleet.events("start")[-3:])
    for cell in QUEUES:
        fleet.stop(cell)
    with pytest.raises(StoreFailed):
        reader.read()


def test_a_cell_that_is_newer_than_an_event_is_read_from_its_start(fleet: Fleet) -> None:
    fleet.work("a", 1)
    fleet.work("b", 1)
    last = fleet.events("start")[-1]
    own = last.id.split(",")[0]
    assert own.startswith("a:")
    assert [len(events) for events in by_cell(fleet.events(own)).values()] == [0, 3]


@pytest.mark.parametrize(
    ("since", "reason"),
    [
        (41, "41 is an offset, and each of 2 cells has its own"),
        ("41-7", "'41-7' has no position in the cells a, b"),
        ("x:41-7", "has no position in the cells a, b"),
        ("a:41x", "'41x' is not the id of an event"),
        ("a:99-1", "'99-1' is behind the end of this ledger"),
    ],
)
def test_a_position_of_something_else_is_refused(fleet: Fleet, since: Since, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        fleet.events(since)


def test_records_that_are_gone_are_those_of_a_cell_and_nothing_that_was_read_is_lost(fleet: Fleet) -> None:
    reader = EventReader(fleet.store, EventFilter(), "start")
    fleet.work("a", 1)
    fleet.work("b", 1)
    cell = fleet.store.cells()["b"]
    cell.put_ledger_rule(LedgerRule(keep=0))
    while cell.trim_ledger(1_000):
        pass
    assert [len(events) for events in by_cell(reader.read()).values()] == [3, 0]
    with pytest.raises(OffsetGone, match="ledger of cell b"):
        reader.read()


def test_a_cell_without_its_ledger_has_no_events(fleet: Fleet) -> None:
    fleet.store.cells()["b"].put_ledger_rule(LedgerRule(on=False))
    reader = EventReader(fleet.store, EventFilter(), "start")
    with pytest.raises(Unsupported, match="a store without its ledger"):
        reader.read()


def test_the_ledger_command_reads_and_sets_the_ledgers_of_all_cells(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.work("a", 1)
    fleet.work("b", 2)

    def run(*words: str, code: int = 0) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert main(["ledger", *words, "--store", f"cells:{fleet.file}"]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]

    records = run("read")
    ends = {name: cell.ledger_extent()[1] for name, cell in fleet.store.cells().items()}
    assert [(each["cell"], each["offset"]) for each in records] == [(c, n) for c in QUEUES for n in range(ends[c])]
    assert {job_range["first"] >> 43 for each in records if each["cell"] == "b" for job_range in each["ranges"]} == {1}
    assert [each["offset"] for each in run("read", "--cell", "b", "--after", "0", "--limit", "1")] == [1]
    assert len(run("read", "--limit", "5")) == 5
    assert run("read", "--after", "0", code=2) == run("read", "--cell", "x", code=2) == []
    assert [(each["cell"], each["next"]) for each in run("status", "--json")] == list(ends.items())
    assert [(each["cell"], each["on"]) for each in run("keep", "--days", "2", "--json")] == [("a", True), ("b", True)]
    rules = {cell.ledger_rule() for cell in fleet.store.cells().values()}
    assert {(rule.on, rule.keep) for rule in rules} == {(True, 2 * 86_400_000_000)}
    (fleet.file.parent / "b.db").rename(fleet.file.parent / "gone.db")
    assert {each["cell"] for each in run("read")} == {"a"}
    assert main(["ledger", "read", "--store", f"cells:{fleet.file}"]) == 0
    assert "cell b: " in capsys.readouterr().err
