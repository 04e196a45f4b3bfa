"""Configuration of queues, gates and schedules; release of jobs from a condition; presence of workers; progress.

The rules are those of `engine.control`.
"""

from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from forebay.core.fanout import copies
from forebay.core.gate import gate_names, lane_key
from forebay.core.instant import Duration, Instant, micros
from forebay.core.job import Draft, Progress
from forebay.core.lease import Fence
from forebay.core.limits import MAX_INSTANT
from forebay.core.presence import Presence
from forebay.core.schedule import Schedule, edited
from forebay.core.spec import QueueSpec
from forebay.engine.control import fired, is_due, new_partitions
from forebay.store.postgres.intake import accept_copies
from forebay.store.postgres.maintenance import expire
from forebay.store.postgres.queries import SQL
from forebay.store.postgres.runs import text_of
from forebay.store.postgres.session import KnownSpec, Session, UnitOfWork, gate_lock_key
from forebay.store.protocol import Receipt

_COUNT_USED: Final = "SELECT forebay.count_used(%s::text[])"
_WAKE: Final = (
    "SELECT forebay.wake(%s, ARRAY(SELECT DISTINCT l.at FROM unnest(%s::text[]) AS b (name) JOIN forebay.lane AS l "
    "ON l.at = b.name OR l.at >= b.name || '/' AND l.at < b.name || '0')), forebay.sharing_queues(%s::text[])"
)

_SPECS: Final = "SELECT spec FROM forebay.queue WHERE spec IS NOT NULL ORDER BY name"
_LOCK_EDGES: Final = "SELECT pg_advisory_xact_lock(1178748738)"

_decode_schedule: Final = msgspec.json.Decoder(Schedule).decode
_WAKE_GATE: Final = "SELECT forebay.wake(%s, ARRAY[%s]), forebay.sharing_queues(ARRAY[%s])"
_ANNOUNCE: Final = (
    "WITH now AS (SELECT coalesce(%s::bigint, forebay.clock()) AS at), late AS ("
    "DELETE FROM forebay.worker AS w WHERE w.owner IN (SELECT l.owner FROM forebay.worker AS l, now "
    "WHERE l.until <= now.at AND l.owner <> %s LIMIT 100 FOR UPDATE OF l SKIP LOCKED)) "
    "INSERT INTO forebay.worker AS w (owner, since, seen_at, until, body) "
    "SELECT %s, now.at, now.at, now.at + %s, %s FROM now "
    "ON CONFLICT (owner) DO UPDATE SET since = CASE WHEN w.until > excluded.seen_at THEN w.since "
    "ELSE excluded.since END, seen_at = excluded.seen_at, until = excluded.until, body = excluded.body"
)
_WITHDRAW: Final = "DELETE FROM forebay.worker WHERE owner = %s RETURNING until > coalesce(%s::bigint, forebay.clock())"
_WORKERS: Final = (
    "SELECT body, since, seen_at FROM forebay.worker "
    "WHERE owner > %s AND until > coalesce(%s::bigint, forebay.clock()) ORDER BY owner LIMIT %s"
)
_decode_presence: Final = msgspec.json.Decoder(Presence).decode


