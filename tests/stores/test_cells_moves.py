"""Moves between cells: interrupted at every write and resumed, with producers and workers that have older maps."""

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import Any

import pytest

from forebay.core.errors import Invalid, QueueFull
from forebay.core.instant import minutes
from forebay.core.job import Draft, State
from forebay.core.lease import Settled
from forebay.core.outcome import Ack, DeadLetter, Failure
from forebay.core.policy import AtMost, Bounded, InOrder, KeepFor, LatestWins, Moved, Rate, Retained, Until
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.backend import Backend
from forebay.store.cells.cell_map import CellMap, Step, read_cells
from forebay.store.cells.ids import cell_of
from forebay.store.cells.moving import Mover, MoveState
from forebay.store.cells.store import CellsStore, open_cells
from forebay.store.memory.store import MemoryBackend
from forebay.store.protocol import Checkpoint, Tally, Want
from forebay.testing.clock import ManualClock
from tests.waiting import eventually

SPREAD = 'orders = { partitions = 4, by = "tenant", cells = ["a", "b"] }'
TENANTS = [f"t{number}" for number in range(6)]


class _Stopped(BaseException):
    """The process of a move ends here."""


class CellsFixture:
    """Three memory stores as cells, and processes that open them by files that differ in age."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._backends: dict[str, Backend] = {}
        self._opened: list[CellsStore] = []

    def open(
        self, queues: str = 'mail = "a"', cells: str = "abc", version: int = 1, deadline: float | None = None
    ) -> CellsStore:
        lines = [f"version = {version}"]
        for number, name in enumerate(cells):
            lines += [f"[cells.{name}]", f"number = {number}", f'url = "memory://{name}"']
            lines += [] if deadline is None else [f"deadline = {deadline}"]
        text = "\n".join([*lines, "[queues]", '"*" = "a"', queues])
        store = open_cells(*read_cells(text, "cells.toml"), self.open_cell)
        self._opened.append(store)
        return store

    def open_cell(self, url: str) -> Backend:
        if url not in self._backends:
            backend = MemoryBackend(clock=self.clock)
            setattr(backend, "close", lambda: None)  # noqa: B010
            self._backends[url] = backend
        return self._backends[url]

    def close(self) -> None:
        for store in self._opened:
            store.close()


@pytest.fixture
def cells_fixture() -> Any:
    found = CellsFixture()
    yield found
    found.close()


def mover_of(store: CellsStore, reached: Callable[[str], None] = lambda _: None) -> Mover:
    return Mover(store.backend.group, reached)


def finish(cells_fixture: CellsFixture, store: CellsStore, queue: str = "mail") -> list[Any]:
    """Run all jobs, and take all steps of all moves; the payloads in the order of the runs."""
    ran: list[Any] = []
    states: list[MoveState] = []
    for _ in range(100):
        states = mover_of(store).advance()
        leases = store.claim([Want(queue, 3)], "w", minutes(10))
        ran += [lease.job.payload for lease in leases]
        store.settle([(lease, Ack()) for lease in leases])
        if not states and not leases and not store.backlog([queue])[0].depth:
            return ran
        cells_fixture.clock.advance(10_000_000)
    raise AssertionError(f"{states} after {ran}")


def stop_at(count: int) -> Callable[[str], None]:
    """A hook that stops at the write with this number."""
    passed: list[str] = []

    def reached(name: str) -> None:
        passed.append(name)
        if len(passed) == count:
            raise _Stopped(name)

    return reached


SPECS = {
    "plain": {},
    "in order": {"eligibility": InOrder(per="tenant")},
    "capped": {"eligibility": AtMost(1, per="tenant")},
    "rated": {"eligibility": Rate(100, per="tenant")},
}


@pytest.mark.parametrize("spec", SPECS)
def test_a_move_that_is_stopped_at_any_write_and_resumed_loses_nothing_and_keeps_order(spec: str) -> None:
    names: list[str] = []
    for stop in range(1, 20):
        cells_fixture = CellsFixture()
        stale = cells_fixture.open()
        stale.put_spec(QueueSpec(name="mail", **SPECS[spec]))  # type: ignore[arg-type]
        stale.put_schedule(
            Schedule("nightly", "@daily", cells_fixture.clock.now() + 10**12, Draft("work", queue="mail"))
        )
        sent = iter(range(1_000))

        def send(store: CellsStore, sent: Any = sent) -> None:
            for tenant in TENANTS[:2]:
                number = next(sent)
                store.enqueue([Draft("work", number, queue="mail", tenant=tenant, key=f"k{number}")])
                store.enqueue([Draft("work", number, queue="mail", tenant=tenant, key=f"k{number}")])

        send(stale)
        running = stale.claim([Want("mail", 1)], "old", minutes(60))
        process = cells_fixture.open()
        stopped = None
        try:
            mover = mover_of(process, stop_at(stop))
            mover.start(["mail"], "a", "b")
            mover.advance()
        except _Stopped as error:
            stopped = str(error)
            names.append(stopped)
        for store in (stale, process, cells_fixture.open()):
            send(store)
            known: list[dict[str, Any]] = [{"key": f"k{number}", "tenant": TENANTS[number % 2]} for number in range(2)]
            again = store.enqueue([Draft("work", n, queue="mail", **each) for n, each in enumerate(known)])
            assert all(receipt.duplicate for receipt in again)
        resumed = cells_fixture.open()
        mover_of(resumed).start(["mail"], "a", "b")
        mover_of(resumed).advance()
        send(stale)
        early = resumed.claim([Want("mail", 1)], "w", minutes(60))
        assert {cell_of(lease.job.id) for lease in early} <= {0}, "the cell that it leaves comes first"
        assert set(stale.settle([(lease, Ack()) for lease in (*running, *early)])) == {Settled.APPLIED}
        ran: list[Any] = [lease.job.payload for lease in (*running, *early)] + finish(cells_fixture, resumed)
        total = next(sent)
        assert sorted(ran) == list(range(total)), (stop, stopped)
        for tenant in range(2):
            of_tenant = [number for number in ran if number % 2 == tenant]
            assert of_tenant == sorted(of_tenant), (stop, stopped)
        cells: CellMap = resumed.backend.group.map
        assert (cells.homes("mail"), [each.step for each in cells.moves["mail"]]) == (("b",), [Step.LEFT])
        (schedule,) = resumed.schedules()
        assert not schedule.paused
        assert [each.name for each in resumed.cells()["b"].schedules()] == ["nightly"]
        cells_fixture.close()
        if stopped is None:
            break
    assert names == ["prepared", "closing", "schedule paused", "schedule put", "closed", "draining"]


def test_jobs_keep_their_ids_and_are_found_by_them(cells_fixture: CellsFixture) -> None:
    store = cells_fixture.open()
    store.put_spec(QueueSpec(name="mail", retention=KeepFor(minutes(30))))
    old = store.enqueue([Draft("work", queue="mail")] * 4)[0].id
    mover_of(store).start(["mail"], "a", "b")
    (state,) = mover_of(store).advance()
    assert state == MoveState("mail", "a", "b", Step.DRAINING, 4, 0, 0, 300_000_000)
    new = store.enqueue([Draft("work", queue="mail")])[0].id
    assert (cell_of(old), cell_of(new)) == (0, 1)
    leases = store.claim([Want("mail", 5)], "w", minutes(1))
    assert [cell_of(lease.job.id) for lease in leases] == [0, 0, 0, 0, 1], "older jobs start first"
    store.settle([(leases[0], DeadLetter(Failure("E", "no"))), *((lease, Ack()) for lease in leases[1:])])
    (state,) = mover_of(store).advance()
    assert (state.step, state.unfinished, state.kept) == (Step.LEAVING, 0, 4)
    assert [job and job.state for job in store.get([old, old + 1, new])] == [State.DEAD, State.DONE, State.DONE]
    assert [(each.queue, each.done, each.dead) for each in store.backlog()] == [("mail", 4, 1)]
    assert (store.totals(5).queues, [spec.name for spec in store.specs()]) == (1, ["mail"])
    assert not isinstance(store.specs()[0].capacity, Moved)
    with pytest.raises(Invalid, match="queue mail: it has left the cell that has these dead letters"):
        store.redrive([old])
    store.purge_dead([old])
    cells_fixture.clock.advance(3_600_000_000)
    store.promote(100)
    assert mover_of(store).advance() == []
    assert store.get([old]) == [None]


def test_a_queue_moves_back_and_a_spec_put_meanwhile_does_not_reopen_the_cell_that_it_left(
    cells_fixture: CellsFixture,
) -> None:
    store = cells_fixture.open()
    spec = QueueSpec(name="mail", eligibility=InOrder(per="tenant"))
    store.put_spec(spec)
    for source, target in (("a", "b"), ("b", "c"), ("c", "a")):
        store.enqueue([Draft("work", 1, queue="mail")])
        mover_of(store).start(["mail"], source, target)
        mover_of(store).advance()
        store.put_spec(spec)
        closed = next(each for each in store.cells()[source].specs() if each.name == "mail")
        assert isinstance(closed.capacity, Moved)
        assert finish(cells_fixture, store) == [1]
    assert cell_of(store.enqueue([Draft("work", queue="mail")])[0].id) == 0


def test_a_queue_stays_away_until_processes_have_followed(cells_fixture: CellsFixture) -> None:
    """One with the map of the first move would offer drafts with keys to the cell that is open again."""
    store = cells_fixture.open()
    mover_of(store).start(["mail"], "a", "b")
    finish(cells_fixture, store)
    with pytest.raises(Invalid, match=r"queue mail: it left cell a 0s ago.*; move it there 1m after it left"):
        mover_of(store).start(["mail"], "b", "a")
    cells_fixture.clock.advance(60_000_000)
    mover_of(store).start(["mail"], "b", "a")
    assert [state.target for state in mover_of(store).advance()] == ["a"]


def test_merges_go_on_in_the_cell_that_still_has_the_waiting_job(cells_fixture: CellsFixture) -> None:
    store = cells_fixture.open()
    store.put_spec(QueueSpec(name="mail", merge=LatestWins()))
    draft = Draft("work", 1, queue="mail", subject="s")
    (first,) = store.enqueue([draft])
    mover_of(store).start(["mail"], "a", "b")
    mover_of(store).advance()
    (again,) = store.enqueue([Draft("work", 2, queue="mail", subject="s")])
    assert (again.id, again.merged) == (first.id, True)
    (lease,) = store.claim([Want("mail", 2)], "w", minutes(1))
    (third,) = store.enqueue([Draft("work", 3, queue="mail", subject="s")])
    assert (lease.job.payload, cell_of(third.id)) == (2, 1)
    assert store.claim([Want("mail", 2)], "w", minutes(1)) == []
    assert [cell.name for cell in store.backend.group.of_queues(["mail"], claimable=True)] == ["a"], (
        "no worker is woken"
    )
    store.settle([(lease, Ack())])
    assert finish(cells_fixture, store) == [3]


def test_a_rate_begins_in_the_target_when_the_starts_of_the_source_are_paid(cells_fixture: CellsFixture) -> None:
    store = cells_fixture.open()
    store.put_spec(QueueSpec(name="mail", eligibility=Rate(2, minutes(1))))
    store.enqueue([Draft("work", queue="mail")] * 2)
    mover_of(store).start(["mail"], "a", "b")
    mover_of(store).advance()
    store.enqueue([Draft("work", queue="mail")])
    leases = store.claim([Want("mail", 2)], "w", minutes(1))
    store.settle([(lease, Ack()) for lease in leases])
    assert [state.step for state in mover_of(store).advance()] == [Step.DRAINING]
    assert store.claim([Want("mail", 2)], "w", minutes(1)) == []
    cells_fixture.clock.advance(61_000_000)
    assert [state.step for state in mover_of(store).advance()] == [Step.LEAVING]
    assert len(store.claim([Want("mail", 2)], "w", minutes(1))) == 1


def test_a_source_of_drafts_follows_its_queue(cells_fixture: CellsFixture) -> None:
    store = cells_fixture.open()
    points = [Checkpoint(number, 2, bytes([number])) for number in range(3)]
    keyed = [Draft("work", queue="mail", key="k0"), Draft("work", queue="mail")]
    assert store.ingest("feed", None, points[0], keyed) == Tally(2)
    mover_of(store).start(["mail"], "a", "b")
    mover_of(store).advance()
    stale = cells_fixture.open()
    assert store.ingest("feed", points[0], points[1], keyed) == Tally(2, 1)
    assert store.ingest("feed", points[0], points[1], keyed) is None
    assert stale.ingest("feed", points[1], points[2], keyed[1:]) == Tally(1)
    assert store.ingested("feed") == points[2]
    assert [cell.backlog(["mail"])[0].depth for cell in store.cells().values()] == [2, 2, 0]


def test_pauses_and_numbers_of_operators_go_along(cells_fixture: CellsFixture) -> None:
    store = cells_fixture.open()
    store.put_spec(QueueSpec(name="mail", eligibility=AtMost(5)))
    store.set_gate("cap/mail", 1)
    store.pause("mail")
    store.enqueue([Draft("work", queue="mail")])
    mover_of(store).start(["mail"], "a", "b")
    there = store.cells()["b"]
    assert there.backlog(["mail"])[0].paused_until is not None
    assert [(gate.name, gate.given) for gate in there.gates("", 5)] == [("cap/mail", 1)]


def test_a_partition_moves_alone_where_no_promise_depends_on_it(cells_fixture: CellsFixture) -> None:
    store = cells_fixture.open(SPREAD)
    store.enqueue([Draft("work", queue="orders", tenant=tenant) for tenant in TENANTS])
    mover_of(store).split("orders", [1], "c")
    assert store.backend.group.map.placement("orders").cells == ("a", "c", "a", "b")
    receipts = store.enqueue([Draft("work", queue="orders", tenant=tenant) for tenant in TENANTS])
    assert {cell_of(each.id) for each in receipts} == {0, 1, 2}
    assert len(store.claim([Want("orders", 100)], "w", minutes(1))) == 12
    for partitions, complaint in (([4], "4 is not a partition in 0 … 3"), ([3], "none is left in cell b")):
        with pytest.raises(Invalid, match=complaint):
            mover_of(store).split("orders", partitions, "c")
    store.put_spec(QueueSpec(name="orders", eligibility=InOrder(per="tenant")))
    with pytest.raises(Invalid, match="it keeps order, caps, keys or merges by tenant"):
        mover_of(store).split("orders", [0], "c")


@pytest.mark.parametrize(
    ("axes", "source", "target", "complaint"),
    [
        ({}, "b", "c", "it is in a, so it cannot move from b"),
        ({}, "a", "a", "cannot move from a to a"),
        ({}, "a", "z", "there is no cell 'z'"),
        ({"retention": Retained()}, "a", "b", "a log cannot move"),
        ({"eligibility": AtMost(1, shared="gpu")}, "a", "b", "it may share the cap gpu"),
        ({"eligibility": Until("stock")}, "a", "b", "it may share the condition stock"),
    ],
)
def test_what_cannot_move_is_refused_by_name(
    axes: dict[str, Any], source: str, target: str, complaint: str, cells_fixture: CellsFixture
) -> None:
    store = cells_fixture.open()
    store.put_spec(QueueSpec(name="mail", **axes))
    with pytest.raises(Invalid, match=complaint):
        mover_of(store).start(["mail"], source, target)
    assert store.backend.group.map.version == 1


def test_a_bounded_queue_moves_only_if_it_may_be_above_its_bound_meanwhile(cells_fixture: CellsFixture) -> None:
    store = cells_fixture.open()
    store.put_spec(QueueSpec(name="mail", capacity=Bounded(2)))
    store.enqueue([Draft("work", queue="mail")] * 2)
    mover = mover_of(store)
    refusal = r"its bound of 2 counts only .* --allow-over"
    with pytest.raises(Invalid, match=refusal):
        mover.start(["mail"], "a", "b")
    with pytest.raises(Invalid, match=refusal):
        mover.drain("a", "b")
    mover.start(["mail"], "a", "b", allow_over=True)
    mover.advance()
    store.enqueue([Draft("work", queue="mail")] * 2)
    with pytest.raises(QueueFull):
        store.enqueue([Draft("work", queue="mail")])
    assert store.backlog(["mail"])[0].depth == 4


def test_jobs_that_would_wait_for_others_refuse_a_move(cells_fixture: CellsFixture) -> None:
    store = cells_fixture.open(SPREAD)
    store.put_spec(QueueSpec(name="orders", eligibility=InOrder(per="tenant")))
    with pytest.raises(Invalid, match="the jobs that it has in cell b would wait"):
        mover_of(store).start(["orders"], "a", "b")
    mover_of(store).start(["orders"], "a", "c")
    with pytest.raises(Invalid, match="it moves from cell a to c"):
        mover_of(store).start(["orders"], "b", "c")


def test_a_cell_is_added_and_another_one_drained_and_taken_out_of_the_file(cells_fixture: CellsFixture) -> None:
    old = cells_fixture.open('mail = "b"', cells="ab")
    old.enqueue([Draft("work", 1), Draft("work", 2, queue="mail"), Draft("work", 3, queue="new")])
    store = cells_fixture.open('mail = "b"')
    mover_of(store).add("c")
    with pytest.raises(Invalid, match="it is in the agreed map, version 2"):
        mover_of(store).add("c")
    mover = mover_of(store)
    mover.drain("a", "c")
    assert {state.queue for state in mover.advance()} == {"default", "new"}
    cells_fixture.open_cell("memory://a").enqueue([Draft("work", 4, queue="stray")])
    mover.drain("a", "c")
    assert "stray" in {state.queue for state in mover.advance()}
    found = [run for queue in ("default", "mail", "new", "stray") for run in _run(store, queue)]
    assert found == [1, 2, 3, 4]
    cells_fixture.clock.advance(400_000_000)
    assert mover.advance() == []
    assert store.backend.group.map.in_use() == {"b", "c"}
    with pytest.raises(Invalid, match=r"cell c: the agreed map.*the file has no such cell"):
        cells_fixture.open('mail = "b"', cells="ab")
    lines = 'version = 99\n[cells.b]\nnumber = 1\nurl = "memory://b"\n[cells.c]\nnumber = 2\nurl = "memory://c"'
    smaller = open_cells(
        *read_cells(f'{lines}\n[queues]\n"*" = "c"\nmail = "b"', "cells.toml"), cells_fixture.open_cell
    )
    assert cell_of(smaller.enqueue([Draft("work")])[0].id) == 2
    smaller.close()


def test_a_schedule_whose_queue_is_empty_leaves_a_drained_cell(cells_fixture: CellsFixture) -> None:
    store, due = cells_fixture.open(), cells_fixture.clock.now() + 1_000_000
    store.put_schedule(Schedule("nightly", "@daily", due, Draft("report", queue="reports")))
    mover_of(store).drain("a", "b")
    mover_of(store).advance()
    assert [each.name for each in store.cells()["b"].schedules()] == ["nightly"]
    cells_fixture.clock.advance(1_000_000)
    assert store.fire("nightly", due, due + 10**12, Draft("report", queue="reports"))
    assert cell_of(store.claim([Want("reports", 1)], "w", minutes(1))[0].job.id) == 1


def _run(store: CellsStore, queue: str) -> list[Any]:
    leases = store.claim([Want(queue, 10)], "w", minutes(1))
    store.settle([(lease, Ack()) for lease in leases])
    return [lease.job.payload for lease in leases]


def test_of_two_moves_at_once_the_first_one_counts(cells_fixture: CellsFixture) -> None:
    one, two = cells_fixture.open(), cells_fixture.open()
    two.backend.group.refresh()
    rival = mover_of(two, lambda name: mover_of(one).start(["mail"], "a", "c") if name == "prepared" else None)
    with pytest.raises(Invalid, match=r"it has agreed on version 2, which differs in moves.mail, queues.mail"):
        rival.start(["mail"], "a", "b")
    assert cells_fixture.open().backend.group.map.placement("mail").cells == ("c",)


def test_a_process_follows_moves_by_itself(cells_fixture: CellsFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.store.cells.guard._CHECK_SECONDS", 0.01)
    worker = cells_fixture.open()
    store = cells_fixture.open()
    mover_of(store).start(["mail"], "a", "b")
    mover_of(store).advance()
    store.enqueue([Draft("work", 7, queue="mail")])
    eventually(lambda: _run(worker, "mail") == [7], "the worker claims from the new cell")
    with pytest.raises(Invalid, match="it moves from cell a to b in version 4"):
        cells_fixture.open('mail = "b"', version=9)


def test_a_slot_that_fires_while_its_schedule_moves_fires_once(
    cells_fixture: CellsFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, source = cells_fixture.open(), cells_fixture.open_cell("memory://a")
    due, draft = store.now(), Draft("work", queue="mail")
    store.put_schedule(Schedule("s", "@every 1m", due, draft))
    put = source.put_schedule

    def fire_before(schedule: Schedule) -> None:
        monkeypatch.undo()
        assert source.fire("s", due, due + 60_000_000, draft)
        put(schedule)

    monkeypatch.setattr(source, "put_schedule", fire_before)
    mover_of(store).start(["mail"], "a", "b")
    mover_of(store).advance()
    assert [schedule.next_at for schedule in store.schedules()] == [due + 60_000_000]
    assert not store.fire("s", due, due + 60_000_000, draft)


def test_a_schedule_of_a_process_with_an_older_map_is_put_where_its_queue_lives(cells_fixture: CellsFixture) -> None:
    older, store = cells_fixture.open(), cells_fixture.open()
    mover_of(store).start(["mail"], "a", "b")
    mover_of(store).advance()
    older.put_schedule(Schedule("s", "@every 1m", store.now(), Draft("work", queue="mail")))
    assert [cell for cell, each in store.cells().items() if each.schedules()] == ["b"]


def test_a_ticker_with_an_older_map_fires_where_the_schedule_is(cells_fixture: CellsFixture) -> None:
    older, store = cells_fixture.open(), cells_fixture.open()
    due, draft = store.now(), Draft("work", queue="mail")
    store.put_schedule(Schedule("s", "@every 1m", due, draft))
    mover_of(store).start(["mail"], "a", "b")
    mover_of(store).advance()
    assert older.fire("s", due, due + 60_000_000, draft)
    assert not store.fire("s", due, due + 60_000_000, draft)


def test_a_process_follows_a_move_while_another_cell_hangs(
    cells_fixture: CellsFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, store = cells_fixture.open(deadline=0.1), cells_fixture.open()
    mover_of(store).start(["mail"], "a", "b")
    mover_of(store).advance()
    released = Event()
    monkeypatch.setattr(cells_fixture.open_cell("memory://c"), "extent", lambda _: released.wait(5))
    began = monotonic()
    assert cell_of(older.enqueue([Draft("work", queue="mail")])[0].id) == 1
    assert monotonic() < began + 2
    released.set()
