"""Connections to the server: few, shared by all threads, replaced when they break; and Redis's errors as the store's.

A call is one script, by its digest; it is loaded again after a restart or SCRIPT FLUSH. A server that refuses for a
while (LOADING, BUSY, READONLY, and the like) has changed nothing, and the call is retried for a bounded time. When a
connection is lost after a call was sent, it is unknown whether it happened: the call is repeated with the same token,
for a bounded time, and the server answers as it did before. So is a call that misses its deadline: its connection is
closed, since a late reply would be taken for that of the next call.

The URL of a store:

    redis://user:password@host:6379/0?durability=everysec&prefix=orders&delivery=streams

`rediss://` is the same with TLS, `unix:///run/redis.sock?db=0` a socket. `durability` is what an answer promises: with
`always` (the default) a job outlives a crash of the machine, with `everysec` and `none` less; a server whose settings
promise less is refused when the store is opened. `delivery` is how ready jobs are kept, `sets` or `streams`: the first
job of a store decides, and a URL that differs is refused. `call_timeout` is the number of seconds in which a command
must be answered. Everything else in the query is for the driver.

    redis+cluster://user:password@host:7000,host:7001/?prefix=orders&replicas=1

is a store in a Redis Cluster (`cluster`): some of its nodes, from which the others are found. `rediss+cluster://` is
the same with TLS. `replicas` is how many replicas must have a write before it is answered.
"""

import logging
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Literal, Protocol, TypeVar, cast, get_args
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit
from uuid import uuid4

import redis
from msgspec import Struct
from redis.crc import key_slot

from forebay.core.errors import Invalid, StoreFailed
from forebay.core.instant import Instant
from forebay.core.names import is_name
from forebay.store.connection_pool import REMEDY, ConnectionPool, RetryDeadline, masked, split_call_timeout
from forebay.store.redis.scripts import Script, script

Durability = Literal["always", "everysec", "none", "trusted"]
DeliveryMode = Literal["sets", "streams"]
_PREFIX: Final = "forebay"
_CLUSTER: Final = "+cluster"
_PORT: Final = 6379
_MAX_PORT: Final = 65_535
_MAX_REPLICAS: Final = 8
_MAX_NODES: Final = 64

Node = tuple[str, int]
"""Host and port of a node of a cluster."""


class Address(Struct, frozen=True):
    """Where a store is. `prefix` is what all its keys begin with, in braces: one slot of a cluster.

    `delivery` is None where the URL does not say: as the store is, and sets if it is new. `nodes` are those of a
    cluster that the URL names; a single server has none. `replicas`: how many have a write before its
    answer.
    """

    url: str
    name: str
    prefix: str
    durability: Durability
    delivery: DeliveryMode | None
    call_timeout: float
    nodes: tuple[Node, ...] = ()
    replicas: int = 0

    @classmethod
    def of(cls, url: str) -> "Address":
        url, call_timeout = split_call_timeout(url)
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        name = masked(url)
        nodes: tuple[Node, ...] = ()
        if parts.scheme.endswith(_CLUSTER):
            nodes, parts = _split_nodes(parts)
        durability = options.pop("durability", "always")
        if durability not in get_args(Durability):
            raise Invalid("durability", f"{durability!r} is not known", f"use {', '.join(get_args(Durability))}")
        delivery = options.pop("delivery", None)
        if delivery is not None and delivery not in get_args(DeliveryMode):
            raise Invalid("delivery", f"{delivery!r} is not known", f"use {', '.join(get_args(DeliveryMode))}")
        prefix = options.pop("prefix", _PREFIX)
        if not is_name(prefix):
            raise Invalid("prefix", f"{prefix!r} is not a name", "use letters, digits, _ . : and -")
        durable = durability in ("always", "trusted")
        if "replicas" in options and not nodes:
            raise Invalid("replicas", "a single server has no fail-over of its own", "leave it out of the URL")
        replicas = _replicas(options.pop("replicas", None), durable) if nodes else 0
        plain = parts._replace(query=urlencode(options)).geturl()
        kept = cast(DeliveryMode | None, delivery)
        settings = (cast(Durability, durability), kept, call_timeout)
        return cls(plain, name, f"{{{prefix}}}:", *settings, nodes, replicas)

    @property
    def durable(self) -> bool:
        """Whether an answer outlives a crash of the machine; in a cluster, a fail-over."""
        return self.durability in ("always", "trusted") and (not self.nodes or self.replicas > 0)

    @property
    def slot(self) -> int:
        """The slot of a cluster in which all keys of the store are."""
        return key_slot(self.prefix.encode())

    def hidden(self, text: str) -> str:
        """A text of the driver without the password."""
        password = urlsplit(self.url).password
        for secret in (password, unquote(password)) if password else ():
            text = text.replace(secret, "***")
        return text


