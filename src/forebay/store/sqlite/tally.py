"""The counters of queues and classes, kept by the verbs, so that nobody counts a million rows to show a number.

A turn loads the queues that it touches, moves jobs between the numbers, and writes them back in the same transaction:
counters and rows cannot disagree. `Knowledge` is what a process remembers between calls: the stamps of a spec, compared
with the stored spec at every use, and the turns of fair shares. It starts anew when a claim is rolled back.
"""

import sqlite3
from collections.abc import Callable, Iterable
from typing import Final

from forebay.core.instant import Instant
from forebay.core.limits import DEPTH_MOST
from forebay.core.policy import Bounded
from forebay.core.share import Share, start_of
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from forebay.store.sqlite.queries import statement
from forebay.store.states import READY, RUNNING, WAITING

_QUEUE: Final = statement("queue")
_PUT_QUEUE: Final = statement("put_queue")
_CLASS_MOVED: Final = statement("class_moved")
_CLASS_LEFT: Final = statement("class_left")


class Turns:
    """Who is next among the classes of one queue, as far as this process has seen them join."""

    __slots__ = ("seen", "share")

    def __init__(self, spec: QueueSpec, number: int) -> None:
        start = start_of(number)
        self.share = Share(spec.share.weights, spec.share.default, start) if spec.share else Share({}, start=start)
        self.seen = 0


class Known:
    """What follows from one stored spec."""

    __slots__ = ("dead_most", "stamper", "text", "turns")

    def __init__(self, name: str, text: str | None) -> None:
        spec = QueueSpec(name=name) if text is None else QueueSpec.from_json(text)
        self.text = text
        self.stamper = Stamper(spec)
        self.turns: Turns | None = None
        self.dead_most = None if spec.routing.dead is None else spec.routing.dead.most


class Knowledge:
    """Specs and turns by queue. `dealt`: turns were taken that are not committed yet."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self.dealt = False
        self.walked = ("", "")

    def of(self, name: str, text: str | None) -> Known:
        known = self._known.get(name)
        if known is None or known.text != text:
            known = self._known[name] = Known(name, text)
        return known

    def committed(self) -> None:
        self.dealt = False

    def rolled_back(self) -> None:
        """Turns that were not taken after all start anew."""
        if self.dealt:
            self._known.clear()
        self.dealt = False


class Line:
    """One queue during one turn. `counts` by the number of the state."""

    __slots__ = ("changed", "classed", "counts", "keys", "known", "name", "paused_until")

    def __init__(
        self, name: str, known: Known, paused_until: Instant | None, classed: int, keys: int, counts: list[int]
    ) -> None:
        self.name = name
        self.known = known
        self.paused_until = paused_until
        self.classed = classed
        self.keys = keys
        self.counts = counts
        self.changed = False

    @property
    def depth(self) -> int:
        """What counts against the capacity."""
        return self.counts[WAITING] + self.counts[READY] + self.counts[RUNNING]

    @property
    def room(self) -> int:
        """How many more jobs fit in."""
        capacity = self.spec.capacity
        return capacity.limit - self.depth if isinstance(capacity, Bounded) else DEPTH_MOST

    @property
    def spec(self) -> QueueSpec:
        return self.known.stamper.spec


class Tally:
    """The queues of one turn. `news`: jobs that became ready; `eased`: queues that may have room again."""

    def __init__(self, connection: sqlite3.Connection, knowledge: Knowledge) -> None:
        self._connection = connection
        self._knowledge = knowledge
        self._lines: dict[str, Line] = {}
        self._classes: dict[tuple[str, str], int] = {}
        self._joining: set[tuple[str, str]] = set()
        self.news: dict[str, int] = {}
        self.eased: dict[str, None] = {}

    @property
    def walked(self) -> tuple[str, str]:
        """How far the keys that are taken by state were looked through."""
        return self._knowledge.walked

    @walked.setter
    def walked(self, key: tuple[str, str]) -> None:
        self._knowledge.walked = key

    def line(self, name: str) -> Line:
        line = self._lines.get(name)
        if line is None:
            found = self._connection.execute(_QUEUE, (name,)).fetchone()
            spec, paused_until, classed, keys, *counts = found or (None, None, 0, 0, 0, 0, 0, 0, 0, 0)
            line = self._lines[name] = Line(name, self._knowledge.of(name, spec), paused_until, classed, keys, counts)
        return line

    def turns(self, line: Line, number: Callable[[], int]) -> Turns:
        """Whose turn it is in this queue; now they count as taken. Who deals for the first time has a number."""
        self._knowledge.dealt = True
        if line.known.turns is None:
            line.known.turns = Turns(line.spec, number())
        return line.known.turns

    def configure(self, name: str, text: str) -> None:
        line = self.line(name)
        line.known = self._knowledge.of(name, text)
        line.changed = True

    def moved(self, queue: str, cls: str, was: int | None, to: int | None, count: int = 1) -> None:
        """Jobs went from one state to another; None: they were not there before, or are gone."""
        line = self.line(queue)
        line.changed = True
        if was is not None:
            line.counts[was] -= count
            if was == READY and cls:
                self._class(line, cls, -count)
            if was <= RUNNING and (to is None or to > RUNNING):
                self.eased[queue] = None
        if to is not None:
            line.counts[to] += count
            if to == READY:
                self.news[queue] = self.news.get(queue, 0) + count
                if cls:
                    self._class(line, cls, count)

    def starting(self, queues: Iterable[str]) -> None:
        """A claim of these may find somebody at a rate."""
        for queue in queues:
            self.news[queue] = self.news.get(queue, 0) + 1

    def join(self, classes: Iterable[tuple[str, str]]) -> None:
        """A rate lets somebody of these classes (queue, class) start."""
        for name in classes:
            self._joining.add(name)
            self._classes.setdefault(name, 0)

    def write_classes(self, next_join: int) -> int:
        """Write the numbers of the classes; returns the next number for one that joins."""
        for (queue, cls), change in self._classes.items():
            if change or (queue, cls) in self._joining:
                self._connection.execute(_CLASS_MOVED, (queue, cls, change, next_join))
                next_join += 1
                if change < 0:
                    self._connection.execute(_CLASS_LEFT, (queue, cls))
        self._classes.clear()
        self._joining.clear()
        return next_join

    def write_queues(self) -> None:
        rows = [
            (line.name, line.known.text, line.paused_until, line.known.dead_most, line.classed, line.keys, *line.counts)
            for line in self._lines.values()
            if line.changed
        ]
        for row in rows:
            self._connection.execute(_PUT_QUEUE, row)

    def _class(self, line: Line, cls: str, change: int) -> None:
        line.classed += change
        self._classes[line.name, cls] = self._classes.get((line.name, cls), 0) + change
