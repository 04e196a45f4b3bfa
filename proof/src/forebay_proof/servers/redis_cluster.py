"""`RedisClusterServer`: a private Redis Cluster of three masters and three replicas on loopback.

Promise. `with RedisClusterServer() as cluster:` gives six nodes with one password and free ports, all slots covered and
every replica in step; `url(prefix=…)` leads to a store in it. Nodes can be killed and come back with their data, and a
slot can be moved, step by step as `redis-cli --cluster reshard` does or in one step where the server knows how. The
nodes end with this process, as every `RedisServer` does.

A node counts as failed after `node_timeout`; then its replica is promoted. `durable=True` syncs every write and lets a
master without its replica take no write, as in production.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import redis
from redis.crc import key_slot

from forebay_proof.servers.account import Account
from forebay_proof.servers.lifetime import Lifetime
from forebay_proof.servers.process import LOOPBACK, PATIENCE, ServerFailed, free_port
from forebay_proof.servers.redis import RedisServer

_MASTERS: Final = 3
_SLOTS: Final = 16_384
_STEP: Final = 0.02
_AT_ONCE: Final = 1_000
_MIGRATE_MS: Final = 10_000
_PREFIX: Final = "forebay"
_JOIN_TIMEOUT: Final = 2.0
"""Nodes exchange what they know twice in this time: with a longer one it takes as long until all have met."""

_WITH_REPLICA: Final = 4
"""Fields of a range of slots that a node knows a master and a replica of: first, last, and one for each."""


class ClusterNode(RedisServer):
    """One node. Its bus has a port of its own choice: ten thousand above its own may be in use."""

    def __init__(self, password: str, node_timeout: float, durable: bool) -> None:
        settings = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(round(node_timeout * 1_000)),
            "cluster-replica-validity-factor": "0",
            "cluster-require-full-coverage": "no",
            "repl-diskless-sync-delay": "0",
            "masterauth": password,
            "min-replicas-to-write": "1" if durable else "0",
        }
        super().__init__(durable=durable, private=True, settings=settings)
        self._password = password
        self._bus: tuple[int, int] | None = None

    @property
    def bus_port(self) -> int:
        """Kept as long as the node's own port is."""
        if self._bus is None or self._bus[0] != self._port:
            self._bus = (self._port, free_port())
        return self._bus[1]

    def execute(self, *words: str | int) -> Any:
        """The plain reply: the driver parses those of commands whose subcommand is not a word of its own."""
        with self.client() as client:
            return client.execute_command(*words)

    def id(self) -> str:
        return str(self.execute("CLUSTER", "MYID").decode())

    def is_master(self) -> bool:
        return bool(self.execute("ROLE")[0] == b"master")

    def _command(self, account: Account, directory: Path) -> Sequence[str | Path]:
        self._settings["cluster-port"] = str(self.bus_port)
        return super()._command(account, directory)


