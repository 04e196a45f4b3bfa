"""Sources of drafts over cells: batches over several cells, interrupted between them, repeated, overtaken and moved."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest

from forebay.core.entries import LogEntry
from forebay.core.errors import HalfIngested, Invalid, QueueFull, StoreFailed
from forebay.core.job import Draft
from forebay.core.policy import Bounded, Reject, Retained
from forebay.core.spec import QueueSpec
from forebay.store.backend import Backend
from forebay.store.cells.cell_map import partition_of, read_cells
from forebay.store.cells.moving import Mover
from forebay.store.cells.store import CellsStore, open_cells
from forebay.store.memory.store import MemoryBackend
from forebay.store.protocol import Checkpoint, Query, Tally
from forebay.testing.clock import ManualClock
from forebay.work.log_readers import Bridge

QUEUES = 'mail = "a"\nbills = "b"\nnews = "c"\norders = { partitions = 6, by = "tenant", cells = ["a", "b", "c"] }\n'
BY_ID = 'by-id = { partitions = 6, by = "id", cells = ["a", "b", "c"] }\n'
TENANTS = [f"t{number}" for number in range(8)]


class Cut:
    """The backend of a cell, which counts calls of `ingest`, and fails before or after one of them."""

    def __init__(self, cells: "Sourced", backend: Backend, name: str) -> None:
        self._cells, self._backend, self._name = cells, backend, name

    def __getattr__(self, verb: str) -> Any:
        if self._name in self._cells.down and verb not in ("close", "capabilities"):
            raise StoreFailed("the store", "connection refused", "start it")
        return self._cells.ingesting(getattr(self._backend, verb)) if verb == "ingest" else getattr(self._backend, verb)


class Sourced:
    """Memory stores as cells, and processes that open them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.down: set[str] = set()
        self.written = 0
        self.interrupt: Callable[[], None] = lambda: None
        self._backends: dict[str, Backend] = {}
        self._opened: list[CellsStore] = []

    def open(self, queues: str = QUEUES + BY_ID, cells: str = "abc", version: int = 1) -> CellsStore:
        lines = [f"version = {version}"]
        for number, name in enumerate(cells):
            lines += [f"[cells.{name}]", f"number = {number}", f'url = "memory://{name}"']
        store = open_cells(*read_cells("\n".join([*lines, "[queues]", '"*" = "a"', queues]), "cells.toml"), self._open)
        self._opened.append(store)
        return store

    def _open(self, url: str) -> Backend:
        if url not in self._backends:
            backend = MemoryBackend(clock=self.clock)
            setattr(backend, "close", lambda: None)  # noqa: B010
            self._backends[url] = backend
        return cast(Backend, Cut(self, self._backends[url], url[-1]))

    def ingesting(self, ingest: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.interrupt()
            self.written += 1
            return ingest(*args)

        return call

    def cut_after(self, count: int) -> None:
        """The process ends before the write that comes after so many."""
        left = [count]

        def interrupt() -> None:
            left[0] -= 1
            if left[0] < 0:
                raise _Killed

        self.interrupt = interrupt

    def close(self) -> None:
        for store in self._opened:
            store.close()


class _Killed(BaseException):
    pass


@pytest.fixture
def cells() -> Iterator[Sourced]:
    found = Sourced()
    yield found
    found.close()


def batch(first: int, count: int, *queues: str) -> list[Draft]:
    names = queues or ("mail", "bills", "news", "orders", "by-id")
    return [
        Draft("work", number, queue=queue, tenant=TENANTS[number % len(TENANTS)])
        for number in range(first, first + count)
        for queue in names
    ]


def ingested(store: CellsStore) -> Counter[tuple[str, object]]:
    return Counter((job.queue, job.payload) for job in store.browse(Query(), 0, 1000).jobs)


def once(drafts: list[Draft]) -> Counter[tuple[str, object]]:
    return Counter((draft.queue, draft.payload) for draft in drafts)


@pytest.mark.parametrize("source", [f"s{number}" for number in range(6)])
def test_a_batch_over_all_cells_is_accepted_once_wherever_its_process_ends(source: str) -> None:
    drafts, writes = batch(0, 4), 0
    for cut in range(10):
        cells = Sourced()
        store = cells.open()
        assert store.ingest(source, None, Checkpoint(1, 0, b""), []) == Tally()
        cells.cut_after(cut)
        before, after = Checkpoint(1, 0, b""), Checkpoint(2, len(drafts), b"x")
        try:
            assert store.ingest(source, before, after, drafts) == Tally(len(drafts))
            writes = cut
        except _Killed:
            cells.interrupt = lambda: None
            store = cells.open()
            assert store.ingested(source) == before
            tally = store.ingest(source, before, after, drafts)
            assert tally == Tally(len(drafts))
        assert store.ingest(source, before, after, drafts) is None
        assert store.ingested(source) == after
        assert ingested(store) == once(drafts)
        cells.close()
        if writes:
            break
    assert writes == 3


def test_an_empty_batch_binds_a_source_to_no_cell(cells: Sourced) -> None:
    store, last = cells.open(), None
    for number, queue in enumerate(["", "bills", "", "news", "mail", "bills"]):
        after = Checkpoint(number, 0, b"")
        drafts = [Draft("work", number, queue=queue)] if queue else []
        assert store.ingest("feed", last, after, drafts) == Tally(len(drafts))
        last = after
    assert sum(ingested(store).values()) == 4


def test_a_repeated_batch_with_another_end_is_refused_with_the_end_that_it_needs(cells: Sourced) -> None:
    """A log has grown meanwhile, or the batches are smaller now."""
    store = cells.open()
    drafts = batch(0, 8, "orders")
    cells.cut_after(1)
    with pytest.raises(_Killed):
        store.ingest("feed", None, Checkpoint(1, 4, b""), drafts[:4])
    cells.interrupt = lambda: None
    with pytest.raises(HalfIngested, match="batch 1, draft 4") as refused:
        store.ingest("feed", None, Checkpoint(1, 8, b""), drafts)
    assert (refused.value.batch, refused.value.taken) == (1, 4)
    last = None
    for end in (4, 8):
        after = Checkpoint(1, end, b"")
        assert store.ingest("feed", last, after, drafts[last.taken if last else 0 : end]) == Tally(4)
        last = after
    assert ingested(store) == once(drafts)


def test_other_drafts_than_those_of_an_interrupted_batch_are_refused(cells: Sourced) -> None:
    store = cells.open()
    cells.cut_after(1)
    with pytest.raises(_Killed):
        store.ingest("feed", None, Checkpoint(1, 8, b""), batch(0, 8, "orders"))
    cells.interrupt = lambda: None
    before = ingested(store)
    with pytest.raises(Invalid, match="has other drafts of it up to batch 1, draft 8"):
        store.ingest("feed", None, Checkpoint(1, 8, b""), batch(8, 8, "orders"))
    assert ingested(store) == before
    begin = Checkpoint(1, 0, b"")
    assert store.ingest("more", None, begin, []) == Tally()
    with pytest.raises(Invalid, match="upwards"):
        store.ingest("more", begin, Checkpoint(1, 0, b"2"), batch(0, 8, "orders"))


@pytest.mark.parametrize("pause", [0, 1, 2, 3])
def test_a_writer_that_was_overtaken_adds_nothing(pause: int, cells: Sourced) -> None:
    """It stops before one of its writes; another writer finishes its batch, and the next one."""
    slow, quick = cells.open(), cells.open()
    drafts, more = batch(0, 4), batch(4, 4)
    first, second = Checkpoint(1, 4, b""), Checkpoint(2, 4, b"")
    left = [pause]

    def overtaken() -> None:
        left[0] -= 1
        if left[0] == -1:
            quick.ingest("feed", None, first, drafts)
            assert quick.ingest("feed", first, second, more) is not None

    cells.interrupt = overtaken
    late = slow.ingest("feed", None, first, drafts)
    overtaken()
    assert late is None or pause == 3
    assert quick.ingested("feed") == second or pause == 3
    assert all(count == 1 for count in ingested(quick).values())


def test_a_dead_cell_that_a_batch_does_not_need_holds_up_no_source(cells: Sourced) -> None:
    store, sources = cells.open(), [f"s{number}" for number in range(20)]
    cells.down.add("c")
    answered = Counter[bool]()
    for source in sources:
        try:
            assert store.ingest(source, None, Checkpoint(1, 2, b""), batch(0, 1, "mail", "bills")) == Tally(2)
            answered[True] += 1
        except StoreFailed:
            answered[False] += 1
    assert answered[True] > 8
    assert answered[False] > 1
    assert len(ingested(store.cells()["a"])) == 1  # type: ignore[arg-type]


def test_a_full_queue_in_one_cell_is_tried_again_until_the_batch_is_whole(cells: Sourced) -> None:
    store = cells.open()
    store.put_spec(QueueSpec(name="bills", capacity=Bounded(1, Reject())))
    (receipt,) = store.enqueue([Draft("work", queue="bills")])
    after = Checkpoint(1, 3, b"")
    for _ in range(2):
        with pytest.raises(QueueFull):
            store.ingest("feed", None, after, batch(0, 1, "mail", "bills", "news"))
    store.cancel([receipt.id])
    assert store.ingest("feed", None, after, batch(0, 1, "mail", "bills", "news")) == Tally(3)
    assert once(batch(0, 1, "mail", "bills", "news")) <= ingested(store)
    assert max(ingested(store).values()) == 1


@pytest.mark.parametrize("cut", range(4))
@pytest.mark.parametrize("how", ["move", "split"])
@pytest.mark.parametrize("source", ["s0", "s1", "s2", "s3"])
def test_a_batch_that_is_interrupted_and_repeated_after_a_move_is_accepted_once(
    source: str, how: str, cut: int, cells: Sourced
) -> None:
    store, stale = cells.open(), cells.open()
    drafts = batch(0, 8, "mail", "bills", "orders")
    after = Checkpoint(1, len(drafts), b"")
    cells.cut_after(cut)
    with suppress(_Killed):
        assert stale.ingest(source, None, after, drafts) is not None
    cells.interrupt = lambda: None
    mover = Mover(store.backend.group)
    if how == "move":
        mover.start(["mail"], "a", "b")
        mover.start(["bills"], "b", "c")
        mover.advance()
    else:
        mover.split("orders", [1, 3], "c")
        mover.split("orders", [5], "a")
    late = stale.ingest(source, None, after, drafts)
    assert late in (None, Tally(len(drafts)))
    assert store.ingest(source, store.ingested(source), Checkpoint(2, 1, b""), drafts[:1]) == Tally(1)
    assert ingested(store) == once(drafts) + once(drafts[:1])


@pytest.mark.parametrize("cut", range(8))
@pytest.mark.parametrize("source", ["s0", "s1", "s2", "s3"])
def test_a_writer_with_an_older_map_follows_the_one_whose_batch_it_repeats(
    source: str, cut: int, cells: Sourced
) -> None:
    store, stale = cells.open(), cells.open()
    drafts = batch(0, 8, "mail", "bills", "orders")
    after = Checkpoint(1, len(drafts), b"")
    mover = Mover(store.backend.group)
    mover.start(["mail"], "a", "b")
    mover.advance()
    mover.split("orders", [1], "c")
    mover.split("orders", [5], "a")
    cells.cut_after(cut)
    with suppress(_Killed):
        assert store.ingest(source, None, after, drafts) is not None
    cells.interrupt = lambda: None
    assert stale.ingest(source, None, after, drafts) in (None, Tally(len(drafts)))
    assert ingested(stale) == once(drafts)


@pytest.mark.parametrize("cut", range(4))
def test_a_cell_that_a_partition_has_left_accepts_none_of_its_drafts_any_more(cut: int, cells: Sourced) -> None:
    """The writer that repeats the batch has not followed the newer map yet, and no cell is closed."""
    store, stale = cells.open(), cells.open()
    group = store.backend.group
    tenant = next(each for each in TENANTS if group.map.placement("orders").cells[partition_of(each, 6)] == "b")
    drafts = [Draft("work", number, queue="orders", tenant=tenant) for number in range(3)]
    source, after = "s1", Checkpoint(1, 3, b"")
    Mover(group).split("orders", [partition_of(tenant, 6)], "c")
    cells.cut_after(cut)
    with suppress(_Killed):
        assert store.ingest(source, None, after, drafts) is not None
    cells.interrupt = lambda: None
    assert stale.ingest(source, None, after, drafts) in (None, Tally(3))
    assert ingested(stale) == once(drafts)


def test_a_key_is_recognized_in_the_cell_that_its_queue_leaves(cells: Sourced) -> None:
    for source in ("s0", "s1", "s2", "s3"):
        store, key = cells.open(), f"k-{source}"
        store.enqueue([Draft("work", queue="mail", key=key)])
        mover = Mover(store.backend.group)
        if source == "s0":
            mover.start(["mail"], "a", "b")
        drafts = [Draft("work", queue="mail", key=key), Draft("work", queue="mail"), Draft("work", queue="news")]
        for number in range(2):
            known = store.ingested(source)
            assert store.ingest(source, known, Checkpoint(number, 3, b""), drafts) == Tally(3, 1)
            mover.advance()


def test_a_cell_that_is_added_changes_no_position(cells: Sourced) -> None:
    store = cells.open()
    sources = {f"s{number}": Checkpoint(number, 2, b"") for number in range(20)}
    for source, after in sources.items():
        store.ingest(source, None, after, batch(0, 1, "mail", "bills"))
    grown = cells.open(cells="abcde")
    for name in "de":
        Mover(grown.backend.group).add(name)
    for each in (store, grown, cells.open(cells="abcde")):
        assert {source: each.ingested(source) for source in sources} == sources


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_bridge_that_is_killed_between_cells_turns_each_entry_into_its_jobs_once(
    cut: int, size: int, cells: Sourced
) -> None:
    def drafts(entry: LogEntry) -> list[Draft]:
        return [Draft("work", entry.offset, queue="orders", tenant=tenant) for tenant in TENANTS]

    store = cells.open()
    store.put_spec(QueueSpec(name="log", retention=Retained(1)))
    store.append("log", [b"{}"] * 4)
    cells.cut_after(cut)
    with pytest.raises(_Killed):
        Bridge(store, "log", "bridge", drafts, batch=4, member="m").step()
    cells.interrupt = lambda: None
    store.append("log", [b"{}"] * 4)
    bridge = Bridge(store, "log", "bridge", drafts, batch=size, member="m")
    for _ in range(8):
        bridge.step()
    assert store.position("log", "bridge", 0) == 7
    counts = Counter((job.payload, job.tenant) for job in store.browse(Query(queue="orders"), 0, 1000).jobs)
    assert counts == Counter((offset, tenant) for offset in range(8) for tenant in TENANTS)
