"""The rows of jobs and queues, and every statement by its name. Lists travel as one JSON text.

`{job}` in a statement stands for the columns of `Job`, in its order; `{row}` for those of a `JobRow`; `{in_line}` for
the jobs that a line has (`engine.lines`): unfinished ones, and dead ones that block it; `{abandoned}` for whether the
last failure of a job is the loss of its worker.

A unit of work loads the queues that it touches (`QueueTable`), moves jobs between their numbers, and writes them back
in the same transaction: counters and rows cannot disagree. `SpecCache` is what a process keeps between calls: what
follows from a spec, compared with the stored spec at every use.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from forebay.core.gate import Gate, is_condition, is_shared
from forebay.core.instant import Instant
from forebay.core.job import Job
from forebay.core.lease import Lease
from forebay.core.outcome import ABANDONED, Failure
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from forebay.engine.intake import room_in
from forebay.engine.settle import Mark, errors_after
from forebay.store.sql_files import read_statements
from forebay.store.states import DEAD, READY, RUNNING, STATES, WAITING

_FIELDS: Final = Job.__struct_fields__.index("progress")
"""Those that a row has; progress is kept elsewhere."""

_MAX_INTEGER: Final = 2**63 - 1

_LANES_KNOWN: Final = 16_384
"""Lanes whose names and gates a process keeps."""

_META, _ERRORS, _STATE, _CANCEL = (
    Job.__struct_fields__.index(name) for name in ("meta", "errors", "state", "cancel_requested")
)
_encode: Final = msgspec.json.Encoder().encode
_decode_meta: Final = msgspec.json.Decoder(dict[str, str]).decode
_decode_errors: Final = msgspec.json.Decoder(tuple[Failure, ...]).decode


class JobRow(NamedTuple):
    """The columns of a job that a move from state to state needs: `{row}` in a statement, `{row}, errors` where it
    fails.

    `behind`: it waits behind the head of its line. `home`: the queue that it belongs to, even if it is dead.
    """

    id: int
    queue: str
    lane: str
    state: int
    rank: int
    due_at: Instant
    line: str | None
    blocks: int
    behind: int
    cost: int
    kind: str
    delivery: int
    attempt: int
    enqueued_at: Instant
    claimed_at: Instant
    lease_until: Instant
    cancel_requested: int
    settled_delivery: int
    settled_code: str
    rank_base: int
    rank_timed: int
    home: str
    errors: str | None = None

    @property
    def is_running(self) -> bool:
        return self.state == RUNNING

    @property
    def mark(self) -> Mark:
        return self.settled_delivery, self.settled_code


def failed(row: JobRow, error: Failure | None, at: Instant) -> str | None:
    """The failures of a job, this one included, as the column holds them."""
    if error is None:
        return row.errors
    known = () if row.errors is None else _decode_errors(row.errors)
    return text_of(errors_after(known, error, at, row.attempt))


def rows_of(found: Iterable[tuple[Any, ...]]) -> list[JobRow]:
    return [JobRow(*columns) for columns in found]


class LaneName(NamedTuple):
    """What the text of a lane says (`core.gate.lane_key`)."""

    cls: str
    gates: tuple[str, ...]


@lru_cache(maxsize=_LANES_KNOWN)
def lane_name(lane: str) -> LaneName:
    """No class has a name that begins like a JSON array."""
    if not lane.startswith("["):
        return LaneName(lane, ())
    cls, *gates = json.loads(lane)
    return LaneName(cls, tuple(gates))


def job_of(columns: Sequence[Any]) -> Job:
    """The immutable `Job` that leaves the store, from the first columns of a statement."""
    fields = list(columns[:_FIELDS])
    fields[_STATE] = STATES[fields[_STATE]]
    fields[_CANCEL] = fields[_CANCEL] == 1
    meta, errors = fields[_META], fields[_ERRORS]
    if meta is not None:
        fields[_META] = _decode_meta(meta)
    fields[_ERRORS] = () if errors is None else _decode_errors(errors)
    return Job(*fields)


def lease_of(columns: Sequence[Any]) -> Lease:
    job = job_of(columns)
    return Lease(job, job.owner or "", job.lease_until or 0)


def text_of(value: object) -> str:
    """A value as the JSON that a column holds."""
    return _encode(value).decode()


def id_list(ids: Iterable[int]) -> str:
    """Ids for `json_each`; what is no 64-bit integer is no id."""
    return str([job_id for job_id in ids if 0 < job_id <= _MAX_INTEGER])


_PICTURE: Final = ", ".join(Job.__struct_fields__[:_FIELDS]).replace("result_body", "result")
_ROW: Final = ", ".join(JobRow._fields).removesuffix(", home, errors") + ", coalesce(home, queue)"
_KIND: Final = Failure.__struct_fields__.index("kind")
_ABANDONED: Final = f"coalesce(json_extract(errors, '$[#-1][{_KIND}]'), '') = '{ABANDONED}'"
_IN_LINE: Final = "line IS NOT NULL AND (state < 3 OR state = 4 AND blocks = 1)"


@cache
def statements() -> dict[str, str]:
    """Every statement by its name."""
    words = {"job": _PICTURE, "row": _ROW, "in_line": _IN_LINE, "abandoned": _ABANDONED}
    return read_statements("forebay.store.sqlite", ("jobs.sql", "queues.sql", "logs.sql"), words)


def statement(name: str) -> str:
    return statements()[name]


_QUEUE: Final = statement("queue")
_PUT_QUEUE: Final = statement("put_queue")


class KnownSpec:
    """What follows from one stored spec."""

    __slots__ = ("_gates", "stamper", "text", "whole_caps")

    def __init__(self, name: str, text: str | None) -> None:
        self.text = text
        self.stamper = Stamper(QueueSpec(name=name) if text is None else QueueSpec.from_json(text))
        self.whole_caps = tuple(gate.name for gate in self.stamper.whole if not gate.step)
        self._gates: dict[str, tuple[Gate, ...]] = {}

    def gates(self, lane: str) -> tuple[Gate, ...]:
        """The gates of a lane that the spec still has."""
        if not lane.startswith("["):
            return ()
        found = self._gates.get(lane)
        if found is None:
            found = self.stamper.gates(lane_name(lane).gates)
            if len(self._gates) >= _LANES_KNOWN:
                self._gates.clear()
            self._gates[lane] = found
        return found

    def caps(self, lane: str) -> tuple[str, ...]:
        """The caps whose slots a running job of a lane takes."""
        return self.whole_caps + tuple(gate.name for gate in self.gates(lane) if not gate.step)


class SpecCache:
    """Specs by queue. `walked`: the last key examined of those that are taken by the state of their job."""

    def __init__(self) -> None:
        self._known: dict[str, KnownSpec] = {}
        self.walked = ("", "")

    def of(self, name: str, text: str | None) -> KnownSpec:
        known = self._known.get(name)
        if known is None or known.text != text:
            known = self._known[name] = KnownSpec(name, text)
        return known

    def held_by(self, gate: str) -> list[str]:
        """The queues that a gate holds as a whole, of those in this process's cache."""
        _, of = gate.split("/", 1)
        if "/" in of or is_condition(gate):
            return []
        if not is_shared(gate):
            return [of]
        return [name for name, known in self._known.items() if any(each.name == gate for each in known.stamper.whole)]