def _split_nodes(parts: SplitResult) -> tuple[tuple[Node, ...], SplitResult]:
    """The nodes that the URL of a cluster names, and the URL of the first of them for the driver."""
    login, at, hosts = parts.netloc.rpartition("@")
    if parts.path not in ("", "/", "/0"):
        reason = f"a cluster has database 0 alone, and the path is {parts.path!r}"
        raise Invalid("store URL", reason, "leave the path out; ?prefix= separates stores")
    named = hosts.split(",")
    if len(named) > _MAX_NODES:
        reason = f"it names {len(named)} nodes; at most {_MAX_NODES}"
        raise Invalid("store URL", reason, "name some of the nodes; the others are found")
    nodes = tuple(_node(each) for each in named)
    scheme = parts.scheme.removesuffix(_CLUSTER)
    return nodes, parts._replace(scheme=scheme, netloc=f"{login}{at}{named[0]}", path="/0")


def _node(text: str) -> Node:
    host, _, port = text.rpartition(":") if not text.endswith("]") and ":" in text else (text, "", str(_PORT))
    if not host.strip("[]") or not port.isascii() or not port.isdigit() or not 0 < int(port) <= _MAX_PORT:
        remedy = "write redis+cluster://host:6379,host:6379/"
        raise Invalid("store URL", f"{text!r} is not host:port of a node", remedy)
    return host.strip("[]"), int(port)


def _replicas(given: str | None, durable: bool) -> int:
    if given is None:
        return 1 if durable else 0
    if not given.isascii() or not given.isdigit() or int(given) > _MAX_REPLICAS:
        raise Invalid("replicas", f"{given!r} is not an integer in 0 … {_MAX_REPLICAS}", "write ?replicas=1")
    return int(given)


_log = logging.getLogger("forebay.store")

Argument = bytes | str | int

_CONNECT_SECONDS: Final = 10.0
_REFUSED_SECONDS: Final = 5.0
"""How long a call is retried that the server refuses."""

_TEMPORARY: Final = (
    redis.exceptions.BusyLoadingError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.TryAgainError,
)
_TEMPORARY_PREFIXES: Final = ("BUSY", "NOREPLICAS", "UNBLOCKED")
"""Temporary errors without a class of their own in the driver begin so."""

T = TypeVar("T")


class DriverConnection(Protocol):
    """The driver's connections, as far as they are used."""

    @property
    def is_connected(self) -> bool: ...

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_command(self, *arguments: Argument) -> None: ...

    def read_response(self) -> Any: ...

    def can_read(self, timeout: float) -> bool: ...


