"""What a change does: to the facts, in the ledger's record, and to waiters. One rule a kind of change.

`apply` is the only code that changes facts. A live call and a recovery apply the same change sets through it, so a
recovered store equals the one that crashed. It trusts them: verbs check before they plan a change, and recovery reads
what was checked then. A row that leaves the table is given a final state first: heaps may still hold it and check
its state.

`record_of` makes the ledger's record from a change set and the facts just before it is applied. One place for all
verbs: a change in the journal has its record in the same entry, or it moves no job and changes nothing that has a
name.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby, islice
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from forebay.core.changeset import PASSED, PROMOTED, WITHDRAWN, ChangeSet, JobChange, StoredRecord, TableChanges
from forebay.core.entries import Replaced
from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.ledger import Change, Record, Trait
from forebay.core.outcome import OUT_OF_TIME, Failure
from forebay.core.record_builder import MAINTAIN, RecordBuilder
from forebay.core.stamp import rank_at
from forebay.engine.intake import GAVE_WAY, KEYS_SWEPT, KeyFact
from forebay.engine.settle import MARK_CODES, attempts_after, errors_after, rank_after
from forebay.store.memory.facts import Facts, JobRow

Topic: TypeAlias = int | str
"""What a watcher waits for: a job, by its id, or an owner."""

V = TypeVar("V")

_TATS_SWEPT: Final = 2
_ACKED: Final = MARK_CODES[Change.ACKED]
_READY, _WAITING, _RUNNING = State.READY, State.WAITING, State.RUNNING


def apply(facts: Facts, change: ChangeSet, record: StoredRecord | None = None) -> None:
    for each in change.jobs:
        RULES[each.change].apply(facts, change, each)
    if change.entries or change.merges:
        _accept(facts, change)
    if change.tables is not None:
        _put(facts, change.tables, change.at)
    if change.log is not None:
        facts.logs.apply(change.log, change.at)
    if change.ledger is not None:
        facts.ledger.apply(change.ledger)
    if record is not None:
        facts.ledger.add(record)
    facts.last_at = change.at


def record_of(facts: Facts, change: ChangeSet) -> Record | None:
    """The record, or None for a change that is not the ledger's business."""
    builder = RecordBuilder(change.at)
    if change.verb != MAINTAIN:
        builder.set_verb(change.verb, owner=change.owner, name=change.name, tick=change.tick)
    # By ids: jobs that were moved together mostly have consecutive ids.
    for each in sorted(change.jobs, key=_first):
        rule = RULES[each.change]
        if rule.record is not None:
            rule.record(builder, change, each, [facts.rows[job_id] for job_id in sorted(each.ids)])
    builder.accepted(change.entries)
    new = {entry.id: entry for entry in change.entries} if change.merges else {}
    for merge in change.merges:
        entry = new.get(merge.id) or facts.rows[merge.id].entry
        newer = merge.newer or Replaced()
        own = Trait(tenant=entry.tenant, subject=entry.subject, key=merge.key, priority=newer.priority)
        due_at = (0, 0, 0, 0, newer.due_at) if newer.due_at else ()
        builder.job(Change.MERGED, merge.id, entry.queue, merge.kind, *due_at, trait=own)
    return builder.record()


def topics(facts: Facts, change: ChangeSet) -> Iterator[Topic]:
    """Jobs whose end is waited for, and owners of jobs that are to end. After the change is applied."""
    for each in change.jobs:
        if RULES[each.change].ends:
            yield from each.ids
        elif each.change == Change.CANCEL_REQUESTED:
            yield from {owner for job_id in each.ids if (owner := facts.rows[job_id].owner) is not None}


class Rule(NamedTuple):
    """What a change of jobs is. `record` None: the ledger has no record of it. `ends`: it wakes waiters for the end."""

    apply: Callable[[Facts, ChangeSet, JobChange], None]
    record: Callable[[RecordBuilder, ChangeSet, JobChange, list[JobRow]], None] | None
    ends: bool = False


def _promote(facts: Facts, _: ChangeSet, each: JobChange) -> None:
    for job_id in each.ids:
        facts.rows[job_id].state = _READY


def _withdraw(facts: Facts, _: ChangeSet, each: JobChange) -> None:
    for job_id in each.ids:
        facts.rows[job_id].state = _WAITING


def _pass(facts: Facts, change: ChangeSet, each: JobChange) -> None:
    for job_id in each.ids:
        row = facts.rows[job_id]
        row.entry = replace(row.entry, gates=tuple(name for name in row.entry.gates if name != change.name))


