"""`JobTester` and its pytest plugin: an app's jobs run in virtual time, by the rules of a worker."""

import asyncio
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from threading import Event

import pytest

from forebay import Context, Forebay, QueueSpec, State
from forebay.core.errors import Invalid
from forebay.core.instant import seconds
from forebay.core.policy import Fixed, Routing
from forebay.testing import JobTester, ManualClock
from forebay.work.handler import Drop, Snooze
from forebay.work.run import TIMEOUT

pytest_plugins = ["pytester"]

SPEC = QueueSpec(name="mail", routing=Routing(max_attempts=3, backoff=Fixed(seconds(10))))


class Shop:
    """An app, and what its handlers did."""

    def __init__(self) -> None:
        self.fb = fb = Forebay("memory://")
        self.done: list[object] = []
        fb.queue(SPEC)

        @fb.job(queue="mail")
        async def send(to: str, copies: int = 1) -> None:
            await asyncio.sleep(copies)
            self.done.append(to)

        @fb.job(queue="mail", timeout=60)
        async def slow(minutes: float) -> None:
            await asyncio.sleep(minutes * 60)
            self.done.append(minutes)

        @fb.job(keep_result=True)
        def order(number: int, ctx: Context | None = None) -> int:
            assert ctx is not None
            send.enqueue(f"customer-{number}")
            self.done.append((number, ctx.attempt))
            return number * 2

        self.send, self.slow, self.order = send, slow, order


def test_a_job_runs_and_so_does_what_it_enqueues() -> None:
    shop = Shop()
    with JobTester(shop.fb) as jobs:
        receipt = shop.order.enqueue(7)
        assert shop.done == []
        assert jobs.run_all() == 2
        assert shop.done == [(7, 1), "customer-7"]
        assert receipt.result(0) == 14
        jobs.assert_enqueued("send", 1, to="customer-7")


def test_the_app_has_its_own_store_again_afterwards() -> None:
    shop = Shop()
    before = shop.fb.store
    with JobTester(shop.fb) as jobs:
        assert shop.fb.store is jobs.store
    assert shop.fb.store is before


def test_retries_wait_for_their_time_and_end_as_dead_letters() -> None:
    shop = Shop()
    with JobTester(shop.fb) as jobs:
        receipt = shop.send.enqueue("ada")
        jobs.fail_next("send", ConnectionError("down"), times=2)
        assert jobs.run_all() == 1
        assert jobs.advance(seconds=9) == 0
        assert jobs.advance(seconds=1) == 1
        assert shop.done == []
        assert jobs.advance(minutes=1) == 1
        assert shop.done == ["ada"]
        assert [str(error) for error in jobs.errors] == ["down", "down"]
        jobs.fail_next("send", ValueError("never"), times=3)
        receipt = shop.send.enqueue("bob")
        assert jobs.advance(minutes=1) == 3
        job = shop.fb.get(receipt.id)
        assert job is not None
        assert (job.state, job.errors[-1].message) == (State.DEAD, "never")


def test_sleep_takes_virtual_time_and_no_other() -> None:
    shop = Shop()
    began, clock = time.monotonic(), ManualClock()
    with JobTester(shop.fb, clock=clock) as jobs:
        start = clock.now()
        shop.send.enqueue("ada", copies=3_600)
        jobs.run_all()
        assert clock.now() - start == 3_600_000_000
    assert time.monotonic() - began < 60


def test_a_timeout_is_a_failed_attempt() -> None:
    shop = Shop()
    with JobTester(shop.fb) as jobs:
        receipt = shop.slow.enqueue(2)
        jobs.run_all()
        job = shop.fb.get(receipt.id)
        assert job is not None
        assert [error.kind for error in job.errors] == [TIMEOUT]
        assert shop.done == []
        shop.slow.enqueue(0.5)
        jobs.run_all()
        assert shop.done == [0.5]


