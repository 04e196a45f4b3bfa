"""Connections that are cut just before a call arrives, or just after it took effect and before its reply: one effect.

The store repeats what is safe to repeat, by itself, and reads the outcome of a commit whose end it did not see.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import psycopg
import pytest

from forebay import Draft, Job, QueueSpec, State, Want, open_store
from forebay.core.errors import StoreFailed
from forebay.core.instant import hours, seconds
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.core.policy import AtMost, InOrder, KeepFor
from forebay.core.schedule import Schedule
from forebay.store.protocol import Query, Store
from forebay_proof.conformance.racing import RacingCall
from forebay_proof.servers.postgres import PostgresServer, StopMode
from forebay_proof.servers.proxy import Proxy, Trap
from tests.waiting import PATIENCE, eventually

TICK = 1_000_000

Cut = Callable[[Proxy, bytes], Trap]


def before(proxy: Proxy, pattern: bytes) -> Trap:
    return proxy.cut_before(pattern)


def after(proxy: Proxy, pattern: bytes) -> Trap:
    """A transaction has its own answer; a call is answered by its row.

    A call is a prepared statement, whose name follows a zero byte where it is executed, and only there.
    """
    return proxy.lose_reply(pattern, answer=b"COMMIT" if pattern == b"COMMIT" else b"SELECT")


both_ways = pytest.mark.parametrize("cut", [before, after])


@pytest.fixture
def proxy(durable: PostgresServer, durable_url: str) -> Iterator[Proxy]:
    with Proxy(durable.host, durable.port) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: Proxy, durable_url: str) -> Iterator[Store]:
    """Warm: its connections are open, and its cache of the queues is filled."""
    store = open_store(proxy.url(durable_url))
    store.put_spec(QueueSpec(name="default", retention=KeepFor(hours(1))))
    store.put_spec(QueueSpec(name="brief"))
    store.put_spec(QueueSpec(name="ordered", eligibility=InOrder()))
    store.put_spec(QueueSpec(name="gated", retention=KeepFor(hours(1)), eligibility=AtMost(2)))
    store.backlog()
    yield store
    store.close()


@contextmanager
def struck(trap: Trap) -> Iterator[None]:
    """A trap that was not triggered proves nothing."""
    yield
    assert trap.wait(PATIENCE)


def everything(store: Store) -> list[Job]:
    jobs: list[Job] = []
    next_: int | None = 0
    while next_ is not None:
        page = store.browse(Query(), next_, 1_000)
        jobs += page.jobs
        next_ = page.next
    return jobs


def claimed(store: Store, count: int, queue: str = "default", lease: float = 20) -> list[Lease]:
    return store.claim([Want(queue, count)], "ada", seconds(lease))


@both_ways
@pytest.mark.parametrize("count", [1, 50])
def test_a_receipt_stands_for_one_job(store: Store, proxy: Proxy, cut: Cut, count: int) -> None:
    with struck(cut(proxy, b"\0forebay.insert_run(")):
        receipts = store.enqueue([Draft("k", number) for number in range(count)])
    assert [(job.id, job.payload) for job in everything(store)] == [
        (receipt.id, number) for number, receipt in enumerate(receipts)
    ]


def test_a_call_that_is_repeated_when_its_queue_has_changed_adds_nothing(
    store: Store, proxy: Proxy, durable_url: str
) -> None:
    trap = after(proxy, b"\0forebay.insert_run(")
    call = RacingCall(lambda: store.enqueue([Draft("k", 1)]))
    assert trap.wait(PATIENCE)
    proxy.freeze()
    other = open_store(durable_url)
    other.put_spec(QueueSpec(name="default", retention=KeepFor(hours(2))))
    other.close()
    proxy.thaw()
    (receipt,) = call.result(patience=PATIENCE)
    assert [job.id for job in everything(store)] == [receipt.id]


def test_threads_that_share_a_commit_share_its_luck(store: Store, proxy: Proxy) -> None:
    reported: list[tuple[int, int]] = []
    unsure: list[int] = []

    def produce(first: int) -> None:
        for number in range(first, first + 25):
            try:
                reported.append((store.enqueue([Draft("k", number)])[0].id, number))
            except StoreFailed:
                unsure.append(number)

    threads = [Thread(target=produce, args=(100 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    traps = sum((before, after)[number % 2](proxy, b"\0forebay.insert_run(").wait(0.5) for number in range(12))
    proxy.disarm()
    for thread in threads:
        thread.join()
    jobs = [(job.id, job.payload) for job in everything(store)]
    assert traps > 5
    assert set(reported) <= set(jobs)
    assert len(jobs) == len({payload for _, payload in jobs}), "one receipt, two jobs"
    assert {payload for _, payload in jobs} <= {number for _, number in reported} | set(unsure)


@both_ways
@pytest.mark.parametrize(("queue", "key"), [("default", "order-7"), ("gated", "order-7"), ("ordered", None)])
def test_a_commit_that_is_cut_off_is_one_job(store: Store, proxy: Proxy, cut: Cut, queue: str, key: str | None) -> None:
    draft = Draft("k", 1, queue=queue, key=key)
    with struck(cut(proxy, b"COMMIT")):
        (receipt,) = store.enqueue([draft])
    assert not receipt.duplicate
    assert [job.id for job in everything(store)] == [receipt.id]
    if key is not None:
        assert store.enqueue([draft])[0].id == receipt.id
        assert len(everything(store)) == 1


def test_an_id_that_a_crash_gave_to_another_job_is_no_answer(
    store: Store, proxy: Proxy, durable: PostgresServer, durable_url: str
) -> None:
    """The commit never arrived, and the server crashed: it gives the same ids to others, which commit."""
    trap = proxy.cut_before(b"COMMIT", outage=True)
    call = RacingCall(lambda: store.enqueue([Draft("k", 1, key="order-7")]))
    assert trap.wait(PATIENCE)
    durable.stop(StopMode.KILL)
    durable.start()
    with psycopg.connect(durable_url, autocommit=True) as connection:
        for _ in range(20):
            connection.execute("SELECT pg_current_xact_id()")
    proxy.admit()
    (receipt,) = call.result(patience=30)
    assert [job.id for job in everything(store)] == [receipt.id]


VERDICTS: list[tuple[Verdict, State, int]] = [
    (Ack(b'"done"'), State.DONE, 1),
    (Retry(0, Failure("again")), State.READY, 1),
    (DeadLetter(Failure("never")), State.DEAD, 1),
    (Release(), State.READY, 0),
    (Cancel(), State.CANCELLED, 1),
    (Ack(), State.DONE, 1),
]


@both_ways
def test_a_settle_counts_once_and_is_answered_alike(store: Store, proxy: Proxy, cut: Cut) -> None:
    """Six jobs of one run, six verdicts."""
    ids = [receipt.id for receipt in store.enqueue([Draft("k", number) for number in range(6)])]
    verdicts = [verdict for verdict, _, _ in VERDICTS]
    settlements = list(zip(claimed(store, 6), verdicts, strict=True))
    with struck(cut(proxy, b"\0forebay.settle(")):
        assert store.settle(settlements) == [Settled.APPLIED] * 6
    jobs = [job for job in store.get(ids) if job]
    assert [(job.state, job.attempt) for job in jobs] == [(state, attempt) for _, state, attempt in VERDICTS]
    assert [len(job.errors) for job in jobs] == [0, 1, 1, 0, 0, 0]
    assert store.settle(settlements) == [Settled.APPLIED] * 6
    again = claimed(store, 6)
    assert {lease.fence for lease in again} == {(ids[1], 2), (ids[3], 2)}
    late = [(settlements[place][0], Ack()) for place in (1, 3)]
    assert store.settle(late) == [Settled.STALE] * 2, "another worker holds them by now"
    assert store.settle([(lease, Ack()) for lease in again]) == [Settled.APPLIED] * 2


@both_ways
@pytest.mark.parametrize("queue", ["default", "brief"])
def test_a_late_settle_is_refused_however_often_it_is_sent(store: Store, proxy: Proxy, cut: Cut, queue: str) -> None:
    (receipt,) = store.enqueue([Draft("k", queue=queue)])
    (late,) = claimed(store, 1, queue)
    assert store.settle([(late, Retry(0, Failure("taken from it")))]) == [Settled.APPLIED]
    (lease,) = claimed(store, 1, queue)
    with struck(cut(proxy, b"forebay.find(")):
        assert store.settle([(late, Ack())]) == [Settled.STALE]
    (job,) = store.get([receipt.id])
    assert job is not None
    assert (job.state, job.delivery) == (State.RUNNING, 2)
    with struck(cut(proxy, b"\0forebay.settle(")):
        assert store.settle([(lease, Ack())]) == [Settled.APPLIED]


@both_ways
def test_a_slot_is_given_back_once(store: Store, proxy: Proxy, cut: Cut) -> None:
    store.enqueue([Draft("k", number, queue="gated") for number in range(5)])
    first, second = claimed(store, 5, "gated")
    with struck(cut(proxy, b"\0forebay.settle(")):
        assert store.settle([(first, Ack())]) == [Settled.APPLIED]
    assert store.settle([(first, Ack())]) == [Settled.APPLIED]
    (third,) = claimed(store, 5, "gated")
    assert claimed(store, 5, "gated") == [], "two at a time"
    assert store.settle([(second, Ack()), (third, Ack())]) == [Settled.APPLIED] * 2
    assert len(claimed(store, 5, "gated")) == 2


@both_ways
def test_what_a_claim_took_and_no_worker_received_comes_back(store: Store, proxy: Proxy, cut: Cut) -> None:
    """Though the process that lost it still runs, claims and renews."""
    ids = {receipt.id for receipt in store.enqueue([Draft("k", number) for number in range(12)])}
    held = claimed(store, 3, lease=1)
    with struck(cut(proxy, b"\0forebay.claim(")):
        held += claimed(store, 3, lease=1)
    assert len(held) == 6

    def only_held_run() -> bool:
        assert len(store.extend(held, seconds(1))) == 6
        for lease in store.overdue(100):
            store.settle([(lease, Release())])
        return store.backlog(["default"])[0].running == len(held)

    eventually(only_held_run, "no job runs but those that are held")
    held += claimed(store, 12)
    assert {lease.job.id for lease in held} == ids
    assert len(held) == 12
    assert store.settle([(lease, Ack()) for lease in held]) == [Settled.APPLIED] * 12
    assert {job.state for job in everything(store)} == {State.DONE}


@both_ways
def test_a_tick_fires_once(store: Store, proxy: Proxy, cut: Cut) -> None:
    draft = Draft("nightly")
    store.put_schedule(Schedule("nightly", "0 0 * * *", TICK, draft))
    with struck(cut(proxy, b"COMMIT")):
        assert store.fire("nightly", TICK, 2 * TICK, draft)
    assert not store.fire("nightly", TICK, 2 * TICK, draft)
    assert len(everything(store)) == 1
    assert [schedule.next_at for schedule in store.schedules()] == [2 * TICK]


@both_ways
def test_a_lost_heartbeat_loses_no_lease(store: Store, proxy: Proxy, cut: Cut) -> None:
    store.enqueue([Draft("k", number) for number in range(4)])
    held = claimed(store, 4, lease=5)
    with struck(cut(proxy, b"\0forebay.heartbeat(")):
        renewed = store.extend(held, seconds(60))
    assert [lease.fence for lease in renewed] == [lease.fence for lease in held]
    assert min(lease.until for lease in renewed) > max(lease.until for lease in held) + 50_000_000
    assert store.overdue(10) == []
