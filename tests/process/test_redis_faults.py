"""Redis under load while the server is killed, connections are cut and replies are lost: nothing accepted is lost.

Real workers, real producers, a server that syncs every write. After every fault all consume again and the audit of
`load.py` holds. The same with many more faults runs at night.
"""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from forebay import Draft, QueueSpec, State, open_store
from forebay.core.errors import StoreFailed
from forebay.core.instant import minutes
from forebay.core.lease import Settled
from forebay.core.outcome import Ack, Release
from forebay.core.policy import AtMost
from forebay.store import connection_pool
from forebay.store.protocol import Pipelining, Store, Want
from forebay.store.redis import connect
from forebay.store.redis.scripts import script
from forebay_proof.servers.process import ServerUnavailable
from forebay_proof.servers.proxy import Proxy
from forebay_proof.servers.redis import RedisServer
from tests.process.load import Load, now
from tests.waiting import PATIENCE

FILL = "for i = 1, 400000 do redis.call('SET', 'filler' .. i, string.rep('x', 64)) end"


@pytest.fixture(scope="module")
def durable() -> Iterator[RedisServer]:
    settings = {"busy-reply-threshold": "50"}
    try:
        with RedisServer(durable=True, private=True, settings=settings) as server:
            yield server
    except ServerUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def server(durable: RedisServer) -> RedisServer:
    """The test before may have left it dead."""
    durable.start()
    durable.clear()
    return durable


@pytest.fixture
def load(server: RedisServer, tmp_path: Path) -> Iterator[Load]:
    load = Load(tmp_path, server.url())
    try:
        yield load
    finally:
        load.close()


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    store = open_store(server.url())
    yield store
    store.close()


def test_a_server_that_is_killed_comes_back_with_everything(load: Load, server: RedisServer) -> None:
    load.survive(2, server.kill, server.start)


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
def test_many_kills_of_the_server(load: Load, server: RedisServer) -> None:
    load.survive(20, server.kill, server.start)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_storm_of_killed_clients(load: Load, server: RedisServer) -> None:
    rng = random.Random(7)
    fleet = load.workers(2)
    load.produce()
    load.produce(threads=1, keyed=True)
    load.until_busy(50)
    with server.client() as client:
        for _ in range(60):
            time.sleep(rng.uniform(0.02, 0.3))
            client.client_kill_filter(_type="normal", skipme=True)
            if rng.random() < 0.2:
                client.script_flush()
    load.until_consumed(now(), 2)
    load.stop_producing()
    load.until_quiet(60)
    assert load.end(fleet) == 0
    jobs = load.audit_load()
    assert {job.state for job in jobs} == {State.DONE}


def cut_before(proxy: Proxy, verb: str) -> None:
    proxy.cut_before(script(verb).digest)


def lose_reply(proxy: Proxy, verb: str) -> None:
    proxy.lose_reply(script(verb).digest)


@pytest.mark.parametrize("cut", [cut_before, lose_reply])
def test_a_lost_reply_is_answered_alike_when_the_call_is_repeated(
    server: RedisServer, cut: Callable[[Proxy, str], None]
) -> None:
    """Without keys: by the token of the call the server finds its earlier answer."""
    with Proxy(server.host, server.port) as proxy:
        store = open_store(proxy.url(server.url()))
        store.put_spec(QueueSpec(name="gated", eligibility=AtMost(3)))
        for number, queue in enumerate(("plain", "gated")):
            cut(proxy, "enqueue")
            ids = [receipt.id for receipt in store.enqueue([Draft("k", n, queue=queue) for n in range(3)])]
            assert ids == [4 * number + 1, 4 * number + 2, 4 * number + 3]
            cut(proxy, "claim")
            leases = store.claim([Want(queue, 3)], "w", minutes(1))
            assert [lease.job.id for lease in leases] == ids
            assert {lease.job.delivery for lease in leases} == {1}
            cut(proxy, "settle")
            assert store.settle([(lease, Release()) for lease in leases]) == [Settled.APPLIED] * 3
            (lease, *others) = store.claim([Want(queue, 3)], "w", minutes(1))
            cut(proxy, "settle_and_claim")
            assert isinstance(store, Pipelining)
            store.enqueue([Draft("k", queue=queue)])
            reported, more = store.settle_and_claim([(lease, Ack())], [Want(queue, 9)], "w", minutes(1))
            assert reported == [Settled.APPLIED]
            assert len(more) == 1
            assert store.settle([(each, Ack()) for each in (*others, *more)]) == [Settled.APPLIED] * 3
        assert [backlog.depth for backlog in store.backlog()] == [0]
        store.close()


