"""The verbs around jobs: looking at them, configuring queues, gates and schedules, and sleeping until there is work.

Looking reads one durable state on a connection of its own: it waits for no writer, and no writer waits for it.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from forebay.core.errors import Invalid, WrongQueueKind
from forebay.core.fanout import copies
from forebay.core.instant import Instant, Span
from forebay.core.job import Draft, Job, State
from forebay.core.limits import AHEAD_MOST, BLOCKED_MOST, INSTANT_MOST
from forebay.core.policy import Retained, While
from forebay.core.schedule import Schedule, edited
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from forebay.engine.lanes import closed_of
from forebay.store.brokers import became
from forebay.store.checks import LAST, check_neighbours
from forebay.store.protocol import Backlog, Page, Query, Totals
from forebay.store.sqlite.fronts import workable_at
from forebay.store.sqlite.gate_verbs import GateVerbs
from forebay.store.sqlite.gates import Gates
from forebay.store.sqlite.intake import accept
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import id_list, picture, text_of
from forebay.store.sqlite.shedding import mark_all
from forebay.store.sqlite.tally import Known, QueueCounters, Tally
from forebay.store.sqlite.turn import Turn
from forebay.store.states import READY, STATES

_PROBES: Final = 5_000
"""How many jobs one page looks at, found or not: a page is never a long read."""

_PICTURES: Final = statement("pictures")
_PAGE: Final = statement("page")
_PAGE_END: Final = statement("page_end")
_PAGE_HELD: Final = statement("page_held")
_DEAD_END: Final = statement("dead_end")
_PAGE_DEAD: Final = statement("page_dead")
_ANY_AFTER: Final = statement("any_after")
_QUEUES: Final = statement("queues")
_QUEUE_NAMES: Final = statement("queue_names")
_TOTALS: Final = statement("totals")
_DEEPEST: Final = statement("deepest")
_SPECS: Final = statement("specs")
_EXPIRED_KEYS: Final = statement("expired_keys")
_FREE_KEYS: Final = statement("free_keys")
_OLDEST_PLAIN: Final = statement("oldest_plain")
_OLDEST_ODD: Final = statement("oldest_odd")
_BLOCKED_LINES: Final = statement("blocked_lines")
_ADD_PARTITION: Final = statement("add_partition")
_SCHEDULES: Final = statement("schedules")
_SCHEDULE: Final = statement("schedule")
_PUT_SCHEDULE: Final = statement("put_schedule")
_DROP_SCHEDULE: Final = statement("drop_schedule")
_TICK: Final = statement("tick")
_NEXT_DUE: Final = statement("next_due")
_NEXT_OPENING: Final = statement("next_opening")
_HELD_JOBS: Final = statement("held_jobs")
_RUNNING_LANES: Final = statement("running_lanes")
_NEXT_LEASE: Final = statement("next_lease")
_GROWN: Final = statement("grown")

_decode_schedule: Final = msgspec.json.Decoder(Schedule).decode


class QueueVerbs(GateVerbs):
    """Observation and configuration."""

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        with self._read() as (reader, _):
            found = {columns[0]: columns for columns in reader.execute(_PICTURES, (id_list(ids),))}
        return [picture(found[job_id]) if job_id in found else None for job_id in ids]

    def browse(self, query: Query, after: int, limit: int) -> Page:
        after = max(0, min(after, INSTANT_MOST))
        state = None if query.state is None else STATES.index(query.state)
        wanted = (query.queue, state, query.kind, query.tenant, query.subject, query.suspect)
        with self._read() as (reader, _):
            if query.state is State.RUNNING:
                held = (after, query.queue, query.kind, query.tenant, query.subject, query.suspect, limit)
                jobs = [picture(columns) for columns in reader.execute(_PAGE_HELD, held)]
                return Page(jobs, jobs[-1].id if len(jobs) == limit else None)
            until, page = (_DEAD_END, _PAGE_DEAD) if query.state is State.DEAD else (_PAGE_END, _PAGE)
            end = reader.execute(until, (after, _PROBES - 1)).fetchone()
            last = INSTANT_MOST if end is None else end[0]
            jobs = [picture(columns) for columns in reader.execute(page, (after, last, *wanted, limit))]
            if len(jobs) == limit:
                last = jobs[-1].id
            elif end is None:
                return Page(jobs, None)
            (more,) = reader.execute(_ANY_AFTER, (last,)).fetchone()
        return Page(jobs, last if more else None)

    def backlog(self, queues: Sequence[str] | None) -> list[Backlog]:
        with self._read() as (reader, now):
            names = [name for (name,) in reader.execute(_QUEUES)] if queues is None else queues
            tally = Tally(reader, self._known)
            return [_backlog(reader, tally.queue(name), now) for name in names]

    def queues(self, after: str, limit: int, prefix: str) -> list[str]:
        with self._read() as (reader, _):
            return [name for (name,) in reader.execute(_QUEUE_NAMES, (after, prefix, prefix + LAST, limit))]

    def totals(self, limit: int) -> Totals:
        with self._read() as (reader, now):
            counts = reader.execute(_TOTALS).fetchone()
            names = [name for (name,) in reader.execute(_DEEPEST, (limit,))]
            tally = Tally(reader, self._known)
            return Totals([_backlog(reader, tally.queue(name), now) for name in names], *counts)

    def put_spec(self, spec: QueueSpec) -> None:
        self._write(lambda turn: _put_spec(turn, spec))

    def pause(self, queue: str, until: Instant | None) -> None:
        self._write(lambda turn: _pause(turn, "resume" if until is None else "pause", queue, until))

    def put_schedule(self, schedule: Schedule) -> None:
        self._write(lambda turn: _put_schedule(turn, schedule))

    def drop_schedule(self, name: str) -> bool:
        return self._write(lambda turn: _drop_schedule(turn, name))

    def schedules(self) -> list[Schedule]:
        with self._read() as (reader, _):
            return [replace(_decode_schedule(body), last_at=last_at) for body, last_at in reader.execute(_SCHEDULES)]

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        return self._write(lambda turn: _fire(turn, name, tick, next_at, draft))

    def wait(self, queues: Sequence[str], span: Span) -> bool:
        growth = Growth(queues)
        now = self.now()
        return self._sleepers.until_work(
            queues,
            now + span,
            lambda reader: (
                0 if growth.seen(reader) else _work_at(Tally(reader, self._known), reader, queues, self.now())
            ),
        )


class Growth:
    """Whether one of these is a log that grew since the first look: a process that appends cannot tell another."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = text_of(list(names))
        self._first: float | None = None

    def seen(self, reader: sqlite3.Connection) -> bool:
        (total,) = reader.execute(_GROWN, (self._names,)).fetchone()
        self._first = total if self._first is None else self._first
        return bool(total > self._first)