def _claim(facts: Facts, change: ChangeSet, each: JobChange) -> None:
    rows, at, until, owner = facts.rows, change.at, each.until, change.owner
    for job_id, delivery in zip(each.ids, each.deliveries, strict=True):
        row = rows[job_id]
        row.state = _RUNNING
        row.delivery = delivery
        row.attempt += 1
        row.owner = owner
        row.claimed_at = at
        row.lease_until = until


def _extend(facts: Facts, _: ChangeSet, each: JobChange) -> None:
    for job_id in each.ids:
        facts.rows[job_id].lease_until = each.until


def _ack(facts: Facts, change: ChangeSet, each: JobChange) -> None:
    if not each.until:
        rows = facts.rows
        for job_id, delivery in zip(each.ids, each.deliveries, strict=True):
            rows.pop(job_id).state = State.DONE
            facts.remember_removed(job_id, (delivery, _ACKED))
        return
    for row in _settled(facts, each):
        row.result = each.result
        _finish(row, State.DONE, change.at, each.until)


def _discard(facts: Facts, change: ChangeSet, each: JobChange) -> None:
    for row in _settled(facts, each):
        _finish(row, State.CANCELLED, change.at, each.until)
        if not each.until:
            _remove(facts, row.entry.id)


def _wait_again(facts: Facts, change: ChangeSet, each: JobChange) -> None:
    for row in _settled(facts, each):
        row.errors = errors_after(row.errors, each.error, change.at, row.attempt)
        row.attempt = attempts_after(each.change, row.attempt)
        row.rank = rank_after(row, each.keep_rank, each.until, change.at)
        row.due_at = each.until
        row.state = _WAITING


def _die(facts: Facts, change: ChangeSet, each: JobChange) -> None:
    for row in _settled(facts, each):
        _dead_letter(row, each.error, each, change.at)


def _expire(facts: Facts, change: ChangeSet, each: JobChange) -> None:
    for job_id in each.ids:
        _dead_letter(facts.rows[job_id], OUT_OF_TIME, each, change.at)


def _shed(facts: Facts, change: ChangeSet, each: JobChange) -> None:
    for job_id in each.ids:
        _dead_letter(facts.rows[job_id], GAVE_WAY, each, change.at)


def _cancel(facts: Facts, change: ChangeSet, each: JobChange) -> None:
    for job_id in each.ids:
        _finish(facts.rows[job_id], State.CANCELLED, change.at, each.until)
        if not each.until:
            _remove(facts, job_id)


def _request_cancel(facts: Facts, _: ChangeSet, each: JobChange) -> None:
    for job_id in each.ids:
        facts.rows[job_id].cancel_requested = True


def _redrive(facts: Facts, change: ChangeSet, each: JobChange) -> None:
    for job_id in each.ids:
        row = facts.rows[job_id]
        row.attempt = 0
        row.cancel_requested = False
        _finish(row, _WAITING, 0)
        # An expired job is redriven to run all the same.
        row.entry = replace(row.entry, expires_at=None, queue=row.queue)
        row.home = None
        row.restamp(each.until, change.at)


def _purge(facts: Facts, _: ChangeSet, each: JobChange) -> None:
    for job_id in each.ids:
        _remove(facts, job_id)


def _settled(facts: Facts, each: JobChange) -> Iterator[JobRow]:
    """Running rows whose lease is over; each keeps how it ended."""
    for job_id, delivery in zip(each.ids, each.deliveries, strict=True):
        row = facts.rows[job_id]
        row.mark = (delivery, MARK_CODES[each.change])
        row.owner = None
        row.claimed_at = None
        yield row


def _dead_letter(row: JobRow, error: Failure | None, each: JobChange, at: Instant) -> None:
    """The one way to die: the job is in the queue that takes its dead letter, for as long as that queue keeps it."""
    rule = each.dead_letter
    row.errors = errors_after(row.errors, error, at, row.attempt)
    _finish(row, State.DEAD, at, 0 if rule is None else rule.kept_until)
    if rule is not None and rule.queue is not None:
        row.home = row.entry.queue
        row.entry = replace(row.entry, queue=rule.queue)


def _finish(row: JobRow, state: State, at: Instant, kept_until: Instant = 0) -> None:
    row.state = state
    row.finished_at = at
    row.kept_until = kept_until


def _remove(facts: Facts, job_id: int) -> None:
    row = facts.rows.pop(job_id)
    row.state = State.CANCELLED
    if row.mark[0]:
        facts.remember_removed(job_id, row.mark)


_BEFORE: Final = attrgetter("entry.queue", "entry.kind", "delivery", "attempt", "enqueued_at", "due_at")
_TURN: Final = attrgetter("entry.queue", "entry.kind", "delivery", "attempt", "enqueued_at", "due_at", "claimed_at")