def test_delays_and_schedules_run_at_their_instants() -> None:
    shop = Shop()
    at: list[int] = []
    with JobTester(shop.fb) as jobs:
        start = jobs.clock.now()

        @shop.fb.cron("*/10 * * * *")
        def report() -> None:
            at.append((jobs.clock.now() - start) // 1_000_000)

        shop.send.using(delay=timedelta(minutes=25)).enqueue("late")
        jobs.advance(minutes=24)
        assert shop.done == []
        jobs.advance(minutes=6)
        assert shop.done == ["late"]
        assert len(at) == 3
        assert {later - earlier for earlier, later in pairwise(at)} == {600}
        jobs.assert_enqueued("report", 3)


def test_a_worker_that_dies_before_its_acknowledgement_runs_the_job_again() -> None:
    shop = Shop()
    with JobTester(shop.fb) as jobs:
        shop.order.enqueue(1)
        jobs.crash_next("order")
        jobs.run_all()
        assert [done for done in shop.done if isinstance(done, tuple)] == [(1, 1), (1, 2)]


def test_inline_runs_at_the_enqueue_and_raises_there() -> None:
    shop = Shop()
    with JobTester(shop.fb, inline=True) as jobs:
        shop.order.enqueue(3)
        assert shop.done == [(3, 1), "customer-3"]
        jobs.fail_next("send", ConnectionError("down"))
        with pytest.raises(ConnectionError, match="down"):
            shop.send.enqueue("ada")
        jobs.advance(minutes=1)
        assert shop.done[-1] == "ada"


def test_drop_snooze_and_unknown_kinds_are_as_in_a_worker() -> None:
    fb = Forebay("memory://")
    runs: list[int] = []

    @fb.job
    def drop() -> None:
        raise Drop("no use")

    @fb.job
    def snooze(ctx: Context | None = None) -> None:
        assert ctx is not None
        runs.append(ctx.attempt)
        if len(runs) == 1:
            raise Snooze(30)

    with JobTester(fb) as jobs:
        dropped = drop.enqueue()
        snooze.enqueue()
        elsewhere = fb.enqueue("elsewhere")
        jobs.run_all()
        assert runs == [1]
        jobs.advance(seconds=30)
        assert runs == [1, 1]
        ended = [fb.get(receipt.id) for receipt in (dropped, elsewhere)]
        assert [job and job.state for job in ended] == [State.DEAD, State.WAITING]


def test_inside_a_coroutine_and_with_a_thread_of_the_handler() -> None:
    fb = Forebay("memory://")
    seen: list[str] = []

    @fb.job(timeout=600)
    async def read(name: str) -> None:
        await asyncio.to_thread(Event().wait, 0.05)
        seen.append(name)

    async def test() -> None:
        with JobTester(fb, inline=True):
            await read.aenqueue("by a coroutine")
            read.enqueue("by a call")

    asyncio.run(test())
    assert seen == ["by a coroutine", "by a call"]


def test_a_handler_that_enqueues_itself_is_refused_with_a_hint() -> None:
    fb = Forebay("memory://")

    @fb.job
    def again() -> None:
        again.enqueue()

    with JobTester(fb) as jobs:
        again.enqueue()
        with pytest.raises(Invalid, match="does a handler enqueue itself"):
            jobs.run_all()


def test_what_was_not_enqueued_is_said_with_what_was() -> None:
    shop = Shop()
    with JobTester(shop.fb) as jobs:
        shop.send.enqueue("ada")
        with pytest.raises(AssertionError, match=r"at least one send with \{'to': 'bob'\} expected, 0 found among 1"):
            jobs.assert_enqueued("send", to="bob")
        with pytest.raises(AssertionError, match="2 send with"):
            jobs.assert_enqueued("send", 2)
        with pytest.raises(Invalid, match="no handler for 'sned'"):
            jobs.fail_next("sned", ValueError())


APP = """
from forebay import Forebay

fb = Forebay("sqlite:///never.db")
sent = []


@fb.job
def send(to: str) -> None:
    sent.append(to)
"""
TESTS = """
import jobs


def test_memory(fb_memory):
    jobs.send.enqueue("ada")
    assert jobs.sent == []
    assert fb_memory.run_all() == 1


def test_inline(fb_inline):
    jobs.send.enqueue("bob")
    assert jobs.sent[-1] == "bob"
    fb_inline.assert_enqueued("send", 1, to="bob")
"""


PLUGIN = ("--disable-plugin-autoload", "-p", "forebay.pytest_plugin", "-p", "no:cacheprovider")


def test_the_fixtures_of_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(jobs=APP, test_shop=TESTS)
    pytester.makeini("[pytest]\nforebay_app = jobs:fb\npythonpath = .")
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=2)
    assert not Path(pytester.path, "never.db").exists()


def test_without_an_app_the_fixture_says_how_to_name_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_memory(fb_memory): ...")
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(['*set forebay_app = "module:name"*'])
