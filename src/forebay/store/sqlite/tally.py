"""The counters of queues, kept by the verbs, so that no verb counts a million rows to show a number.

A turn loads the queues that it touches, moves jobs between the numbers, and writes them back in the same transaction:
counters and rows cannot disagree. `Knowledge` is what a process remembers between calls: what follows from a spec,
compared with the stored spec at every use.
"""

import sqlite3
from typing import Final

from forebay.core.gate import Gate
from forebay.core.instant import Instant
from forebay.core.limits import DEPTH_MOST
from forebay.core.policy import Bounded
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import lane_name
from forebay.store.states import DEAD, READY, RUNNING, WAITING

_LANES_KNOWN: Final = 4_096
_QUEUE: Final = statement("queue")
_PUT_QUEUE: Final = statement("put_queue")


class Known:
    """What follows from one stored spec."""

    __slots__ = ("_gates", "dead_most", "paced", "stamper", "text", "whole_caps")

    def __init__(self, name: str, text: str | None) -> None:
        spec = QueueSpec(name=name) if text is None else QueueSpec.from_json(text)
        self.text = text
        self.stamper = Stamper(spec)
        self.dead_most = None if spec.routing.dead is None else spec.routing.dead.most
        self.paced = any(gate.step for gate in self.stamper.whole)
        self.whole_caps = tuple(gate.name for gate in self.stamper.whole if not gate.step)
        self._gates: dict[str, tuple[Gate, ...]] = {}

    def gates(self, lane: str) -> tuple[Gate, ...]:
        """The gates of a lane that the spec still has."""
        if not lane.startswith("["):
            return ()
        found = self._gates.get(lane)
        if found is None:
            named = (self.stamper.gate(name) for name in lane_name(lane).gates)
            found = tuple(gate for gate in named if gate is not None)
            if len(self._gates) >= _LANES_KNOWN:
                self._gates.clear()
            self._gates[lane] = found
        return found

    def caps(self, lane: str) -> tuple[str, ...]:
        """The caps whose slots a running job of a lane takes."""
        return self.whole_caps + tuple(gate.name for gate in self.gates(lane) if not gate.step)


class Knowledge:
    """Specs by queue. `walked`: how far the keys that are taken by state were looked through."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self.walked = ("", "")

    def of(self, name: str, text: str | None) -> Known:
        known = self._known.get(name)
        if known is None or known.text != text:
            known = self._known[name] = Known(name, text)
        return known

    def held_by(self, gate: str) -> list[str]:
        """The queues that a gate holds as a whole, as far as this process knows them."""
        _, of = gate.split("/", 1)
        if "/" in of or gate.startswith("until/"):
            return []
        if not of.startswith("@"):
            return [of]
        return [name for name, known in self._known.items() if any(each.name == gate for each in known.stamper.whole)]


class QueueCounters:
    """One queue during one turn. `counts` by the number of the state; `laned`: ready jobs in other lanes than ''."""

    __slots__ = ("changed", "counts", "keys", "known", "laned", "name", "paused_until", "turn")

    def __init__(
        self, name: str, known: Known, paused_until: Instant | None, laned: int, turn: int, keys: int, counts: list[int]
    ) -> None:
        self.name = name
        self.known = known
        self.paused_until = paused_until
        self.laned = laned
        self.turn = turn
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
        self._queues: dict[str, QueueCounters] = {}
        self.knowledge = knowledge
        self.news: dict[str, int] = {}
        self.eased: dict[str, None] = {}

    def queue(self, name: str) -> QueueCounters:
        queue = self._queues.get(name)
        if queue is None:
            found = self._connection.execute(_QUEUE, (name,)).fetchone()
            spec, paused_until, laned, turn, keys, *counts = found or (None, None, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            known = self.knowledge.of(name, spec)
            queue = self._queues[name] = QueueCounters(name, known, paused_until, laned, turn, keys, counts)
        return queue

    def configure(self, name: str, text: str) -> None:
        queue = self.queue(name)
        queue.known = self.knowledge.of(name, text)
        queue.changed = True

    def moved(self, name: str, lane: str, was: int | None, to: int | None, count: int = 1) -> None:
        """Jobs went from one state to another; None: they were not there before, or are gone."""
        queue = self.queue(name)
        queue.changed = True
        if was is not None:
            queue.counts[was] -= count
            if was == READY and lane:
                queue.laned -= count
            if was <= RUNNING and (to is None or to > RUNNING):
                self.eased[name] = None
        if to is not None:
            queue.counts[to] += count
            if to == READY:
                self.news[name] = self.news.get(name, 0) + count
                if lane:
                    queue.laned += count

    def crowded(self) -> list[str]:
        """The queues of this turn in which more dead lie than they keep."""
        queues = self._queues.values()
        return [each.name for each in queues if each.known.dead_most and each.counts[DEAD] > each.known.dead_most]

    def write(self) -> None:
        for queue in self._queues.values():
            if queue.changed:
                known = queue.known
                spec = (known.text, queue.paused_until, known.dead_most, known.paced)
                row = (queue.name, *spec, queue.laned, queue.turn, queue.keys, *queue.counts)
                self._connection.execute(_PUT_QUEUE, row)