class Server(ConnectionPool[DriverConnection]):
    """One server, as one process uses it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address.name)
        self.address = address
        self._pool = redis.ConnectionPool.from_url(
            address.url,
            protocol=2,
            socket_timeout=address.call_timeout,
            socket_connect_timeout=min(_CONNECT_SECONDS, address.call_timeout),
            client_name="forebay",
            driver_info=None,
            retry=None,
        )
        self.opened = 0
        """Connections that were ever made: another number means that the server may be another one by now."""
        self._tokens = count()
        self._me = uuid4().hex

    def connect(self) -> DriverConnection:
        """A new connection; closing it is up to the caller."""
        return self._dial({})

    def _dial(self, where: dict[str, Any]) -> DriverConnection:
        """Connect; `where` overrides what the URL says."""
        # Not by the pool's own method: it counts the connections that it ever made, and refuses after a hundred.
        connection = cast(DriverConnection, self._pool.connection_class(**self._pool.connection_kwargs | where))
        try:
            connection.connect()
        except (redis.RedisError, OSError) as error:
            connection.disconnect()
            raise self.failure(error) from error
        self.opened += 1
        return connection

    def call(self, name: str, at: Instant | None, *arguments: Argument) -> Any:
        """One script, one round trip, one commit; with a token if a repetition would do it twice."""
        one = script(name)
        token = f"{self._me}:{next(self._tokens)}" if one.tokened else ""
        given = (self.address.prefix, "" if at is None else at, token, *arguments)
        return self._attempt(lambda connection: self._evaluate(connection, one, given))

    def command(self, *arguments: Argument) -> Any:
        """One command that may be repeated."""
        return self._attempt(lambda connection: send(connection, arguments))

    def failure(self, error: Exception) -> StoreFailed:
        text = self.address.hidden(str(error).strip()).splitlines()
        return StoreFailed(self.name, text[0] if text else type(error).__name__, REMEDY)

    def _attempt(self, action: Callable[[DriverConnection], T]) -> T:
        """The action on a connection that works; an idle one may have died meanwhile, so a second one is tried."""
        deadline: RetryDeadline | None = None
        fresh = False
        while True:
            connection: DriverConnection | None = None
            try:
                connection = self._take(fresh)
                return action(connection)
            except StoreFailed:
                deadline = deadline or self._unreachable()
                if deadline is None or deadline.expired:
                    raise
            except (redis.RedisError, OSError) as error:
                if isinstance(error, redis.TimeoutError):
                    text = "%s: no answer within %g s; the connection is dropped"
                    _log.warning(text, self.name, self.address.call_timeout)
                deadline = self.after(error, deadline)
                if deadline is None or deadline.expired:
                    raise self.failure(error) from error
            finally:
                if connection is not None:
                    self._give_back(connection)
            fresh = True
            deadline.pause()

    def _evaluate(self, connection: DriverConnection, one: Script, given: tuple[Argument, ...]) -> Any:
        """Run a script; load it if the server does not have it."""
        try:
            return send(connection, ("EVALSHA", one.digest, 1, *given))
        except redis.exceptions.NoScriptError:
            send(connection, ("SCRIPT", "LOAD", one.text))
            return send(connection, ("EVALSHA", one.digest, 1, *given))

    def _unreachable(self) -> RetryDeadline | None:
        """How long to retry when no connection could be made; None: the caller decides."""
        return None

    def after(self, error: Exception, deadline: RetryDeadline | None) -> RetryDeadline | None:
        """How long to retry after this error, if it was not decided before; None: it would not help."""
        return deadline or retry_deadline(error)

    def _open(self) -> DriverConnection:
        return self.connect()

    def _close_connection(self, connection: DriverConnection) -> None:
        connection.disconnect()

    def _is_usable(self, connection: DriverConnection) -> bool:
        return connection.is_connected


def retry_deadline(error: Exception) -> RetryDeadline | None:
    """How long to retry after this error; None: it would not help."""
    if isinstance(error, redis.AuthenticationError | redis.exceptions.AuthorizationError):
        return None
    if isinstance(error, _TEMPORARY) or str(error).startswith(_TEMPORARY_PREFIXES):
        return RetryDeadline(_REFUSED_SECONDS)
    unknown = isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError)
    return RetryDeadline() if unknown else None


def send(connection: DriverConnection, arguments: tuple[Argument, ...]) -> Any:
    connection.send_command(*arguments)
    return connection.read_response()
