"""Who sleeps in this process until there is work or room, for stores behind a server.

Whoever sleeps is known before the server is asked, so no news is missed; but a hint may get lost on its way from other
processes, so sleepers look again once a second anyway, and more often while nothing is heard. How news arrives is the
store's own business: it starts a thread by `_listen`, which wakes sleepers and says whether it is `_deaf`.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from threading import Event, Lock, Thread
from typing import Final

from forebay.core.clock import Clock
from forebay.core.errors import Closed
from forebay.core.instant import Instant, Span

_LOOK_EVERY: Final[Span] = 1_000_000
JOIN_SECONDS: Final = 2.0

Ready = Callable[[], Instant]
"""When there may be something, as the server says now."""


class _Sleeper:
    """`news`: there may be something. Without it the signal only means to look again. `hints`: whose news suffice."""

    def __init__(self, hints: Collection[str]) -> None:
        self.signal = Event()
        self.hints = frozenset(hints)
        self.news = False


class Sleeping:
    """Sleepers by queue: claimers for work, producers for room. `look_deaf`: how long they sleep while it is deaf."""

    def __init__(self, clock: Clock, now: Callable[[], Instant], look_deaf: Span) -> None:
        self._clock = clock
        self._now = now
        self._look_deaf = look_deaf
        self._guard = Lock()
        self._claimers: dict[str, set[_Sleeper]] = {}
        self._producers: dict[str, set[_Sleeper]] = {}
        self._watchers: dict[str, set[_Sleeper]] = {}
        self._closing = Event()
        self._deaf = True
        self._threads: dict[str, Thread] = {}

    @property
    def hears(self) -> bool | None:
        """Whether news arrives; None while nobody here has waited for any."""
        return not self._deaf if "listen" in self._threads else None

    def close(self) -> None:
        """Sleepers wake up and find the store closed."""
        self._closing.set()
        self.look_again()
        for thread in list(self._threads.values()):
            thread.join(JOIN_SECONDS)

    def look_again(self) -> None:
        """News may have been missed."""
        with self._guard:
            for sleepers in (*self._claimers.values(), *self._producers.values(), *self._watchers.values()):
                for sleeper in sleepers:
                    sleeper.signal.set()

    def until_work(
        self, queues: Sequence[str], end: Instant, ready: Ready, hints: Collection[str] | None = None
    ) -> bool:
        """`hints`: queues whose news alone are enough; None: all of them."""
        return self._sleep(self._claimers, queues, end, ready, queues if hints is None else hints)

    def until_room(self, queue: str, end: Instant, ready: Ready) -> bool:
        return self._sleep(self._producers, [queue], end, ready, [queue])

    def until_news_of(self, topics: Sequence[str], end: Instant, ready: Ready) -> bool:
        """Topics are what becomes of single jobs, and what is asked of one holder."""
        return self._sleep(self._watchers, topics, end, ready)

    @property
    def watched(self) -> bool:
        """Whether anybody here waits for news of a topic."""
        return bool(self._watchers)

    @abstractmethod
    def _listen(self) -> None:
        """Hear what others say until the store is closed, whatever becomes of connections."""

    def _wake(self, news: Iterable[str], eased: Iterable[str], topics: Iterable[str] = ()) -> None:
        """Queues that may have work, queues that may have room, topics with news; the guard is held."""
        for rooms, queues in ((self._claimers, news), (self._producers, eased), (self._watchers, topics)):
            for queue in queues:
                for sleeper in rooms.get(queue, ()):
                    sleeper.news = sleeper.news or queue in sleeper.hints
                    sleeper.signal.set()

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
        rooms: dict[str, set[_Sleeper]],
        queues: Sequence[str],
        end: Instant,
        ready: Ready,
        hints: Collection[str] = (),
    ) -> bool:
        """True: there may be something. `hints`: news of these suffice; of others they are a reason to look."""
        self._start("listen", self._listen)
        sleeper = _Sleeper(hints)
        with self._guard:
            for queue in queues:
                rooms.setdefault(queue, set()).add(sleeper)
        try:
            while not sleeper.news:
                if self._closing.is_set():
                    raise Closed("the store")
                sleeper.signal.clear()
                wake_at, now = ready(), self._now()
                if wake_at <= now or end <= now:
                    return wake_at <= now
                look = self._look_deaf if self._deaf else _LOOK_EVERY
                self._clock.wait(sleeper.signal, min(wake_at - now, end - now, look))
            return True
        finally:
            with self._guard:
                for queue in queues:
                    rooms[queue].discard(sleeper)
                    if not rooms[queue]:
                        del rooms[queue]
