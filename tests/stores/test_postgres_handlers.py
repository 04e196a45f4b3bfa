"""`ctx.transaction()`: what a handler writes and the end of its job commit together, or not at all.

Real workers in this process, in threads and on a loop, against a real server. The handlers write their numbers into a
table; the tests judge by that table and by the store.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from forebay import Context, Draft, Invalid, LeaseLost, QueueSpec, Snooze, State, Want, open_store
from forebay.client import Forebay
from forebay.core.errors import StoreFailed, Unsupported
from forebay.core.instant import hours, ms, seconds
from forebay.core.outcome import Ack, Failure, Retry
from forebay.core.policy import AtMost, Fixed, InOrder, KeepFor, Routing
from forebay.store.postgres import transaction
from forebay.store.postgres.store import PostgresStore
from forebay.work.options import Options
from forebay.work.worker import Worker
from forebay_proof.servers.pgbouncer import PgBouncer
from forebay_proof.servers.postgres import PostgresServer
from forebay_proof.servers.proxy import Proxy

INSERT = "INSERT INTO effects VALUES (%s, %s)"
QUEUES = ("default", "kept", "capped", "lined")


class Site:
    """An app, its table of effects, and workers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = app = Forebay(url)
        routing = Routing(5, Fixed(ms(10)))
        app.queue(QueueSpec(name="default", routing=routing))
        app.queue(QueueSpec(name="kept", routing=routing, retention=KeepFor(hours(1))))
        app.queue(QueueSpec(name="capped", routing=routing, eligibility=AtMost(1)))
        app.queue(QueueSpec(name="lined", routing=routing, eligibility=InOrder()))
        self.output: list[Any] = []

        @app.job
        def plain(n: int, ctx: Context) -> None:
            with ctx.transaction() as connection:
                connection.execute(INSERT, (n, ctx.fence[1]))

        @app.job
        async def awaited(n: int, ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await connection.execute(INSERT, (n, ctx.fence[1]))

    @property
    def store(self) -> PostgresStore:
        store = self.app.store
        assert isinstance(store, PostgresStore)
        return store

    def effects(self) -> list[int]:
        with psycopg.connect(self.url) as connection:
            return [n for (n,) in connection.execute("SELECT n FROM effects ORDER BY n").fetchall()]

    @contextmanager
    def working(self, **options: Any) -> Iterator[Worker]:
        worker = Worker(self.app, Options(queues=QUEUES, concurrency=8, **options))
        worker.start()
        try:
            yield worker
        finally:
            worker.drain(5)

    def run(self, kind: str, queue: str = "default", **payload: Any) -> Worker:
        """One job to its end, however many attempts that takes."""
        receipt = self.app.enqueue(kind, payload, queue=queue)
        with self.working() as worker:
            job = self.app.wait_for(receipt.id, 30)
            assert job is None or job.state.terminal
        return worker


@pytest.fixture
def site(cleared_url: str) -> Iterator[Site]:
    with psycopg.connect(cleared_url) as connection:
        connection.execute("DROP TABLE IF EXISTS effects")
        connection.execute("CREATE TABLE effects (n int, delivery int)")
    site = Site(cleared_url)
    yield site
    site.app.close()


@pytest.mark.parametrize("kind", ["plain", "awaited"])
@pytest.mark.parametrize("queue", QUEUES)
def test_effect_and_end_commit_together(site: Site, kind: str, queue: str) -> None:
    drafts = [Draft(kind, {"n": n}, queue, subject=f"s{n % 3}") for n in range(30)]
    ids = [receipt.id for receipt in site.store.enqueue(drafts)]
    with site.working() as worker:
        for job_id in ids:
            job = site.app.wait_for(job_id, 30)
            assert job is None or job.state is State.DONE
    assert site.effects() == list(range(30))
    assert (worker.settler.applied, worker.settler.stale) == (0, 0), "nothing was settled a second time"
    [backlog] = site.app.backlog(queue)
    assert (backlog.depth, backlog.done, backlog.dead) == (0, 30 if queue == "kept" else 0, 0)


@pytest.mark.parametrize("awaited", [False, True])
def test_an_error_in_the_block_rolls_back_and_the_job_follows_its_rules(site: Site, awaited: bool) -> None:
    def fail(ctx: Context) -> None:
        site.output.append(ctx.attempt)
        if ctx.attempt < 3:
            raise [KeyError("x"), Snooze(0.01)][ctx.attempt - 1 if len(site.output) < 2 else 0]

    @site.app.job
    def frail(n: int, ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(INSERT, (n, ctx.fence[1]))
            fail(ctx)

    @site.app.job
    async def afrail(n: int, ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(INSERT, (n, ctx.fence[1]))
            fail(ctx)

    worker = site.run("afrail" if awaited else "frail", "kept", n=1)
    [job] = site.app.jobs()
    assert (job.state, job.attempt, [error.kind for error in job.errors]) == (State.DONE, 3, ["KeyError", "KeyError"])
    assert site.effects() == [1]
    assert worker.settler.stale == 0


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("queue", ["default", "capped"])
def test_a_lost_lease_rolls_back_and_the_run_is_forgotten(site: Site, queue: str, awaited: bool) -> None:
    def lose(ctx: Context) -> None:
        """As a reaper on another machine does it."""
        if ctx.fence[1] == 1:
            other = open_store(site.url)
            assert other.settle([(ctx.lease, Retry(0, Failure("taken away")))]) == ["applied"]
            other.close()

    @site.app.job
    def late(n: int, ctx: Context) -> None:
        try:
            with ctx.transaction() as connection:
                connection.execute(INSERT, (n, ctx.fence[1]))
                lose(ctx)
        except LeaseLost as error:
            site.output.append((error.job_id, error.delivery, ctx.lost))
            with pytest.raises(LeaseLost):
                ctx.transaction().__enter__()

    @site.app.job
    async def alate(n: int, ctx: Context) -> None:
        try:
            async with ctx.transaction() as connection:
                await connection.execute(INSERT, (n, ctx.fence[1]))
                await asyncio.to_thread(lose, ctx)
        except LeaseLost as error:
            site.output.append((error.job_id, error.delivery, ctx.lost))

    worker = site.run("alate" if awaited else "late", queue, n=1)
    assert site.output == [(1, 1, True)]
    assert site.effects() == [1]
    assert (worker.settler.applied, worker.settler.stale) == (0, 0), "a lost run is not settled"


@pytest.mark.parametrize("awaited", [False, True])
def test_a_result_is_kept_when_it_is_said_inside(site: Site, awaited: bool, caplog: pytest.LogCaptureFixture) -> None:
    @site.app.job(keep_result=True)
    def counted(n: int, ctx: Context) -> dict[str, int]:
        with ctx.transaction():
            ctx.set_result({"n": n})
        return {"n": 7}

    @site.app.job(keep_result=True)
    async def acounted(n: int, ctx: Context) -> None:
        async with ctx.transaction():
            ctx.set_result({"n": n})

    site.run("acounted" if awaited else "counted", "kept", n=5)
    [job] = site.app.jobs()
    assert (job.state, job.result) == (State.DONE, {"n": 5})
    assert ("ctx.set_result" in caplog.text) is not awaited, "what is returned comes too late, and is logged"


def test_what_a_handler_does_after_its_block_changes_nothing(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    @site.app.job
    def careless(n: int, ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(INSERT, (n, 1))
        site.output.append(n)
        with pytest.raises(Invalid, match="has committed"):
            ctx.transaction().__enter__()
        raise KeyError("after the end")

    with caplog.at_level(logging.WARNING):
        worker = site.run("careless", n=1)
    assert (site.effects(), site.output) == ([1], [1])
    assert "after the commit" in caplog.text
    assert (worker.settler.applied, worker.settler.stale) == (0, 0)


def test_a_job_that_is_done_is_renewed_no_more_and_not_called_lost(site: Site) -> None:
    go_on = Event()

    @site.app.job
    def lingers(n: int, ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(INSERT, (n, 1))
        go_on.wait(20)
        site.output.append(ctx.lost)

    receipt = site.app.enqueue("lingers", {"n": 1})
    with site.working(lease_for=ms(300)) as worker:
        assert site.app.wait_for(receipt.id, 20) is None
        assert worker.pool.held() == []
        site.run("plain", n=2)
        go_on.set()
    assert site.output == [False]
    assert site.effects() == [1, 2]


def test_rules_of_use(site: Site) -> None:
    def refused(act: Callable[[], object], kind: type[Exception], words: str) -> None:
        with pytest.raises(kind, match=words):
            act()
        site.output.append(words)

    @site.app.job
    def nests(ctx: Context) -> None:
        with ctx.transaction() as connection:
            refused(ctx.transaction().__enter__, Invalid, "already open")
            refused(connection.commit, psycopg.ProgrammingError, "forbidden")
            refused(lambda: ctx.set_result(1), Invalid, "keep_result=True")
            with connection.transaction(force_rollback=True):
                connection.execute(INSERT, (1, 1))

    @site.app.job
    async def blocks(ctx: Context) -> None:
        refused(ctx.transaction().__enter__, Invalid, "async with")

    @site.app.job
    def tries_again(n: int, ctx: Context) -> None:
        with pytest.raises(psycopg.errors.UndefinedTable), ctx.transaction() as connection:
            connection.execute("SELECT FROM nowhere")
        with ctx.transaction() as connection:
            connection.execute(INSERT, (n, 1))

    site.run("nests")
    site.run("blocks")
    site.run("tries_again", n=3)
    assert site.output == ["already open", "forbidden", "keep_result=True", "async with"]
    assert site.effects() == [3]


def test_a_block_that_ended_its_transaction_itself_is_reported(site: Site) -> None:
    @site.app.job(max_attempts=1)
    def commits(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("COMMIT")

    @site.app.job(max_attempts=1)
    def swallows(ctx: Context) -> None:
        with ctx.transaction() as connection, pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT FROM nowhere")

    @site.app.job(max_attempts=1)
    def rolls_back(n: int, ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(INSERT, (n, 1))
            raise psycopg.Rollback

    site.run("commits", "kept")
    site.run("swallows", "kept")
    worker = site.run("rolls_back", "kept", n=1)
    jobs = {job.kind: job for job in site.app.jobs()}
    assert "ended inside its block" in jobs["commits"].errors[0].message
    assert "a statement in it failed" in jobs["swallows"].errors[0].message
    assert jobs["rolls_back"].state is State.DONE, "psycopg's way to say so without an error: the handler returned"
    assert (worker.settler.applied, site.effects()) == (1, [])


def test_other_stores_have_none() -> None:
    app = Forebay("memory://")
    output: list[str] = []

    @app.job
    def plain(ctx: Context) -> None:
        with pytest.raises(Unsupported, match=r"postgresql://.*ctx\.fence") as refused:
            ctx.transaction().__enter__()
        output.append(refused.value.store)

    receipt = app.enqueue("plain")
    worker = Worker(app, Options())
    worker.start()
    app.wait_for(receipt.id, 20)
    worker.drain(5)
    app.close()
    assert output == ["memory"]


def test_a_connection_is_of_no_use_after_its_block_and_the_next_one_is_clean(site: Site) -> None:
    store = site.store
    kept: list[Any] = []
    store.enqueue([Draft("k", n) for n in range(4)])
    leases = store.claim([Want("default", 4)], "me", seconds(60))
    with store.transaction(leases[0], Ack) as connection:
        connection.row_factory = dict_row
        connection.execute("SET search_path TO nowhere; CREATE TEMP TABLE mine (n int)")
        connection.execute("SELECT pg_advisory_lock(7)")
        cursor = connection.execute("SELECT pg_backend_pid() AS pid")
        kept += [connection, cursor]
        session = kept[1].fetchone()["pid"]
    with store.transaction(leases[1], Ack) as connection:
        found = connection.execute("SELECT pg_backend_pid(), current_setting('search_path'), to_regclass('mine')")
        assert found.fetchone() == (session, '"$user", public', None)
        assert connection.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'").fetchall() == []
        for old in kept:
            with pytest.raises(psycopg.OperationalError, match=r"closed|lost"):
                old.execute("SELECT 1")

    async def awaited() -> int:
        async with store.atransaction(leases[2], Ack) as connection:
            found = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
        with pytest.raises(psycopg.OperationalError, match="closed"):
            await connection.execute("SELECT 1")
        return 0 if found is None else found[0]

    assert asyncio.run(awaited()) == session
    with psycopg.connect(site.url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (session,))
    with store.transaction(leases[3], Ack) as connection:
        assert connection.info.backend_pid != session, "a session that died is replaced unseen"
    assert store.claim([Want("default", 4)], "me", seconds(1)) == []
    assert store.backlog(["default"])[0].depth == 0


def test_a_job_of_a_run_is_found_wherever_it_went(site: Site) -> None:
    """Others of its run are settled, or renewed without it: it is then in a row of its own."""
    store = site.store
    store.enqueue([Draft("k", n) for n in range(10)])
    leases = store.claim([Want("default", 10)], "me", seconds(60))
    store.settle([(lease, Ack()) for lease in leases[:2]])
    store.extend(leases[3:], seconds(60))
    for lease in (leases[2], leases[5]):
        with store.transaction(lease, Ack):
            pass
    assert store.settle([(lease, Ack()) for lease in leases]) == ["applied"] * 10
    assert store.backlog(["default"])[0].depth == 0


def test_only_so_many_at_a_time_and_the_others_wait(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "MAX_TRANSACTIONS", 1)
    monkeypatch.setattr(transaction, "_WAIT_SECONDS", 0.05)
    store = PostgresStore(site.url)
    store.enqueue([Draft("k"), Draft("k"), Draft("k")])
    leases = store.claim([Want("default", 3)], "me", seconds(60))

    async def awaited() -> None:
        async with store.atransaction(leases[1], Ack):
            pass

    with store.transaction(leases[0], Ack):
        with pytest.raises(StoreFailed, match="all 1 transactions"), store.transaction(leases[1], Ack):
            pass
        with pytest.raises(StoreFailed, match="all 1 transactions"):
            asyncio.run(awaited())
    with store.transaction(leases[2], Ack):
        pass
    asyncio.run(awaited())
    store.close()


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("kind", ["plain", "awaited"])
def test_a_commit_that_is_cut_off_counts_once(postgres: PostgresServer, site: Site, kind: str, where: str) -> None:
    """The handler has no answer to its commit. The fence decides."""
    with Proxy(postgres.host, postgres.port) as proxy:
        site.app.url = proxy.url(site.url)
        receipt = site.app.enqueue(kind, {"n": 1})
        trap = proxy.cut_before(b"COMMIT") if where == "before" else proxy.lose_reply(b"COMMIT")
        with site.working() as worker:
            assert site.app.wait_for(receipt.id, 30) is None
        assert trap.wait()
        site.app.close()
    assert site.effects() == [1]
    assert (worker.settler.stale, worker.settler.applied) == ((1, 0) if where == "after" else (0, 1))


@pytest.mark.parametrize("awaited", [False, True])
def test_a_handler_that_is_stopped_in_its_block_leaves_nothing(site: Site, awaited: bool) -> None:
    late = Event()

    @site.app.job(timeout=0.2)
    def slow(n: int, ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(INSERT, (n, ctx.fence[1]))
            if ctx.attempt == 1:
                late.wait(20)

    @site.app.job(timeout=0.2)
    async def aslow(n: int, ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(INSERT, (n, ctx.fence[1]))
            if ctx.attempt == 1:
                await connection.execute("SELECT pg_sleep(20)")

    receipt = site.app.enqueue("aslow" if awaited else "slow", {"n": 1}, queue="kept")
    with site.working():
        job = site.app.wait_for(receipt.id, 30)
        late.set()
    assert job is not None
    assert (job.state, job.attempt) == (State.DONE, 2)
    assert site.effects() == [1]


def test_a_pooler_in_transaction_mode_is_as_good(site: Site, pgbouncer: PgBouncer) -> None:
    site.app.url = pgbouncer.url(site.url)
    ids = [site.app.enqueue(kind, {"n": n}).id for n, kind in enumerate(["plain", "awaited"] * 10)]
    with site.working() as worker:
        for job_id in ids:
            assert site.app.wait_for(job_id, 30) is None
    assert site.effects() == list(range(20))
    assert (worker.settler.applied, worker.settler.stale) == (0, 0)
    site.app.enqueue_many(Draft("nobody", n) for n in range(3_000))
    assert site.app.backlog("default")[0].ready == 3_000
