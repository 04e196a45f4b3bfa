"""Enqueue. Drafts that need nothing but their stamps are inserted as runs by one function; those with keys, lines or a
bound by a unit of work.

`engine.intake` decides what drafts become; this module supplies its look-ups and writes its plan. Jobs that SQL users
enqueue into queues with rules are in the inbox until a process applies the rules.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec

from forebay.core.errors import Invalid, QueueFull, WrongQueueKind
from forebay.core.fanout import copies
from forebay.core.gate import lane_key
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.ledger import Change, Trait
from forebay.core.limits import BATCH_BYTES, MAX_BATCH, MAX_INSTANT
from forebay.core.outcome import Failure
from forebay.core.policy import Shed
from forebay.core.record_builder import RecordBuilder
from forebay.core.stamp import Stamper
from forebay.engine.intake import (
    GAVE_WAY,
    KEYS_SWEPT,
    IntakePlan,
    KeyFact,
    MergedDraft,
    MergeTarget,
    NewJobRow,
    RankedId,
    excess_of,
    new_jobs,
)
from forebay.store.brokers import Spread
from forebay.store.group_commit import GroupCommit, PendingCall
from forebay.store.postgres.connect import JsonParameter, Prepared, array_literal, row_literal
from forebay.store.postgres.maintenance import EXTRACT, dead_letter, sweep_keys
from forebay.store.postgres.queries import SQL
from forebay.store.postgres.runs import (
    BEHIND,
    LATER,
    READY,
    RareFields,
    Stamp,
    facts_json,
    facts_of,
    group,
    merged_facts,
    one_facts,
    text_of,
)
from forebay.store.postgres.session import KnownSpec, Restart, Session, UnitOfWork
from forebay.store.protocol import Receipt

_INSERT_RUN: Final = Prepared(
    "SELECT forebay.insert_run("
    "at => %s::bigint, token => %s::uuid, v_version => %s::integer, v_n => %s::integer, v_queue => %s::text, "
    "v_cost => %s::integer, v_kind => %s::text, v_delay => %s::bigint, v_run_at => %s::bigint, v_base => %s::bigint, "
    "v_timed => %s::smallint, v_max_attempts => %s::integer, v_expires_at => %s::bigint, v_facts => %b::json, "
    "v_bodies => %b::json)"
)
_INSERT_RUNS: Final = Prepared(
    "SELECT * FROM forebay.insert_runs("
    "at => %s::bigint, token => %s::uuid, exclusive_keys => %s::integer[], names => %s::text[], "
    "versions => %s::integer[], runs => %s::forebay.draft_run[], facts => %b::json[], bodies => %b::json[])"
)
_STALE: Final = -1
_NEXT_ID: Final = "SELECT nextval('forebay.job_id')"
_BUSY_LINES: Final = "SELECT line FROM forebay.line_heads(%s::text[]) WHERE coalesce(behind, exposed, dead) IS NOT NULL"
_SPARE: Final = 1_000
"""So many jobs more than needed are offered to be shed, since some may be claimed at this moment."""

_UNCLAIMED: Final = {"oldest": SQL.unclaimed_oldest, "lowest": SQL.unclaimed_lowest}
_ANY_INBOX: Final = "SELECT EXISTS (SELECT FROM forebay.inbox)"
_LOCK_INBOX: Final = "SELECT i.id FROM forebay.inbox AS i WHERE i.id = ANY (%s::bigint[]) FOR SHARE"


class Intake:
    """Enqueue."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.inserter = BatchInserter(session)

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        session, queues = self._session, {draft.queue for draft in drafts}
        if (
            drafts
            and all(draft.key is None for draft in drafts)
            and all(session.specs.of(each).direct for each in queues)
        ):
            first = self.inserter.insert(drafts)
            if first is not None:
                session.waiters.notify(queues, ())
                return [Receipt(first + place, True) for place in range(len(drafts))]
            session.specs.reload(queues)
        return session.write(partial(accept, drafts), queues)

    def wait_for_room(self, full: QueueFull, until: Instant) -> None:
        self._session.waiters.until_room(full.queue, until, partial(self._room_at, full))

    def _room_at(self, full: QueueFull) -> Instant:
        """At once if there is room by now."""
        depth: int = self._session.server.query(SQL.depth, (full.queue,))[0][0]
        return 0 if depth + full.requested <= full.limit else MAX_INSTANT


