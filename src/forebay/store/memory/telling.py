"""What the ledger says of an event, worked out from the facts just before the event is applied to them.

One place for all verbs: whatever is written into the journal is told, in the same record, or it moves no job and
changes nothing that has a name.
"""

from collections.abc import Callable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from forebay.core.event import (
    Acked,
    Cancelled,
    Claimed,
    Died,
    Dismissed,
    Enqueued,
    Event,
    Extended,
    Fired,
    GateReleased,
    GateSet,
    LedgerRuled,
    Newer,
    Paused,
    Promoted,
    Purged,
    Redriven,
    Released,
    Retried,
    ScheduleDropped,
    SchedulePut,
    SettledAll,
    SpecPut,
)
from forebay.core.instant import Instant
from forebay.core.ledger import Change, Record, Trait
from forebay.core.scribe import Scribe
from forebay.store.memory.facts import Facts
from forebay.store.memory.row import Row

_BEFORE: Final = attrgetter("entry.queue", "entry.kind", "delivery", "attempt", "enqueued_at", "due_at")
_TURN: Final = attrgetter("entry.queue", "entry.kind", "delivery", "attempt", "enqueued_at", "due_at", "claimed_at")
_ID: Final = attrgetter("id")
_KEPT_UNTIL: Final = attrgetter("kept_until")
_DUE_AT: Final = attrgetter("due_at")

_VERDICTS: Final[Mapping[type, tuple[Change, Callable[[Any], Instant], bool]]] = {
    Acked: (Change.ACKED, _KEPT_UNTIL, False),
    Dismissed: (Change.DISMISSED, _KEPT_UNTIL, False),
    Released: (Change.RELEASED, _DUE_AT, True),
    Retried: (Change.RETRIED, _DUE_AT, True),
    Died: (Change.DIED, lambda _: 0, True),
}
"""What an ending is called, what its instant is, and whether it may have an error."""


def record_of(facts: Facts, event: Event) -> Record | None:
    """The record, or None for an event that is not the ledger's business."""
    tell = _TELLERS.get(type(event))
    if tell is None:
        return None
    scribe = Scribe(event.at)
    tell(facts, event, scribe)
    return scribe.record()


def _enqueued(facts: Facts, event: Enqueued, scribe: Scribe) -> None:
    if event.mended or event.entries or event.merged:
        scribe.tell("mend" if event.mended else "enqueue")
    for job_id in event.mended:
        _gone(facts.rows[job_id], Change.PURGED, scribe)
    _accepted(facts, event, scribe)


def _fired(facts: Facts, event: Fired, scribe: Scribe) -> None:
    scribe.tell("fire", name=event.name, tick=event.tick)
    _accepted(facts, event, scribe)


def _accepted(facts: Facts, event: Enqueued | Fired, scribe: Scribe) -> None:
    for job_id in event.shed:
        _gone(facts.rows[job_id], Change.SHED, scribe)
    scribe.accepted(event.entries)
    born = {entry.id: entry for entry in event.entries}
    for merge in event.merged:
        entry = born.get(merge.id) or facts.rows[merge.id].entry
        newer = merge.newer or Newer()
        told = Trait(tenant=entry.tenant, subject=entry.subject, key=merge.key, priority=newer.priority)
        facts_of_time = (0, 0, 0, 0, newer.due_at) if newer.due_at else ()
        scribe.job(Change.MERGED, merge.id, entry.queue, merge.kind, *facts_of_time, trait=told)


def _promoted(facts: Facts, event: Promoted, scribe: Scribe) -> None:
    for job_id in event.expired:
        _gone(facts.rows[job_id], Change.EXPIRED, scribe)


def _claimed(facts: Facts, event: Claimed, scribe: Scribe) -> None:
    scribe.tell("claim", owner=event.owner)
    rows = [facts.rows[job_id] for job_id in event.ids]
    for (queue, kind, delivery, attempt, enqueued_at, due_at), alike in groupby(rows, _BEFORE):
        ids = [row.entry.id for row in alike]
        turn = (queue, kind, delivery + 1, attempt + 1, 0, enqueued_at, due_at, event.at, event.until)
        scribe.jobs(Change.CLAIMED, ids, *turn)


def _extended(facts: Facts, event: Extended, scribe: Scribe) -> None:
    scribe.tell("extend")
    _running(Change.EXTENDED, [facts.rows[job_id] for job_id in event.ids], event.until, scribe)