def _begun(builder: RecordBuilder, change: ChangeSet, each: JobChange, rows: list[JobRow]) -> None:
    """A lease begins."""
    for (queue, kind, delivery, attempt, enqueued_at, due_at), alike in groupby(rows, _BEFORE):
        turn = (queue, kind, delivery + 1, attempt + 1, 0, enqueued_at, due_at, change.at, each.until)
        builder.jobs(Change.CLAIMED, [row.entry.id for row in alike], *turn)


def _running(builder: RecordBuilder, _: ChangeSet, each: JobChange, rows: list[JobRow]) -> None:
    """A record of running jobs has the facts of their leases, and why they failed."""
    error = each.error
    trait = None if error is None else Trait(error_kind=error.kind, error=error.message)
    change = Change(each.change)
    for (queue, kind, delivery, attempt, *instants), alike in groupby(rows, _TURN):
        ids = [row.entry.id for row in alike]
        traits = None if trait is None else [trait] * len(ids)
        builder.jobs(change, ids, queue, kind, delivery, attempt, 0, *instants, each.until, traits=traits)


def _unheld(builder: RecordBuilder, _: ChangeSet, each: JobChange, rows: list[JobRow]) -> None:
    """A job without a lease; a dead one belongs to the queue that it died in, not to that of its dead letter."""
    change = Change(each.change)
    for row in rows:
        builder.unheld(change, row.entry.id, row.queue, row.entry.kind, each.until)


RULES: Final[Mapping[str, Rule]] = {
    PROMOTED: Rule(_promote, None),
    WITHDRAWN: Rule(_withdraw, None),
    PASSED: Rule(_pass, None),
    Change.CLAIMED: Rule(_claim, _begun),
    Change.EXTENDED: Rule(_extend, _running),
    Change.ACKED: Rule(_ack, _running, ends=True),
    Change.DISCARDED: Rule(_discard, _running, ends=True),
    Change.RETRIED: Rule(_wait_again, _running),
    Change.RELEASED: Rule(_wait_again, _running),
    Change.DIED: Rule(_die, _running, ends=True),
    Change.EXPIRED: Rule(_expire, _unheld, ends=True),
    Change.SHED: Rule(_shed, _unheld, ends=True),
    Change.CANCELLED: Rule(_cancel, _unheld, ends=True),
    Change.CANCEL_REQUESTED: Rule(_request_cancel, _running),
    Change.REDRIVEN: Rule(_redrive, _unheld),
    Change.PURGED: Rule(_purge, _unheld, ends=True),
}


def _accept(facts: Facts, change: ChangeSet) -> None:
    rows, at, entries = facts.rows, change.at, change.entries
    for entry in entries:
        state = _READY if entry.ready else _WAITING
        rank = rank_at(entry.rank_base, entry.rank_timed, entry.due_at, at)
        rows[entry.id] = JobRow(entry, state, at, entry.due_at, rank)
        if entry.key is not None:
            facts.remember_key((entry.queue, entry.key), KeyFact(entry.id, entry.key_digest, entry.key_until))
    for merge in change.merges:
        row = rows[merge.id]
        row.take_over(merge, at)
        if merge.key is not None:
            facts.remember_key((row.entry.queue, merge.key), KeyFact(merge.id, merge.key_digest, merge.key_until))
    if entries:
        facts.next_id = entries[-1].id + 1
    if facts.keys:
        facts.sweep_keys(at, KEYS_SWEPT * (len(entries) + 1))


def _put(facts: Facts, tables: TableChanges, at: Instant) -> None:
    facts.specs |= tables.specs
    for spec in tables.specs.values():
        if spec.is_log:
            facts.logs.create(spec)
    _update(facts.paused, tables.paused)
    _update(facts.gate_limits, tables.gate_limits)
    _update(facts.schedules, tables.schedules)
    facts.last_ticks |= tables.last_ticks
    for each in tables.ingested.values():
        facts.remember_ingested(each, at)
    if tables.tats:
        _move_tats(facts.tats, tables.tats, at)


def _update(table: dict[str, V], changed: Mapping[str, V | None]) -> None:
    for name, value in changed.items():
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value


def _move_tats(tats: dict[str, Instant], moved: Mapping[str, Instant], at: Instant) -> None:
    """Each that moved is put at the end; of those at the front, some that are in the past are dropped."""
    for name, tat in moved.items():
        tats.pop(name, None)
        tats[name] = tat
    for name in list(islice(tats, _TATS_SWEPT * len(moved))):
        if tats[name] > at:
            break
        del tats[name]


def _first(each: JobChange) -> int:
    return each.ids[0]
