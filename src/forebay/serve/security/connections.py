"""The connections of one server: how many may be open, and which one is closed when the limit is reached.

A connection is anonymous until a request on it carries a valid key, token, certificate or session. Anonymous
connections have a limit in total and a limit per client address; one more replaces the oldest, which is closed. A valid
caller is anonymous only until its first head is complete, so a flood of bad keys displaces its own connections. All
connections together stay below the process's limit of open files: a connection that could not be accepted would block
the accept loop for all callers.

The first head of a connection is checked before it is parsed: an API key that does not exist gets a prepared 401, and
the connection is closed.

uvicorn waits without a bound for the rest of a request head, and for a client that does not read its response. The
protocol of this server closes a connection that does not deliver a complete head within `head_seconds`, at its start or
after a response, and one that does not take its response for `WRITE_SECONDS`. A long poll is a request in flight:
neither timeout applies to it. The scope of each request carries `MARK_AUTHENTICATED`, which the auth middleware calls
once the caller is known, and `PEER`, the name in the client's certificate: only the connection knows the certificate.
"""

import asyncio
import re
import resource
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final, Protocol

from starlette.types import Message, Receive, Scope, Send

from forebay.serve.problems import Problem
from forebay.serve.security.headers import security_headers

WRITE_SECONDS: Final = 30.0
MARK_AUTHENTICATED: Final = "forebay.mark_authenticated"
PEER: Final = "forebay.peer"
"""The ASGI scope key of the common name of the client's certificate."""

MAX_FILES: Final = 65_536
"""The process raises its limit of open files up to this, where the system allows it."""

FILES_RESERVED: Final = 256
"""Open files for everything but connections: the store, logs, threads."""

MAX_CONNECTIONS: Final = 32_768
MAX_ANONYMOUS: Final = 2_048
MAX_ANONYMOUS_PER_ADDRESS: Final = 1_024

_KEY: Final = re.compile(rb"\r\nauthorization:[ \t]*bearer[ \t]+(fb_[!-~]*)[ \t]*(?=\r\n|$)", re.IGNORECASE)
_AUTHORIZATION: Final = re.compile(rb"\r\nauthorization[ \t]*:", re.IGNORECASE)
_PUBLIC: Final = re.compile(rb"[A-Z]{1,10} (?:/(?:health|ready|openapi\.json)?(?:[? ]|$)|/ui(?:[/? ]|$))")


class ClientConnection(Protocol):
    """The part of a connection that is used here."""

    def drop(self) -> None: ...


class Connections:
    """Called on the server's event loop only. `dropped` is called for each connection that is closed for room."""

    def __init__(
        self,
        limit: int,
        anonymous: int = MAX_ANONYMOUS,
        per_address: int = MAX_ANONYMOUS_PER_ADDRESS,
        dropped: Callable[[], None] = lambda: None,
    ) -> None:
        self._limit = limit
        self._max_anonymous = min(anonymous, limit)
        self._per_address = min(per_address, self._max_anonymous)
        self._authenticated: set[ClientConnection] = set()
        self._anonymous: OrderedDict[ClientConnection, str] = OrderedDict()
        self._by_address: dict[str, OrderedDict[ClientConnection, None]] = {}
        self._dropped = dropped

    def __len__(self) -> int:
        return len(self._authenticated) + len(self._anonymous)

    def add(self, connection: ClientConnection, address: str) -> None:
        """Register a new connection; the oldest anonymous one is closed for it, or itself where there is none."""
        own = self._by_address.setdefault(address, OrderedDict())
        if len(own) >= self._per_address:
            self._drop(next(iter(own)))
        elif self._anonymous and (len(self._anonymous) >= self._max_anonymous or len(self) >= self._limit):
            self._drop(next(iter(self._anonymous)))
        self._anonymous[connection] = address
        self._by_address.setdefault(address, OrderedDict())[connection] = None
        if len(self) > self._limit:
            self._drop(connection)

    def mark_authenticated(self, connection: ClientConnection) -> None:
        if connection in self._anonymous:
            self.remove(connection)
            self._authenticated.add(connection)

    def remove(self, connection: ClientConnection) -> None:
        self._authenticated.discard(connection)
        address = self._anonymous.pop(connection, None)
        if address is not None:
            own = self._by_address[address]
            del own[connection]
            if not own:
                del self._by_address[address]

    def _drop(self, connection: ClientConnection) -> None:
        self.remove(connection)
        self._dropped()
        connection.drop()


