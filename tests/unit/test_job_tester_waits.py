"""A wait in a test lets virtual time pass and runs what falls due: no wait for a result, for room or for work hangs."""

import asyncio
import time
from datetime import timedelta
from itertools import pairwise
from threading import Thread

import pytest

from forebay import Context, Forebay, Invalid, QueueSpec, ResultPending, State
from forebay.core.errors import JobFailed, QueueFull
from forebay.core.instant import minutes, seconds
from forebay.core.policy import Block, Bounded, Fixed, Rate, Routing
from forebay.testing import JobSimulator, JobTester
from forebay.testing.job_tester import MAX_RUNS

pytestmark = pytest.mark.timeout(60)

FULL = QueueSpec(name="small", capacity=Bounded(2, Block(timeout=seconds(5))))


class WaitingApp:
    """An app with a small queue, and what its handlers did."""

    def __init__(self) -> None:
        self.fb = fb = Forebay("memory://")
        self.done: list[int] = []
        fb.queue(FULL)
        fb.queue(QueueSpec(name="slow", routing=Routing(max_attempts=3, backoff=Fixed(minutes(1)))))

        @fb.job(queue="small", keep_result=True)
        def double(number: int) -> int:
            self.done.append(number)
            return number * 2

        @fb.job(queue="slow", keep_result=True)
        async def flaky(ctx: Context) -> int:
            await asyncio.sleep(1)
            if ctx.attempt < 3:
                raise ConnectionError("not yet")
            return ctx.attempt

        self.double, self.flaky = double, flaky


def test_a_result_is_waited_for_in_virtual_time() -> None:
    app, began = WaitingApp(), time.monotonic()
    with JobTester(app.fb) as jobs:
        start = jobs.clock.now()
        receipt = app.double.using(delay=600).enqueue(7)
        with pytest.raises(ResultPending):
            receipt.result(timeout=2)
        assert jobs.clock.now() - start == 2_000_000
        assert app.done == []
        assert receipt.result(timeout=3_600) == 14
        assert jobs.clock.now() - start == 600_000_000, "no longer than it takes"
    assert time.monotonic() - began < 30


def test_a_wait_runs_no_more_than_it_waits_for() -> None:
    app = WaitingApp()
    with JobTester(app.fb):
        first, second = app.double.enqueue(1), app.double.enqueue(2)
        assert first.result() == 2
        assert app.done == [1]
        assert app.fb.wait_for(second.id) is not None
        assert app.done == [1, 2]


def test_retries_happen_within_a_wait() -> None:
    app = WaitingApp()
    with JobTester(app.fb) as jobs:
        assert app.fb.result(app.fb.enqueue("flaky", queue="slow").id, timeout=200) == 3
        jobs.fail_next("flaky", ValueError("never"), times=3)
        with pytest.raises(JobFailed, match="never"):
            app.fb.result(app.fb.enqueue("flaky", queue="slow").id, timeout=200)


def test_an_enqueue_into_a_full_queue_waits_for_room() -> None:
    app = WaitingApp()
    with JobTester(app.fb) as jobs:
        for number in range(5):
            app.double.enqueue(number)
        assert app.done == [0, 1, 2], "one run for each place"
        jobs.run_all()
        assert app.done == [0, 1, 2, 3, 4]


def test_an_enqueue_into_a_queue_that_stays_full_is_refused_after_its_timeout() -> None:
    app = WaitingApp()
    with JobTester(app.fb) as jobs:
        start = jobs.clock.now()
        for number in range(2):
            app.double.using(delay=60).enqueue(number)
        with pytest.raises(QueueFull):
            app.double.enqueue(2)
        assert jobs.clock.now() - start == 5_000_000


def test_a_test_that_is_a_coroutine_waits_in_virtual_time_too() -> None:
    app = WaitingApp()

    async def test() -> None:
        with JobTester(app.fb) as jobs:
            start = jobs.clock.now()
            receipt = await app.double.using(delay=600).aenqueue(7)
            with pytest.raises(ResultPending):
                await receipt.aresult(timeout=2)
            assert jobs.clock.now() - start == 2_000_000
            assert await receipt.aresult(timeout=3_600) == 14
            for number in range(4):
                await app.double.aenqueue(number)
            assert app.done == [7, 0, 1]
            assert await app.fb.aresult((await app.fb.aenqueue("flaky", queue="slow")).id, timeout=200) == 3

    began = time.monotonic()
    asyncio.run(test())
    assert time.monotonic() - began < 30


