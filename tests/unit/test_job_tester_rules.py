"""Circuit breakers, batches and the app's own store under a `JobTester`, as in a worker."""

import asyncio
from typing import Any

import pytest

from forebay import Breaker, Call, Context, Drop, Forebay, QueueSpec, State
from forebay.core.instant import seconds
from forebay.core.job import Progress
from forebay.core.policy import Fixed, Routing
from forebay.testing import JobSimulator, JobTester
from forebay.work.run import TIMEOUT

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def fb() -> Forebay:
    fb = Forebay("memory://")
    fb.queue(QueueSpec(name="default", routing=Routing(max_attempts=25, backoff=Fixed(seconds(1)))))
    return fb


def test_an_open_breaker_postpones_jobs_without_an_attempt(fb: Forebay) -> None:
    calls: list[int] = []
    down = [True]

    @fb.job(breaker=Breaker(failures=5, cooldown=seconds(30)), keep_result=True)
    def call(number: int) -> None:
        calls.append(number)
        if down:
            raise ConnectionError

    with JobTester(fb) as jobs:
        ids = [call.enqueue(number).id for number in range(30)]
        assert jobs.run_all() == 5
        assert calls == [0, 1, 2, 3, 4]
        postponed = [job for job in fb.get_all(ids[5:]) if job is not None]
        assert {(job.state, job.attempt) for job in postponed} == {(State.WAITING, 0)}
        assert jobs.advance(seconds=29) == 0
        assert jobs.advance(seconds=1) == 1, "one probe"
        down.clear()
        jobs.advance(minutes=5)
        assert {job and job.state for job in fb.get_all(ids)} == {State.DONE}
        assert len(calls) == 36
    with JobTester(fb) as jobs:
        down.append(True)
        call.enqueue(1)
        assert jobs.run_all() == 1, "each tester begins with a closed breaker"


@pytest.mark.parametrize("on_loop", [True, False])
def test_the_progress_of_a_job_is_seen_while_it_runs_and_the_last_one_is_kept(fb: Forebay, on_loop: bool) -> None:
    seen: list[Progress | None] = []

    def body(ctx: Context) -> None:
        for portion in (0.5, 0.75):
            ctx.progress(portion, "more")
            job = fb.get(ctx.job.id)
            seen.append(None if job is None else job.progress)

    async def on_the_loop(ctx: Context) -> None:
        body(ctx)

    fb.job(kind="work", keep_result=True)(on_the_loop if on_loop else body)
    with JobTester(fb) as jobs:
        job_id = fb.enqueue("work").id
        assert jobs.progress == {}
        jobs.run_all()
        job = fb.get(job_id)
        assert job is not None
        assert (job.state, job.progress) == (State.DONE, None)
        assert jobs.progress[job_id] == Progress(0.75, "more")
    assert [(each.portion, each.note) for each in seen if each is not None] == [(0.5, "more"), (0.75, "more")]


def test_kinds_that_name_one_dependency_share_its_breaker(fb: Forebay) -> None:
    payments = Breaker(failures=2, cooldown=seconds(30), name="payments")

    @fb.job(breaker=payments)
    def charge() -> None:
        raise ConnectionError

    @fb.job(breaker=payments, keep_result=True)
    def refund() -> None: ...

    with JobTester(fb) as jobs:
        for _ in range(2):
            charge.enqueue()
        assert jobs.run_all() == 2
        refunded = refund.enqueue()
        assert jobs.run_all() == 0, "the breaker of both is open"
        jobs.advance(minutes=1)
        job = fb.get(refunded.id)
        assert job is not None
        assert (job.state, job.attempt) == (State.DONE, 1)


def test_batches_are_gathered_up_to_their_size(fb: Forebay) -> None:
    batches: list[list[int]] = []
    plain: list[int] = []

    @fb.job(batch=3, wait=5, keep_result=True)
    async def index(calls: list[Call[int]]) -> list[Any]:
        batches.append([call.item for call in calls])
        return [Drop("seven") if call.item == 7 else call.item * 2 for call in calls]

    @fb.job
    def other(number: int) -> None:
        plain.append(number)

    with JobTester(fb) as jobs:
        start = jobs.clock.now()
        receipts = []
        for number in range(1, 8):
            receipts.append(index.enqueue(number))
            other.enqueue(number)
        assert jobs.run_all() == 14
        assert batches == [[1, 2, 3], [4, 5, 6], [7]]
        assert plain == list(range(1, 8))
        assert jobs.clock.now() - start == 5_000_000, "the last one waited for more"
        assert [receipt.result() for receipt in receipts[:6]] == [2, 4, 6, 8, 10, 12]
        job = fb.get(receipts[6].id)
        assert job is not None
        assert (job.state, job.errors[-1].message) == (State.DEAD, "seven")


def test_a_plain_batch_function_and_a_batch_that_fails(fb: Forebay) -> None:
    sizes: list[int] = []

    @fb.job(batch=10, wait=1)
    def index(calls: list[Call[int]]) -> None:
        sizes.append(len(calls))
        if len(sizes) == 1:
            raise ConnectionError("down")

    with JobTester(fb) as jobs:
        jobs.fail_next("index", ValueError("this one alone"))
        for number in range(4):
            index.enqueue(number)
        assert jobs.run_all() == 4
        assert sizes == [3]
        assert sorted(map(str, jobs.errors)) == ["down", "down", "down", "this one alone"]
        assert jobs.advance(seconds=1) == 4
        assert sizes == [3, 4]


def test_a_batch_that_is_too_slow_fails_each_of_its_jobs(fb: Forebay) -> None:
    @fb.job(batch=2, wait=1, timeout=60, max_attempts=1)
    async def index(calls: list[Call[int]]) -> None:
        await asyncio.sleep(3_600)

    with JobTester(fb) as jobs:
        ids = [index.enqueue(number).id for number in range(2)]
        jobs.run_all()
        assert [job and job.errors[-1].kind for job in fb.get_all(ids)] == [TIMEOUT] * 2


def test_a_simulator_crashes_single_jobs_of_a_batch(fb: Forebay) -> None:
    sizes: set[int] = set()
    faults: set[str] = set()
    indexed: set[int] = set()

    @fb.job(batch=3, wait=1)
    async def index(calls: list[Call[int]]) -> None:
        await asyncio.sleep(1)
        sizes.add(len(calls))
        indexed.update(call.item for call in calls)

    for seed in range(20):
        indexed.clear()
        with JobSimulator(fb, seed=seed) as sim:
            for number in range(7):
                index.enqueue(number)
            sim.advance(hours=1)
            assert indexed == set(range(7))
            assert list(fb.jobs()) == []
        faults |= {fault.partition(":")[0] for fault in sim.faults}
    assert sizes >= {1, 2, 3}
    assert faults == {"before", "during", "after", "delay"}


def test_the_app_may_be_closed_and_keeps_the_store_of_its_tester(fb: Forebay) -> None:
    @fb.job
    def send() -> None: ...

    with JobTester(fb) as jobs:
        with fb:
            send.enqueue()
        send.enqueue()
        assert fb.store is jobs.store
        assert jobs.run_all() == 2
    assert fb.store is not jobs.store
    fb.close()