class Control:
    """The verbs of configuration, gates, schedules, workers and progress."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def put_spec(self, spec: QueueSpec) -> None:
        new = KnownSpec(spec.name, 0, spec.to_json().decode())
        # Claims and settles of a plain queue hold its lock in shared mode, so it is always taken.
        self._session.write(lambda unit: _put_spec(unit, new), [spec.name], {new.lock_key, *new.lock_keys})
        self._session.specs.reload([spec.name])

    def pause(self, queue: str, until: Instant | None) -> None:
        self._session.write(lambda unit: _pause(unit, "resume" if until is None else "pause", queue, until))

    def put_schedule(self, schedule: Schedule) -> None:
        self._session.write(lambda unit: _put_schedule(unit, schedule))

    def drop_schedule(self, name: str) -> bool:
        return self._session.write(lambda unit: _drop_schedule(unit, name))

    def schedules(self) -> list[Schedule]:
        rows = self._session.server.query(SQL.schedules)
        return [replace(_decode_schedule(body), last_at=last_at) for body, last_at in rows]

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        return self._session.write(
            lambda unit: _fire(unit, name, tick, next_at, draft), [] if draft is None else [draft.queue]
        )

    def set_gate(self, name: str, limit: int | None) -> None:
        self._session.write(lambda unit: _set_gate(unit, name, limit), keys=[gate_lock_key(name)])

    def release(self, name: str, count: int) -> int:
        return self._session.write(lambda unit: _release(unit, name, count), keys=[gate_lock_key(name)])

    def report_progress(self, newest: dict[Fence, Progress]) -> dict[Fence, bool]:
        """A row for each job in an unlogged table: a report changes no run and writes no WAL."""
        if not newest:
            return {}
        rows = [(*fence, progress.portion, progress.note) for fence, progress in newest.items()]
        columns = [list(column) for column in zip(*rows, strict=True)]
        running = set(self._session.server.query(SQL.report, (*columns, columns[0], self._session.at)))
        return {fence: fence in running for fence in newest}

    def announce(self, presence: Presence, duration: Duration) -> None:
        owner = presence.owner
        self._session.server.query(_ANNOUNCE, (self._session.at, owner, owner, duration, text_of(presence)))

    def withdraw(self, owner: str) -> bool:
        rows = self._session.server.query(_WITHDRAW, (owner, self._session.at))
        return any(known for (known,) in rows)

    def workers(self, after: str, limit: int) -> list[Presence]:
        rows = self._session.server.query(_WORKERS, (after, self._session.at, limit))
        return [replace(_decode_presence(body), since=since, seen_at=seen_at) for body, since, seen_at in rows]


def _put_spec(unit: UnitOfWork, new: KnownSpec) -> None:
    spec = new.spec
    text, _ = unit.fetch(SQL.lock_queue, (spec.name,))[0]
    known = None if text is None else QueueSpec.from_json(text)
    has_jobs = partial(unit.fetch, SQL.any_jobs, (spec.name,) * 3)
    for number in new_partitions(known, spec, lambda: has_jobs()[0][0], lambda: _others(unit, spec)):
        unit.execute(SQL.add_partition, (spec.name, number))
    depth = unit.fetch(SQL.depth, (spec.name,))[0][0]
    unique = (micros(spec.key_window), None) if spec.unique is None else (MAX_INSTANT, spec.unique.mask)
    columns = (depth, spec.is_log, new.is_plain, spec.routing.max_attempts, *unique, new.stamper.max_dead, *new.columns)
    unit.execute(SQL.put_spec, (spec.to_json().decode(), *columns, spec.name))
    if spec.to_json().decode() != text:
        unit.builder.set_verb("put_spec", name=spec.name)
    unit.has_room.add(spec.name)
    _rebuild_lanes(unit, None if known is None else KnownSpec(spec.name, 0, text), new)


def _rebuild_lanes(unit: UnitOfWork, old: KnownSpec | None, new: KnownSpec) -> None:
    """Build lanes and turns again where they may have changed, and count again what running jobs use of caps."""
    name = new.spec.name
    if old is not None and (old.columns, old.lined) == (new.columns, new.lined):
        unit.execute(SQL.reset_turns, (name, name))
        return
    unit.execute(SQL.drop_lanes, (name,) * 3)
    lanes = [lane for (lane,) in unit.fetch(SQL.ready_lanes, (name, name))]
    if lanes and (new.laned or lanes != [""]):
        unit.lanes[name] = set(lanes)
    bases = sorted({*gate_names(new.spec), *(() if old is None else gate_names(old.spec))})
    unit.execute(_COUNT_USED, (bases,))
    for queues in unit.fetch(_WAKE, (unit.now, bases, bases))[0]:
        unit.has_work.update(queues)
    unit.has_work.add(name)


def _others(unit: UnitOfWork, spec: QueueSpec) -> list[QueueSpec]:
    """All specs, if this one has edges or may not be their target; a lock keeps other such specs out meanwhile."""
    if not (spec.is_log or spec.is_broker or spec.routing.dead is not None):
        return []
    unit.execute(_LOCK_EDGES)
    return [QueueSpec.from_json(text) for (text,) in unit.fetch(_SPECS)]


def _pause(unit: UnitOfWork, verb: str, queue: str, until: Instant | None) -> None:
    _, known = unit.fetch(SQL.lock_queue, (queue,))[0]
    unit.execute(SQL.pause, (until, queue))
    if known != until:
        unit.builder.set_verb(verb, name=queue)
    if until is None:
        unit.has_work.add(queue)


def _put_schedule(unit: UnitOfWork, schedule: Schedule) -> None:
    body, last_at = next(iter(unit.fetch(SQL.schedule, (schedule.name,))), (None, None))
    known = None if body is None else _decode_schedule(body)
    text = text_of(replace(edited(known, schedule, last_at), last_at=None))
    unit.execute(SQL.put_schedule, (schedule.name, text))
    if text != body:
        unit.builder.set_verb("put_schedule", name=schedule.name)


def _drop_schedule(unit: UnitOfWork, name: str) -> bool:
    dropped = unit.execute(SQL.drop_schedule, (name,)) > 0
    if dropped:
        unit.builder.set_verb("drop_schedule", name=name)
    return dropped


def _fire(unit: UnitOfWork, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
    body, last_at = next(iter(unit.fetch(SQL.schedule, (name,))), (None, None))
    if body is None:
        return False
    schedule = _decode_schedule(body)
    if not is_due(schedule, tick, last_at):
        return False
    receipts = [] if draft is None else _copied(unit, draft)
    unit.execute(SQL.tick, (name, text_of(fired(schedule, next_at, receipts)), tick))
    unit.builder.set_verb("fire", name=name, tick=tick)
    return True


def _copied(unit: UnitOfWork, draft: Draft) -> list[Receipt]:
    return accept_copies(copies(unit.known(draft.queue).spec, draft), {draft.queue}, unit)


def _set_gate(unit: UnitOfWork, name: str, limit: int | None) -> None:
    known = unit.fetch(SQL.gate_limit, (name,))
    if [(limit,)] != (known or [(None,)]):
        unit.builder.set_verb("set_gate", name=name)
    if limit is None:
        unit.execute(SQL.drop_gate_limit, (name,))
    else:
        unit.execute(SQL.set_gate_limit, (name, limit))
    for queues in unit.fetch(_WAKE_GATE, (unit.now, name, name))[0]:
        unit.has_work.update(queues)


def _release(unit: UnitOfWork, name: str, count: int) -> int:
    unit.require_locks([queue for (queue,) in unit.fetch(SQL.lanes_until, (name,))])
    expire(unit)
    unit.write_lanes()
    rows = unit.fetch(SQL.held_until, (unit.now, count, name, count))
    for job_id, queue, lane, cls, gates in rows:
        left = tuple(gate for gate in gates if gate != name)
        unit.execute(SQL.change_lane, (list(left) or None, lane_key(cls, left), job_id))
        unit.touch(queue, lane, None)
        unit.touch(queue, lane_key(cls, left), None)
        unit.has_work.add(queue)
    if rows:
        unit.builder.set_verb("release", name=name)
    return len(rows)