def _work_at(tally: Tally, reader: sqlite3.Connection, queues: Sequence[str], now: Instant) -> Instant:
    """When a claim or a reaping may next find something, as far as is known."""
    gates = Gates(reader, now)
    found = [reader.execute(each).fetchone() for each in (_NEXT_DUE, _NEXT_LEASE, _NEXT_OPENING)]
    instants = [INSTANT_MOST, *(at for (at,) in filter(None, found) if at is not None)]
    for name in queues:
        queue = tally.queue(name)
        if queue.counts[READY]:
            instants.append(max(workable_at(reader, gates, queue, now), queue.paused_until or 0))
    earliest: Instant = min(instants)
    return earliest


def _backlog(reader: sqlite3.Connection, queue: QueueCounters, now: Instant) -> Backlog:
    name = queue.name
    waiting, ready, running, done, dead, cancelled = queue.counts
    oldest = now
    if ready:
        odd = reader.execute(_OLDEST_ODD, (name,)).fetchone()[0]
        oldest = now if odd is None else min(now, odd)
        plain = reader.execute(_OLDEST_PLAIN, (name, oldest)).fetchone()
        oldest = oldest if plain is None else plain[0]
    (blocked,) = reader.execute(_BLOCKED_LINES, (name, BLOCKED_MOST)).fetchone()
    paused_until = queue.paused_until
    return Backlog(
        name,
        waiting,
        ready,
        running,
        done,
        dead,
        cancelled,
        oldest_age=now - oldest,
        paused_until=paused_until if paused_until is not None and paused_until > now else None,
        keys=queue.keys - _free_keys(reader, queue, now) if queue.keys else 0,
        held=_held(reader, queue, now) if ready else 0,
        blocked=blocked,
    )


def _held(reader: sqlite3.Connection, queue: QueueCounters, now: Instant) -> int:
    """Ready jobs behind a closed gate: all, where one of the whole queue is closed, else those of parked lanes."""
    whole, gates = queue.known.stamper.whole, Gates(reader, now)
    gates.load(gate.name for gate in whole)
    if closed_of([(gate, gates.state(gate.name)) for gate in whole], 1, now) is not None:
        return int(queue.counts[READY])
    held: int = reader.execute(_HELD_JOBS, (queue.name, AHEAD_MOST, now)).fetchone()[0]
    return held


