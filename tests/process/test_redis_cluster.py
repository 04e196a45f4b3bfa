"""A Redis Cluster under load: masters are killed, replicas promoted, a slot is moved. Nothing accepted is lost.

Real workers, real producers, six nodes that sync every write, and writes that are answered when a replica has them.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay import Draft
from forebay.core.errors import StoreFailed
from forebay.store.redis import cluster as cluster_module
from forebay_proof.servers.process import ServerUnavailable
from forebay_proof.servers.redis_cluster import ClusterNode, RedisClusterServer
from tests.process.load import Load, now

pytestmark = pytest.mark.timeout(300)
LONG = [pytest.mark.nightly, pytest.mark.timeout(1_800)]


@pytest.fixture
def cluster() -> Iterator[RedisClusterServer]:
    try:
        with RedisClusterServer(durable=True) as cluster:
            yield cluster
    except ServerUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def load(cluster: RedisClusterServer, tmp_path: Path) -> Iterator[Load]:
    load = Load(tmp_path, cluster.url())
    try:
        yield load
    finally:
        load.close()


class Killing:
    """The master of the store is killed, and comes back as the replica of the one that took its place."""

    def __init__(self, cluster: RedisClusterServer) -> None:
        self.cluster = cluster
        self.killed: list[ClusterNode] = []
        self._replica: ClusterNode | None = None

    def kill(self) -> None:
        self.killed.append(self.cluster.master_of())
        self._replica = self.cluster.replica_of()
        self.killed[-1].kill()

    def bring_back(self) -> None:
        assert self._replica is not None
        self.cluster.until_promoted(self.killed[-1], self._replica)
        self.killed[-1].start()
        self.cluster.until_whole()


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=LONG)])
def test_masters_are_killed_and_nothing_that_was_acknowledged_is_lost(
    load: Load, cluster: RedisClusterServer, kills: int
) -> None:
    killing = Killing(cluster)
    load.survive(kills, killing.kill, killing.bring_back)
    assert len(killing.killed) == kills


@pytest.mark.nightly
def test_a_source_that_is_killed_while_its_slot_is_moved_leaves_the_store_whole(
    load: Load, cluster: RedisClusterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The promoted replica has the move, so that no call runs on the keys that are left there."""
    load.enqueue("quick", 500)
    home = cluster.master_of()
    target = next(node for node in cluster.nodes if node.is_master() and node is not home)
    source = cluster.begin_move("forebay", target)
    assert cluster.move_keys("forebay", source, target, limit=5) == 5
    killing = Killing(cluster)
    killing.kill()
    killing.bring_back()
    promoted = cluster.master_of()
    assert promoted not in (source, target)
    monkeypatch.setattr(cluster_module, "CERTAIN_SECONDS", 0.5)
    with pytest.raises(StoreFailed, match="is being moved to"):
        load.store.enqueue([Draft("k")])
    cluster.move_keys("forebay", promoted, target)
    cluster.end_move("forebay", target)
    assert sum(backlog.depth for backlog in load.store.backlog()) == 500


@pytest.mark.nightly
def test_a_slot_is_moved_there_and_back_while_jobs_flow(load: Load, cluster: RedisClusterServer) -> None:
    fleet = load.workers(2)
    load.produce()
    load.produce(threads=1, keyed=True)
    load.until_busy(50)
    home = cluster.master_of()
    away = next(node for node in cluster.nodes if node.is_master() and node is not home)
    for target in (away, home):
        source = cluster.begin_move("forebay", target)
        time.sleep(1)
        assert cluster.move_keys("forebay", source, target) > 5
        cluster.end_move("forebay", target)
        load.until_consumed(now(), 2)
        assert cluster.master_of() is target
    load.stop_producing()
    load.until_quiet(60)
    assert load.end(fleet) == 0
    load.audit_load()
