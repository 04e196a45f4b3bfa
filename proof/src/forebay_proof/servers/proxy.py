"""`Proxy`: a TCP proxy on loopback that breaks connections exactly where a test wants it.

Promise. `with Proxy(host, port) as proxy:` forwards every connection to `proxy.port`, byte for byte, until it is set
otherwise. A call has taken effect when it returns. One thread does all the work, so what it does to one connection is
in one order, and `close` ends it. A `ProxiedConnection` is a pair of sockets; a `Trap` decides how many of the bytes at
hand may pass. At most `BUFFER_BYTES` are held for each direction of a connection.

    cut()                       every connection is reset now
    cut_after(n)                n bytes of one connection go to the server (or back), then both sides lose it
    cut_before(pattern)         the server never gets the whole of the pattern: whatever it asks for does not happen
    lose_reply(pattern)         the server gets it and answers; the answer is swallowed and then the client is cut off
    freeze(), thaw()            nothing is forwarded, nothing is closed; later all of it goes on, nothing is lost
    step(n)                     while frozen: n bytes of each direction of each connection, and no more
    mute(pattern), unmute()     those connections alone are frozen whose last words to the server were these
    refuse(), admit()           new connections are refused, those that exist go on

The three in the middle set a `Trap`: it strikes once, on the first connection that gets there. `lose_reply` cuts the
client only after the answer has come, so when the client sees the error, the server has done it. A pattern with
`outage=True` takes the whole way down in that same moment: every other connection is reset, and new ones are refused
until `admit()`.

What can go wrong: it sees bytes, not messages. Under TLS no pattern matches; in a pipeline the first bytes back may
answer something earlier, and `answer` then says what to wait for.
"""

import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from forebay_proof.servers.lifetime import Lifetime
from forebay_proof.servers.process import LOOPBACK, PATIENCE, free_port

T = TypeVar("T")

_BACKLOG: Final = 64
BUFFER_BYTES: Final = 65_536
MAX_PATTERN: Final = 256

_ABORT: Final = struct.pack("ii", 1, 0)


class Trap:
    """One fault that waits for its moment."""

    def __init__(self, outage: bool = False) -> None:
        self.outage: Final = outage
        self._struck = Event()

    @property
    def struck(self) -> bool:
        return self._struck.is_set()

    def wait(self, seconds: float = PATIENCE) -> bool:
        """Whether it has struck by then; the connection is cut when this returns True."""
        return self._struck.wait(seconds)

    def strike(self) -> None:
        self._struck.set()


@dataclass(slots=True, eq=False)
class Direction:
    """One direction of a connection."""

    source: socket.socket
    target: socket.socket
    waiting: bytearray = field(default_factory=bytearray)
    passed: int = 0
    recent: bytes = b""
    ended: bool = False
    shut: bool = False

    def push(self) -> None:
        """Send what waits, and the end of the source after it."""
        with suppress(BlockingIOError):
            while self.waiting:
                del self.waiting[: self.target.send(self.waiting)]
        if self.ended and not self.waiting and not self.shut:
            self.shut = True
            self.target.shutdown(socket.SHUT_WR)


@dataclass(slots=True, eq=False)
class ProxiedConnection:
    """A connection of a client, and ours to the server for it."""

    up: Direction
    down: Direction
    connecting: bool = True
    doom: tuple[Trap, Direction] | None = None
    losing: "Pattern | None" = None
    received: bytes = b""
    muted: bool = False

    @property
    def client(self) -> socket.socket:
        return self.up.source

    @property
    def server(self) -> socket.socket:
        return self.up.target

    def mute(self, pattern: bytes) -> bool:
        """Whether it is mute now, and was not before."""
        before, self.muted = self.muted, self.muted or pattern in self.up.recent
        return self.muted and not before

    def unmute(self) -> bool:
        """Whether it was mute."""
        before, self.muted = self.muted, False
        return before

    def interest(self, flow: Direction, back: Direction) -> int:
        """What to wait for on the source of `flow`, which is the target of `back`."""
        if self.muted:
            return 0
        reads = self.doom is None and not flow.ended and len(flow.waiting) < BUFFER_BYTES
        writes = bool(back.waiting) or (self.connecting and flow is self.down)
        return (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0)


class CountTrap(Trap):
    def __init__(self, count: int, replies: bool, already: dict[Direction, int]) -> None:
        super().__init__()
        self._count = count
        self._replies = replies
        self._already = already

    def allows(self, link: ProxiedConnection, flow: Direction, data: bytes) -> int | None:
        """How many bytes may still pass if this is the moment, else None."""
        left = self._count + self._already.get(flow, 0) - flow.passed
        return left if (flow is link.down) == self._replies and len(data) >= left else None