def _free_keys(reader: sqlite3.Connection, queue: QueueCounters, now: Instant) -> int:
    """Keys that are still remembered and no longer taken."""
    unique = queue.spec.unique or While()
    expired: int = reader.execute(_EXPIRED_KEYS, (now, queue.name)).fetchone()[0]
    free: int = reader.execute(_FREE_KEYS, (INSTANT_MOST, queue.name, unique.mask)).fetchone()[0]
    return expired + free


def _put_spec(turn: Turn, spec: QueueSpec) -> None:
    queue = turn.queue(spec.name)
    known = queue.spec if queue.known.text is not None else None
    if known is not None and known.is_log != spec.is_log:
        raise WrongQueueKind(spec.name, known.is_log)
    if spec.is_log and known is None and any(queue.counts):
        raise WrongQueueKind(spec.name, is_log=False)
    if known is not None and _partitions(spec) < _partitions(known):
        raise Invalid(spec.name, "a log cannot lose partitions", "keep them, or start a new log")
    check_neighbours(spec, _specs(turn))
    have = 0 if known is None else _partitions(known)
    for number in range(have, _partitions(spec)):
        turn.connection.execute(_ADD_PARTITION, (spec.name, number))
    if Stamper(spec).sheds and not queue.known.stamper.sheds and any(queue.counts):
        mark_all(turn, spec.name)
    text = spec.to_json().decode()
    if turn.scribe is not None and text != queue.known.text:
        turn.scribe.tell("put_spec", name=spec.name)
    before = queue.known
    turn.tally.configure(spec.name, text)
    if before.stamper.spec.eligibility != spec.eligibility:
        _count_again(turn, queue, before)
        turn.lanes.open_all(queue)
    elif before.stamper.spec.share is not None or spec.share is not None:
        turn.lanes.open_all(queue)
    turn.tally.eased[spec.name] = None


def _count_again(turn: Turn, queue: QueueCounters, before: Known) -> None:
    """What running jobs use of gates, by the terms that the spec has now."""
    for lane, cost in turn.connection.execute(_RUNNING_LANES, (queue.name,)).fetchall():
        for name in before.caps(lane):
            turn.gates.give_back(name, cost)
        for name in queue.known.caps(lane):
            turn.gates.give_back(name, -cost)
            turn.gates.state(name).queue = queue.name


def _specs(turn: Turn) -> list[QueueSpec]:
    return [QueueSpec.from_json(text) for (text,) in turn.connection.execute(_SPECS)]


def _pause(turn: Turn, verb: str, queue: str, until: Instant | None) -> None:
    counters = turn.queue(queue)
    if counters.paused_until != until:
        counters.paused_until, counters.changed = until, True
        if turn.scribe is not None:
            turn.scribe.tell(verb, name=queue)
    if until is None and counters.counts[READY]:
        turn.tally.news[queue] = counters.counts[READY]


def _put_schedule(turn: Turn, schedule: Schedule) -> None:
    body, last_at = turn.connection.execute(_SCHEDULE, (schedule.name,)).fetchone() or (None, None)
    known = None if body is None else _decode_schedule(body)
    text = text_of(replace(edited(known, schedule, last_at), last_at=None))
    turn.connection.execute(_PUT_SCHEDULE, (schedule.name, text))
    if turn.scribe is not None and text != body:
        turn.scribe.tell("put_schedule", name=schedule.name)


def _drop_schedule(turn: Turn, name: str) -> bool:
    dropped = turn.connection.execute(_DROP_SCHEDULE, (name,)).rowcount > 0
    if dropped and turn.scribe is not None:
        turn.scribe.tell("drop_schedule", name=name)
    return dropped


def _fire(turn: Turn, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
    body, last_at = turn.connection.execute(_SCHEDULE, (name,)).fetchone() or (None, None)
    if body is None:
        return False
    schedule = _decode_schedule(body)
    if schedule.paused or schedule.next_at != tick or tick <= (-1 if last_at is None else last_at):
        return False
    receipts = [] if draft is None else accept(turn, copies(turn.queue(draft.queue).spec, draft))
    last_job = became(receipts) or schedule.last_job
    turn.connection.execute(_TICK, (name, text_of(replace(schedule, next_at=next_at, last_job=last_job)), tick))
    if turn.scribe is not None:
        turn.scribe.tell("fire", name=name, tick=tick)
    return True


def _partitions(spec: QueueSpec) -> int:
    return spec.retention.partitions if isinstance(spec.retention, Retained) else 0
