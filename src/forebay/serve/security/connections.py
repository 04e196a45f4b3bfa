"""The connections of one server: how many there may be, and who goes when there is no more room.

A connection is a stranger's until a request on it has shown a key, a token, a certificate or a session that is good.
Strangers have a bound together and a bound by their address; one more takes the place of the oldest, which is closed.
A good caller is a stranger only until its first head is whole, so a flood of bad keys pushes out its own connections.
All connections together stay below the number of files that the process may have open: one that could not be accepted
would stop everybody's.

The first head of a stranger is looked at before anything is parsed or started for it: what shows a key of ours that is
none is answered at once with a 401 that was written before, and closed.
"""

import re
import resource
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from forebay.serve.problems import Problem
from forebay.serve.security.headers import careful_headers

FILES_MOST: Final = 65_536
"""The process raises its own bound of open files up to this, where the system lets it."""

FILES_RESERVED: Final = 256
"""Files for everything but connections: the store, logs, threads."""

CONNECTIONS_MOST: Final = 32_768
STRANGERS_MOST: Final = 2_048
STRANGERS_EACH: Final = 1_024

_KEY: Final = re.compile(rb"\r\nauthorization:[ \t]*bearer[ \t]+(fb_[!-~]*)[ \t]*(?=\r\n|$)", re.IGNORECASE)
_AUTHORIZATION: Final = re.compile(rb"\r\nauthorization[ \t]*:", re.IGNORECASE)
_OPEN: Final = re.compile(rb"[A-Z]{1,10} (?:/(?:health|ready|openapi\.json)?(?:[? ]|$)|/ui(?:[/? ]|$))")


class Closing(Protocol):
    """A connection, as far as this file is concerned."""

    def drop(self) -> None: ...


class Connections:
    """Called on the server's loop alone. `dropped` is called for each one that had to go."""

    def __init__(
        self,
        most: int,
        strangers: int = STRANGERS_MOST,
        each: int = STRANGERS_EACH,
        dropped: Callable[[], None] = lambda: None,
    ) -> None:
        self._most = most
        self._strangers_most = min(strangers, most)
        self._each = min(each, self._strangers_most)
        self._known: set[Closing] = set()
        self._strangers: OrderedDict[Closing, str] = OrderedDict()
        self._by_source: dict[str, OrderedDict[Closing, None]] = {}
        self._dropped = dropped

    def __len__(self) -> int:
        return len(self._known) + len(self._strangers)

    def add(self, connection: Closing, source: str) -> None:
        """A new one; the oldest stranger makes room for it where there is none, or else it goes itself."""
        own = self._by_source.setdefault(source, OrderedDict())
        if len(own) >= self._each:
            self._drop(next(iter(own)))
        elif self._strangers and (len(self._strangers) >= self._strangers_most or len(self) >= self._most):
            self._drop(next(iter(self._strangers)))
        self._strangers[connection] = source
        self._by_source.setdefault(source, OrderedDict())[connection] = None
        if len(self) > self._most:
            self._drop(connection)

    def recognise(self, connection: Closing) -> None:
        """It has shown who it is."""
        if connection in self._strangers:
            self.remove(connection)
            self._known.add(connection)

    def remove(self, connection: Closing) -> None:
        self._known.discard(connection)
        source = self._strangers.pop(connection, None)
        if source is not None:
            own = self._by_source[source]
            del own[connection]
            if not own:
                del self._by_source[source]

    def _drop(self, connection: Closing) -> None:
        self.remove(connection)
        self._dropped()
        connection.drop()


class Refusal:
    """The first head of a connection, judged by its bytes: the whole answer to a key that is none, or None."""

    def __init__(self, is_good: Callable[[str], bool], problem: Problem, scheme: str) -> None:
        self._is_good = is_good
        answer = problem.response()
        headers = [*answer.raw_headers, *careful_headers(scheme), (b"connection", b"close")]
        lines = [
            b"HTTP/1.1 401 Unauthorized",
            *(name + b": " + value for name, value in headers),
            b"",
            bytes(answer.body),
        ]
        self._answer = b"\r\n".join(lines)

    def of(self, data: bytes) -> bytes | None:
        """None: it is for others to say; the head is not whole, the path is open, or there may be more to it."""
        end = data.find(b"\r\n\r\n")
        if end < 0 or _OPEN.match(data) or data.startswith(b"HEAD "):
            return None
        head = data[:end]
        shown = _KEY.findall(head)
        if len(shown) != 1 or len(_AUTHORIZATION.findall(head)) != 1 or self._is_good(shown[0].decode("latin-1")):
            return None
        return self._answer


def connections_most(wanted_most: int | None = None) -> int:
    """As many as there may be, after the process has raised its bound of open files as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MOST if hard == resource.RLIM_INFINITY else min(hard, FILES_MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    files = FILES_MOST if soft == resource.RLIM_INFINITY else soft
    return max(64, min(wanted_most or CONNECTIONS_MOST, files - FILES_RESERVED))
