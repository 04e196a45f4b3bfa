"""The last 24 hours: counted from the ledger, kept in the store, the same after a restart and with several servers."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from forebay.core.job import Draft
from forebay.core.outcome import Ack, DeadLetter, Failure, Retry
from forebay.serve.actor import Role
from forebay.serve.metrics import history
from forebay.serve.metrics.history import HISTORY_LOG, STEP, STEPS, RateHistory
from forebay.serve.metrics.server_metrics import Metrics
from forebay.serve.settings import ServeSettings
from forebay.store.clock import SystemClock
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from forebay.testing.clock import ManualClock
from tests.serve.site import Serving
from tests.serve.visitor import visitor

MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000_000 // STEP * STEP)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock)
    yield opened
    opened.close()


def server(store: Store) -> Metrics:
    """As a server that has just started."""
    metrics = Metrics(store)
    poll(metrics)
    return metrics


def poll(metrics: Metrics) -> None:
    metrics.followers[""].step()
    metrics.history.step()


def work(store: Store, queue: str, done: int = 0, dead: int = 0, retried: int = 0) -> None:
    store.enqueue([Draft("k", n, queue) for n in range(done + dead + retried)])
    leases = store.claim([Want(queue, done + dead + retried)], "w", MINUTE)
    broke = Failure("Oops", "it broke")
    verdicts = [Ack()] * done + [DeadLetter(broke)] * dead + [Retry(3_600_000_000, broke)] * retried
    store.settle(list(zip(leases, verdicts, strict=True)))


def steps(metrics: Metrics, store: Store, queue: str, last: int = 3) -> list[int | None]:
    """Jobs done in the newest steps that are over."""
    return list(metrics.history.day(store.now(), queue.__eq__).going[-last:])


def test_steps_that_are_over_outlive_the_server(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = server(store)
    for done in (3, 5):
        work(store, "mail", done, dead=1, retried=2)
        work(store, "media", 1)
        clock.advance(STEP)
        poll(first)
    clock.advance(20_000_000)
    poll(first)
    day = first.history.day(store.now(), "mail".__eq__)
    assert (day.going[-2:], day.coming[-2:], day.failing[-2:]) == ((3, 5), (6, 8), (3, 3))
    assert (day.done, day.accepted, day.failed) == (8, 14, 6)
    assert first.history.day(store.now()).done == 10
    assert len(day.going) == STEPS
    monkeypatch.setattr(history, "MAX_BACKFILL", 0)
    again = server(store)
    assert again.history.day(store.now(), "mail".__eq__) == day
    assert again.history.day(store.now(), "none".__eq__).done == 0


def test_what_happened_while_no_server_ran_is_counted_when_one_starts(store: Store, clock: ManualClock) -> None:
    server(store)
    for done in (1, 2, 3):
        work(store, "mail", done)
        clock.advance(STEP)
    assert steps(server(store), store, "mail") == [1, 2, 3]


def test_what_is_not_fully_counted_is_unknown_and_not_zero(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_BACKFILL", 7)
    for _ in range(3):
        for _ in range(2):
            work(store, "mail", 1)
        clock.advance(STEP)
    late = server(store)
    assert steps(late, store, "mail") == [None, None, 2]
    assert late.history.day(store.now()).known == 1
    work(store, "mail", 4)
    poll(late)
    clock.advance(STEP)
    poll(late)
    assert steps(late, store, "mail") == [None, 2, 4]


def test_several_servers_of_a_store_count_once(store: Store, clock: ManualClock) -> None:
    servers = [server(store), server(store)]
    for done in (4, 6):
        work(store, "mail", done)
        clock.advance(STEP)
        for each in servers:
            poll(each)
    clock.advance(20_000_000)
    for each in servers:
        poll(each)
        assert steps(each, store, "mail", 2) == [4, 6]
    assert steps(server(store), store, "mail", 2) == [4, 6]
    (extent,) = store.extent(HISTORY_LOG)
    written = [entry.body for entry in store.read(HISTORY_LOG, 0, extent[0] - 1, 1_000)]
    assert len(written) == len(set(written))


def test_a_step_names_few_queues_and_counts_all(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_QUEUES", 3)
    metrics = server(store)
    for number in range(10):
        work(store, f"q{number}", 1)
    poll(metrics)
    clock.advance(STEP)
    poll(metrics)
    assert steps(metrics, store, "q0", 1) == [1]
    assert metrics.history.day(store.now()).done == 10


def test_a_day_is_all_that_is_held(store: Store, clock: ManualClock) -> None:
    metrics = server(store)
    work(store, "mail", 2)
    poll(metrics)
    for _ in range(STEPS + 3):
        clock.advance(STEP)
        poll(metrics)
    day = metrics.history.day(store.now())
    assert (day.done, day.known) == (0, STEPS)
    assert isinstance(metrics.history, RateHistory)
    store.promote(1_000)
    ((first, following),) = store.extent(HISTORY_LOG)
    assert following - first <= STEPS + 15


def test_the_overview_and_a_queue_show_the_day(tmp_path: Path, serve_on: Serving) -> None:
    url = f"sqlite:///{tmp_path}/day.db"
    before = open_store(url, clock=ManualClock(SystemClock().now() - 3 * STEP))
    work(before, "mail", 7, dead=2)
    before.close()
    store = open_store(url)
    site = serve_on(store, ServeSettings(port=0, maintain=False))
    with visitor(site, Role.VIEWER) as viewer, visitor(site, Role.VIEWER, queues=["media"]) as foreign:
        for _ in range(100):
            if "7 done" in viewer.get("/ui/").text:
                break
        for path in ("/ui/", "/ui/queues/mail"):
            page = viewer.get(path).text
            assert "Last 24 hours" in page
            assert "9 accepted 7 done 2 failed attempts" in page
        assert "7 done" not in foreign.get("/ui/").text
    store.close()
