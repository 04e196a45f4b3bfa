"""Threads of this process that wait for work, for room or for the end of a job, for stores behind a server.

A waiter registers before it queries the server, so no notification is missed. A notification from another process may
be lost, so waiters poll once a second as well, and more often while notifications do not arrive. A store implements
`_listen`, a thread that receives notifications, wakes waiters and sets `_deaf` while it is disconnected.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from threading import Event, Lock, Thread
from typing import Final, TypeVar

from forebay.core.clock import Clock
from forebay.core.errors import Closed
from forebay.core.instant import Duration, Instant
from forebay.core.limits import MAX_INSTANT

_POLL_EVERY: Final[Duration] = 1_000_000
JOIN_SECONDS: Final = 2.0

T = TypeVar("T")

Ready = Callable[[], Instant]
"""Queries the server: when there may be something."""


class _Waiter:
    """`notified`: of one of the `hints`, which is enough; otherwise the signal means to poll."""

    def __init__(self, hints: Collection[str]) -> None:
        self.signal = Event()
        self.hints = frozenset(hints)
        self.notified = False


class Waiters:
    """Waiters by queue: claimers for work, producers for room. `poll_deaf`: how often they poll while deaf."""

    def __init__(self, clock: Clock, now: Callable[[], Instant], poll_deaf: Duration) -> None:
        self._clock = clock
        self._now = now
        self._poll_deaf = poll_deaf
        self._guard = Lock()
        self._claimers: dict[str, set[_Waiter]] = {}
        self._producers: dict[str, set[_Waiter]] = {}
        self._watchers: dict[str, set[_Waiter]] = {}
        self._closing = Event()
        self._deaf = True
        self._threads: dict[str, Thread] = {}

    @property
    def listening(self) -> bool | None:
        """Whether notifications arrive; None before the first wait of this process."""
        return not self._deaf if "listen" in self._threads else None

    def close(self) -> None:
        """Wake all waiters; they find the store closed."""
        self._closing.set()
        self.poll_again()
        for thread in list(self._threads.values()):
            thread.join(JOIN_SECONDS)

    def poll_again(self) -> None:
        """Make all waiters poll: notifications may have been missed."""
        with self._guard:
            for waiters in (*self._claimers.values(), *self._producers.values(), *self._watchers.values()):
                for waiter in waiters:
                    waiter.signal.set()

    def until_work(
        self, queues: Sequence[str], end: Instant, ready: Ready, hints: Collection[str] | None = None
    ) -> bool:
        """`hints`: queues of which a notification is enough, so that the server is not queried; None: all of them."""
        return self._sleep(self._claimers, queues, end, ready, queues if hints is None else hints)

    def until_room(self, queue: str, end: Instant, ready: Ready) -> bool:
        return self._sleep(self._producers, [queue], end, ready, [queue])

    def until_found(self, topics: Sequence[str], end: Instant, find: Callable[[], list[T]]) -> list[T]:
        """What `find` returns once it is not empty. Topics are the ends of single jobs, and cancel requests."""
        found: list[T] = []

        def ready() -> Instant:
            found[:] = find()
            return 0 if found else MAX_INSTANT

        self._sleep(self._watchers, topics, end, ready)
        return found

    @property
    def watched(self) -> bool:
        """Whether a thread of this process waits for a notification of a topic."""
        return bool(self._watchers)

    @abstractmethod
    def _listen(self) -> None:
        """Receive notifications until the store is closed, across failures of connections."""

    def _wake(self, has_work: Iterable[str], has_room: Iterable[str], topics: Iterable[str] = ()) -> None:
        """Wake waiters for these queues and topics; the guard is held."""
        for waiters, names in ((self._claimers, has_work), (self._producers, has_room), (self._watchers, topics)):
            for name in names:
                for waiter in waiters.get(name, ()):
                    waiter.notified = waiter.notified or name in waiter.hints
                    waiter.signal.set()

    def _start(self, name: str, target: Callable[[], None]) -> None:
        if name in self._threads:
            return
        with self._guard:
            if name in self._threads or self._closing.is_set():
                return
            thread = self._threads[name] = Thread(target=target, name=f"forebay-{name}", daemon=True)
        thread.start()

    def _sleep(
        self,
        waiters: dict[str, set[_Waiter]],
        names: Sequence[str],
        end: Instant,
        ready: Ready,
        hints: Collection[str] = (),
    ) -> bool:
        """True: there may be something. `hints`: notifications of these are enough, others are a reason to poll."""
        self._start("listen", self._listen)
        waiter = _Waiter(hints)
        with self._guard:
            for name in names:
                waiters.setdefault(name, set()).add(waiter)
        try:
            while not waiter.notified:
                if self._closing.is_set():
                    raise Closed("the store")
                waiter.signal.clear()
                wake_at, now = ready(), self._now()
                if wake_at <= now or end <= now:
                    return wake_at <= now
                poll = self._poll_deaf if self._deaf else _POLL_EVERY
                self._clock.wait(waiter.signal, min(wake_at - now, end - now, poll))
            return True
        finally:
            with self._guard:
                for name in names:
                    waiters[name].discard(waiter)
                    if not waiters[name]:
                        del waiters[name]
