"""The connections of one server: how many may be open, and which one is closed when the limit is reached.

A connection is anonymous until a request on it carries a valid key, token, certificate or session. Anonymous
connections have a limit in total and a limit per client address; one more replaces the oldest, which is closed. A valid
caller is anonymous only until its first head is complete, so a flood of bad keys displaces its own connections. All
connections together stay below the process's limit of open files: a connection that could not be accepted would block
the accept loop for everyone.

The first head of a connection is checked before it is parsed: an API key that does not exist gets a prepared 401, and
the connection is closed.
"""

import re
import resource
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from forebay.serve.problems import Problem
from forebay.serve.security.headers import security_headers

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
