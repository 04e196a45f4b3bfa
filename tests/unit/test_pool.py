"""The pool: whatever a handler does, it goes on, and each run ends once, with the verdict its rules ask for.

Handlers are real, on a real loop and in real threads; a `RoleThread` sweeps as it does in a worker. Nothing sleeps:
what has to last waits on an event that the test sets.
"""

import asyncio
import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Event, Lock
from typing import Any

import pytest

from forebay.client import Forebay
from forebay.core.breaker import Breaker
from forebay.core.errors import Invalid
from forebay.core.instant import ms, seconds
from forebay.core.job import Draft, Progress
from forebay.core.lease import Lease
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.core.policy import Fixed, Routing
from forebay.core.presence import MAX_UNHANDLED
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Want
from forebay.work.context import Context
from forebay.work.handler import Drop, Snooze
from forebay.work.options import Options
from forebay.work.pool import Pool
from forebay.work.role import RoleThread
from forebay.work.run import TIMEOUT, lease_clock
from forebay.work.worker import RoutingCache
from forebay_proof.faulty import Fault, FaultyStore
from tests.waiting import PATIENCE, eventually

SHORT = 0.1
ROUTING = Routing(max_attempts=3, backoff=Fixed(seconds(7)))


class Rig:
    """A pool at work on the jobs of an app, and every verdict it gives."""

    def __init__(self, fb: Forebay, pool: Pool, verdicts: "SimpleQueue[tuple[Lease, Verdict]]") -> None:
        self.fb = fb
        self.pool = pool
        self._verdicts = verdicts

    def leased(self, *drafts: Draft) -> list[Lease]:
        self.fb.store.enqueue(drafts)
        return self.fb.store.claim([Want("default", len(drafts))], "ada", seconds(600))

    def start(self, kind: str, payload: Any = None) -> Lease:
        (lease,) = self.leased(Draft(kind, payload))
        self.pool.submit([lease])
        return lease

    def again(self, lease: Lease) -> Lease:
        """The job's next delivery, after a failure."""
        self.fb.store.settle([(lease, Retry(0, Failure("x")))])
        (lease,) = self.fb.store.claim([Want("default", 1)], "ada", seconds(600))
        return lease

    def verdict(self) -> Verdict:
        return self._verdicts.get(timeout=PATIENCE)[1]

    def verdicts(self, count: int) -> list[tuple[str, Verdict]]:
        answers = [self._verdicts.get(timeout=PATIENCE) for _ in range(count)]
        return sorted(((lease.job.kind, verdict) for lease, verdict in answers), key=lambda answer: answer[0])

    def run(self, kind: str, payload: Any = None) -> Verdict:
        self.start(kind, payload)
        return self.verdict()

    def nothing_more(self) -> None:
        assert self.pool.wait_until_idle(PATIENCE)
        with pytest.raises(Empty):
            self._verdicts.get(timeout=0.05)


@contextmanager
def at_work(fb: Forebay, options: Options | None = None, **more: Any) -> Iterator[Rig]:
    verdicts: SimpleQueue[tuple[Lease, Verdict]] = SimpleQueue()

    def put_all(ended: Sequence[tuple[Lease, Verdict]]) -> None:
        for settlement in ended:
            verdicts.put(settlement)

    pool = Pool(
        fb.registry,
        options or Options(concurrency=4),
        more.pop("routing", lambda queue: ROUTING),
        put_all,
        draw=lambda: 0.5,
        **more,
    )
    sweeping = RoleThread(pool)
    pool.start()
    sweeping.start()
    try:
        yield Rig(fb, pool, verdicts)
    finally:
        assert sweeping.stop(PATIENCE)
        pool.close()


@pytest.fixture
def fb() -> Forebay:
    return Forebay("memory://")


@pytest.fixture
def hold() -> Iterator[Event]:
    """Handlers wait for it; it is set at the end, so that no thread outlives its test for long."""
    event = Event()
    yield event
    event.set()


def failure(verdict: Verdict) -> Failure:
    assert isinstance(verdict, (Retry, DeadLetter)), verdict
    return verdict.error


# Ends of every kind, for plain and async handlers alike


def both(fb: Forebay, name: str, body: Callable[..., Any], **options: Any) -> None:
    """The same handler twice: as a plain function and as a coroutine."""

    def plain(**arguments: Any) -> Any:
        return body(**arguments)

    async def asynchronous(**arguments: Any) -> Any:
        return body(**arguments)

    for kind, function in ((f"thread.{name}", plain), (f"loop.{name}", asynchronous)):
        decorate: Any = fb.job(kind=kind, **options)
        decorate(function)


WHERE = pytest.mark.parametrize("where", ["thread", "loop"])


@WHERE
def test_a_handler_that_returns_is_acknowledged_once(fb: Forebay, where: str) -> None:
    calls: list[Any] = []
    both(fb, "job", lambda **arguments: calls.append(arguments))
    with at_work(fb) as rig:
        assert rig.run(f"{where}.job", {"to": "ada"}) == Ack()
        rig.nothing_more()
    assert calls == [{"to": "ada"}]