class Pattern(Trap):
    def __init__(self, pattern: bytes, nth: int, answer: bytes | None, outage: bool) -> None:
        """With `answer` the reply is lost, without it the pattern."""
        super().__init__(outage)
        if not 0 < len(pattern) <= MAX_PATTERN or len(answer or b"") > MAX_PATTERN or nth < 1:
            raise ValueError(f"a pattern has 1 to {MAX_PATTERN} bytes, and nth counts from 1")
        self._pattern = pattern
        self._left = nth
        self._answer = answer

    @property
    def loses_the_reply(self) -> bool:
        return self._answer is not None

    def is_answered(self, received: bytes) -> bool:
        return bool(received) and (self._answer or b"") in received

    def allows(self, link: ProxiedConnection, flow: Direction, data: bytes) -> int | None:
        """As for `CountTrap`. The start of a pattern that is split has passed by then; its last byte has not."""
        if flow is link.down:
            return None
        keep = len(self._pattern) - 1
        overlap = flow.recent[-keep:] if keep else b""
        window, at = overlap + data, -1
        while (at := window.find(self._pattern, at + 1)) >= 0:
            self._left -= 1
            if self._left == 0:
                return max(0, at - len(overlap))
        return None


def abort(end: socket.socket) -> None:
    """Close it so that the other side sees a reset."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    end.close()


def finish(end: socket.socket) -> None:
    """Close it so that the other side still gets all that was sent: unread bytes would turn this into a reset."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_WR)
        while end.recv(BUFFER_BYTES):
            pass
    end.close()


