"""The verbs around jobs: looking at them, configuring queues, gates and schedules, and sleeping until there is work.

Looking takes no lock: it waits for no writer, and no writer waits for it.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from forebay.core.errors import Invalid, WrongQueueKind
from forebay.core.fanout import copies
from forebay.core.gate import gate_names
from forebay.core.instant import Instant, Span, micros
from forebay.core.job import Draft, Job
from forebay.core.limits import ID_MOST, INSTANT_MOST
from forebay.core.policy import Retained
from forebay.core.schedule import Schedule, edited
from forebay.core.spec import QueueSpec
from forebay.store.brokers import became
from forebay.store.checks import LAST, check_neighbours
from forebay.store.postgres.base import SPECS, Turn
from forebay.store.postgres.browsing import browse
from forebay.store.postgres.connect import array_of
from forebay.store.postgres.gate_verbs import GateVerbs
from forebay.store.postgres.intake import accept_copies
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import ended_job, text_of
from forebay.store.postgres.specs import Known, is_plain
from forebay.store.protocol import Backlog, Page, Query, Receipt, Totals

_ENDED: Final = statement("ended")
_BACKLOG: Final = statement("backlog")
_BACKLOGS: Final = statement("backlogs")
_QUEUE_NAMES: Final = statement("queue_names")
_TOTALS: Final = statement("totals")
_SUMS: Final = 7
_LOCK_QUEUE: Final = statement("lock_queue")
_ANY_JOBS: Final = statement("any_jobs")
_PUT_SPEC: Final = statement("put_spec")
_DEPTH: Final = statement("depth")
_PAUSE: Final = statement("pause")
_WORK_AT: Final = statement("work_at")
_ADD_PARTITION: Final = statement("add_partition")
_DROP_LANES: Final = statement("drop_lanes")
_RESET_TURNS: Final = statement("reset_turns")
_READY_LANES: Final = statement("ready_lanes")
_COUNT_USED: Final = "SELECT forebay.count_used(%s::text[])"
_WAKE: Final = (
    "SELECT forebay.wake(%s, ARRAY(SELECT DISTINCT l.at FROM unnest(%s::text[]) AS b (name) JOIN forebay.lane AS l "
    "ON l.at = b.name OR l.at >= b.name || '/' AND l.at < b.name || '0')), forebay.sharing(%s::text[])"
)
_SCHEDULES: Final = statement("schedules")
_SCHEDULE: Final = statement("schedule")
_PUT_SCHEDULE: Final = statement("put_schedule")
_DROP_SCHEDULE: Final = statement("drop_schedule")
_TICK: Final = statement("tick")

_LOCK_EDGES: Final = "SELECT pg_advisory_xact_lock(1178748738)"

_decode_schedule: Final = msgspec.json.Decoder(Schedule).decode


class QueueVerbs(GateVerbs):
    """Observation and configuration."""

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        known = [job_id for job_id in ids if 0 < job_id <= ID_MOST]
        self._empty_inbox()
        found = self._pictures(known)
        missing = [job_id for job_id in known if job_id not in found]
        if missing:
            found |= {row[0]: ended_job(row) for row in self._server.query(_ENDED, (missing, self.now()))}
        return [found.get(job_id) for job_id in ids]

    def browse(self, query: Query, after: int, limit: int) -> Page:
        """One page looks at a bounded number of jobs, found or not."""
        self._empty_inbox()
        return browse(self._server, query, after, limit, self.now())

    def backlog(self, queues: Sequence[str] | None) -> list[Backlog]:
        self._empty_inbox()
        now = self.now()
        names = None if queues is None else list(queues)
        which = (_BACKLOGS, (now,) * 3) if names is None else (_BACKLOG, (now, names, names, names, now, names, now))
        found = {row[0]: row for row in self._server.query(*which)}
        return [_backlog(found[name], now) for name in (found if names is None else names)]

    def queues(self, after: str, limit: int, prefix: str) -> list[str]:
        self._empty_inbox()
        page = self._server.query(_QUEUE_NAMES, (self.now(), after, prefix, prefix + LAST, limit))
        return [name for (name,) in page]

    def totals(self, limit: int) -> Totals:
        self._empty_inbox()
        now = self.now()
        rows = self._server.query(_TOTALS, (now, limit, now, now))
        counts = [int(count) for count in rows[0][:_SUMS]] if rows else [0] * _SUMS
        return Totals([_backlog(row[_SUMS:], now) for row in rows], *counts)

    def put_spec(self, spec: QueueSpec) -> None:
        new = Known(spec.name, 0, spec.to_json().decode())
        # Its own lock in any case: claims and settles of a plain queue share it.
        self._write(lambda turn: _put_spec(turn, new), [spec.name], {new.key, *new.keys})
        self._specs.reload([spec.name])

    def pause(self, queue: str, until: Instant | None) -> None:
        self._write(lambda turn: _pause(turn, "resume" if until is None else "pause", queue, until))

    def put_schedule(self, schedule: Schedule) -> None:
        self._write(lambda turn: _put_schedule(turn, schedule))

    def drop_schedule(self, name: str) -> bool:
        return self._write(lambda turn: _drop_schedule(turn, name))

    def schedules(self) -> list[Schedule]:
        rows = self._server.query(_SCHEDULES)
        return [replace(_decode_schedule(body), last_at=last_at) for body, last_at in rows]

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        return self._write(lambda turn: _fire(turn, name, tick, next_at, draft), [] if draft is None else [draft.queue])

    def wait(self, queues: Sequence[str], span: Span) -> bool:
        # Where gates may hold jobs, news are a reason to look and no more.
        hints = [queue for queue in queues if not self._specs.of(queue).keys]
        return self._sleepers.until_work(queues, self.now() + span, lambda: self._work_at(queues), hints)

    def _work_at(self, queues: Sequence[str]) -> Instant:
        """When a claim or a reaping may next find something, as far as is known."""
        fronts = [self._fronts.get(queue) for queue in queues]
        floors = [(None, None) if front is None else front.known for front in fronts]
        leads, others = (array_of([each[place] for each in floors]) for place in range(2))
        asked = (self._at, list(queues), leads, others, *self._past.floors())
        *instants, stirs = self._server.query(_WORK_AT, asked)[0]
        if stirs:
            return 0
        known = [at for at in instants if at is not None]
        return min(known, default=INSTANT_MOST)


def _backlog(row: Sequence[Any], now: Instant) -> Backlog:
    name, waiting, ready, running, done, dead, cancelled, oldest, paused_until, keys, held, blocked = row
    age = 0 if oldest is None else max(0, now - oldest)
    paused = paused_until if paused_until is not None and paused_until > now else None
    counts = (int(waiting), int(ready), int(running), done, dead, cancelled)
    return Backlog(name, *counts, age, paused, keys, int(held), blocked)


def _put_spec(turn: Turn, new: Known) -> None:
    spec = new.spec
    text, _ = turn.fetch(_LOCK_QUEUE, (spec.name,))[0]
    known = None if text is None else QueueSpec.from_json(text)
    if known is not None and known.is_log != spec.is_log:
        raise WrongQueueKind(spec.name, known.is_log)
    if spec.is_log and known is None and turn.fetch(_ANY_JOBS, (spec.name, spec.name))[0][0]:
        raise WrongQueueKind(spec.name, is_log=False)
    if known is not None and _partitions(spec) < _partitions(known):
        raise Invalid(spec.name, "a log cannot lose partitions", "keep them, or start a new log")
    check_neighbours(spec, _others(turn, spec))
    have = 0 if known is None else _partitions(known)
    for number in range(have, _partitions(spec)):
        turn.execute(_ADD_PARTITION, (spec.name, number))
    depth = turn.fetch(_DEPTH, (spec.name,))[0][0]
    unique = (micros(spec.key_window), None) if spec.unique is None else (INSTANT_MOST, spec.unique.mask)
    known_to_sql = (spec.is_log, is_plain(spec), spec.routing.max_attempts, *unique, *new.sql)
    turn.execute(_PUT_SPEC, (spec.to_json().decode(), depth, *known_to_sql, spec.name))
    if spec.to_json().decode() != text:
        turn.scribe.tell("put_spec", name=spec.name)
    turn.eased.add(spec.name)
    _rearrange(turn, None if known is None else Known(spec.name, 0, text), new)


def _rearrange(turn: Turn, old: Known | None, new: Known) -> None:
    """Lanes and turns begin anew where they may have changed, and what running jobs use of caps is counted again."""
    name = new.spec.name
    if old is not None and (old.sql, old.lined) == (new.sql, new.lined):
        turn.execute(_RESET_TURNS, (name, name))
        return
    turn.execute(_DROP_LANES, (name,) * 3)
    lanes = [lane for (lane,) in turn.fetch(_READY_LANES, (name, name))]
    if lanes and (new.laned or lanes != [""]):
        turn.lanes[name] = set(lanes)
    bases = sorted({*gate_names(new.spec), *(() if old is None else gate_names(old.spec))})
    turn.execute(_COUNT_USED, (bases,))
    for queues in turn.fetch(_WAKE, (turn.now, bases, bases))[0]:
        turn.news.update(queues)
    turn.news.add(name)


def _others(turn: Turn, spec: QueueSpec) -> list[QueueSpec]:
    """All specs, if this one has edges or no edge may lead to it; then nobody else puts such a spec meanwhile."""
    if not (spec.is_log or spec.is_broker or spec.routing.dead is not None):
        return []
    turn.execute(_LOCK_EDGES)
    return [QueueSpec.from_json(text) for (text,) in turn.fetch(SPECS)]


def _pause(turn: Turn, verb: str, queue: str, until: Instant | None) -> None:
    _, known = turn.fetch(_LOCK_QUEUE, (queue,))[0]
    turn.execute(_PAUSE, (until, queue))
    if known != until:
        turn.scribe.tell(verb, name=queue)
    if until is None:
        turn.news.add(queue)


def _put_schedule(turn: Turn, schedule: Schedule) -> None:
    body, last_at = next(iter(turn.fetch(_SCHEDULE, (schedule.name,))), (None, None))
    known = None if body is None else _decode_schedule(body)
    text = text_of(replace(edited(known, schedule, last_at), last_at=None))
    turn.execute(_PUT_SCHEDULE, (schedule.name, text))
    if text != body:
        turn.scribe.tell("put_schedule", name=schedule.name)


def _drop_schedule(turn: Turn, name: str) -> bool:
    dropped = turn.execute(_DROP_SCHEDULE, (name,)) > 0
    if dropped:
        turn.scribe.tell("drop_schedule", name=name)
    return dropped


def _fire(turn: Turn, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
    body, last_at = next(iter(turn.fetch(_SCHEDULE, (name,))), (None, None))
    if body is None:
        return False
    schedule = _decode_schedule(body)
    if schedule.paused or schedule.next_at != tick or tick <= (-1 if last_at is None else last_at):
        return False
    receipts = [] if draft is None else _copied(turn, draft)
    last_job = became(receipts) or schedule.last_job
    turn.execute(_TICK, (name, text_of(replace(schedule, next_at=next_at, last_job=last_job)), tick))
    turn.scribe.tell("fire", name=name, tick=tick)
    return True


def _copied(turn: Turn, draft: Draft) -> list[Receipt]:
    return accept_copies(copies(turn.known(draft.queue).spec, draft), {draft.queue}, turn)


def _partitions(spec: QueueSpec) -> int:
    return spec.retention.partitions if isinstance(spec.retention, Retained) else 0