class RedisClusterServer(Lifetime):
    def __init__(self, *, durable: bool = False, node_timeout: float = 2.0) -> None:
        self._durable = durable
        self._node_timeout = node_timeout
        self._password = secrets.token_urlsafe(16)
        self.nodes: Final = [ClusterNode(self._password, node_timeout, durable) for _ in range(2 * _MASTERS)]
        self._stack = ExitStack()

    def _begin(self) -> None:
        for node in self.nodes:
            self._stack.enter_context(node)
        self._set_timeout(_JOIN_TIMEOUT)
        self._join()
        self._set_timeout(self._node_timeout)

    def close(self) -> None:
        self._stack.close()

    def url(self, **options: str) -> str:
        """A store in the cluster; all nodes are named, since any of them may be down."""
        hosts = ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes)
        quick = {} if self._durable else {"durability": "trusted"}
        query = "&".join(f"{name}={value}" for name, value in {**quick, **options}.items())
        return f"redis+cluster://:{self._password}@{hosts}/{f'?{query}' if query else ''}"

    def master_of(self, prefix: str = _PREFIX) -> ClusterNode:
        """The node that serves a store, as most nodes that are up see it."""
        return self._served_by(slot_of(prefix))[0]

    def replica_of(self, prefix: str = _PREFIX) -> ClusterNode:
        return self._served_by(slot_of(prefix))[1]

    def clear(self) -> None:
        for node in self.nodes:
            if node.is_master():
                node.clear()

    def until_whole(self) -> None:
        """Every slot is served, by a master whose replica is connected and in step."""
        self._until(lambda: all(self._is_whole(node) for node in self.nodes), "the cluster is whole")

    def until_promoted(self, killed: ClusterNode, replica: ClusterNode) -> None:
        """The replica of a dead master has taken its place."""
        self._until(replica.is_master, f"{replica.port} takes the place of {killed.port}")

    def begin_move(self, prefix: str, target: ClusterNode) -> ClusterNode:
        """The first step of resharding by keys: from now on the source answers ASK for keys that it does not have."""
        slot, source = slot_of(prefix), self.master_of(prefix)
        target.execute("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id())
        source.execute("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id())
        return source

    def move_keys(self, prefix: str, source: ClusterNode, target: ClusterNode, limit: int | None = None) -> int:
        """Move keys of the slot, all of them or so many; how many were moved."""
        slot, moved = slot_of(prefix), 0
        while limit is None or moved < limit:
            count = _AT_ONCE if limit is None else min(_AT_ONCE, limit - moved)
            keys = source.execute("CLUSTER", "GETKEYSINSLOT", slot, count)
            if not keys:
                break
            where = (LOOPBACK, target.port, "", 0, _MIGRATE_MS, "AUTH", self._password)
            source.execute("MIGRATE", *where, "KEYS", *keys)
            moved += len(keys)
        return moved

    def end_move(self, prefix: str, target: ClusterNode) -> None:
        """The last step: all nodes learn the new owner, the target first."""
        slot = slot_of(prefix)
        masters = [node for node in self.nodes if node.is_master()]
        for node in sorted(masters, key=lambda node: node is not target):
            node.execute("CLUSTER", "SETSLOT", slot, "NODE", target.id())

    def move_at_once(self, prefix: str, target: ClusterNode) -> None:
        """Let the server move the slot in one step (Valkey 9): the source answers until the target has all keys."""
        slot = slot_of(prefix)
        self.master_of(prefix).execute("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id())
        self._until(lambda: self.master_of(prefix) is target, f"slot {slot} moves to {target.port}")

    def _set_timeout(self, seconds: float) -> None:
        for node in self.nodes:
            node.execute("CONFIG", "SET", "cluster-node-timeout", round(seconds * 1_000))

    def _join(self) -> None:
        first, *others = self.nodes
        for number, node in enumerate(self.nodes, 1):
            node.execute("CLUSTER", "SET-CONFIG-EPOCH", number)
        for node in others:
            first.execute("CLUSTER", "MEET", LOOPBACK, node.port, node.bus_port)
        bounds = [_SLOTS * place // _MASTERS for place in range(_MASTERS + 1)]
        for node, start, end in zip(self.nodes, bounds, bounds[1:], strict=False):
            node.execute("CLUSTER", "ADDSLOTSRANGE", start, end - 1)
        self._until(lambda: all(_knows(node, len(self.nodes)) for node in self.nodes), "all nodes have met")
        for master, replica in zip(self.nodes[:_MASTERS], self.nodes[_MASTERS:], strict=True):
            self._until(lambda m=master, r=replica: _follows(r, m.id()), f"{replica.port} follows {master.port}")  # type: ignore[misc]
        self.until_whole()

    def _served_by(self, slot: int) -> list[ClusterNode]:
        by_port = {node.port: node for node in self.nodes}
        views: list[list[int]] = []
        for node in self.nodes:
            try:
                ranges = node.execute("CLUSTER", "SLOTS")
            except (redis.RedisError, OSError):
                continue
            views += [[port for _, port, *_ in each[2:]] for each in ranges if each[0] <= slot <= each[1]]
        if not views:
            raise ServerFailed(f"no node serves slot {slot}")
        return [by_port[port] for port in max(views, key=views.count)]

    @staticmethod
    def _is_whole(node: ClusterNode) -> bool:
        try:
            state = node.execute("CLUSTER", "INFO")
            role = node.execute("ROLE")
            ranges = node.execute("CLUSTER", "SLOTS")
        except (redis.RedisError, OSError):
            return False
        if b"cluster_state:ok" not in state or any(len(each) < _WITH_REPLICA for each in ranges):
            return False
        return len(role[2]) >= 1 if role[0] == b"master" else role[3] == b"connected"

    @staticmethod
    def _until(done: Callable[[], bool], what: str) -> None:
        for _ in range(round(PATIENCE / _STEP)):
            if done():
                return
            time.sleep(_STEP)
        raise ServerFailed(f"it did not happen within {PATIENCE:g} s: {what}")


def slot_of(prefix: str) -> int:
    """The slot of the store with this prefix."""
    return key_slot(f"{{{prefix}}}".encode())


def _knows(node: ClusterNode, count: int) -> bool:
    lines = node.execute("CLUSTER", "NODES").splitlines()
    return len(lines) == count and not any(b"handshake" in line for line in lines)


def _follows(replica: ClusterNode, master: str) -> bool:
    """A node refuses as long as it does not know its master."""
    try:
        return bool(replica.execute("CLUSTER", "REPLICATE", master))
    except redis.ResponseError:
        return False
