"""An enqueue whose reply is lost: the answer is certain, and the job is there exactly once, with or without a key.

The connection is cut before or after the server has committed; the server may be out of reach for a while after that.
What goes the plain way carries a token; what goes the general way reads the outcome of its transaction from the server.
Only a server that stays away is an error.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from forebay import Draft, QueueSpec
from forebay.client import Forebay
from forebay.core.errors import StoreFailed
from forebay.core.policy import Bounded, InOrder
from forebay.store import connection_pool
from forebay_proof.servers.postgres import PostgresServer
from forebay_proof.servers.proxy import Proxy, Trap

PUT, COMMIT = b"\0forebay.insert_run(", b"COMMIT"


def before(proxy: Proxy, pattern: bytes, outage: bool) -> Trap:
    return proxy.cut_before(pattern, outage=outage)


def after(proxy: Proxy, pattern: bytes, outage: bool) -> Trap:
    return proxy.lose_reply(pattern, outage=outage)


both_ways = pytest.mark.parametrize("cut", [before, after])


@pytest.fixture
def proxy(durable: PostgresServer) -> Iterator[Proxy]:
    with Proxy(durable.host, durable.port) as proxy:
        yield proxy


@pytest.fixture
def fb(durable_url: str, proxy: Proxy) -> Iterator[Forebay]:
    fb = Forebay(proxy.url(durable_url))
    fb.queue(QueueSpec(name="ordered", eligibility=InOrder()))
    fb.queue(QueueSpec(name="bounded", capacity=Bounded(10)))
    fb.backlog()
    yield fb
    fb.close()


@contextmanager
def back_after(proxy: Proxy, trap: Trap, seconds: float) -> Iterator[None]:
    """Admit clients again so long after the trap has struck."""

    def wait() -> None:
        trap.wait(20)
        time.sleep(seconds)
        proxy.admit()

    thread = Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert trap.struck


@both_ways
@pytest.mark.parametrize(
    ("queue", "key", "pattern"),
    [("default", None, PUT), ("default", "k", COMMIT), ("ordered", None, COMMIT), ("bounded", None, COMMIT)],
)
@pytest.mark.parametrize("away", [0.0, 1.5])
def test_a_lost_reply_is_found_out(
    fb: Forebay,
    proxy: Proxy,
    cut: Callable[[Proxy, bytes, bool], Trap],
    queue: str,
    key: str | None,
    pattern: bytes,
    away: float,
) -> None:
    ids = []
    with back_after(proxy, cut(proxy, pattern, away > 0), away):
        try:
            ids.append(fb.enqueue("k", 1, queue=queue, key=key).id)
        except StoreFailed:
            assert cut is before, "it was committed, so there is an answer"
    assert [job.id for job in fb.jobs()] == ids


@both_ways
@pytest.mark.parametrize(("queue", "pattern"), [("default", PUT), ("ordered", COMMIT)])
def test_a_server_that_stays_away_is_an_error(
    fb: Forebay,
    proxy: Proxy,
    cut: Callable[[Proxy, bytes, bool], Trap],
    queue: str,
    pattern: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_pool, "CERTAIN_SECONDS", 0.3)
    with back_after(proxy, cut(proxy, pattern, True), 3.0), pytest.raises(StoreFailed):
        fb.enqueue("k", 1, queue=queue)
    assert len(list(fb.jobs())) <= 1


@both_ways
def test_a_stream_is_in_exactly_once(fb: Forebay, proxy: Proxy, cut: Callable[[Proxy, bytes, bool], Trap]) -> None:
    reported: list[int] = []
    with back_after(proxy, cut(proxy, COMMIT, True), 1.0):
        assert fb.enqueue_many((Draft("k", number) for number in range(70_000)), reported.append) == 70_000
    assert reported[-1] == 70_000
    assert fb.backlog("default")[0].ready == 70_000