class EarlyRejection:
    """The prepared 401 for a connection whose first head carries an API key that does not exist."""

    def __init__(self, may_accept: Callable[[str], bool], problem: Problem, scheme: str) -> None:
        self._may_accept = may_accept
        answer = problem.response()
        headers = [*answer.raw_headers, *security_headers(scheme), (b"connection", b"close")]
        lines = [
            b"HTTP/1.1 401 Unauthorized",
            *(name + b": " + value for name, value in headers),
            b"",
            bytes(answer.body),
        ]
        self._response = b"\r\n".join(lines)

    def response_to(self, data: bytes) -> bytes | None:
        """None leaves the decision to the routes: the head is incomplete or ambiguous, or the path is public."""
        end = data.find(b"\r\n\r\n")
        if end < 0 or _PUBLIC.match(data) or data.startswith(b"HEAD "):
            return None
        head = data[:end]
        keys = _KEY.findall(head)
        if len(keys) != 1 or len(_AUTHORIZATION.findall(head)) != 1 or self._may_accept(keys[0].decode("latin-1")):
            return None
        return self._response


def connection_limit(wanted: int | None = None) -> int:
    """The limit of connections, after the process has raised its limit of open files as far as it is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        soft = files
    open_files = MAX_FILES if soft == resource.RLIM_INFINITY else soft
    return max(64, min(wanted or MAX_CONNECTIONS, open_files - FILES_RESERVED))


class _GuardedConnection:
    """Precedes a protocol class of uvicorn in the order of bases."""

    head_seconds = 10.0
    registry: ClassVar[Connections]
    rejection: ClassVar[EarlyRejection]
    client: tuple[str, int] | None
    app: Any
    flow: Any
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _timer: asyncio.TimerHandle | None = None
    _in_flight = 0
    _first = True

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self.registry.add(self, self.client[0] if self.client else "")
        self._inner = self.app
        self.app = self._handle
        secured = transport.get_extra_info("ssl_object")
        self._peer = None if secured is None else common_name(secured.getpeercert())
        self._arm()

    def data_received(self, data: bytes) -> None:
        if self._first:
            self._first = False
            if (response := self.rejection.response_to(data)) is not None:
                self.transport.write(response)
                self.transport.close()
                return
        super().data_received(data)  # type: ignore[misc]

    def drop(self) -> None:
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._disarm()
        self.registry.remove(self)
        super().connection_lost(error)  # type: ignore[misc]

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Each request of the connection, once its head is complete."""
        self._in_flight += 1
        self._disarm()
        if self._peer is not None:
            scope[PEER] = self._peer
        scope[MARK_AUTHENTICATED] = partial(self.registry.mark_authenticated, self)

        async def send_in_time(message: Message) -> None:
            if not self.flow.write_paused:
                await send(message)
                return
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await send(message)
            except TimeoutError:
                self.transport.abort()

        try:
            await self._inner(scope, receive, send_in_time)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._arm()

    def _arm(self) -> None:
        self._disarm()
        if not self.transport.is_closing():
            self._timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def guarded_protocol(
    head_seconds: float, connections: Connections, rejection: EarlyRejection
) -> type[asyncio.Protocol]:
    """For `uvicorn.Config(http=…)`: httptools where it is installed, else h11."""
    base: type[Any]
    try:
        from uvicorn.protocols.http import httptools_impl

        base = httptools_impl.HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http import h11_impl

        base = h11_impl.H11Protocol
    settings = {"head_seconds": head_seconds, "registry": connections, "rejection": rejection}
    return type("GuardedProtocol", (_GuardedConnection, base), settings)


def common_name(certificate: dict[str, Any] | None) -> str | None:
    """The common name in a result of `SSLObject.getpeercert`; None unless there is exactly one."""
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for field, value in part if field == "commonName"]
    return names[0] if len(names) == 1 else None