def _settled(facts: Facts, event: SettledAll, scribe: Scribe) -> None:
    """By ids: jobs that were settled together are mostly neighbours."""
    scribe.tell("settle")
    rows = facts.rows
    for kind, some in groupby(sorted(event.endings, key=_ID), type):
        change, until_of, fails = _VERDICTS[kind]
        for until, alike in groupby(some, until_of):
            endings = list(alike)
            traits = [_error(ending) for ending in endings] if fails else None
            if traits is not None and not any(traits):
                traits = None
            _running(change, [rows[ending.id] for ending in endings], until, scribe, traits)


def _error(ending: Any) -> Trait | None:
    return None if ending.error is None else Trait(error_kind=ending.error.kind, error=ending.error.message)


def _running(
    change: Change, rows: list[Row], until: Instant, scribe: Scribe, traits: list[Trait | None] | None = None
) -> None:
    done = 0
    for (queue, kind, delivery, attempt, *instants), alike in groupby(rows, _TURN):
        ids = [row.entry.id for row in alike]
        own = None if traits is None else traits[done : done + len(ids)]
        scribe.jobs(change, ids, queue, kind, delivery, attempt, 0, *instants, until, traits=own)
        done += len(ids)


def _cancelled(facts: Facts, event: Cancelled, scribe: Scribe) -> None:
    asked = [row for job_id in event.asked if not (row := facts.rows[job_id]).cancel_requested]
    if event.ids or asked:
        scribe.tell("cancel")
    for job_id, kept_until in zip(event.ids, event.kept_until, strict=True):
        _gone(facts.rows[job_id], Change.CANCELLED, scribe, kept_until)
    _running(Change.ASKED, asked, 0, scribe)


def _redriven(facts: Facts, event: Redriven, scribe: Scribe) -> None:
    scribe.tell("redrive")
    for job_id in event.ids:
        _gone(facts.rows[job_id], Change.REDRIVEN, scribe, event.at)


def _purged(facts: Facts, event: Purged, scribe: Scribe) -> None:
    if not event.outlived:
        scribe.tell("purge")
    for job_id in event.ids:
        _gone(facts.rows[job_id], Change.PURGED, scribe)


def _gone(row: Row, change: Change, scribe: Scribe, until: Instant = 0) -> None:
    """A job that nobody holds; a dead one belongs to the queue that it died in, wherever it lies."""
    scribe.job(change, row.entry.id, row.queue, row.entry.kind, 0, 0, 0, 0, 0, 0, until)


def _spec_put(facts: Facts, event: SpecPut, scribe: Scribe) -> None:
    if facts.specs.get(event.spec.name) != event.spec:
        scribe.tell("put_spec", name=event.spec.name)


def _paused(facts: Facts, event: Paused, scribe: Scribe) -> None:
    if facts.paused.get(event.queue) != event.until:
        scribe.tell("resume" if event.until is None else "pause", name=event.queue)


def _gate_set(facts: Facts, event: GateSet, scribe: Scribe) -> None:
    if facts.gate_limits.get(event.name) != event.limit:
        scribe.tell("set_gate", name=event.name)


def _gate_released(_: Facts, event: GateReleased, scribe: Scribe) -> None:
    scribe.tell("release", name=event.gate)


def _schedule_put(facts: Facts, event: SchedulePut, scribe: Scribe) -> None:
    if facts.schedules.get(event.schedule.name) != event.schedule:
        scribe.tell("put_schedule", name=event.schedule.name)


def _schedule_dropped(_: Facts, event: ScheduleDropped, scribe: Scribe) -> None:
    scribe.tell("drop_schedule", name=event.name)


def _ledger_ruled(facts: Facts, event: LedgerRuled, scribe: Scribe) -> None:
    """The switch itself is told: the last record before a silence, and the first one after it."""
    if facts.ledger.on != event.on:
        scribe.tell("put_ledger_rule", name="on" if event.on else "off")


_TELLERS: Final[Mapping[type, Callable[[Facts, Any, Scribe], None]]] = {
    Enqueued: _enqueued,
    Promoted: _promoted,
    Claimed: _claimed,
    Extended: _extended,
    SettledAll: _settled,
    Cancelled: _cancelled,
    Redriven: _redriven,
    Purged: _purged,
    SpecPut: _spec_put,
    Paused: _paused,
    GateSet: _gate_set,
    GateReleased: _gate_released,
    SchedulePut: _schedule_put,
    ScheduleDropped: _schedule_dropped,
    Fired: _fired,
    LedgerRuled: _ledger_ruled,
}
