"""The parts of the proxy: connections, the two directions of each, and the traps that end them.

A `Link` is a pair of sockets and knows nothing of other links; a trap says how many of the bytes at hand may still
pass, or that its moment has not come. Only the thread of the proxy touches them, but for `Trap.wait`.
"""

import select
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Final

from forebay_proof.servers.process import PATIENCE

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
class Flow:
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
class Link:
    """A connection of a client, and ours to the server for it."""

    up: Flow
    down: Flow
    connecting: bool = True
    doom: tuple[Trap, Flow] | None = None
    losing: "Pattern | None" = None
    heard: bytes = b""
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

    def interest(self, flow: Flow, back: Flow) -> int:
        """What to wait for on the source of `flow`, which is the target of `back`."""
        if self.muted:
            return 0
        reads = self.doom is None and not flow.ended and len(flow.waiting) < BUFFER_BYTES
        writes = bool(back.waiting) or (self.connecting and flow is self.down)
        return (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0)


class Count(Trap):
    def __init__(self, count: int, replies: bool, already: dict[Flow, int]) -> None:
        super().__init__()
        self._count = count
        self._replies = replies
        self._already = already

    def allows(self, link: Link, flow: Flow, data: bytes) -> int | None:
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

    def is_answered(self, heard: bytes) -> bool:
        return bool(heard) and (self._answer or b"") in heard

    def allows(self, link: Link, flow: Flow, data: bytes) -> int | None:
        """As for `Count`. The start of a pattern that is split has passed by then; its last byte has not."""
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