def test_a_server_that_stays_away_is_an_error_and_then_all_goes_on(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pool, "CERTAIN_SECONDS", 0.3)
    with Proxy(server.host, server.port) as proxy:
        store = open_store(proxy.url(server.url()))
        proxy.lose_reply(script("enqueue").digest, outage=True)
        with pytest.raises(StoreFailed):
            store.enqueue([Draft("k")])
        proxy.admit()
        assert store.enqueue([Draft("k")])[0].id == 2
        store.close()


def test_forgotten_scripts_and_killed_connections_are_not_noticed(server: RedisServer, store: Store) -> None:
    with server.client() as client:
        for number in range(5):
            client.script_flush()
            client.client_kill_filter(_type="normal", skipme=True)
            assert store.enqueue([Draft("k", number)])[0].id == number + 1


def during(fault: Callable[[], object], call: Callable[[], object]) -> None:
    """The call begins while the fault lasts, and ends well after it."""
    thread = Thread(target=fault)
    thread.start()
    time.sleep(0.1)
    call()
    thread.join()


def test_a_busy_server_is_waited_for(server: RedisServer, store: Store) -> None:
    def busy() -> None:
        with server.client() as client:
            loop = "local t = redis.call('TIME') while true do local x = 1 end"
            with pytest.raises(Exception, match="killed"):
                client.eval(loop, 0)

    def end_it() -> None:
        time.sleep(0.6)
        with server.client() as client:
            client.script_kill()

    killer = Thread(target=end_it)
    killer.start()
    during(busy, lambda: store.enqueue([Draft("k")]))
    killer.join()
    assert len(store.claim([Want("default", 9)], "w", minutes(1))) == 1


def test_a_server_that_became_a_replica_is_waited_for_and_then_an_error(
    server: RedisServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.client() as client:
        client.replicaof("127.0.0.1", "1")

        def promote() -> None:
            time.sleep(0.5)
            client.replicaof("NO", "ONE")

        during(promote, lambda: store.enqueue([Draft("k")]))
        monkeypatch.setattr(connect, "_REFUSED_SECONDS", 0.2)
        client.replicaof("127.0.0.1", "1")
        with pytest.raises(StoreFailed, match=r"replica|read.only"):
            store.enqueue([Draft("k")])
        assert len(store.overdue(10)) == 0
        client.replicaof("NO", "ONE")
    assert store.backlog(["default"])[0].ready == 1


def test_a_server_that_loads_is_waited_for(server: RedisServer, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, bound in ((connect, "_REFUSED_SECONDS"), (connection_pool, "CERTAIN_SECONDS")):
        monkeypatch.setattr(module, bound, PATIENCE)
    store.enqueue([Draft("k")])
    with server.client() as client:
        client.eval(FILL, 0)
    server.kill()
    during(server.start, lambda: store.enqueue([Draft("k")]))
    assert store.backlog(["default"])[0].ready == 2


def test_a_server_without_memory_takes_nothing_in_and_lets_everything_out(server: RedisServer, store: Store) -> None:
    store.enqueue([Draft("k", "x" * 1_000) for _ in range(500)])
    with server.client() as client:
        client.config_set("maxmemory", "1mb")
        try:
            with pytest.raises(StoreFailed, match="maxmemory"):
                store.enqueue([Draft("k")])
            done = 0
            while leases := store.claim([Want("default", 100)], "w", minutes(1)):
                assert set(store.settle([(lease, Ack()) for lease in leases])) == {Settled.APPLIED}
                done += len(leases)
            assert done == 500
        finally:
            client.config_set("maxmemory", "0")
    assert store.enqueue([Draft("k")])[0].id == 501
