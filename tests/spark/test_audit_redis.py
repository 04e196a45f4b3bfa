"""Redis under chaos passes the audit; and what a fail-over loses, the audit names: every job, and no other."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from forebay import Draft, Store, open_store
from forebay.core.errors import StoreFailed
from forebay.store.redis import connect
from forebay_proof.servers.proxy import Proxy
from forebay_proof.servers.redis import RedisServer
from forebay_proof.servers.redis_cluster import RedisClusterServer
from tests.command_result import Run
from tests.process.load import Load
from tests.spark.fail_overs import FailOver

pytestmark = pytest.mark.timeout(300)
LONG = [pytest.mark.nightly, pytest.mark.timeout(1_200)]


@pytest.mark.parametrize(
    ("delivery", "kills"),
    [("streams", 1), pytest.param("sets", 15, marks=LONG), pytest.param("streams", 15, marks=LONG)],
)
def test_a_chaos_of_killed_workers_and_servers_passes(run: Run, tmp_path: Path, delivery: str, kills: int) -> None:
    with RedisServer(durable=True, private=True) as server:
        url = server.url(delivery=delivery)
        load = Load(tmp_path, url)
        try:
            load.survive(kills, server.kill, server.start, workers_too=True)
            receipts, effects = load.evidence()
            files = ("--receipts", str(receipts), "--effects", str(effects))
            answer = run("audit", "--store", url, "--lake", "lake", *files, "--drained", "--json")
        finally:
            load.close()
    (verdict,) = answer.json
    assert (answer.code, verdict["answer"]) == (0, "PASS"), answer.out
    assert verdict["facts"]["effects"] > 50


class Pair(FailOver):
    """A primary, and a replica behind a line that can be cut."""

    def __init__(self, stack: ExitStack) -> None:
        settings = {"repl-diskless-sync-delay": "0"}
        self.primary, self.replica = (
            stack.enter_context(RedisServer(durable=True, private=True, settings=settings)) for _ in range(2)
        )
        self.line = stack.enter_context(Proxy(self.primary.host, self.primary.port))
        FailOver.__init__(self, self.opened(self.primary))
        with self.replica.client() as client:
            client.config_set("masterauth", urlsplit(self.primary.url()).password or "")
            client.replicaof(self.line.host, str(self.line.port))

    def opened(self, server: RedisServer) -> Store:
        return open_store(server.url())

    def catch_up(self) -> None:
        with self.primary.client() as client:
            # WAIT is about what its own connection wrote, and of all that was written before.
            client.set("{forebay}:mark", 1)
            assert any(client.wait(1, 2_000) == 1 for _ in range(20)), "the replica has all of it"

    def cut_line(self) -> None:
        self.line.refuse()
        self.line.cut()

    def fail_over(self) -> None:
        self.store.close()
        self.primary.kill()
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")
        self.store = self.opened(self.replica)

    @property
    def survivor_url(self) -> str:
        return self.replica.url()


class ClusterPair(Pair):
    """The same in a cluster, which promotes the replica by itself. Writes are answered without waiting for it."""

    durable = False

    def __init__(self, stack: ExitStack) -> None:
        self.cluster = stack.enter_context(RedisClusterServer(durable=True))
        for node in self.cluster.nodes:
            node.execute("CONFIG", "SET", "min-replicas-to-write", "0")
        self.primary, self.replica = self.cluster.master_of(), self.cluster.replica_of()
        FailOver.__init__(self, open_store(self.survivor_url))

    @property
    def survivor_url(self) -> str:
        return self.cluster.url(durability="everysec")

    def cut_line(self) -> None:
        """A replica that has the wrong password is not let in again."""
        with self.replica.client() as client:
            client.config_set("masterauth", "wrong")
        with self.primary.client() as client:
            client.client_kill_filter(_type="replica")

    def fail_over(self) -> None:
        """The store stays open, and finds the survivor by itself."""
        self.primary.kill()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        pair = Pair(stack)
        yield pair
        pair.store.close()


@pytest.mark.nightly
def test_what_a_cluster_loses_by_a_fail_over_is_named_by_the_audit(run: Run) -> None:
    with ExitStack() as stack:
        pair = ClusterPair(stack)
        stack.callback(pair.store.close)
        assert_losses_are_named(run, pair)


def test_what_a_fail_over_loses_is_named_by_the_audit_and_nothing_else(run: Run, pair: Pair) -> None:
    assert_losses_are_named(run, pair)


def assert_losses_are_named(run: Run, pair: Pair) -> None:
    pair.put(30)
    pair.work(10)
    pair.catch_up()
    pair.cut_line()
    accepted = pair.put(12)
    done_and_forgotten = pair.work(3)
    pair.fail_over()
    lost = pair.lost()
    assert lost == accepted.keys(), "so much was acknowledged, and the survivor has none of it"
    again = pair.put(5)
    assert set(again.values()) < set(accepted.values()), (
        "its ids are given again: by them alone nothing would be missed"
    )
    while pair.work(100):
        pass
    assert pair.audit(run, pair.survivor_url) == {"lost": lost, "repeated_effect": set(done_and_forgotten)}


def test_a_primary_that_must_have_replicas_takes_nothing_in_without_them(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "_REFUSED_SECONDS", 0.2)
    pair.catch_up()
    with pair.primary.client() as client:
        client.config_set("min-replicas-to-write", "1")
    pair.put(1)
    with pair.primary.client() as client:
        client.config_set("min-replicas-to-write", "2")
    with pytest.raises(StoreFailed, match="replicas"):
        pair.store.enqueue([Draft("k", 0)])
    assert [backlog.ready for backlog in pair.store.backlog()] == [1]