class FailingStr(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class ExitingStr(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class ModuleNone(Exception):
    __module__ = None  # type: ignore[assignment]


def deep() -> None:
    deep()


def raising(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


@WHERE
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (raising(ValueError("bad")), "ValueError"),
        (raising(SystemExit(1)), "SystemExit"),
        (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
        (raising(GeneratorExit()), "GeneratorExit"),
        (raising(BaseException("odd")), "BaseException"),
        (raising(MemoryError()), "MemoryError"),
        (raising(asyncio.CancelledError()), "asyncio.exceptions.CancelledError"),
        (raising(StopIteration()), ""),
        (raising(FailingStr()), f"{__name__}.FailingStr"),
        (raising(ExitingStr()), f"{__name__}.ExitingStr"),
        (raising(ModuleNone()), "ModuleNone"),
        (raising(BaseExceptionGroup("many", [SystemExit(1), ValueError("x")])), "BaseExceptionGroup"),
        (raising(Exception("\ud800\0" * 5_000)), "Exception"),
        (deep, "RecursionError"),
        (sys.exit, "SystemExit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whatever_a_handler_raises_is_a_failure_and_the_next_job_runs(
    fb: Forebay, where: str, body: Callable[[], None], kind: str
) -> None:
    both(fb, "bad", body)
    both(fb, "good", lambda: None)
    with at_work(fb, Options(concurrency=1)) as rig:
        verdict = rig.run(f"{where}.bad")
        assert isinstance(verdict, Retry)
        assert verdict.after == 7_000_000
        assert verdict.error.kind.endswith(kind)
        assert [rig.run(f"{where}.good") for _ in range(3)] == [Ack()] * 3
        assert rig.pool.healthy
        eventually(lambda: rig.pool.free == 1)
        rig.nothing_more()


@WHERE
def test_the_last_attempt_that_fails_is_dead(fb: Forebay, where: str) -> None:
    both(fb, "bad", raising(ValueError("bad")))
    with at_work(fb) as rig:
        (lease,) = rig.leased(Draft(f"{where}.bad", max_attempts=2))
        rig.pool.submit([lease])
        assert isinstance(rig.verdict(), Retry)
        rig.pool.submit([rig.again(lease)])
        verdict = rig.verdict()
        assert isinstance(verdict, DeadLetter)
        assert (verdict.error.kind, verdict.error.message) == ("ValueError", "bad")
        assert "raise error" in verdict.error.trace


@WHERE
def test_drop_is_dead_at_once_and_snooze_is_later_and_free(fb: Forebay, where: str) -> None:
    both(fb, "drop", raising(Drop("useless")))
    both(fb, "snooze", raising(Snooze(90)))
    both(fb, "nap", raising(Snooze(timedelta(minutes=2), "not yet")))
    with at_work(fb) as rig:
        assert failure(rig.run(f"{where}.drop")).message == "useless"
        assert rig.run(f"{where}.snooze") == Release(90_000_000)
        assert rig.run(f"{where}.nap") == Release(120_000_000)


class SnoozeWithoutDelay(Snooze):
    def __init__(self) -> None:
        """Forgets to say how long."""


def spoiled() -> Snooze:
    snooze = Snooze(5)
    snooze.after = "soon"  # type: ignore[assignment]
    return snooze


@WHERE
@pytest.mark.parametrize("error", [SnoozeWithoutDelay(), spoiled()], ids=["without a time", "with nonsense"])
def test_a_snooze_that_says_nothing_sensible_is_a_failure(fb: Forebay, where: str, error: Snooze) -> None:
    both(fb, "bad", raising(error))
    both(fb, "good", lambda: None)
    with at_work(fb, Options(concurrency=1)) as rig:
        assert isinstance(rig.run(f"{where}.bad"), Retry)
        assert rig.run(f"{where}.good") == Ack()


ERRORS = {
    type(error).__name__: error
    for error in (OSError(), ConnectionError(), FileNotFoundError(), ValueError(), SystemExit())
}


@WHERE
def test_rules_per_exception(fb: Forebay, where: str) -> None:
    both(fb, "picky", lambda error: raising(ERRORS[error])(), retry_on=[OSError], drop_on=[FileNotFoundError])
    with at_work(fb) as rig:
        assert isinstance(rig.run(f"{where}.picky", {"error": "OSError"}), Retry)
        assert isinstance(rig.run(f"{where}.picky", {"error": "ConnectionError"}), Retry)
        assert isinstance(rig.run(f"{where}.picky", {"error": "FileNotFoundError"}), DeadLetter)
        assert isinstance(rig.run(f"{where}.picky", {"error": "ValueError"}), DeadLetter)
        assert isinstance(rig.run(f"{where}.picky", {"error": "SystemExit"}), DeadLetter)


def test_a_payload_that_does_not_fit_is_dead_with_a_reason_and_the_handler_never_starts(fb: Forebay) -> None:
    started = Event()

    @fb.job
    def plain(count: int) -> None:
        started.set()

    @fb.job
    async def asynchronous(count: int) -> None:
        started.set()

    with at_work(fb) as rig:
        for kind in ("plain", "asynchronous"):
            verdict = rig.run(kind, {"count": "many"})
            assert isinstance(verdict, DeadLetter)
            assert "does not match" in verdict.error.message
            assert "many" not in verdict.error.message
            assert verdict.error.trace == "", "no call of the handler led to it"
    assert not started.is_set()


def test_an_async_handler_that_blocks_the_loop_is_reported_once(
    fb: Forebay, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(fb, "job", lambda: None)
    with at_work(fb) as rig, caplog.at_level("WARNING", "forebay.work"):
        rig.run("loop.job")
        assert caplog.messages == []
        monkeypatch.setattr("forebay.work.loop.BLOCKED_SECONDS", -1.0)
        for where in ("loop", "loop", "thread"):
            rig.run(f"{where}.job")
    (output,) = caplog.messages
    assert re.fullmatch(
        r"job 2 \(loop\.job\) ran for -?0\.0 s without an await: no other async handler ran meanwhile; "
        r"declare it with def, or await what blocks",
        output,
    )


def test_an_unknown_kind_goes_back_uncharged_for_a_deploy_may_bring_it(
    fb: Forebay, caplog: pytest.LogCaptureFixture
) -> None:
    @fb.job
    def known() -> None: ...

    with at_work(fb) as rig:
        leases = rig.leased(*[Draft("unknown")] * 3)
        with caplog.at_level("WARNING", "forebay.jobs"):
            rig.pool.submit(leases)
        assert [rig.verdict() for _ in leases] == [Release(1_250_000)] * 3
        assert rig.pool.idle
        assert rig.pool.unhandled() == (("default", "unknown"),)
    (output,) = caplog.messages
    assert output == (
        "job 1 (unknown) was released to queue default, uncharged: this worker has no handler for kind unknown; "
        "again in 1.2 s"
    )


def test_what_cannot_be_run_is_remembered_within_bounds(fb: Forebay) -> None:
    with at_work(fb) as rig:
        rig.pool.submit(rig.leased(*[Draft(f"unknown{number}") for number in range(MAX_UNHANDLED + 50)]))
        assert len(rig.pool.unhandled()) == MAX_UNHANDLED


def test_a_job_that_was_to_end_is_not_begun(fb: Forebay) -> None:
    ran: list[int] = []
    fb.job(kind="job", result_ttl=1)(lambda: ran.append(1))
    with at_work(fb) as rig:
        (lease,) = rig.leased(Draft("job"))
        fb.store.cancel([lease.job.id])
        rig.pool.submit([rig.again(lease)])
        assert rig.verdict() == Cancel(1_000_000)
        rig.nothing_more()
    assert ran == []


# Results


@WHERE
def test_a_result_is_kept_when_it_is_asked_for(fb: Forebay, where: str) -> None:
    both(fb, "kept", lambda **arguments: {"sum": 3, "of": [1, 2]}, keep_result=True)
    both(fb, "none", lambda: None, result_ttl=2)
    both(fb, "unasked", lambda: "x")
    with at_work(fb) as rig:
        assert rig.run(f"{where}.kept") == Ack(b'{"sum":3,"of":[1,2]}', 3_600_000_000)
        assert rig.run(f"{where}.none") == Ack(None, 2_000_000)
        assert rig.run(f"{where}.unasked") == Ack()


@WHERE
@pytest.mark.parametrize(
    "result", [object(), float("nan"), "x" * 300_000, {"a": {1: object()}}], ids=lambda v: str(type(v))
)
def test_a_result_that_cannot_be_kept_ends_the_job_at_once(fb: Forebay, where: str, result: object) -> None:
    both(fb, "job", lambda: result, keep_result=True)
    with at_work(fb) as rig:
        verdict = rig.run(f"{where}.job")
    assert isinstance(verdict, DeadLetter)
    assert verdict.error.kind == "forebay.work.results.ResultInvalid"
    assert f"result of {where}.job at $" in verdict.error.message


# Context


@WHERE
def test_a_handler_knows_its_job(fb: Forebay, where: str) -> None:
    seen: list[Context] = []

    @fb.job(kind="thread.job", timeout=60)
    def plain(about: Context) -> None:
        about.progress(0.5, "half")
        seen.append(about)

    @fb.job(kind="loop.job", timeout=60)
    async def asynchronous(ctx: Context | None = None) -> None:
        assert ctx is not None
        ctx.progress(0.5, "half")
        seen.append(ctx)

    with at_work(fb) as rig:
        lease = rig.start(f"{where}.job")
        assert rig.verdict() == Ack()
    (context,) = seen
    assert (context.fence, context.attempt, context.job.id) == (lease.fence, 1, lease.job.id)
    assert (context.reported, context.cancelled, context.lost) == (Progress(0.5, "half"), False, False)
    assert context.deadline is not None
    assert lease.job.claimed_at is not None
    assert 0 <= context.deadline - lease.job.claimed_at - 60_000_000 < 30_000_000


def test_progress_is_bounded_and_can_be_seen_from_outside(fb: Forebay, hold: Event) -> None:
    received = Event()

    @fb.job
    def slow(ctx: Context) -> None:
        ctx.progress(7, "x" * 500)
        received.set()
        hold.wait(PATIENCE)

    with at_work(fb) as rig:
        lease = rig.start("slow")
        assert received.wait(PATIENCE)
        assert rig.pool.progress() == [(lease.fence, Progress(1.0, "x" * 200))]
        assert rig.pool.held() == [lease]


def test_a_note_of_progress_shows_no_secret(fb: Forebay) -> None:
    seen: list[Context] = []

    @fb.job
    def slow(password: str, ctx: Context) -> None:
        ctx.progress(0.5, f"logged in with {password}")
        seen.append(ctx)

    with at_work(fb) as rig:
        assert rig.run("slow", {"password": "hunter2hunter2"}) == Ack()
    assert seen[0].reported == Progress(0.5, "logged in with ***")


# Timeouts


def test_an_async_handler_is_cancelled_at_its_timeout(fb: Forebay) -> None:
    cleaned = Event()

    @fb.job(timeout=SHORT)
    async def slow() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            cleaned.set()

    @fb.job
    async def quick() -> None: ...

    with at_work(fb, Options(concurrency=1)) as rig:
        verdict = rig.run("slow")
        assert failure(verdict) == Failure(TIMEOUT, "it ran longer than 0.1 s")
        assert cleaned.is_set()
        assert rig.run("quick") == Ack()
        rig.nothing_more()


def test_a_thread_that_outlives_its_timeout_is_settled_written_off_and_replaced(fb: Forebay, hold: Event) -> None:
    @fb.job(timeout=SHORT)
    def stuck() -> None:
        hold.wait(PATIENCE)

    @fb.job
    def quick() -> None: ...

    with at_work(fb, Options(concurrency=1, max_wedged=1)) as rig:
        assert failure(rig.run("stuck")).kind == TIMEOUT
        eventually(lambda: rig.pool.free == 1)
        assert rig.run("quick") == Ack(), "another thread has taken its place"
        assert rig.pool.healthy
        assert failure(rig.run("stuck")).kind == TIMEOUT
        eventually(lambda: not rig.pool.healthy)
        hold.set()
        eventually(lambda: rig.pool.healthy)
        assert rig.run("quick") == Ack()
        rig.nothing_more()


def test_threads_that_come_back_at_the_very_timeout_are_not_counted_as_hanging(fb: Forebay) -> None:
    @fb.job(timeout=0.01)
    def close_call() -> None:
        Event().wait(0.01)

    with at_work(fb, Options(concurrency=8, max_wedged=0)) as rig:
        for _ in range(25):
            rig.pool.submit(rig.leased(*[Draft("close_call")] * 8))
            rig.verdicts(8)
        eventually(lambda: rig.pool.healthy)
        rig.nothing_more()


def test_a_job_that_is_stopped_before_its_handler_began_never_begins(fb: Forebay, hold: Event) -> None:
    began: SimpleQueue[int] = SimpleQueue()

    @fb.job
    def job() -> None:
        began.put(1)
        hold.wait(PATIENCE)

    with at_work(fb, Options(concurrency=2)) as rig:
        rig.pool.submit(rig.leased(*[Draft("job")] * 50))
        for _ in range(2):
            began.get(timeout=PATIENCE)
        rig.pool.interrupt_all()
        assert all(isinstance(verdict, Release) for _, verdict in rig.verdicts(50))
        hold.set()
        assert rig.run("job") == Ack()
        rig.nothing_more()
    assert began.qsize() == 1, "the job that came after; 48 were stopped before they began"


def test_a_pool_works_on_after_races_of_beginning_and_stopping(fb: Forebay) -> None:
    @fb.job
    def job() -> None: ...

    with at_work(fb, Options(concurrency=64)) as rig:
        given_back = rounds = 0
        while given_back <= 100 and rounds < 500:
            rounds += 1
            rig.pool.submit(rig.leased(*[Draft("job")] * 50))
            rig.pool.interrupt_all()
            given_back += sum(isinstance(verdict, Release) for _, verdict in rig.verdicts(50))
        assert rig.pool.wait_until_idle(PATIENCE)
        assert rig.run("job") == Ack()
        rig.nothing_more()
    assert given_back > 100, "the race was not met"


def test_an_async_handler_that_ignores_its_timeout_does_not_hold_its_job_for_ever(fb: Forebay) -> None:
    let_go = Event()

    @fb.job(timeout=SHORT)
    async def stubborn() -> None:
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    with at_work(fb) as rig:
        assert failure(rig.run("stubborn")).kind == TIMEOUT
        let_go.set()
        rig.nothing_more()


def test_an_async_handler_that_blocks_the_loop_past_its_timeout_is_settled_and_makes_the_pool_unwell(
    fb: Forebay, hold: Event
) -> None:
    @fb.job(timeout=SHORT)
    async def blocking() -> None:
        hold.wait(PATIENCE)

    with at_work(fb) as rig:
        assert failure(rig.run("blocking")).kind == TIMEOUT
        eventually(lambda: not rig.pool.healthy)
        hold.set()


# Cancellation, lost leases, drain


class CountedChecks:
    """Counts instead of checking: the pool checks once for each group of runs that it finishes."""

    def __init__(self) -> None:
        self.checks = 0

    def check(self) -> None:
        self.checks += 1


def test_async_handlers_that_end_together_are_finished_together(fb: Forebay) -> None:
    waiting: list[asyncio.Future[None]] = []

    @fb.job
    async def wait() -> None:
        waiting.append(asyncio.get_running_loop().create_future())
        await waiting[-1]

    @fb.job
    async def open_all() -> None:
        for future in waiting:
            future.set_result(None)

    guard = CountedChecks()
    with at_work(fb, Options(concurrency=64), descriptors=guard) as rig:
        rig.pool.submit(rig.leased(*(Draft("wait") for _ in range(50))))
        eventually(lambda: len(waiting) == 50)
        before = guard.checks
        rig.start("open_all")
        assert [verdict for _, verdict in rig.verdicts(51)] == [Ack()] * 51
        assert guard.checks - before <= 10


def test_a_cancelled_async_handler_is_cancelled(fb: Forebay) -> None:
    begun = Event()

    @fb.job
    async def slow() -> None:
        begun.set()
        await asyncio.sleep(PATIENCE)

    with at_work(fb) as rig:
        lease = rig.start("slow")
        assert begun.wait(PATIENCE)
        rig.pool.request_cancel([lease.fence, (99, 1)])
        assert rig.verdict() == Cancel()
        rig.nothing_more()


def test_a_cancelled_thread_is_asked_and_may_agree_or_finish(fb: Forebay, hold: Event) -> None:
    begun = Event()

    @fb.job
    def agrees(ctx: Context) -> None:
        begun.set()
        eventually(lambda: ctx.cancelled)

    @fb.job
    def finishes(ctx: Context) -> str:
        begun.set()
        eventually(lambda: ctx.cancelled)
        return "all done"

    @fb.job
    def breaks(ctx: Context) -> None:
        begun.set()
        eventually(lambda: ctx.cancelled)
        raise ValueError("half-way")

    with at_work(fb) as rig:
        for kind, expected in (("agrees", Cancel), ("finishes", Ack), ("breaks", Retry)):
            begun.clear()
            lease = rig.start(kind)
            assert begun.wait(PATIENCE)
            rig.pool.request_cancel([lease.fence])
            assert isinstance(rig.verdict(), expected)
        rig.nothing_more()


def test_a_thread_that_ignores_its_cancellation_still_has_its_timeout_and_its_drain(fb: Forebay, hold: Event) -> None:
    @fb.job(timeout=SHORT)
    def deaf() -> None:
        hold.wait(PATIENCE)

    @fb.job
    def endless() -> None:
        hold.wait(PATIENCE)

    with at_work(fb) as rig:
        lease = rig.start("deaf")
        rig.pool.request_cancel([lease.fence])
        assert failure(rig.verdict()).kind == TIMEOUT
        lease = rig.start("endless")
        rig.pool.request_cancel([lease.fence])
        rig.pool.interrupt_all()
        assert rig.verdict() == Release()
        rig.nothing_more()


def test_what_comes_of_a_lost_lease_is_thrown_away(fb: Forebay, hold: Event) -> None:
    seen: list[Context] = []

    @fb.job
    def plain(ctx: Context) -> None:
        seen.append(ctx)
        hold.wait(PATIENCE)

    @fb.job
    async def asynchronous(ctx: Context) -> None:
        seen.append(ctx)
        await asyncio.sleep(PATIENCE)

    with at_work(fb) as rig:
        leases = [rig.start(kind) for kind in ("plain", "asynchronous")]
        eventually(lambda: len(seen) == 2)
        rig.pool.mark_lost([lease.fence for lease in leases])
        assert rig.pool.wait_until_idle(PATIENCE)
        assert [context.lost for context in seen] == [True, True]
        hold.set()
        rig.nothing_more()
        assert rig.pool.held() == []


def test_the_drain_hands_back_what_still_runs_and_nothing_is_charged(fb: Forebay, hold: Event) -> None:
    begun: list[str] = []

    @fb.job
    def plain() -> None:
        begun.append("plain")
        hold.wait(PATIENCE)

    @fb.job
    async def asynchronous() -> None:
        begun.append("asynchronous")
        await asyncio.sleep(PATIENCE)

    with at_work(fb) as rig:
        for kind in ("plain", "asynchronous", "plain", "asynchronous"):
            rig.start(kind)
        eventually(lambda: len(begun) == 4)
        rig.pool.interrupt_all()
        rig.pool.interrupt_all()
        assert [verdict for _, verdict in rig.verdicts(4)] == [Release()] * 4
        hold.set()
        rig.nothing_more()


# Bad neighbours on the loop


def test_a_cancellation_that_a_handler_swallows_does_not_reach_the_next_job(fb: Forebay) -> None:
    @fb.job
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    @fb.job(timeout=SHORT)
    async def swallows() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(PATIENCE)

    @fb.job
    async def innocent() -> None:
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    with at_work(fb, Options(concurrency=1)) as rig:
        for bad in ("cancels_itself", "swallows", "cancels_itself"):
            rig.run(bad)
            assert rig.run("innocent") == Ack()
    with at_work(fb, Options(concurrency=2)) as rig:
        leases = rig.leased(*[Draft(kind) for _ in range(20) for kind in ("cancels_itself", "innocent")])
        for start in range(0, 40, 2):
            rig.pool.submit(leases[start : start + 2])
            assert rig.verdicts(2)[1] == ("innocent", Ack())


def test_an_exit_in_a_task_of_a_handler_charges_no_innocent(fb: Forebay) -> None:
    begun = Event()

    @fb.job
    async def exits() -> None:
        async def deeper() -> None:
            raise SystemExit(1)

        await asyncio.gather(deeper())

    @fb.job
    async def innocent() -> None:
        begun.set()
        await asyncio.sleep(PATIENCE)

    with at_work(fb) as rig:
        rig.start("innocent")
        assert begun.wait(PATIENCE)
        rig.start("exits")
        eventually(lambda: not rig.pool.healthy or rig.pool.free == 3)
        rig.pool.interrupt_all()
        assert dict(rig.verdicts(2))["innocent"] == Release()
        rig.nothing_more()


def test_an_exit_in_a_task_of_a_handler_leaves_the_pool_well(fb: Forebay) -> None:
    @fb.job
    async def exits() -> None:
        async def deeper() -> None:
            raise SystemExit(1)

        await asyncio.gather(deeper())

    @fb.job
    async def later() -> None:
        await asyncio.sleep(PATIENCE)

    with at_work(fb) as rig:
        rig.run("exits")
        rig.start("later")
        rig.pool.interrupt_all()
        assert rig.verdict() == Release()
        assert rig.pool.healthy


# Bounds


@pytest.mark.parametrize("size", [1, 3, 16])
def test_never_more_run_than_there_is_room_for(fb: Forebay, size: int) -> None:
    running, most, guard = 0, 0, Lock()

    def enter(change: int) -> None:
        nonlocal running, most
        with guard:
            running += change
            most = max(most, running)

    @fb.job
    def plain() -> None:
        enter(1)
        Event().wait(0.001)
        enter(-1)

    @fb.job
    async def asynchronous() -> None:
        enter(1)
        await asyncio.sleep(0.001)
        enter(-1)

    with at_work(fb, Options(concurrency=size)) as rig:
        leases = rig.leased(*[Draft(kind) for _ in range(100) for kind in ("plain", "asynchronous")])
        done = 0
        while done < 200:
            rig.pool.wait_for_capacity(PATIENCE)
            room = min(rig.pool.free, len(leases))
            rig.pool.submit(leases[:room])
            del leases[:room]
            assert rig.pool.free >= 0
            done += len(rig.verdicts(room))
        rig.nothing_more()
    assert 1 <= most <= size


def test_waiting_for_room_ends_when_there_is_some(fb: Forebay, hold: Event) -> None:
    @fb.job
    def slow() -> None:
        hold.wait(PATIENCE)

    with at_work(fb, Options(concurrency=2)) as rig:
        rig.start("slow")
        rig.start("slow")
        assert rig.pool.free == 0
        assert not rig.pool.wait_until_idle(0.01)
        threading.Timer(0.05, hold.set).start()
        rig.pool.wait_for_capacity(PATIENCE)
        assert rig.pool.free > 0
        assert rig.pool.wait_until_idle(PATIENCE)


def test_a_heavy_job_takes_as_many_slots_as_it_costs(fb: Forebay, hold: Event) -> None:
    @fb.job
    def slow() -> None:
        hold.wait(PATIENCE)

    with at_work(fb, Options(concurrency=4)) as rig:
        light, heavy, giant = rig.leased(Draft("slow"), Draft("slow", cost=3), Draft("slow", cost=50))
        assert rig.pool.fits([light, heavy, giant]) == 2
        assert rig.pool.fits([giant, light]) == 1, "alone, every job fits"
        rig.pool.submit([light, heavy])
        assert rig.pool.free == 0
        assert rig.pool.fits([giant]) == rig.pool.fits([light]) == 0
        rig.pool.wait_for_capacity(SHORT, 1)
        assert rig.pool.free == 0
        hold.set()
        rig.pool.wait_for_capacity(PATIENCE, 4)
        assert rig.pool.wait_until_idle(PATIENCE)
        assert rig.pool.free >= 4, "all is given back"
        rig.pool.submit([giant])
        assert [type(verdict) for _, verdict in rig.verdicts(3)] == [Ack] * 3
        rig.nothing_more()


def test_an_isolated_handler_needs_an_app_that_can_be_imported(fb: Forebay) -> None:
    @fb.job(isolate=True)
    def alone() -> None: ...

    with pytest.raises(Invalid, match="module:name"):
        Pool(fb.registry, Options(), lambda queue: ROUTING, lambda verdicts: None)


# Breaker and budget


def broken(fb: Forebay, breaker: Breaker, retry_budget: float | None = None) -> Options:
    @fb.job(breaker=breaker, timeout=60)
    def call(mode: str) -> None:
        match mode:
            case "fail":
                raise OSError("down")
            case "drop":
                raise Drop("no use")
            case "snooze":
                raise Snooze(1)
            case _:
                pass

    return Options(concurrency=4, retry_budget=retry_budget)


def test_an_open_breaker_puts_jobs_back_unharmed_and_spread(fb: Forebay) -> None:
    options = broken(fb, Breaker(failures=2, cooldown=seconds(60)))
    with at_work(fb, options) as rig:
        for _ in range(2):
            assert isinstance(rig.run("call", {"mode": "fail"}), Retry)
        for _ in range(5):
            verdict = rig.run("call", {"mode": "fine"})
            assert isinstance(verdict, Release)
            assert 30_000_000 < verdict.after <= 60_000_000
        assert rig.pool.circuits() == {"call": ("open", 5)}
        assert rig.pool.idle


def test_kinds_that_name_one_dependency_share_its_breaker(fb: Forebay) -> None:
    options = broken(fb, Breaker(failures=2, cooldown=ms(20), name="payments"))
    fb.job(kind="refund", breaker=Breaker(failures=2, cooldown=ms(20), name="payments"))(lambda: None)
    fb.job(kind="mail", breaker=Breaker(failures=2, cooldown=ms(20)))(lambda: None)
    fb.job(kind="payments", breaker=Breaker(failures=2, cooldown=ms(20)))(lambda: None)
    with at_work(fb, options) as rig:
        for _ in range(2):
            assert isinstance(rig.run("call", {"mode": "fail"}), Retry)
        assert isinstance(rig.run("refund"), Release)
        assert rig.run("mail") == rig.run("payments") == Ack()
        assert [(kind, count) for kind, (_, count) in rig.pool.circuits().items() if count] == [("refund", 1)]
        eventually(lambda: rig.pool.circuits()["call"][0] == "half-open")
        assert rig.run("refund") == Ack()
        assert rig.pool.circuits()["call"][0] == "closed"


def test_two_breakers_of_one_name_have_the_same_numbers(fb: Forebay) -> None:
    def charge() -> None: ...

    def refund() -> None: ...

    fb.job(breaker=Breaker(failures=2, name="payments"))(charge)
    fb.job(breaker=Breaker(failures=3, name="payments"))(charge)
    with pytest.raises(Invalid, match="refund: the breaker 'payments' has other numbers in charge"):
        fb.job(breaker=Breaker(failures=2, name="payments"))(refund)
    assert list(fb.registry) == ["charge"]
    with pytest.raises(Invalid, match="Breaker name"):
        Breaker(name="the payments")


def test_a_breaker_closes_when_a_probe_goes_well(fb: Forebay) -> None:
    options = broken(fb, Breaker(failures=1, cooldown=ms(20)))
    with at_work(fb, options) as rig:
        assert isinstance(rig.run("call", {"mode": "fail"}), Retry)
        eventually(lambda: rig.pool.circuits()["call"][0] == "half-open")
        assert rig.run("call", {"mode": "fine"}) == Ack()
        assert rig.pool.circuits()["call"][0] == "closed"


@pytest.mark.parametrize("mode", ["drop", "snooze", "unfit"])
def test_a_probe_that_says_nothing_about_the_dependency_lets_the_next_one_try(fb: Forebay, mode: str) -> None:
    options = broken(fb, Breaker(failures=1, cooldown=ms(20)))
    with at_work(fb, options) as rig:
        rig.run("call", {"mode": "fail"})
        for _ in range(3):
            eventually(lambda: rig.pool.circuits()["call"][0] == "half-open")
            rig.run("call", {"mode": mode} if mode != "unfit" else {"odd": 1})
        assert rig.run("call", {"mode": "fine"}) == Ack()


def test_a_probe_whose_lease_is_lost_or_drained_lets_the_next_one_try(fb: Forebay, hold: Event) -> None:
    @fb.job(breaker=Breaker(failures=1, cooldown=ms(20)))
    def call(mode: str) -> None:
        if mode == "fail":
            raise OSError("down")
        if mode == "wait":
            hold.wait(PATIENCE)

    with at_work(fb) as rig:
        rig.run("call", {"mode": "fail"})
        eventually(lambda: rig.pool.circuits()["call"][0] == "half-open")
        lease = rig.start("call", {"mode": "wait"})
        rig.pool.mark_lost([lease.fence])
        rig.start("call", {"mode": "wait"})
        rig.pool.interrupt_all()
        assert rig.verdict() == Release()
        assert rig.run("call", {"mode": "fine"}) == Ack()


def test_a_spent_retry_budget_postpones_retries_and_lets_first_runs_pass(fb: Forebay) -> None:
    options = broken(fb, Breaker(failures=1_000), retry_budget=0.1)
    with at_work(fb, options) as rig:
        retries = [rig.again(lease) for lease in rig.leased(*[Draft("call", {"mode": "fine"})] * 12)]
        verdicts = []
        for retry in retries:
            rig.pool.submit([retry])
            verdicts.append(rig.verdict())
        assert verdicts[:10] == [Ack()] * 10
        assert verdicts[10:] == [Release(1_000_000)] * 2
        assert rig.run("call", {"mode": "fine"}) == Ack()


def test_a_spent_budget_does_not_hold_the_probe_of_a_breaker(fb: Forebay) -> None:
    options = broken(fb, Breaker(failures=1, cooldown=ms(20)), retry_budget=0.05)
    with at_work(fb, options) as rig:
        for retry in [rig.again(lease) for lease in rig.leased(*[Draft("call", {"mode": "fine"})] * 10)]:
            rig.pool.submit([retry])
            assert rig.verdict() == Ack()
        lease = rig.start("call", {"mode": "fail"})
        assert isinstance(rig.verdict(), Retry)
        eventually(lambda: rig.pool.circuits()["call"][0] == "half-open")
        rig.pool.submit([rig.again(lease)])
        assert isinstance(rig.verdict(), Release)
        assert rig.run("call", {"mode": "fine"}) == Ack()


# The store away


def test_handlers_that_end_while_the_store_is_away_keep_their_verdicts_and_their_slots(fb: Forebay) -> None:
    both(fb, "job", lambda: None)
    away = FaultyStore(fb.store, lambda verb: Fault.REFUSED)
    with at_work(fb, Options(concurrency=1), routing=RoutingCache(away)) as rig:
        for _ in range(3):
            assert rig.run("thread.job") == Ack()
            assert rig.run("loop.job") == Ack()
        rig.nothing_more()


def test_routing_is_what_the_store_last_said(fb: Forebay) -> None:
    fb.store.put_spec(QueueSpec(name="default", routing=ROUTING))
    routings = RoutingCache(fb.store)
    assert routings("default") == ROUTING
    assert routings("elsewhere") == Routing()


# ForkCounter


@WHERE
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_handler_that_forks_and_returns_twice_is_settled_once(fb: Forebay, where: str) -> None:
    children: list[int] = []

    def forks() -> None:
        child = os.fork()
        if child:
            children.append(child)

    both(fb, "forks", forks)
    both(fb, "good", lambda: None)
    with at_work(fb) as rig:
        assert rig.run(f"{where}.forks") == Ack()
        (child,) = children
        assert os.waitpid(child, 0) == (child, 0), "the copy ended by itself, quietly"
        assert rig.run(f"{where}.good") == Ack()
        rig.nothing_more()


class Refused(threading.Thread):
    """A thread that the machine has no room for, the first time."""

    refusals = 1

    def start(self) -> None:
        if Refused.refusals:
            Refused.refusals -= 1
            raise RuntimeError("can't start new thread")
        super().start()


def test_a_thread_that_cannot_be_started_costs_no_job(fb: Forebay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.work.threads.Thread", Refused)
    both(fb, "job", lambda: None)
    with at_work(fb, Options(concurrency=2)) as rig:
        with contextlib.suppress(RuntimeError):
            rig.start("thread.job")
        rig.start("thread.job")
        verdicts = [verdict for _, verdict in rig.verdicts(2)]
        assert Ack() in verdicts
        assert all(isinstance(verdict, (Ack, Release)) for verdict in verdicts), "run later, or handed back"
        rig.nothing_more()


def test_start_and_close_at_once_leaves_no_thread(fb: Forebay) -> None:
    both(fb, "job", lambda: None)
    before = threading.active_count()
    for _ in range(20):
        with at_work(fb) as rig:
            rig.pool.submit(rig.leased(Draft("thread.job"), Draft("loop.job")))
            rig.verdicts(2)
    eventually(lambda: threading.active_count() <= before)


def test_a_handler_that_blocks_the_loop_keeps_back_nothing_that_was_done_before_it(fb: Forebay, hold: Event) -> None:
    """Quick handlers are finished together, but not later than the next sweep."""

    @fb.job
    async def quick() -> None:
        pass

    @fb.job
    async def stubborn() -> None:
        hold.wait(PATIENCE)

    with at_work(fb) as rig:
        rig.pool.submit(rig.leased(Draft("quick"), Draft("quick"), Draft("stubborn")))
        assert rig.verdicts(2) == [("quick", Ack())] * 2
        assert not hold.is_set()
        assert not rig.pool.idle
        hold.set()
        assert rig.verdict() == Ack()


def test_a_timeout_counts_from_when_the_handler_begins(fb: Forebay) -> None:
    """A job that waits behind a handler that blocks the loop has not had its time."""

    @fb.job
    async def stubborn() -> None:
        Event().wait(4 * SHORT)

    @fb.job(timeout=SHORT)
    async def brief() -> None:
        pass

    with at_work(fb) as rig:
        rig.pool.submit(rig.leased(Draft("stubborn"), Draft("brief")))
        assert rig.verdicts(2) == [("brief", Ack()), ("stubborn", Ack())]


# Leases that ended meanwhile


def test_what_waits_for_a_slot_past_its_lease_never_begins(fb: Forebay, hold: Event) -> None:
    """As in a process that was stopped: other workers hold its jobs by now."""
    ran: list[str] = []

    @fb.job
    async def first() -> None:
        await asyncio.to_thread(hold.wait, PATIENCE)

    @fb.job
    async def late() -> None:
        ran.append("late")

    @fb.job
    async def renewed() -> None:
        ran.append("renewed")

    with at_work(fb, Options(concurrency=1)) as rig:
        rig.start("first")
        leases = rig.leased(Draft("late"), Draft("renewed"))
        rig.pool.submit(leases, lease_clock())
        rig.pool.renewed([leases[1].fence], lease_clock() + PATIENCE)
        hold.set()
        assert dict(rig.verdicts(3)) == {"first": Ack(), "late": Release(), "renewed": Ack()}
        assert ran == ["renewed"]


@pytest.mark.parametrize("where", ["thread", "loop"])
def test_no_handler_begins_with_a_lease_that_has_ended(fb: Forebay, where: str) -> None:
    ran = Event()

    def plain() -> None:
        ran.set()

    async def on_loop() -> None:
        ran.set()

    fb.job(plain)
    fb.job(on_loop)
    with at_work(fb) as rig:
        rig.pool.submit(rig.leased(Draft("plain" if where == "thread" else "on_loop")), lease_clock())
        assert rig.verdict() == Release()
        rig.nothing_more()
        assert not ran.is_set()