class _Call(PendingCall):
    """Drafts of one caller, and the id of the first of them once they are committed."""

    __slots__ = ("drafts", "first", "weight")

    def __init__(self, drafts: Sequence[Draft]) -> None:
        super().__init__()
        self.drafts = drafts
        self.weight = sum(len(draft.body) for draft in drafts)
        self.first: int | None = None


class _CallLimit:
    """The size of one call of the function."""

    def __init__(self) -> None:
        self._jobs = MAX_BATCH
        self._bytes = BATCH_BYTES

    def takes(self, call: _Call) -> bool:
        self._jobs -= len(call.drafts)
        self._bytes -= call.weight
        return self._jobs >= 0 and self._bytes >= 0


class BatchInserter:
    """Inserts drafts of many threads in one call of one function and one commit; they may share runs.

    Each call carries a token, so that it can be repeated when its reply was lost, and adds nothing then.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.callers: GroupCommit[_Call] = GroupCommit(session.server.name, self._commit)

    def insert(self, drafts: Sequence[Draft]) -> int | None:
        """The id of the first job, once all are durable; None: a spec has changed, and nothing was inserted."""
        call = _Call(drafts)
        self.callers.make(call)
        return call.first

    def _commit(self) -> None:
        with self.callers.group(_CallLimit().takes) as calls:
            try:
                first = self._insert([draft for call in calls for draft in call.drafts])
            except Exception as error:
                for call in calls:
                    call.error = error
                return
            for call in calls:
                call.first = first
                first = None if first is None else first + len(call.drafts)

    def _insert(self, drafts: Sequence[Draft]) -> int | None:
        known: dict[str, KnownSpec] = {}
        exclusive: set[int] = set()

        def stamp(draft: Draft) -> Stamp:
            queue = known.get(draft.queue)
            if queue is None:
                queue = known[draft.queue] = self._session.specs.of(draft.queue)
                if queue.laned:
                    exclusive.update(queue.lock_keys)
            return queue.stamp(draft)

        runs = [run.columns() for run in group(drafts, stamp)]
        server, at, token = self._session.server, self._session.at, uuid4()
        if len(runs) == 1 and not exclusive:
            n, queue, _, _, _, *others = runs[0]
            first = server.query(_INSERT_RUN, (at, token, known[queue].version, n, queue, *others), certain=True)[0][0]
            if first is not None:
                return int(first)
        counts, *columns, facts, bodies = zip(*runs, strict=True)
        rows = array_literal(map(row_literal, zip(accumulate(counts), counts, *columns, strict=True)))
        versions = array_literal([queue.version for queue in known.values()])
        fixed = (at, token, array_literal(sorted(exclusive)), array_literal(known), versions)
        first = int(server.query(_INSERT_RUNS, (*fixed, rows, list(facts), list(bodies)), certain=True)[0][0])
        return None if first == _STALE else first


def accept(drafts: Sequence[Draft], unit: UnitOfWork) -> list[Receipt]:
    """Insert the drafts into their queues, or raise."""
    queues = {draft.queue for draft in drafts}
    if not any(unit.known(queue).stamper.is_broker for queue in queues):
        return accept_copies(drafts, queues, unit)
    spread = Spread(drafts, lambda queue: unit.known(queue).spec)
    return spread.folded(accept_copies(spread.drafts, queues, unit), durable=True)


def accept_copies(drafts: Sequence[Draft], brokers: set[str], unit: UnitOfWork) -> list[Receipt]:
    """The same for drafts whose brokers have been resolved; one receipt for each."""
    unit.require_locks({draft.queue for draft in drafts} | brokers)
    batch = BatchPlan(unit)
    batch.reserve_keys(drafts)
    batch.plan.take(drafts)
    batch.make_room()
    batch.write()
    if batch.plan.is_new:
        unit.builder.set_verb("enqueue")
    return batch.plan.receipts


class LockedDepths:
    """Depths of the bounded queues among those of `arrivals`, whose rows are locked: concurrent calls are serial.

    The `max_depth` of a row is an upper bound: jobs that leave are not subtracted, and the jobs are counted again only
    when the bound would be exceeded.
    """

    def __init__(self, unit: UnitOfWork, arrivals: Mapping[str, int]) -> None:
        self._unit = unit
        self._arrivals = arrivals
        bounded = [queue for queue in sorted(arrivals) if unit.known(queue).bounded]
        self._depths: dict[str, int] = dict(unit.fetch(SQL.lock_bounded, (bounded,))) if bounded else {}

    def stamper(self, queue: str) -> Stamper:
        return self._unit.known(queue).stamper

    def depth(self, queue: str) -> int:
        if excess_of(self.stamper(queue).spec, self._depths.get(queue, 0), self._arrivals[queue]) > 0:
            self._depths[queue] = self._unit.fetch(SQL.depth, (queue,))[0][0]
        return self._depths.get(queue, 0)

    def write(self) -> None:
        """The bounds with the arrivals; where there was no room for all of them, as many were shed."""
        for queue, depth in self._depths.items():
            count = self._arrivals[queue]
            left = count - max(0, excess_of(self.stamper(queue).spec, depth, count))
            self._unit.execute(SQL.set_max_depth, (depth + left, queue))


class _MergedRow(NamedTuple):
    """Columns of the waiting job into which newer work is merged."""

    facts: RareFields | None
    lane: str


class BatchPlan:
    """The look-ups of one call's plan, and its writes.

    A draft's position in the call determines its id; some ids stay unused. `given`: the id that the first draft has
    already. Keys are reserved first, in order: a concurrent call with the same keys waits for this one and then finds
    them taken, so that each of many such calls needs one unit of work.
    """

    def __init__(self, unit: UnitOfWork, given: int | None = None) -> None:
        self.now = unit.now
        self.plan = IntakePlan(self, durable=True)
        self._unit = unit
        self._given = given
        self._first_id: int = unit.fetch(_NEXT_ID)[0][0]
        self._reserved: dict[tuple[str, str], KeyFact] = {}
        self._taken: dict[tuple[str, str], KeyFact] = {}
        self._merged: dict[int, _MergedRow] = {}
        self._runs: dict[int, tuple[bool, int]] = {}
        self._depths = LockedDepths(unit, {})

    def reserve_keys(self, drafts: Sequence[Draft]) -> None:
        """Take the keys of this batch, each for the first draft that has it, and read those that are taken."""
        facts: dict[tuple[str, str], KeyFact] = {}
        for place, draft in enumerate(drafts):
            if draft.key is not None and (draft.queue, draft.key) not in facts:
                digest, until = self.stamper(draft.queue).key(draft, self.now)
                facts[draft.queue, draft.key] = KeyFact(self._first_id + place, digest, until)
        if not facts:
            return
        rows = [(*name, *fact) for name, fact in sorted(facts.items())]
        columns = map(list, zip(*rows, strict=True))
        won = {(queue, key) for queue, key in self._unit.fetch(SQL.reserve_keys, (*columns, self.now))}
        self._reserved = {name: facts[name] for name in won}
        if lost := sorted(facts.keys() - won):
            queues, keys = map(list, zip(*lost, strict=True))
            found = self._unit.fetch(SQL.keys, (queues, keys, self.now))
            self._taken = {(queue, key): KeyFact(*fact) for queue, key, *fact in found}
            if len(found) != len(lost):
                # The window of one ended just now, and it was removed.
                raise Restart

    def stamper(self, queue: str) -> Stamper:
        return self._unit.known(queue).stamper

    def new_id(self, place: int) -> int:
        return self._given if self._given is not None and not place else self._first_id + place

    def taken_key(self, queue: str, key: str) -> KeyFact | None:
        return self._taken.get((queue, key))

    def merge_target(self, queue: str, subject: str) -> MergeTarget | None:
        for *target, facts, lane in self._unit.fetch(SQL.merge_target, (queue, subject, self.now)):
            self._merged[target[0]] = _MergedRow(one_facts(facts), lane)
            return MergeTarget(*target)
        return None

    def depth(self, queue: str) -> int:
        return self._depths.depth(queue)

    def unclaimed(self, queue: str, shed: Shed, limit: int) -> list[RankedId]:
        """Unclaimed jobs of a bounded queue, whose row is locked.

        Claims take no such lock: a job that is being claimed at this moment counts as running.
        """
        found = self._unit.fetch(_UNCLAIMED[shed.victim], (queue, queue, limit + _SPARE))
        columns = [list(column) for column in zip(*found, strict=True)][:2]
        locked = set(self._unit.fetch(SQL.lock_unclaimed, columns)) if found else set()
        ranked: list[RankedId] = []
        for single, last_id, n, rank in found:
            if (single, last_id, n, rank) in locked:
                # Jobs that are extracted from the end of a run change its last id.
                ids = range(last_id - n + 1, last_id + 1)
                ids = ids[::-1] if shed.victim == "lowest" else ids
                ranked += [(rank, job_id) for job_id in ids]
                self._runs |= {job_id: (single, job_id if shed.victim == "lowest" else last_id) for job_id in ids}
        return ranked[: limit + _SPARE]

    def make_room(self) -> None:
        """Raise unless every bounded queue has room for its new jobs, if need be after shedding others."""
        self._depths = LockedDepths(self._unit, self.plan.arrivals)
        self.plan.make_room()
        for job_id in self.plan.shed:
            single, last_id = self._runs[job_id]
            if not single:
                self._unit.execute(EXTRACT, (last_id, job_id))
        if self.plan.shed:
            dead_letter(self._unit, self._unit.fetch(SQL.singles, (self.plan.shed,)), GAVE_WAY, Change.SHED)
        self._depths.write()

    def write(self) -> None:
        unit, plan = self._unit, self.plan
        for name, fact in plan.keys.items():
            if self._reserved[name].job_id != fact.job_id:
                unit.execute(SQL.move_key, (fact.job_id, *name))
        if plan.entries:
            # First, jobs that were shed leave their lines.
            unit.write_lanes()
            lines = {entry.line for entry in plan.entries if entry.line is not None}
            busy = [line for (line,) in unit.fetch(_BUSY_LINES, (sorted(lines),))] if lines else []
            shedding = {queue for queue in plan.arrivals if self.stamper(queue).sheds is not None}
            runs = _runs(new_jobs(plan.entries, self.now, busy), shedding)
            unit.write_rows(SQL.insert, [self._row(run) for run in runs])
        unit.builder.accepted(plan.entries)
        self._merged |= {
            entry.id: _MergedRow(facts_of(entry, entry.kind), lane_key(entry.cls, entry.gates))
            for entry in plan.entries
            if entry.merges
        }
        for merged in plan.merged:
            row = self._merged[merged.target.id]
            unit.execute(SQL.merge, _merge(merged, row.facts or RareFields()))
            unit.touch(merged.draft.queue, row.lane, None)
            unit.builder.merged(merged.target.id, merged.draft, merged.newer.due_at or 0)
        unit.has_work |= plan.arrivals.keys()
        if plan.keys:
            by_state = any(self.stamper(queue).spec.unique for queue, _ in plan.keys)
            sweep_keys(unit, KEYS_SWEPT * (len(plan.entries) + 1), by_state=by_state)

    def _row(self, run: Sequence[NewJobRow]) -> tuple[Any, ...]:
        """The columns of a run."""
        (entry, lane, rank, ready, behind), entries = run[-1], [job.entry for job in run]
        if ready:
            self._unit.touch(entry.queue, lane, None)
        return (
            entry.id,
            rank,
            entry.due_at,
            self.now,
            entry.rank_base,
            entry.expires_at,
            len(run),
            entry.cost,
            entry.max_attempts,
            BEHIND if behind else READY if ready else LATER,
            entry.rank_timed,
            entry.merges,
            entry.blocks,
            entry.queue,
            lane,
            entry.cls,
            entry.kind,
            entry.subject if entry.merges else None,
            entry.line,
            text_of(entry.gates) if entry.gates else None,
            facts_json(entries, entry.kind),
            JsonParameter(b"[" + b",".join([each.body for each in entries]) + b"]"),
        )


def _merge(merged: MergedDraft, own: RareFields) -> tuple[Any, ...]:
    (target, _, _, _), draft, newer, rank = merged
    facts = merged_facts(own, newer.priority, newer.deadline, newer.meta)
    moved = (newer.expires_at, newer.due_at, rank, newer.rank_base, newer.rank_base)
    return (draft.kind, JsonParameter(b"[" + draft.body + b"]"), facts, *moved, target)


def _runs(jobs: Iterable[NewJobRow], shedding: set[str]) -> Iterator[list[NewJobRow]]:
    """Jobs with consecutive ids that are the same to a claim; jobs with gates, a line or an expiry have runs of their
    own."""
    run: list[NewJobRow] = []
    last: tuple[Any, ...] | None = None
    for job in jobs:
        entry = job.entry
        alike = (entry.queue, entry.cls, entry.cost, job.rank, entry.due_at, entry.rank_timed, entry.max_attempts)
        single = entry.gates or entry.line or entry.expires_at is not None or entry.queue in shedding
        if run and (single or alike != last or entry.id != run[-1].entry.id + 1):
            yield run
            run = []
        run.append(job)
        last = None if single else alike
    if run:
        yield run


def empty_inbox(session: Session, ids: Sequence[int] = ()) -> None:
    """Insert the jobs of the inbox, so that reads find them.

    If another process is inserting some of `ids` at this moment, wait for its commit: until then they are nowhere else.
    """
    if session.server.query(_ANY_INBOX)[0][0] and not session.server.standby:
        session.write(take_inbox)
        if ids and session.server.query(_LOCK_INBOX, (list(ids),)):
            session.write(take_inbox)


def take_inbox(unit: UnitOfWork) -> None:
    """Insert the jobs of the inbox, whatever the bounds of their queues; a job that is invalid is a dead letter."""
    rows = unit.fetch(SQL.inbox, (MAX_BATCH,))
    for job_id, text in sorted(rows):
        try:
            draft = _draft_of(text)
            unit.require_locks([draft.queue])
            known = unit.known(draft.queue)
            if known.stamper.is_log:
                raise WrongQueueKind(draft.queue, is_log=True)
            drafts = copies(known.spec, draft)
            unit.require_locks({each.queue for each in drafts})
            batch = BatchPlan(unit, job_id)
            batch.plan.take(drafts, keyed=False)
            batch.write()
            # Its id may be smaller than those of jobs that were inserted before.
            unit.lines.update(entry.line for entry in batch.plan.entries if entry.line is not None)
            unit.builder.set_verb("enqueue")
        except (Invalid, msgspec.ValidationError) as error:
            failure = Failure(type(error).__name__, str(error), at=unit.now)
            unit.execute(SQL.refuse, (job_id, unit.now, text_of([failure]), JsonParameter(text)))
            _record_refused(unit.builder, job_id, text, failure)


def _record_refused(builder: RecordBuilder, job_id: int, text: bytes, failure: Failure) -> None:
    draft = msgspec.json.decode(text, type=dict[str, Any])
    where = (str(draft.get("queue") or "default"), str(draft.get("kind") or "unknown"))
    builder.set_verb("enqueue")
    builder.job(Change.ACCEPTED, job_id, *where, 0, 0, 1, failure.at, failure.at)
    builder.job(Change.DIED, job_id, *where, trait=Trait(error_kind=failure.kind, error=failure.message))


class _InboxDraft(msgspec.Struct):
    """A draft as `forebay.enqueue_draft` writes it."""

    kind: str
    body: msgspec.Raw = msgspec.Raw(b"null")
    queue: str | None = None
    delay: int | None = None
    run_at: int | None = None
    priority: int | None = None
    key: str | None = None
    tenant: str | None = None
    subject: str | None = None
    max_attempts: int | None = None
    expires_at: int | None = None
    deadline: int | None = None
    meta: dict[str, str] | None = None
    cost: int | None = None


_decode: Final = msgspec.json.Decoder(_InboxDraft).decode


def _draft_of(text: bytes) -> Draft:
    fields = msgspec.structs.asdict(_decode(text))
    given = {name: value for name, value in fields.items() if value is not None}
    if "run_at" in given:
        given.pop("delay", None)
    return Draft(**{**given, "body": bytes(given["body"])})
