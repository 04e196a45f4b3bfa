"""Hooks, middleware and injected values: in a worker, in its child processes and in a `JobTester`."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest
from msgspec.structs import replace

from forebay import Context, Draft, Drop, Forebay, Invalid, State
from forebay.core.instant import seconds
from forebay.core.outcome import ABANDONED, Failure, Retry
from forebay.store.protocol import Want
from forebay.testing import JobTester
from forebay.work.lifespan import StartupFailed
from forebay.work.options import Options
from forebay.work.worker import Worker
from tests.waiting import PATIENCE


class Pool:
    """What a handler takes as a parameter."""

    def __init__(self) -> None:
        self.open = True
        self.loop: asyncio.AbstractEventLoop | None = None


class Session:
    def __init__(self, pool: Pool, job_id: int) -> None:
        self.pool = pool
        self.job_id = job_id


@pytest.fixture
def fb() -> Iterator[Forebay]:
    fb = Forebay("memory://")
    yield fb
    fb.close()


@contextmanager
def working(fb: Forebay, **options: object) -> Iterator[Worker]:
    worker = Worker(fb, Options(concurrency=4, **options))  # type: ignore[arg-type]
    worker.start()
    try:
        yield worker
    finally:
        worker.drain(5)


# Start and end


def test_hooks_run_once_in_their_order_and_shutdown_comes_after_the_drain(fb: Forebay) -> None:
    said: list[str] = []
    begun = Event()

    @fb.on_startup
    def first() -> None:
        said.append("first")

    @fb.on_startup
    async def second() -> None:
        said.append(f"second on {threading.current_thread().name}")

    @fb.on_shutdown
    async def last() -> None:
        said.append("last")

    @fb.on_shutdown
    def before_last() -> None:
        said.append("before last")

    @fb.job
    def slow() -> None:
        begun.set()
        Event().wait(0.05)
        said.append("job")

    with working(fb):
        slow.enqueue()
        assert begun.wait(PATIENCE)
    assert said == ["first", "second on forebay-loop", "job", "before last", "last"]


def test_a_start_up_hook_that_fails_ends_the_worker_and_closes_what_was_made(
    fb: Forebay, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool()

    def make() -> Iterator[Pool]:
        yield pool
        pool.open = False

    fb.provide(Pool, make)

    @fb.job
    def work(pool: Pool) -> None: ...

    @fb.on_startup
    async def connect() -> None:
        raise ConnectionError("no route to the bank")

    receipt = fb.enqueue("work")
    assert Worker(fb).run() == 3
    assert "on_startup of connect failed: ConnectionError: no route to the bank" in caplog.text
    assert not pool.open
    job = fb.get(receipt.id)
    assert job is not None
    assert job.state is State.READY
    with pytest.raises(StartupFailed):
        Worker(fb).start()


def test_shutdown_is_bounded_and_a_hook_that_fails_stops_no_other(
    fb: Forebay, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    hang = Event()

    @fb.on_shutdown
    def hangs() -> None:
        hang.wait(PATIENCE)

    @fb.on_shutdown
    def runs() -> None:
        said.append("ran")

    @fb.on_shutdown
    def fails() -> None:
        raise RuntimeError("broken")

    try:
        with working(fb, shutdown_timeout=timedelta(seconds=0.1)):
            pass
        assert said == ["ran"]
        assert "on_shutdown of fails failed: RuntimeError: broken" in caplog.text
        assert "did not end within 0.1 s" in caplog.text
    finally:
        hang.set()


# Middleware around jobs


def test_layers_surround_plain_and_async_handlers_in_order(fb: Forebay) -> None:
    said: list[object] = []

    @fb.around_job
    def outer(ctx: Context) -> Iterator[None]:
        said.append(("outer", ctx.job.kind))
        yield
        said.append("outer ends")

    @fb.around_job
    async def inner() -> AsyncIterator[None]:
        said.append("inner")
        await asyncio.sleep(0)
        yield
        said.append("inner ends")

    @fb.job(keep_result=True)
    def plain() -> str:
        said.append("plain")
        return "p"

    @fb.job(keep_result=True)
    async def awaited() -> str:
        await asyncio.sleep(0)
        said.append("awaited")
        return "a"

    with working(fb):
        for job, value in ((plain, "p"), (awaited, "a")):
            said.clear()
            assert job.enqueue().result() == value
            name = "plain" if value == "p" else "awaited"
            assert said == [("outer", name), "inner", name, "inner ends", "outer ends"]


@pytest.mark.parametrize("on_loop", [False, True])
def test_what_a_handler_raises_passes_the_layers_which_may_turn_it_into_another(fb: Forebay, on_loop: bool) -> None:
    seen: list[str] = []

    @fb.around_job
    def watch() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    @fb.around_job
    async def translate() -> AsyncIterator[None]:
        try:
            yield
        except KeyError as error:
            raise Drop("useless") from error

    async def fails_on_loop() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    def fails() -> None:
        raise KeyError("x")

    job = fb.job(kind="fails")(fails_on_loop if on_loop else fails)
    with working(fb):
        ended = fb.wait_for(job.enqueue().id)
    assert ended is not None
    assert (ended.state, ended.errors[-1].kind) == (State.DEAD, "forebay.work.handler.Drop")
    assert seen == ["Drop"]


@pytest.mark.parametrize("on_loop", [False, True])
def test_a_layer_that_suppresses_an_error_makes_the_run_a_success(fb: Forebay, on_loop: bool) -> None:
    if on_loop:

        @fb.around_job
        async def forgive() -> AsyncIterator[None]:
            with suppress(KeyError):
                yield
    else:

        @fb.around_job
        def forgive_plainly() -> Iterator[None]:
            with suppress(KeyError):
                yield

    @fb.job(keep_result=True)
    def fails() -> None:
        raise KeyError("x")

    with working(fb):
        assert fails.enqueue().result() is None


def test_an_async_layer_around_a_plain_handler_keeps_its_context_variables(fb: Forebay) -> None:
    bound: ContextVar[int] = ContextVar("bound")
    left: list[int] = []

    @fb.around_job
    async def bind(ctx: Context) -> AsyncIterator[None]:
        token = bound.set(ctx.job.id)
        yield
        left.append(bound.get())
        bound.reset(token)

    @fb.job(keep_result=True)
    def plain() -> None: ...

    with working(fb):
        receipt = plain.enqueue()
        receipt.result()
    assert left == [receipt.id]


def test_the_state_of_a_run_is_shared_by_type_and_new_for_each_run(fb: Forebay) -> None:
    @fb.around_job
    def prepare(ctx: Context) -> Iterator[None]:
        assert Pool not in ctx.state
        ctx.state[Pool] = Pool()
        yield

    @fb.job(keep_result=True)
    def read(ctx: Context) -> bool:
        return ctx.state[Pool].open

    with working(fb):
        assert [fb.enqueue("read").result() for _ in range(2)] == [True, True]
    with JobTester(fb) as jobs:
        fb.enqueue("read")
        jobs.run_all()
        assert jobs.errors == []


def test_a_state_refuses_a_value_of_another_type(fb: Forebay) -> None:
    @fb.job
    def confuse(ctx: Context) -> None:
        ctx.state[Pool] = "a pool"

    with JobTester(fb) as jobs:
        fb.enqueue("confuse")
        jobs.run_all()
        assert "str is not a Pool" in str(jobs.errors[0])


# Middleware around enqueues


def test_a_layer_around_an_enqueue_changes_the_draft_and_sees_the_error(fb: Forebay) -> None:
    seen: list[str] = []

    @fb.around_enqueue
    def stamp(draft: Draft) -> Iterator[Draft]:
        try:
            yield replace(draft, meta={**(draft.meta or {}), "request": "r-1"})
        except Exception as error:
            seen.append(type(error).__name__)
            raise
        seen.append("stored")

    @fb.around_enqueue
    def watch(draft: Draft) -> Iterator[None]:
        seen.append((draft.meta or {})["request"])
        yield

    @fb.job
    def send(to: str) -> None: ...

    receipts = [send.enqueue("ada"), fb.enqueue("send", {"to": "bo"}), asyncio.run(send.aenqueue("cy"))]
    fb.enqueue_many([send.draft("di")])
    assert {(job.meta or {}).get("request") for job in fb.jobs()} == {"r-1"}
    assert seen == ["r-1", "stored"] * 4
    assert len(receipts) == 3
    fb.store.close()
    seen.clear()
    with pytest.raises(Exception, match="closed"):
        send.enqueue("eve")
    assert seen == ["r-1", "Closed"]


def test_a_layer_may_refuse_an_enqueue_but_not_suppress_its_error(fb: Forebay) -> None:
    @fb.around_enqueue
    def guard(draft: Draft) -> Iterator[None]:
        if draft.kind == "forbidden":
            raise PermissionError(draft.kind)
        with suppress(Invalid):
            yield

    with pytest.raises(PermissionError):
        fb.enqueue("forbidden")
    assert list(fb.jobs()) == []

    @fb.around_enqueue
    def confuse(draft: Draft) -> Iterator[str]:
        yield "not a draft"

    with pytest.raises(Invalid, match="suppressed the error"):
        fb.enqueue("allowed")


# Injection


def test_values_are_made_once_a_process_or_for_each_job_and_closed(fb: Forebay) -> None:
    said: list[str] = []
    pools: set[int] = set()

    async def make_pool() -> AsyncIterator[Pool]:
        pool = Pool()
        pool.loop = asyncio.get_running_loop()
        said.append("pool made")
        yield pool
        pool.open = False
        said.append("pool closed")

    @contextmanager
    def make_session(pool: Pool, ctx: Context) -> Iterator[Session]:
        said.append(f"session of {ctx.job.kind}")
        yield Session(pool, ctx.job.id)
        said.append("session closed")

    fb.provide(Pool, make_pool)
    fb.provide(Session, make_session, scope="job")

    @fb.job(keep_result=True)
    def plain(n: int, session: Session, ctx: Context) -> list[int]:
        pools.add(id(session.pool))
        return [n, session.job_id - ctx.job.id, int(session.pool.open)]

    @fb.job(keep_result=True)
    async def awaited(pool: Pool, n: int, session: Session) -> list[int]:
        pools.add(id(session.pool))
        await asyncio.sleep(0)
        return [n, int(pool is session.pool), int(pool.loop is asyncio.get_running_loop())]

    with working(fb):
        assert said == ["pool made"], "before the first job"
        assert fb.enqueue("plain", {"n": 1}).result() == [1, 0, 1]
        assert fb.enqueue("awaited", {"n": 2}).result() == [2, 1, 1]
    session = ["session of plain", "session closed", "session of awaited", "session closed"]
    assert said == ["pool made", *session, "pool closed"]
    assert len(pools) == 1


def test_a_value_of_handlers_of_other_queues_is_made_when_a_job_needs_it(fb: Forebay) -> None:
    made: list[str] = []

    async def make() -> Pool:
        await asyncio.sleep(0)
        made.append("pool")
        return Pool()

    fb.provide(Pool, make)

    @fb.job(queue="gpu", keep_result=True)
    async def awaited(pool: Pool) -> bool:
        return pool.open

    @fb.job(keep_result=True)
    def other() -> None: ...

    with working(fb):
        other.enqueue().result()
        assert made == []
        for _ in range(2):
            assert fb.enqueue("awaited", queue="default").result() is True
    assert made == ["pool"]


def test_an_injected_parameter_is_not_in_the_payload_and_tests_replace_it(fb: Forebay) -> None:
    fb.provide(Pool, Pool)
    seen: list[tuple[str, Pool]] = []

    @fb.job
    def send(to: str, pool: Pool) -> None:
        seen.append((to, pool))

    mine = Pool()
    with JobTester(fb, provided={Pool: mine}) as jobs:
        send.enqueue("ada")  # type: ignore[call-arg]
        jobs.assert_enqueued("send", to="ada")
        with pytest.raises(Invalid, match="pool"):
            send.enqueue("ada", pool=mine)
        jobs.run_all()
    assert seen == [("ada", mine)]
    send("bo", mine)
    assert seen[1] == ("bo", mine)


def test_what_is_wrong_is_refused_at_its_declaration(fb: Forebay) -> None:
    with pytest.raises(Invalid, match=r"'pool' \(Pool\) is neither JSON nor provided; call fb.provide\(Pool"):

        @fb.job
        def unknown(pool: Pool) -> None: ...

    def session(pool: Pool) -> Session:
        return Session(pool, 0)

    with pytest.raises(Invalid, match=r"nothing provides its parameter 'pool' \(Pool\)"):
        fb.provide(Session, session)
    fb.provide(Pool, Pool, scope="job")
    with pytest.raises(Invalid, match="belongs to a job"):
        fb.provide(Session, session)
    with pytest.raises(Invalid, match="provided already"):
        fb.provide(Pool, Pool)
    with pytest.raises(Invalid, match="parameters of this type are payload"):
        fb.provide(str, str)
    with pytest.raises(Invalid, match="the scope is"):
        fb.provide(Session, session, scope="request")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="no generator function"):

        @fb.around_job
        def no_yield(ctx: Context) -> None: ...

    with pytest.raises(Invalid, match="not a plain generator function"):

        @fb.around_enqueue
        async def no_plain(draft: Draft) -> AsyncIterator[None]:
            yield

    with pytest.raises(Invalid, match=r"cannot be called with the draft alone.*'why'"):

        @fb.around_enqueue
        def two(draft: Draft, why: str) -> Iterator[None]:
            yield

    with pytest.raises(Invalid, match="cannot be called with the draft alone"):

        @fb.around_enqueue
        def nothing() -> Iterator[None]:
            yield

    with pytest.raises(Invalid, match=r"nothing is injected into its parameter 'pool' \(Pool\)"):

        @fb.around_enqueue
        def with_pool(draft: Draft, pool: Pool | None = None) -> Iterator[None]:
            yield

    with pytest.raises(Invalid, match="a generator function"):

        @fb.on_startup
        def a_yield() -> Iterator[None]:
            yield

    with pytest.raises(Invalid, match="belongs to a job"):

        @fb.on_startup
        def early(ctx: Context) -> None: ...


# In child processes


APP = """
import asyncio, json, os
from forebay import Context, Forebay

