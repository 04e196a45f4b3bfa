"""A store in a Redis Cluster: one slot, found wherever it is, moved while calls are made, several of them as cells."""

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from threading import Thread

import pytest

from forebay import Draft, open_store
from forebay.cli.redis import diagnoses
from forebay.core.errors import Invalid, StoreFailed
from forebay.core.lease import Settled
from forebay.core.outcome import Ack
from forebay.store.protocol import Pipelining, Store, Want
from forebay.store.redis import cluster as cluster_module
from forebay.store.redis.connect import Address
from forebay_proof.servers.redis import RedisServer
from forebay_proof.servers.redis_cluster import ClusterNode, RedisClusterServer
from forebay_proof.servers.scratch_keys import ScratchKeys
from tests.stores.openers import cells_file
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)
LEASE = timedelta(seconds=30)


@pytest.fixture
def prefix() -> str:
    return f"t-{token_hex(6)}"


@pytest.fixture
def store(redis_cluster: RedisClusterServer, prefix: str) -> Iterator[Store]:
    store = open_store(redis_cluster.url(prefix=prefix))
    yield store
    store.close()


def other_master(cluster: RedisClusterServer, prefix: str) -> ClusterNode:
    return next(node for node in cluster.nodes if node.is_master() and node is not cluster.master_of(prefix))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis+cluster://a:7000,b:70000/", "'b:70000' is not host:port"),
        ("redis+cluster://a:7000,/", "'' is not host:port"),
        ("redis+cluster://a:7000/3", "database 0 alone"),
        ("redis+cluster://a:7000/?replicas=many", "'many' is not an integer in 0 … 8"),
        ("redis+cluster://a:7000/?replicas=9", "'9' is not an integer in 0 … 8"),
        ("redis://a:7000/?replicas=1", "no fail-over"),
        (f"redis+cluster://{','.join(['a:1'] * 65)}/", "65 nodes; at most 64"),
    ],
)
def test_a_url_of_no_cluster_is_refused_by_name(url: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        open_store(url)


def test_a_url_names_nodes_and_how_many_replicas_have_a_write() -> None:
    address = Address.of("rediss+cluster://me:secret@a:7000,b,[::1]:7002/?prefix=orders")
    assert address.nodes == (("a", 7000), ("b", 6379), ("::1", 7002))
    assert (address.url, address.replicas, address.durable) == ("rediss://me:secret@a:7000/0", 1, True)
    assert "secret" not in address.name
    weaker = Address.of("redis+cluster://a/?durability=everysec")
    assert (weaker.replicas, weaker.durable) == (0, False)
    assert not Address.of("redis+cluster://a/?replicas=0").durable
    assert Address.of("redis+cluster://a/?prefix=foo").slot == 12182, "as CLUSTER KEYSLOT says"


def test_a_url_of_the_other_kind_is_refused_with_the_right_one(
    redis_cluster: RedisClusterServer, redis: RedisServer
) -> None:
    with pytest.raises(Invalid, match=r"node of a cluster; write redis\+cluster://"):
        open_store(redis_cluster.nodes[0].url())
    with pytest.raises(Invalid, match="is not a node of a cluster; write redis://"):
        open_store(redis.url().replace("redis://", "redis+cluster://"))


def test_settings_that_lose_jobs_in_a_fail_over_are_refused(redis_cluster: RedisClusterServer) -> None:
    url = redis_cluster.url().replace("durability=trusted", "durability=always")
    with pytest.raises(Invalid, match="appendfsync is no"):
        open_store(url)
    nodes = [node for node in redis_cluster.nodes if node.is_master()]
    try:
        for node in nodes:
            node.execute("CONFIG", "SET", "appendfsync", "always")
        with pytest.raises(Invalid, match=r"min-replicas-to-write is 0: .* set min-replicas-to-write 1"):
            open_store(url)
        for node in nodes:
            node.execute("CONFIG", "SET", "min-replicas-to-write", "1")
        store = open_store(url)
        assert store.enqueue([Draft("k")])[0].durable
        store.close()
    finally:
        for node in nodes:
            node.execute("CONFIG", "SET", "appendfsync", "no")
            node.execute("CONFIG", "SET", "min-replicas-to-write", "0")


def test_a_write_is_answered_when_a_replica_has_it(
    redis_cluster: RedisClusterServer, store: Store, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the call is a repetition that has nothing to write: its connection wrote nothing to wait for."""
    monkeypatch.setattr(cluster_module, "CERTAIN_SECONDS", 0.5)
    monkeypatch.setattr(cluster_module, "_SYNC_MS", 100)
    keyed = [Draft("k", key="once")]
    store.enqueue([Draft("k")])
    replica = redis_cluster.replica_of(prefix)
    os.kill(replica.pid, signal.SIGSTOP)
    try:
        for _ in range(2):
            with pytest.raises(StoreFailed, match="0 of 1 replicas had the write within 100 ms"):
                store.enqueue(keyed)
        weaker = open_store(redis_cluster.url(prefix=prefix, replicas="0"))
        (receipt,) = weaker.enqueue(keyed)
        assert receipt.duplicate
        assert not receipt.durable, "a fail-over may lose it"
        weaker.close()
    finally:
        os.kill(replica.pid, signal.SIGCONT)
    redis_cluster.until_whole()
    (receipt,) = store.enqueue(keyed)
    assert receipt.duplicate
    assert receipt.durable


def test_a_slot_that_is_moved_key_by_key_holds_calls_and_loses_nothing(
    redis_cluster: RedisClusterServer, store: Store, prefix: str
) -> None:
    """Half of the keys are elsewhere: a script that followed ASK would run on what is there."""
    ids = [receipt.id for receipt in store.enqueue([Draft("k", number) for number in range(250)])]
    (lease, *_) = store.claim([Want("default", 1)], "w", LEASE)
    target = other_master(redis_cluster, prefix)
    source = redis_cluster.begin_move(prefix, target)
    assert redis_cluster.move_keys(prefix, source, target, limit=4) == 4
    answers: list[object] = []
    calls = [
        Thread(target=lambda: answers.append(store.enqueue([Draft("k", 250)])[0].id)),
        Thread(target=lambda: answers.append(store.settle([(lease, Ack())])[0])),
    ]
    for call in calls:
        call.start()
        call.join(0.4)
    assert answers == [], "no call is answered while the keys are on two nodes"
    redis_cluster.move_keys(prefix, source, target)
    redis_cluster.end_move(prefix, target)
    for call in calls:
        call.join(20)
    assert set(answers) == {ids[-1] + 1, Settled.APPLIED}
    assert redis_cluster.master_of(prefix) is target
    assert [backlog.ready for backlog in store.backlog()] == [250]
    left = store.claim([Want("default", 500)], "w", LEASE)
    assert [lease.job.id for lease in left] == [*ids[1:], ids[-1] + 1]


def test_a_move_that_takes_too_long_is_a_failed_store(
    redis_cluster: RedisClusterServer, store: Store, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "CERTAIN_SECONDS", 0.2)
    url = redis_cluster.url(prefix=prefix)
    store.enqueue([Draft("k")])
    target = other_master(redis_cluster, prefix)
    source = redis_cluster.begin_move(prefix, target)
    with pytest.raises(StoreFailed, match=f"slot {Address.of(url).slot} is being moved to .*:{target.port}"):
        store.enqueue([Draft("k")])
    redis_cluster.move_keys(prefix, source, target)
    redis_cluster.end_move(prefix, target)
    eventually(lambda: [backlog.ready for backlog in store.backlog()] == [1], "the store answers from its new node")


def test_a_slot_that_is_moved_in_one_step_holds_nothing_up(
    redis_cluster: RedisClusterServer, store: Store, prefix: str
) -> None:
    ids = [receipt.id for receipt in store.enqueue([Draft("k")] * 100)]
    moving = Thread(target=redis_cluster.move_at_once, args=(prefix, other_master(redis_cluster, prefix)))
    moving.start()
    while moving.is_alive():
        ids += [receipt.id for receipt in store.enqueue([Draft("k")])]
    moving.join()
    ids += [receipt.id for receipt in store.enqueue([Draft("k")])]
    assert ids == list(range(1, len(ids) + 1)), "nothing is lost, and no id is given twice"
    assert [backlog.ready for backlog in store.backlog()] == [len(ids)]


def test_doctor_shows_the_slot_and_what_a_fail_over_loses(redis_cluster: RedisClusterServer) -> None:
    found = {
        diagnosis.check: (diagnosis.status, diagnosis.fact) for diagnosis in diagnoses(redis_cluster.url(prefix="foo"))
    }
    assert found["slot"] == ("ok", "{foo} is slot 12182 of 0 … 16383")
    assert found["fail-over"] == ("ok", "a write is acknowledged when 1 of its replicas has it")
    assert "coverage" not in found
    node = redis_cluster.master_of("foo")
    node.execute("CONFIG", "SET", "cluster-require-full-coverage", "yes")
    try:
        weaker = diagnoses(redis_cluster.url(prefix="foo", replicas="0"))
        assert {diagnosis.check for diagnosis in weaker if diagnosis.status == "warn"} >= {"fail-over", "coverage"}
    finally:
        node.execute("CONFIG", "SET", "cluster-require-full-coverage", "no")


def test_waiters_are_notified_also_after_a_move(redis_cluster: RedisClusterServer, store: Store, prefix: str) -> None:
    backend = getattr(store, "backend")  # noqa: B009
    store.wait(["q"], timedelta(milliseconds=50))
    eventually(lambda: backend.waiting.listening is True, "the listener is subscribed")
    target = other_master(redis_cluster, prefix)
    source = redis_cluster.begin_move(prefix, target)
    redis_cluster.move_keys(prefix, source, target)
    redis_cluster.end_move(prefix, target)
    eventually(lambda: _subscribers(target, prefix) == 1, "the listener has followed the slot")
    woken: list[bool] = []
    waiter = Thread(target=lambda: woken.append(store.wait(["q"], timedelta(seconds=20))))
    waiter.start()
    store.enqueue([Draft("k", queue="q")])
    waiter.join(20)
    assert woken == [True]


def _subscribers(node: RedisServer, prefix: str) -> int:
    with node.client() as client:
        return int(client.execute_command("PUBSUB", "SHARDNUMSUB", f"{{{prefix}}}:work")[1])


def test_one_cluster_carries_several_cells(redis_cluster: RedisClusterServer, tmp_path: Path, prefix: str) -> None:
    """Prefixes whose slots are on different masters."""
    names: dict[int, str] = {}
    for number in range(200):
        names.setdefault(redis_cluster.master_of(f"{prefix}-{number}").port, f"{prefix}-{number}")
        if len(names) == 3:
            break
    assert len(names) == 3, "each master has a cell"
    urls = {f"c{place}": redis_cluster.url(prefix=name) for place, name in enumerate(names.values())}
    queues = 'orders = { partitions = 6, by = "tenant", cells = ["c0", "c1", "c2"] }\n'
    path = tmp_path / "cells.toml"
    path.write_text(cells_file(urls, ["c0"], queues))
    store = open_store(f"cells:{path}")
    drafts = [Draft("k", number, queue="orders", tenant=f"t{number % 12}") for number in range(60)]
    assert len({receipt.id for receipt in store.enqueue(drafts)}) == 60
    done = 0
    while leases := store.claim([Want("orders", 60)], "w", LEASE):
        assert set(store.settle([(lease, Ack()) for lease in leases])) == {Settled.APPLIED}
        done += len(leases)
    assert done == 60
    store.close()
    for name in names.values():
        one = open_store(redis_cluster.url(prefix=name))
        assert one.ledger_extent()[1] > 1, "every cell had its part"
        one.close()


def test_scratch_keys_leave_nothing_in_a_cluster(redis_cluster: RedisClusterServer) -> None:
    keys = ScratchKeys(redis_cluster.url())
    store = open_store(keys.url)
    store.enqueue([Draft("k")])
    store.close()
    scratch = Address.of(keys.url).prefix.strip("{}:")
    node = redis_cluster.master_of(scratch)
    with node.client() as client:
        assert client.keys(f"{{{scratch}}}:*")
        keys.renew()
        assert client.keys(f"{{{scratch}}}:*") == []


def test_a_pipelined_worker_is_served(store: Store) -> None:
    assert isinstance(store, Pipelining)
    store.enqueue([Draft("k", number) for number in range(10)])
    leases = store.claim([Want("default", 5)], "w", LEASE)
    settled, more = store.settle_and_claim([(lease, Ack()) for lease in leases], [Want("default", 5)], "w", LEASE)
    assert settled == [Settled.APPLIED] * 5
    assert len(more) == 5