class Proxy(Lifetime):
    def __init__(self, host: str, port: int) -> None:
        self.host: Final = LOOPBACK
        self.port: Final = free_port()
        self._upstream = (host, port)
        self._links: dict[ProxiedConnection, None] = {}
        self._traps: list[CountTrap | Pattern] = []
        self._frozen = False
        self._closing = False
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._listener: socket.socket | None = None
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._thread = Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)

    def _begin(self) -> None:
        self.start()

    def start(self) -> None:
        self._open()
        self._thread.start()

    def close(self) -> None:
        """Reset every connection and end the thread. Again: nothing happens."""
        if self._thread.is_alive():
            self._call(self._end)
            self._thread.join(PATIENCE)
        self._wake_receiver.close()
        self._wake_sender.close()
        if self._thread.is_alive():
            raise RuntimeError("the thread of the proxy did not end")

    def url(self, url: str) -> str:
        """The same URL, through the proxy."""
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login}{at}{self.host}:{self.port}").geturl()

    @property
    def connections(self) -> int:
        return self._call(lambda: len(self._all()))

    def cut(self) -> int:
        """Reset every connection; how many there were."""
        return self._call(lambda: sum(self._drop(link) for link in self._all()))

    def cut_after(self, count: int, *, replies: bool = False) -> Trap:
        """Cut when so many bytes, counted from now, went to the server, or with `replies` to the client."""

        def arm() -> Trap:
            already = {flow: flow.passed for link in self._links for flow in (link.up, link.down)}
            return self._arm(CountTrap(count, replies, already))

        return self._call(arm)

    def cut_before(self, pattern: bytes, *, nth: int = 1, outage: bool = False) -> Trap:
        """Cut when these bytes are about to reach the server for the nth time from now."""
        trap = Pattern(pattern, nth, None, outage)
        return self._call(lambda: self._arm(trap))

    def lose_reply(self, pattern: bytes, *, nth: int = 1, answer: bytes = b"", outage: bool = False) -> Trap:
        """Let these bytes reach the server, and cut when its reply (or `answer` in it) has come, which is swallowed."""
        trap = Pattern(pattern, nth, answer, outage)
        return self._call(lambda: self._arm(trap))

    def disarm(self) -> None:
        """Forget the traps that have not been entered."""
        self._call(self._traps.clear)

    def freeze(self) -> None:
        self._call(lambda: setattr(self, "_frozen", True))

    def thaw(self) -> None:
        self._call(lambda: setattr(self, "_frozen", False))

    def step(self, count: int) -> int:
        """Let so many bytes of each direction pass, though all is frozen; how many did."""
        return self._call(lambda: sum(self._step(link, count) for link in self._all()))

    def mute(self, pattern: bytes) -> int:
        """Freeze the connections on which the client said this last; how many. They stay open: half open."""
        return self._call(lambda: sum(link.mute(pattern) for link in self._all()))

    def unmute(self) -> None:
        self._call(lambda: [link.unmute() for link in self._links])

    def speaking(self, pattern: bytes) -> int:
        """How many connections on which the client said this last are not muted."""
        return self._call(lambda: sum(pattern in link.up.recent and not link.muted for link in self._all()))

    def refuse(self) -> None:
        self._call(self._shut)

    def admit(self) -> None:
        self._call(self._open)

    def _call(self, command: Callable[[], T]) -> T:
        """Run it in the thread, between two events."""
        future: Future[T] = Future()
        self._commands.append((command, future))
        if not self._thread.is_alive():
            raise RuntimeError("the proxy is not running")
        self._wake_sender.send(b".")
        return future.result(PATIENCE)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        finally:
            self._shut()
            for link in list(self._links):
                self._drop(link)

    def _turn(self) -> None:
        poll = select.poll()
        ready: dict[int, Callable[[], None]] = {self._wake_receiver.fileno(): self._obey}
        poll.register(self._wake_receiver, select.POLLIN)
        if not self._frozen:
            if self._listener is not None:
                ready[self._listener.fileno()] = self._accept
                poll.register(self._listener, select.POLLIN)
            for link in self._links:
                for flow, back in ((link.up, link.down), (link.down, link.up)):
                    if mask := link.interest(flow, back):
                        ready[flow.source.fileno()] = partial(self._move, link, flow, back)
                        poll.register(flow.source, mask)
        events = [fd for fd, _ in poll.poll()]
        for fd in [self._wake_receiver.fileno()] if self._wake_receiver.fileno() in events else events:
            ready[fd]()

    def _obey(self) -> None:
        self._wake_receiver.recv(BUFFER_BYTES)
        while self._commands:
            command, future = self._commands.popleft()
            try:
                future.set_result(command())
            except Exception as error:
                future.set_exception(error)

    def _end(self) -> None:
        self._closing = True

    def _arm(self, trap: CountTrap | Pattern) -> Trap:
        self._traps.append(trap)
        return trap

    def _open(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((self.host, self.port), backlog=_BACKLOG)
            self._listener.setblocking(False)

    def _shut(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        """Take every client that has connected."""
        with suppress(BlockingIOError):
            while self._listener is not None:
                client, _ = self._listener.accept()
                server = socket.socket()
                for end in (client, server):
                    end.setblocking(False)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server.connect_ex(self._upstream)
                self._links[ProxiedConnection(Direction(client, server), Direction(server, client))] = None

    def _all(self) -> list[ProxiedConnection]:
        """Also those that the kernel has accepted and we have not."""
        self._accept()
        return list(self._links)

    def _drop(self, link: ProxiedConnection) -> bool:
        abort(link.client)
        abort(link.server)
        del self._links[link]
        return True

    def _move(self, link: ProxiedConnection, flow: Direction, back: Direction) -> None:
        """Something happened on the source of `flow`: send to it what waits, take what it has."""
        if link not in self._links:
            return
        try:
            if link.connecting and flow is link.down:
                link.connecting = False
                if error := link.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise ConnectionError(error)
            back.push()
            if link.interest(flow, back) & select.POLLIN:
                self._take(link, flow)
            self._conclude(link)
        except OSError:
            self._drop(link)

    def _take(self, link: ProxiedConnection, flow: Direction) -> None:
        try:
            data = flow.source.recv(BUFFER_BYTES)
        except BlockingIOError:
            return
        flow.ended = not data
        flow.waiting += self._judge(link, flow, data) if data else b""
        if not (link.connecting and flow is link.up):
            flow.push()

    def _step(self, link: ProxiedConnection, count: int) -> int:
        try:
            return sum(self._sip(link, flow, count) for flow in (link.up, link.down))
        except OSError:
            return 0 * self._drop(link)

    def _sip(self, link: ProxiedConnection, flow: Direction, count: int) -> int:
        """At most so many bytes of one direction."""
        if link.connecting or flow.ended:
            return 0
        with suppress(BlockingIOError):
            if not flow.waiting:
                data = flow.source.recv(count)
                flow.ended = not data
                flow.waiting += self._judge(link, flow, data) if data else b""
            sent = flow.target.send(flow.waiting[:count])
            del flow.waiting[:sent]
            return sent
        return 0

    def _judge(self, link: ProxiedConnection, flow: Direction, data: bytes) -> bytes:
        """What of these bytes may pass."""
        if link.losing is not None and flow is link.down:
            link.received = link.received[-MAX_PATTERN:] + data
            return b""
        for trap in self._traps:
            allowed = trap.allows(link, flow, data)
            if allowed is None:
                continue
            self._traps.remove(trap)
            if isinstance(trap, Pattern) and trap.loses_the_reply:
                link.losing = trap
            else:
                link.doom = (trap, flow)
                data = data[:allowed]
            break
        flow.passed += len(data)
        flow.recent = (flow.recent + data)[-MAX_PATTERN:]
        return data

    def _conclude(self, link: ProxiedConnection) -> None:
        """Cut it if its moment has come; forget it if both sides are done."""
        if link.losing is not None and (link.down.ended or link.losing.is_answered(link.received)):
            link.doom = (link.losing, link.up)
        if link.doom is not None and not link.doom[1].waiting:
            trap, flow = link.doom
            del self._links[link]
            if trap.outage:
                others = self._all()
                self._shut()
                for other in others:
                    self._drop(other)
            finish(flow.target)
            abort(flow.source)
            trap.strike()
        elif link.up.shut and link.down.shut:
            finish(link.server)
            finish(link.client)
            del self._links[link]