def test_a_plain_handler_that_waits_lets_other_jobs_run() -> None:
    desk = WaitingApp()
    got: list[int] = []

    @desk.fb.job(keep_result=True)
    def relay(number: int) -> int:
        desk.double.using(queue="relayed").enqueue(number)
        return number * 2

    @desk.fb.job(max_attempts=20)
    def parent() -> None:
        got.append(sum(relay.enqueue(number).result() for number in range(4)))

    with JobTester(desk.fb) as jobs:
        parent.enqueue()
        jobs.run_all()
        assert got == [12]
    crashes = 0
    for seed in range(60):
        got.clear()
        with JobSimulator(desk.fb, seed=seed, rate=0.5) as sim:
            parent.enqueue()
            sim.advance(hours=2)
            assert got[-1] == 12, seed
            assert sim.errors == [], seed
            assert {job.state for job in desk.fb.jobs()} == {State.DONE}, seed
            crashes += any(fault.startswith("during: parent") for fault in sim.faults)
    assert crashes > 2


def test_an_async_handler_that_waits_gets_the_remedy() -> None:
    app = WaitingApp()

    @app.fb.job(max_attempts=1)
    async def awaits() -> None:
        await app.double.enqueue(1)

    @app.fb.job(max_attempts=1)
    async def blocks() -> None:
        app.double.enqueue(2).result()

    with JobTester(app.fb) as jobs:
        for job in (awaits, blocks):
            ended = job.enqueue()
            jobs.run_all()
            found = app.fb.get(ended.id)
            assert found is not None
            assert found.state is State.DEAD
            assert "a handler on the event loop, or in a thread of its own, waits" in found.errors[-1].message
            assert isinstance(jobs.errors[-1], Invalid)
            assert "next-job" in str(jobs.errors[-1])
        assert app.done == [1, 2], "the jobs that it enqueued run after it"


def test_another_thread_of_the_test_may_wait() -> None:
    app = WaitingApp()
    results: list[object] = []
    with JobTester(app.fb):
        receipts = [app.double.using(delay=60).enqueue(number) for number in range(2)]
        threads = [Thread(target=lambda one=one: results.append(one.result(100)), daemon=True) for one in receipts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert sorted(map(str, results)) == ["0", "2"]


def test_a_wait_for_work_ends_when_there_is_some_or_its_time_is_over() -> None:
    app = WaitingApp()
    with JobTester(app.fb) as jobs:
        start = jobs.clock.now()
        assert not jobs.store.wait(["other"], timedelta(seconds=20))
        assert jobs.clock.now() - start == 20_000_000
        app.fb.enqueue("unknown", queue="other", delay=5)
        assert jobs.store.wait(["other"], timedelta(seconds=20))
        assert jobs.clock.now() - start == 25_000_000


def test_an_endless_chain_ends_a_wait_with_a_hint() -> None:
    fb = Forebay("memory://")

    @fb.job
    def again() -> None:
        again.enqueue()

    with JobTester(fb):
        again.enqueue()
        late = fb.enqueue("again", delay=60)
        with pytest.raises(Invalid, match=f"more than {MAX_RUNS:,} runs"):
            fb.wait_for(late.id)


def test_what_a_rate_holds_back_runs_when_it_opens() -> None:
    fb = Forebay("memory://")
    at: list[int] = []
    fb.queue(QueueSpec(name="mail", eligibility=Rate(1, minutes(1), burst=1)))
    with JobTester(fb) as jobs:

        @fb.job(queue="mail", keep_result=True)
        def send() -> None:
            at.append(jobs.clock.now())

        last = [send.enqueue() for _ in range(3)][-1]
        assert jobs.run_all() == 1
        assert jobs.advance(seconds=59) == 0
        assert jobs.advance(seconds=1) == 1
        assert last.result(timeout=90) is None
        assert len(at) == 3
        assert {later - earlier for earlier, later in pairwise(at)} == {60_000_000}
