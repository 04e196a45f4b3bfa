"""Batch handlers: jobs of a batch share one call and nothing else; each has its own lease, outcome and verdict."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest
from msgspec import Struct

from forebay import Call, Context, Drop, Forebay, Invalid, Snooze, State
from forebay.testing import JobTester
from forebay.work.options import Options
from forebay.work.redacting import install_secret_filter
from forebay.work.run import TIMEOUT
from forebay.work.worker import Worker
from tests.waiting import PATIENCE, eventually

LONG = 30.0


class Document(Struct):
    id: int
    text: str = ""


@pytest.fixture
def fb() -> Iterator[Forebay]:
    with Forebay("memory://") as fb:
        yield fb


@contextmanager
def working(fb: Forebay) -> Iterator[Worker]:
    worker = Worker(fb, Options(concurrency=32))
    worker.start()
    try:
        yield worker
    finally:
        worker.drain(5)


def states(fb: Forebay, ids: list[int]) -> list[tuple[State | None, int]]:
    jobs = [fb.wait_for(job_id, 5) for job_id in ids]
    return [(None, 0) if job is None else (job.state, job.attempt) for job in jobs]


class Pool:
    """What a bulk insert needs: made once in a process."""

    def __init__(self) -> None:
        self.rows: list[int] = []


class Session:
    """Made for each run."""


@pytest.mark.parametrize("on_loop", [True, False])
@pytest.mark.parametrize("where", ["worker", "tester"])
def test_a_batch_takes_values_of_the_process(fb: Forebay, where: str, on_loop: bool) -> None:
    made: list[Pool] = []

    async def make_pool() -> AsyncIterator[Pool]:
        made.append(Pool())
        yield made[-1]
        made[-1].rows.append(-1)

    fb.provide(Pool, make_pool)

    def insert(calls: list[Call[int]], pool: Pool | None = None) -> list[Any]:
        assert pool is not None
        pool.rows += [call.item for call in calls]
        return [len(pool.rows)] * len(calls)

    async def insert_async(calls: list[Call[int]], *, pool: Pool) -> list[Any]:
        return insert(calls, pool)

    chosen: Any = insert_async if on_loop else insert
    bulk = fb.job(batch=3, wait=LONG, kind="insert", keep_result=True)(chosen)
    if where == "worker":
        with working(fb):
            receipts = [bulk.enqueue(n) for n in range(3)]
            assert [receipt.result() for receipt in receipts] == [3] * 3
        assert [job.payload for job in fb.jobs()] == [{"item": n} for n in range(3)]
        (pool,) = made
        assert (sorted(pool.rows[:3]), pool.rows[3:]) == ([0, 1, 2], [-1])
    with JobTester(fb, provided={Pool: (given := Pool())}) as jobs:
        for n in range(3, 6):
            bulk.enqueue(n)
        jobs.run_all()
    assert given.rows == [3, 4, 5]


def test_a_batch_takes_no_value_of_one_job(fb: Forebay) -> None:
    fb.provide(Pool, Pool)
    fb.provide(Session, Session, scope="job")

    def takes_context(calls: list[Call[int]], ctx: Context) -> None: ...

    def takes_session(calls: list[Call[int]], session: Session) -> None: ...

    def takes_item(calls: list[Call[int]], item: Pool) -> None: ...

    def takes_first(pool: Pool, calls: list[Call[int]]) -> None: ...

    wrong = {
        takes_context: "'ctx' belongs to one job.*call.ctx",
        takes_session: r"'session' \(Session\) is made for each job.*scope",
        takes_item: "'item' has a name of Call",
        takes_first: "first parameter.*not a list of calls",
    }
    for function, message in wrong.items():
        decorate: Any = fb.job(batch=2)
        with pytest.raises(Invalid, match=message):
            decorate(function)
    assert fb.registry == {}


@pytest.mark.parametrize("on_loop", [True, False])
def test_a_full_batch_is_one_call_and_each_job_has_its_result(fb: Forebay, on_loop: bool) -> None:
    sizes: list[int] = []
    threads: set[str] = set()

    def body(calls: list[Call[Document]]) -> list[Any]:
        sizes.append(len(calls))
        threads.add(threading.current_thread().name)
        assert len({call.ctx.fence for call in calls}) == len(calls)
        return [call.item.id * 2 for call in calls]

    async def on_the_loop(calls: list[Call[Document]]) -> list[Any]:
        await asyncio.sleep(0)
        return body(calls)

    index = fb.job(batch=10, wait=LONG, kind="index", keep_result=True)(on_the_loop if on_loop else body)
    receipts = [index.enqueue(Document(n)) for n in range(20)]
    with working(fb):
        assert [receipt.result() for receipt in receipts] == [2 * n for n in range(20)]
    assert sizes == [10, 10]
    assert ("forebay-loop" in threads) == on_loop


def test_a_batch_that_does_not_fill_starts_after_its_wait(fb: Forebay) -> None:
    sizes: list[int] = []

    @fb.job(batch=10, wait=0.05, keep_result=True)
    async def index(calls: list[Call[Document]]) -> None:
        sizes.append(len(calls))

    receipts = [index.enqueue(Document(n)) for n in range(3)]
    with working(fb):
        for receipt in receipts:
            assert receipt.result() is None
    assert sum(sizes) == 3


def test_each_item_has_its_own_outcome(fb: Forebay) -> None:
    @fb.job(batch=4, wait=LONG, max_attempts=2, keep_result=True)
    def index(calls: list[Call[Document]]) -> list[Any]:
        outcome = {0: "indexed", 1: ConnectionError("later"), 2: Drop("useless"), 3: Snooze(3600)}
        return [outcome[call.item.id] for call in calls]

    ids = [index.enqueue(Document(n)).id for n in range(4)]
    with working(fb):
        assert fb.result(ids[0]) == "indexed"
        eventually(lambda: all((job := fb.get(i)) is not None and job.state is not State.RUNNING for i in ids))
    retried, dropped, snoozed = (fb.get(job_id) for job_id in ids[1:])
    assert retried is not None
    assert dropped is not None
    assert snoozed is not None
    assert not retried.state.terminal
    assert (retried.attempt, [error.message for error in retried.errors]) == (1, ["later"])
    assert (dropped.state, dropped.attempt) == (State.DEAD, 1)
    assert (snoozed.state, snoozed.attempt, snoozed.errors) == (State.WAITING, 0, ())


def test_when_the_whole_batch_raises_every_job_fails_one_attempt(fb: Forebay) -> None:
    @fb.job(batch=3, wait=LONG, max_attempts=1)
    def index(calls: list[Call[Document]]) -> None:
        raise ConnectionError("the index is down")

    @fb.job(batch=2, wait=LONG, max_attempts=1)
    async def confused(calls: list[Call[Document]]) -> list[Any]:
        return [None]

    ids = [index.enqueue(Document(n)).id for n in range(3)]
    with working(fb):
        assert states(fb, ids) == [(State.DEAD, 1)] * 3
        others = [confused.enqueue(Document(n)).id for n in range(2)]
        assert states(fb, others) == [(State.DEAD, 1)] * 2
    job = fb.get(others[0])
    assert job is not None
    assert "a list of 1 for 2 calls" in job.errors[-1].message


def test_a_cancelled_job_leaves_and_the_others_go_on(fb: Forebay) -> None:
    seen: list[list[int]] = []
    begun, go_on = Event(), Event()

    @fb.job(batch=3, wait=LONG, keep_result=True)
    def index(calls: list[Call[Document]]) -> list[Any]:
        seen.append([call.item.id for call in calls])
        begun.set()
        assert go_on.wait(PATIENCE)
        return ["done"] * len(calls)

    first = [index.enqueue(Document(n)) for n in range(2)]
    with working(fb):
        eventually(lambda: all((job := fb.get(r.id)) is not None and job.state is State.RUNNING for r in first))
        fb.cancel(first[0].id)
        assert states(fb, [first[0].id])[0][0] in (None, State.CANCELLED)
        rest = [index.enqueue(Document(n)) for n in (2, 3)]
        assert begun.wait(PATIENCE)
        fb.cancel(rest[0].id)
        assert states(fb, [rest[0].id])[0][0] in (None, State.CANCELLED)
        go_on.set()
        assert [first[1].result(), rest[1].result()] == ["done", "done"]
    assert sorted(seen[0]) == [1, 2, 3]


def test_a_job_whose_lease_is_lost_leaves_without_a_verdict(fb: Forebay) -> None:
    seen: list[list[int]] = []

    @fb.job(batch=2, wait=LONG, keep_result=True)
    async def index(calls: list[Call[Document]]) -> list[Any]:
        seen.append([call.item.id for call in calls])
        return ["done"] * len(calls)

    with working(fb) as worker:
        lost = index.enqueue(Document(0))
        eventually(lambda: worker.pool.running == 1)
        worker.pool.mark_lost([(lost.id, 1)])
        eventually(lambda: worker.pool.idle)
        rest = [index.enqueue(Document(n)) for n in (1, 2)]
        assert [receipt.result() for receipt in rest] == ["done", "done"]
        job = fb.get(lost.id)
        assert job is not None
        assert (job.state, job.errors) == (State.RUNNING, ()), "the next holder decides"
    assert [sorted(ids) for ids in seen] == [[1, 2]]


def test_a_job_that_takes_too_long_fails_alone_and_an_abandoned_function_is_cancelled(fb: Forebay) -> None:
    cancelled = Event()

    @fb.job(batch=2, wait=0.01, timeout=0.2, max_attempts=1)
    async def index(calls: list[Call[Document]]) -> None:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    ids = [index.enqueue(Document(n)).id for n in range(2)]
    with working(fb):
        assert states(fb, ids) == [(State.DEAD, 1)] * 2
        assert cancelled.wait(PATIENCE)
    job = fb.get(ids[0])
    assert job is not None
    assert job.errors[-1].kind == TIMEOUT


def test_secrets_of_one_job_are_in_no_log_and_no_error_of_another(
    fb: Forebay, caplog: pytest.LogCaptureFixture
) -> None:
    install_secret_filter()
    logging.getLogger().addHandler(caplog.handler)
    install_secret_filter()

    @fb.job(batch=2, wait=LONG, max_attempts=1)
    async def pay(calls: list[Call[dict[str, str]]]) -> None:
        logging.getLogger("shop").warning("paying with %s", [call.item["password"] for call in calls])
        raise ValueError(" and ".join(call.item["password"] for call in calls))

    ids = [pay.enqueue({"password": secret}).id for secret in ("first-5ecret-word", "second-5ecret-word")]
    with working(fb):
        assert states(fb, ids) == [(State.DEAD, 1)] * 2
    texts = [error.message + error.trace for job in fb.jobs() for error in job.errors]
    assert len(texts) == 2
    assert not any("5ecret" in text for text in [*texts, caplog.text])


def test_layers_surround_each_job_and_tests_gather_batches(fb: Forebay) -> None:
    around: list[int] = []

    @fb.around_job
    def watch(ctx: Context) -> Iterator[None]:
        yield
        around.append(ctx.job.id)

    sizes: list[int] = []

    @fb.job(batch=5, wait=10)
    async def index(calls: list[Call[Document]]) -> None:
        sizes.append(len(calls))

    with JobTester(fb) as jobs:
        ids = [index.enqueue(Document(n)).id for n in range(3)]
        jobs.run_all()
        assert jobs.errors == []
    assert (around, sizes) == (ids, [3])


def test_what_is_wrong_with_a_batch_is_refused_at_its_declaration(fb: Forebay) -> None:
    def right(calls: list[Call[Document]]) -> None: ...

    def wrong(calls: list[int]) -> None: ...

    def two(calls: list[Call[int]], more: int) -> None: ...

    def none() -> None: ...

    given: list[dict[str, Any]] = [
        {"batch": 0},
        {"batch": 5_000},
        {"batch": 2, "wait": 61},
        {"batch": 2, "isolate": True},
    ]
    for options in given:
        decorate: Any = fb.job(**options)
        with pytest.raises(Invalid):
            decorate(right)
    for function in (wrong, two, none):
        decorate = fb.job(batch=2)
        with pytest.raises(Invalid, match="Call"):
            decorate(function)
    with pytest.raises(Invalid):
        fb.job(batch=2)(right).enqueue("no document")  # type: ignore[arg-type]
