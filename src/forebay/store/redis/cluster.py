"""A store in a Redis Cluster: the master that serves its slot, found again after a fail-over or a move.

All keys of a store share one hash tag, so the store is in one slot, and one node serves it at a time. `ClusterServer`
connects to that node alone. What a node answers when it is not the one:

    MOVED        the slot has another owner: connect there
    ASK          the slot is being moved key by key. A script needs all keys, and neither node has them, so the call
                 waits until the move is complete. No script runs meanwhile, on either node: its declared key, the
                 prefix itself, never exists, so the source redirects every call. Following ASK would run the script on
                 the keys that have arrived so far.
    CLUSTERDOWN, READONLY, UNBLOCKED, no connection
                 a fail-over is under way: the known nodes are queried for the owner until there is one

Each is retried within one bounded time, with the token of the call, so what was done already is not done twice.

A promoted replica may lack what the old master answered. With `replicas=N` every call that writes is followed by WAIT
in the same round trip, and is answered when N replicas have it. WAIT is about the last write of its own connection:
a script that had nothing to write, such as the repetition of a call, would not wait for anything. So a write to the
key `sync` is sent between them.
"""

from threading import Lock
from typing import Any, Final

import redis

from forebay.core.errors import Invalid, StoreFailed
from forebay.store.connection_pool import CERTAIN_SECONDS, REMEDY, RetryDeadline
from forebay.store.redis.connect import Address, Argument, DriverConnection, Node, Server, retry_deadline, send
from forebay.store.redis.scripts import Script

_CONNECT_SECONDS: Final = 2.0
_SYNC_MS: Final = 1_000
"""How long one WAIT lasts: a node that is no longer the master is noticed after that at the latest."""

_MAX_KNOWN: Final = 1_000
_NO_CLUSTER: Final = "cluster support disabled"


class NotReplicated(redis.RedisError):
    """A write was made, and fewer replicas have it than the URL demands."""


def server_at(address: Address) -> Server:
    """The server of an address, or the cluster."""
    return ClusterServer(address) if address.nodes else Server(address)


class ClusterServer(Server):
    """The node that serves the slot of one store."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._node_guard = Lock()
        self._known: list[Node] = list(address.nodes)
        self._owner: Node | None = None
        self._was_open = False

    def connect(self) -> DriverConnection:
        owner = self._owner or self._find_owner()
        try:
            connection = self._dial(_where(owner))
        except StoreFailed:
            self._suspect(owner)
            raise
        self._owner, self._was_open = owner, True
        return connection

    def failure(self, error: Exception) -> StoreFailed:
        """A redirection by its numbers alone explains nothing."""
        match error:
            case redis.exceptions.MovedError():
                reason = f"slot {error.slot_id} has moved to {error.host}:{error.port}"
            case redis.exceptions.AskError():
                reason = (
                    f"slot {error.slot_id} is being moved to {error.host}:{error.port}, for longer than a call waits"
                )
            case _:
                return super().failure(error)
        return StoreFailed(self.name, reason, REMEDY)

    def _evaluate(self, connection: DriverConnection, one: Script, given: tuple[Argument, ...]) -> Any:
        if not (one.writes and self.address.replicas):
            return super()._evaluate(connection, one, given)
        try:
            return self._evaluate_and_wait(connection, one, given)
        except redis.exceptions.NoScriptError:
            send(connection, ("SCRIPT", "LOAD", one.text))
            return self._evaluate_and_wait(connection, one, given)

    def _evaluate_and_wait(self, connection: DriverConnection, one: Script, given: tuple[Argument, ...]) -> Any:
        """Run a script, and return its answer when enough replicas have what it wrote, in one round trip."""
        replicas = self.address.replicas
        timeout = min(_SYNC_MS, round(self.address.call_timeout * 500))
        connection.send_command("EVALSHA", one.digest, 1, *given)
        connection.send_command("SET", f"{self.address.prefix}sync", 1)
        connection.send_command("WAIT", replicas, timeout)
        answer, synced, count = (_read(connection) for _ in range(3))
        for reply in (answer, synced, count):
            if isinstance(reply, Exception):
                raise reply
        if count < replicas:
            raise NotReplicated(f"{count} of {replicas} replicas had the write within {timeout} ms")
        return answer

    def _unreachable(self) -> RetryDeadline | None:
        """Calls wait for a fail-over; the opening of a store does not."""
        return RetryDeadline(CERTAIN_SECONDS) if self._was_open else None

    def after(self, error: Exception, deadline: RetryDeadline | None) -> RetryDeadline | None:
        match error:
            case redis.exceptions.MovedError():
                with self._node_guard:
                    host = error.host or (self._owner or self._known[0])[0]
                    self._owner = (host, error.port)
            case redis.exceptions.AskError() | NotReplicated():
                pass
            case _:
                if retry_deadline(error) is None:
                    return None
                if not str(error).startswith("NOREPLICAS"):
                    self._suspect(self._owner)
        return deadline or RetryDeadline(CERTAIN_SECONDS)

    def _suspect(self, node: Node | None) -> None:
        """Find the owner again; this node is the last to be queried."""
        with self._node_guard:
            self._owner = None
            if node in self._known:
                self._known.remove(node)
                self._known.append(node)

    def _find_owner(self) -> Node:
        """The master of the slot, by the first node that answers."""
        failure: StoreFailed | None = None
        for node in tuple(self._known):
            try:
                connection = self._dial(_where(node))
            except StoreFailed as error:
                failure = error
                continue
            try:
                return self._owner_by(send(connection, ("CLUSTER", "SLOTS")), node)
            except redis.ResponseError as error:
                if _NO_CLUSTER in str(error):
                    remedy = "write redis://, or set cluster-enabled yes"
                    raise Invalid(self.name, f"{node[0]}:{node[1]} is not a node of a cluster", remedy) from None
                failure = self.failure(error)
            except (redis.RedisError, OSError) as error:
                failure = self.failure(error)
            except StoreFailed as error:
                failure = error
            finally:
                connection.disconnect()
        assert failure is not None
        raise failure

    def _owner_by(self, ranges: list[Any], queried: Node) -> Node:
        owner: Node | None = None
        found: list[Node] = []
        for first, last, *nodes in ranges:
            of_range = [((host or b"").decode() or queried[0], int(port)) for host, port, *_ in nodes]
            found += of_range
            if first <= self.address.slot <= last:
                owner = of_range[0]
        if owner is None:
            remedy = "assign the slot to a master: CLUSTER ADDSLOTSRANGE, or redis-cli --cluster fix"
            raise StoreFailed(self.name, f"no node serves slot {self.address.slot} of {self.address.prefix}", remedy)
        with self._node_guard:
            self._known = list(dict.fromkeys([*found, *self._known]))[:_MAX_KNOWN]
        return owner


def _where(node: Node) -> dict[str, Any]:
    return {"host": node[0], "port": node[1], "socket_connect_timeout": _CONNECT_SECONDS}


def _read(connection: DriverConnection) -> Any:
    """A reply, or the error that it is: those behind it are read as well."""
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error
