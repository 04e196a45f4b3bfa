"""Readers of a log: a consumer that commits after or before it handles, and a bridge that makes jobs of entries."""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from forebay.core.entries import LogEntry
from forebay.core.errors import Invalid, StoreFailed
from forebay.core.instant import micros, seconds
from forebay.core.job import Draft
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Query, Store, Want
from forebay.store.sqlite.store import SqliteStore
from forebay.testing.clock import ManualClock
from forebay.work.log_readers import Bridge, Consumer
from tests.waiting import eventually

LEASE = seconds(30)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore(clock=clock)
    if request.param == "sqlite":
        made = SqliteStore(str(tmp_path / "jobs.db"), clock=clock)
    made.put_spec(QueueSpec(name="log", retention=Retained(2)))
    yield made
    made.close()


def filled(store: Store, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    store.append("log", bodies)
    return bodies


def steps(role: Consumer | Bridge) -> None:
    while role.step() == 0:
        pass


def lag(store: Store, group: str = "g") -> int:
    return sum(one.lag for one in store.groups("log", "", 10) if one.group == group)


@pytest.mark.parametrize("commit", ["after", "before"])
def test_every_entry_is_handled_once_and_in_order(store: Store, commit: str) -> None:
    seen: list[LogEntry] = []
    consumer = Consumer(store, "log", "g", seen.append, commit=commit, batch=3)  # type: ignore[arg-type]
    bodies = filled(store, 20)
    steps(consumer)
    assert sorted(int(entry.body) for entry in seen) == [int(body) for body in bodies]
    for partition in (0, 1):
        offsets = [entry.offset for entry in seen if entry.partition == partition]
        assert offsets == sorted(offsets)
    assert (consumer.handled, consumer.failed, lag(store)) == (20, 0, 0)


def test_after_means_that_a_crash_repeats_what_was_not_committed(store: Store) -> None:
    filled(store, 8)
    seen: list[bytes] = []

    def die(entry: LogEntry) -> None:
        seen.append(entry.body)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        steps(Consumer(store, "log", "g", die, commit="after", member="m"))
    assert lag(store) == 8
    steps(Consumer(store, "log", "g", lambda entry: seen.append(entry.body), commit="after", member="m"))
    assert len(seen) == 3 + 8
    assert len(set(seen)) == 8
    assert lag(store) == 0


def test_before_means_that_a_crash_loses_what_was_not_handled(store: Store) -> None:
    filled(store, 8)
    seen: list[bytes] = []

    def die(entry: LogEntry) -> None:
        seen.append(entry.body)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        steps(Consumer(store, "log", "g", die, commit="before", member="m", batch=4))
    assert lag(store) == 4
    steps(Consumer(store, "log", "g", lambda entry: seen.append(entry.body), commit="before", member="m"))
    assert len(seen) == len(set(seen)) == 3 + 4


def test_an_entry_that_fails_is_tried_again_and_its_partition_waits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("forebay.work.log_readers.monotonic", lambda: now)
    filled(store, 6)
    seen: list[tuple[int, int]] = []
    broken = [True]

    def handle(entry: LogEntry) -> None:
        if (entry.partition, entry.offset) == (0, 1) and broken[0]:
            raise ValueError("not yet")
        seen.append((entry.partition, entry.offset))

    consumer = Consumer(store, "log", "g", handle, commit="after")
    steps(consumer)
    assert sorted(seen) == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert (store.position("log", "g", 0), store.position("log", "g", 1)) == (0, 2)
    assert consumer.failed == 1
    broken[0] = False
    rest = consumer.step()
    while len(seen) < 6:
        assert 0 <= rest <= 1
        now += rest
        rest = consumer.step()
    assert seen[-2:] == [(0, 1), (0, 2)]


def test_before_passes_over_an_entry_that_fails(store: Store) -> None:
    filled(store, 4)

    def handle(entry: LogEntry) -> None:
        if entry.offset == 0:
            raise ValueError("never")

    consumer = Consumer(store, "log", "g", handle, commit="before")
    steps(consumer)
    assert (consumer.handled, consumer.failed, lag(store)) == (2, 2, 0)


def test_a_member_that_was_replaced_does_not_commit_over_its_successor(store: Store, clock: ManualClock) -> None:
    """A handler that takes longer than the lease: another member goes on, and the slow one cannot commit."""
    filled(store, 4)
    other: list[bytes] = []

    def slow(_: LogEntry) -> None:
        if not other:
            clock.advance(micros(LEASE) + 1)
            steps(Consumer(store, "log", "g", lambda entry: other.append(entry.body), commit="after", member="quick"))

    consumer = Consumer(store, "log", "g", slow, commit="after", member="slow", lease=LEASE)
    consumer.step()
    assert len(other) == 4
    assert {one.member for one in store.groups("log", "", 1)} == {"quick"}
    assert lag(store) == 0


def test_a_group_goes_on_where_the_log_now_begins(store: Store, clock: ManualClock) -> None:
    filled(store, 6)
    clock.advance(1)
    store.trim("log", clock.now(), 4)
    seen: list[bytes] = []
    consumer = Consumer(store, "log", "g", lambda entry: seen.append(entry.body), commit="after")
    steps(consumer)
    assert (len(seen), consumer.lost, lag(store)) == (2, 4, 0)


def test_two_members_share_partitions_and_a_member_that_leaves_frees_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("forebay.work.log_readers.monotonic", lambda: now)
    seen: dict[str, set[int]] = {"a": set(), "b": set()}

    def handler(name: str) -> Callable[[LogEntry], None]:
        return lambda entry: seen[name].add(entry.partition)

    first = Consumer(store, "log", "g", handler("a"), commit="after", lease=LEASE)
    second = Consumer(store, "log", "g", handler("b"), commit="after", lease=LEASE)
    for _ in range(4):
        now += LEASE.total_seconds()
        first.step()
        second.step()
    filled(store, 2)
    steps(first)
    steps(second)
    assert (seen["a"] & seen["b"], seen["a"] | seen["b"]) == (set(), {0, 1})
    second.close()
    assert [one.member is None for one in store.groups("log", "", 1)].count(True) == 1


def test_a_running_consumer_gets_new_entries_and_ends_on_request(store: Store) -> None:
    came, stopping = Event(), Event()
    consumer = Consumer(store, "log", "g", lambda _: came.set(), commit="after")
    thread = Thread(target=consumer.run, args=(stopping,), daemon=True)
    thread.start()
    eventually(lambda: store.groups("log", "", 1), "the group joins")
    filled(store, 1)
    assert came.wait(10)
    stopping.set()
    store.append("log", [b"1"])
    thread.join(10)
    assert not thread.is_alive()
    assert {one.member for one in store.groups("log", "", 1)} == {None}


def test_neither_before_nor_after_is_refused(store: Store) -> None:
    with pytest.raises(Invalid, match="at least once"):
        Consumer(store, "log", "g", print, commit="sometimes")  # type: ignore[arg-type]


def count(entry: LogEntry) -> list[Draft]:
    """Of every third entry nothing comes, of the others two jobs."""
    return [] if int(entry.body) % 3 == 0 else [Draft("count", body=entry.body, queue="jobs")] * 2


def jobs(store: Store) -> list[int]:
    return sorted(int(job.body) for job in store.browse(Query(queue="jobs"), 0, 1000).jobs)


EXPECTED = sorted([number for number in range(20) if number % 3] * 2)


def test_entries_become_jobs_once(store: Store) -> None:
    filled(store, 20)
    bridge = Bridge(store, "log", "jobs", count, batch=4)
    steps(bridge)
    assert jobs(store) == EXPECTED
    assert (bridge.entries, bridge.jobs, lag(store, "jobs")) == (20, len(EXPECTED), 0)
    assert len(store.claim([Want("jobs", 100)], "w", LEASE)) == len(EXPECTED)


def test_a_bridge_that_died_before_its_commit_brings_nothing_in_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store, 20)

    def away(*_: object, **__: object) -> int:
        raise StoreFailed("the store", "it is away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "commit", away)
        for _ in range(2):
            with pytest.raises(StoreFailed):
                steps(Bridge(store, "log", "jobs", count, batch=6, member="m"))
    assert lag(store, "jobs") == 20
    assert jobs(store)
    steps(Bridge(store, "log", "jobs", count, batch=5, member="m"))
    assert jobs(store) == EXPECTED
    assert lag(store, "jobs") == 0


def test_bridges_that_race_bring_in_once(store: Store) -> None:
    """As if the lease did not hold: both read every partition."""
    filled(store, 20)
    bridges = [Bridge(store, "log", "jobs", count, batch=3, member="m") for _ in range(3)]
    for _ in range(8):
        for bridge in bridges:
            bridge.step()
    assert jobs(store) == EXPECTED
    assert sum(bridge.entries for bridge in bridges) == 20
