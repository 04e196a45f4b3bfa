"""Specs that are put while a queue moves, by processes with older maps, and movers that are overtaken by others."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest

from forebay.core.errors import Invalid, QueueFull, QueueMoved, StoreFailed
from forebay.core.instant import minutes
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.core.policy import AtMost, Moved, Routing
from forebay.core.spec import QueueSpec
from forebay.store.cells.cell_map import Step
from forebay.store.cells.ids import cell_of
from forebay.store.cells.store import CellsStore
from forebay.store.protocol import Want
from tests.stores.test_cells_moves import SPREAD, TENANTS, CellsFixture, cells_fixture, finish, mover_of

__all__ = ["cells_fixture"]

CAPPED = QueueSpec(name="mail", eligibility=AtMost(2))
EDITED = QueueSpec(name="mail", eligibility=AtMost(2), routing=Routing(7))


class _Stopped(BaseException):
    """The process of a move ends here."""


def at(write: str, act: Callable[[], object]) -> Callable[[str], None]:
    """A hook that acts once, after the first such write."""
    acts = [act]

    def reached(name: str) -> None:
        if name == write and acts:
            acts.pop()()

    return reached


def stop() -> None:
    raise _Stopped


def spec_in(store: CellsStore, cell: str, queue: str = "mail") -> QueueSpec:
    return next(spec for spec in store.cells()[cell].specs() if spec.name == queue)


@pytest.mark.parametrize("write", ["prepared", "closing", "closed", "draining", "leaving"])
def test_a_spec_of_a_process_with_an_older_map_opens_no_cell_that_its_queue_has_left(
    write: str, cells_fixture: CellsFixture
) -> None:
    old, store = cells_fixture.open(), cells_fixture.open()
    store.put_spec(CAPPED)
    mover = mover_of(store, at(write, stop))
    with suppress(_Stopped):
        mover.start(["mail"], "a", "b")
        mover.advance()
    assert old.backend.group.map.version == 1
    old.put_spec(EDITED)
    mover_of(store).start(["mail"], "a", "b")
    assert [state.step for state in mover_of(store).advance()] == [Step.LEAVING]
    assert isinstance(spec_in(store, "a").capacity, Moved)
    assert spec_in(store, "b") == EDITED
    stale = cells_fixture.open()
    for process in (old, stale, store):
        process.enqueue([Draft("work", queue="mail", key=f"k{id(process)}"), Draft("work", queue="mail")])
    leases = store.claim([Want("mail", 6)], "w", minutes(1))
    assert [cell_of(lease.job.id) for lease in leases] == [1, 1]


def test_no_job_starts_above_the_cap_when_a_spec_of_an_older_map_arrives_late(
    cells_fixture: CellsFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, store, source = cells_fixture.open(), cells_fixture.open(), cells_fixture.open_cell("memory://a")
    store.put_spec(CAPPED)
    mover_of(store).start(["mail"], "a", "b")
    assert [state.step for state in mover_of(store).advance()] == [Step.LEAVING]
    store.enqueue([Draft("work", queue="mail")] * 2)
    assert len(store.claim([Want("mail", 3)], "w", minutes(1))) == 2
    put = source.put_spec

    def enqueue_behind(spec: QueueSpec) -> None:
        try:
            put(spec)
        finally:
            store.enqueue([Draft("work", queue="mail", key="k")])

    monkeypatch.setattr(source, "put_spec", enqueue_behind)
    old.put_spec(CAPPED)
    assert store.claim([Want("mail", 1)], "w", minutes(1)) == []


@pytest.mark.parametrize("write", ["prepared", "closing"])
def test_a_spec_that_was_put_before_the_move_was_known_goes_along(write: str, cells_fixture: CellsFixture) -> None:
    old, store = cells_fixture.open(), cells_fixture.open()
    store.put_spec(CAPPED)
    source = cells_fixture.open_cell("memory://a")
    mover_of(store, at(write, lambda: source.put_spec(EDITED))).start(["mail"], "a", "b")
    mover_of(store).advance()
    assert spec_in(store, "b") == EDITED
    assert old.backend.group.map.version == 1


def test_a_spec_that_is_put_just_before_the_source_is_closed_goes_to_the_target(
    cells_fixture: CellsFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, store, source = cells_fixture.open(), cells_fixture.open(), cells_fixture.open_cell("memory://a")
    store.put_spec(CAPPED)
    mover_of(store).start(["mail"], "a", "b")
    put = source.put_spec

    def put_before(spec: QueueSpec) -> None:
        monkeypatch.undo()
        old.put_spec(EDITED)
        put(spec)

    monkeypatch.setattr(source, "put_spec", put_before)
    mover_of(store).advance()
    assert isinstance(spec_in(store, "a").capacity, Moved)
    assert spec_in(store, "b") == EDITED


def test_what_a_process_wrote_behind_the_end_of_a_move_goes_to_the_target_alone(cells_fixture: CellsFixture) -> None:
    old, store = cells_fixture.open(), cells_fixture.open()
    store.put_spec(CAPPED)
    mover_of(store).start(["mail"], "a", "b")
    finish(cells_fixture, store)
    cells_fixture.clock.advance(400_000_000)
    assert mover_of(store).advance() == []
    old.put_spec(EDITED)
    assert isinstance(spec_in(store, "a").capacity, Moved)
    assert (spec_in(store, "a").routing, spec_in(store, "b")) == (CAPPED.routing, EDITED)


def test_drafts_that_were_accepted_before_a_cell_was_closed_again_count(
    cells_fixture: CellsFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, source = cells_fixture.open(), cells_fixture.open_cell("memory://a")
    store.put_spec(CAPPED)
    store.enqueue([Draft("work", queue="mail")])
    mover_of(store).start(["mail"], "a", "b")
    assert [state.step for state in mover_of(store).advance()] == [Step.DRAINING]
    (lease,) = store.claim([Want("mail", 1)], "w", minutes(1))
    store.settle([(lease, Ack())])
    source.put_spec(QueueSpec(name="mail", capacity=Moved(version=10**6, released=True)))
    source.put_spec(CAPPED)
    put = source.put_spec

    def accept_before(spec: QueueSpec) -> None:
        monkeypatch.undo()
        source.enqueue([Draft("late", queue="mail")])
        put(spec)

    monkeypatch.setattr(source, "put_spec", accept_before)
    assert [(state.step, state.unfinished) for state in mover_of(store).advance()] == [(Step.DRAINING, 1)]
    assert isinstance(spec_in(store, "a").capacity, Moved)


@pytest.mark.parametrize("write", ["closed", "draining"])
def test_a_mover_that_is_overtaken_sets_no_step_back(write: str, cells_fixture: CellsFixture) -> None:
    store = cells_fixture.open()
    store.put_spec(QueueSpec(name="mail"))
    store.put_spec(QueueSpec(name="default"))
    steps: list[Step] = []

    def overtake() -> None:
        steps.extend(state.step for state in mover_of(store).advance())
        mover_of(store).start(["default"], "a", "c")

    mover = mover_of(store, at(write, overtake))
    mover.start(["mail"], "a", "b")
    version = store.backend.group.map.version
    found = {state.queue: state.step for state in mover.advance()}
    assert (steps, found["mail"]) == ([Step.LEAVING], Step.LEAVING)
    cells = store.backend.group.map
    assert (cells.homes("mail"), cells.homes("default")) == (("a", "b"), ("a", "c"))
    assert cells.version == version + 3


def test_a_mover_that_cannot_read_a_spec_takes_no_other_one(
    cells_fixture: CellsFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cells_fixture.open()
    store.put_spec(QueueSpec(name="mail", key_window=timedelta(hours=1)))
    failed = cells_fixture.open(), cells_fixture.open()

    def fail() -> list[QueueSpec]:
        raise StoreFailed("the store", "it is out of reach", "call it again")

    with monkeypatch.context() as patch:
        patch.setattr(cells_fixture.open_cell("memory://a"), "specs", fail)
        with pytest.raises(StoreFailed, match="cell a"):
            mover_of(failed[0]).start(["mail"], "a", "b")
    mover_of(store).start(["mail"], "a", "b")
    mover_of(store).advance()
    cells_fixture.clock.advance(600_000_000)
    with monkeypatch.context() as patch:
        patch.setattr(cells_fixture.open_cell("memory://b"), "specs", fail)
        with pytest.raises(StoreFailed, match="cell b"):
            mover_of(failed[1]).advance()
    assert [state.step for state in mover_of(store).advance()] == [Step.LEAVING]


def test_a_partition_goes_back_to_a_cell_that_all_had_left(cells_fixture: CellsFixture) -> None:
    store = cells_fixture.open(SPREAD)
    store.put_spec(QueueSpec(name="orders"))
    mover_of(store).start(["orders"], "a", "c")
    finish(cells_fixture, store, "orders")
    cells_fixture.clock.advance(60_000_000)
    mover_of(store).split("orders", [0], "a")
    receipts = store.enqueue([Draft("work", queue="orders", tenant=tenant) for tenant in TENANTS])
    assert {cell_of(each.id) for each in receipts} == {0, 1, 2}


def test_a_mover_that_was_stopped_opens_no_cell_that_was_closed_since(
    cells_fixture: CellsFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, stopped = cells_fixture.open(), cells_fixture.open()
    store.put_spec(CAPPED)
    mover_of(store).start(["mail"], "a", "b")
    finish(cells_fixture, store)
    cells_fixture.clock.advance(400_000_000)
    assert mover_of(store).advance() == []
    target = cells_fixture.open_cell("memory://a")
    put = target.put_spec

    def move_on(spec: QueueSpec) -> None:
        monkeypatch.undo()
        mover_of(store).start(["mail"], "b", "a")
        finish(cells_fixture, store)
        cells_fixture.clock.advance(400_000_000)
        assert mover_of(store).advance() == []
        mover_of(store).start(["mail"], "a", "c")
        mover_of(store).advance()
        put(spec)

    monkeypatch.setattr(target, "put_spec", move_on)
    with pytest.raises(QueueMoved):
        mover_of(stopped).start(["mail"], "b", "a")
    assert isinstance(spec_in(store, "a").capacity, Moved)


def test_a_home_that_is_closed_all_the_same_is_opened_by_its_spec(cells_fixture: CellsFixture) -> None:
    """As a mover leaves it that was stopped before its write, until the queue had come back."""
    store = cells_fixture.open()
    store.put_spec(CAPPED)
    cells_fixture.open_cell("memory://a").put_spec(QueueSpec(name="mail", capacity=Moved(version=1)))
    with pytest.raises(QueueFull):
        store.enqueue([Draft("work", queue="mail")])
    with pytest.raises(Invalid, match="queue mail: it is closed in cell a, though it is placed there; put its spec"):
        mover_of(store).start(["mail"], "a", "b")
    store.put_spec(CAPPED)
    assert cell_of(store.enqueue([Draft("work", queue="mail")])[0].id) == 0


def test_a_cell_that_was_closed_by_a_map_that_no_cell_shows_stays_closed(
    cells_fixture: CellsFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cells_fixture.open()
    store.put_spec(CAPPED)
    cells_fixture.open_cell("memory://a").put_spec(QueueSpec(name="mail", capacity=Moved(version=9)))
    for each in (store, store.cells()["a"]):
        with pytest.raises(QueueMoved, match="queue mail: it has left this cell by version 9 of the map"):
            each.put_spec(CAPPED)

    def fail(_: str) -> None:
        raise StoreFailed("the store", "it is out of reach", "call it again")

    monkeypatch.setattr(cells_fixture.open_cell("memory://c"), "extent", fail)
    with pytest.raises(
        StoreFailed, match=r"queue mail failed: .* version 9 of the map, which no cell that answers has"
    ):
        store.put_spec(CAPPED)