fb = Forebay()


class Pool: ...


def say(word):
    with open({said!r}, "a") as file:
        file.write(json.dumps([word, os.getpid()]) + "\\n")


async def make_pool():
    say("pool made")
    yield Pool()
    say("pool closed")


fb.provide(Pool, make_pool)


@fb.on_startup
async def start():
    say("start")


@fb.on_shutdown
def end():
    say("end")


@fb.around_job
async def layer(ctx: Context):
    say("before")
    yield
    say("after")


@fb.job(isolate=True)
def alone(pool: Pool):
    say("alone " + type(pool).__name__)


@fb.job
async def suspect(pool: Pool):
    await asyncio.sleep(0)
    say("suspect " + type(pool).__name__)
"""


@pytest.mark.parametrize("kind", ["alone", "suspect"])
def test_hooks_layers_and_values_are_in_child_processes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    said = tmp_path / "said"
    (tmp_path / f"child_app_{kind}.py").write_text(APP.format(said=str(said)))
    monkeypatch.syspath_prepend(tmp_path)
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("FOREBAY_URL", url)
    fb = Forebay(url)
    job_id = fb.enqueue(kind, max_attempts=3).id
    if kind == "suspect":
        for _ in range(2):
            leases = fb.store.claim([Want("default", 1)], "gone", seconds(10))
            fb.store.settle([(lease, Retry(0, Failure(ABANDONED, "gone"), keep_rank=True)) for lease in leases])
    from forebay.work.app import find_app

    target = f"child_app_{kind}:fb"
    worker = Worker(find_app(target), Options(), target=target)
    worker.start()
    try:
        fb.wait_for(job_id, PATIENCE)
    finally:
        worker.drain(5)
    fb.close()
    lines = [json.loads(line) for line in said.read_text().splitlines()]
    child = next(pid for word, pid in lines if word.startswith(kind))
    in_child = [word for word, pid in lines if pid == child]
    assert in_child == ["start", "pool made", "before", f"{kind} Pool", "after", "end", "pool closed"]
    in_worker = [word for word, pid in lines if pid != child]
    assert in_worker == ["pool made", "start", "end", "pool closed"]