class QueueCounters:
    """A queue's row. `counts` by the number of the state; `laned`: ready jobs in other lanes than ''."""

    __slots__ = ("changed", "counts", "keys", "known", "laned", "name", "paused_until", "turn")

    def __init__(
        self,
        name: str,
        known: KnownSpec,
        paused_until: Instant | None,
        laned: int,
        turn: int,
        keys: int,
        counts: list[int],
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
        return room_in(self.spec, self.depth)

    @property
    def spec(self) -> QueueSpec:
        return self.known.stamper.spec


class QueueTable:
    """The queues of one unit of work. `with_work`: how many jobs became ready; `with_room`: where producers may fit."""

    def __init__(self, connection: sqlite3.Connection, specs: SpecCache) -> None:
        self._connection = connection
        self._queues: dict[str, QueueCounters] = {}
        self.specs = specs
        self.with_work: dict[str, int] = {}
        self.with_room: dict[str, None] = {}

    def queue(self, name: str) -> QueueCounters:
        queue = self._queues.get(name)
        if queue is None:
            found = self._connection.execute(_QUEUE, (name,)).fetchone()
            spec, paused_until, laned, turn, keys, *counts = found or (None, None, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            known = self.specs.of(name, spec)
            queue = self._queues[name] = QueueCounters(name, known, paused_until, laned, turn, keys, counts)
        return queue

    def configure(self, name: str, text: str) -> None:
        queue = self.queue(name)
        queue.known = self.specs.of(name, text)
        queue.changed = True

    def moved(self, name: str, lane: str, was: int | None, to: int | None, count: int = 1) -> None:
        """Jobs changed their state; None: they are new, or gone."""
        queue = self.queue(name)
        queue.changed = True
        if was is not None:
            queue.counts[was] -= count
            if was == READY and lane:
                queue.laned -= count
            if was <= RUNNING and (to is None or to > RUNNING):
                self.with_room[name] = None
        if to is not None:
            queue.counts[to] += count
            if to == READY:
                self.with_work[name] = self.with_work.get(name, 0) + count
                if lane:
                    queue.laned += count

    def over_dead_limit(self) -> list[str]:
        """The queues of this unit that have more dead letters than they keep."""
        queues = self._queues.values()
        return [each.name for each in queues if 0 < (each.known.stamper.max_dead or 0) < each.counts[DEAD]]

    def write(self) -> None:
        for queue in self._queues.values():
            if queue.changed:
                text, stamper = queue.known.text, queue.known.stamper
                spec = (text, queue.paused_until, stamper.max_dead, stamper.paced)
                row = (queue.name, *spec, queue.laned, queue.turn, queue.keys, *queue.counts)
                self._connection.execute(_PUT_QUEUE, row)
