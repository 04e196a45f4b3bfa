"""Millions of jobs in one call: whole runs by COPY, in transactions of bounded size.

Plain drafts are collected into parts of tens of thousands. A part is one transaction: a token, the ids, and one COPY of
a row for each thousand jobs. It is written while the next part is read; at most two parts are in memory, and no
transaction waits for the caller's iterator. Drafts that need more (keys, lanes, bounds) are inserted by `enqueue`, in
their order. A part is retried when its reply was lost or the server is briefly unavailable; by its token it is inserted
exactly once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import accumulate
from threading import Event
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec
import psycopg

from forebay.core.errors import Invalid, StoreFailed
from forebay.core.instant import Instant, micros
from forebay.core.job import Draft
from forebay.core.ledger import Change
from forebay.core.limits import BATCH_BYTES, MAX_BATCH, SOURCE_KEPT
from forebay.core.stamp import rank_at
from forebay.store.brokers import in_parts
from forebay.store.postgres.connect import CONNECTION_ERRORS, Connection, JsonParameter
from forebay.store.postgres.intake import Intake, accept
from forebay.store.postgres.maintenance import take_dead
from forebay.store.postgres.runs import LATER, READY, DraftRun, group
from forebay.store.postgres.session import INSERT_RECORD, Restart, Session, UnitOfWork
from forebay.store.protocol import Checkpoint, Receipt, Tally

_MAX_PART: Final = 32 * MAX_BATCH
_MAX_TRIES: Final = 8
_PAUSE_FIRST: Final = 0.1
_MAX_PAUSE: Final = 5.0
_LOCK: Final = "SELECT name, version FROM forebay.queue WHERE name = ANY (%s) ORDER BY name FOR SHARE"
_BEGIN: Final = (
    "WITH now AS MATERIALIZED (SELECT coalesce(%s::bigint, forebay.clock()) AS at), token AS ("
    "INSERT INTO forebay.call (token, first_id, at) SELECT %s, 0, at FROM now "
    "ON CONFLICT (token) DO NOTHING RETURNING at) "
    "SELECT t.at, ARRAY(SELECT nextval('forebay.job_id') FROM generate_series(1, %s)) FROM token AS t"
)
_COLUMNS: Final = {
    "last_id": "int8",
    "rank": "int8",
    "due_at": "int8",
    "enqueued_at": "int8",
    "rank_base": "int8",
    "expires_at": "int8",
    "n": "int4",
    "size": "int4",
    "cost": "int4",
    "max_attempts": "int4",
    "state": "int2",
    "single": "bool",
    "rank_timed": "int2",
    "queue": "text",
    "lane": "text",
    "cls": "text",
    "kind": "text",
    "facts": "json",
    "bodies": "json",
}
_N: Final = list(_COLUMNS).index("n")
_FACTS: Final = list(_COLUMNS).index("facts")
_QUEUE: Final = list(_COLUMNS).index("queue")
_LANE: Final = list(_COLUMNS).index("lane")
_COPY: Final = f"COPY forebay.run ({', '.join(_COLUMNS)}) FROM STDIN (FORMAT BINARY)"
_CHECKPOINT: Final = "SELECT batch, taken, digest FROM forebay.source WHERE source = %s"
_START: Final = (
    "INSERT INTO forebay.source (batch, taken, digest, at, source) VALUES (%s, %s, %s, forebay.clock(), %s) "
    "ON CONFLICT (source) DO NOTHING"
)
_ADVANCE: Final = (
    "UPDATE forebay.source SET batch = %s, taken = %s, digest = %s, at = forebay.clock() "
    "WHERE source = %s AND batch = %s AND taken = %s AND digest = %s"
)
_SWEEP: Final = (
    "DELETE FROM forebay.source WHERE source = ANY (ARRAY(SELECT source FROM forebay.source "
    f"WHERE at < forebay.clock() - {micros(SOURCE_KEPT)} ORDER BY at LIMIT 100 FOR UPDATE SKIP LOCKED))"
)


class _Part:
    """Neighbours that are inserted together: by COPY, or by `enqueue`. `taken`: how many are durable so far."""

    def __init__(self, copied: bool) -> None:
        self.copied = copied
        self.drafts: list[Draft] = []
        self.size = 0
        self.taken = Tally()

    def has_room(self, draft: Draft) -> bool:
        maximum = _MAX_PART if self.copied else MAX_BATCH
        return len(self.drafts) < maximum and self.size + len(draft.body) <= BATCH_BYTES

    def add(self, draft: Draft) -> None:
        self.drafts.append(draft)
        self.size += len(draft.body)


class Bulk:
    """Streams of drafts, and sources that repeat themselves (`Checkpoint`)."""

    def __init__(self, session: Session, intake: Intake) -> None:
        self._session = session
        self._intake = intake

    def enqueue_stream(self, drafts: Iterable[Draft], progress: Callable[[Tally], object]) -> Tally:
        """How many were taken, by result; what `progress` is called with is durable."""
        tally = Tally()
        under_way: tuple[_Part, Future[None]] | None = None

        def finish() -> None:
            nonlocal tally, under_way
            if under_way is not None:
                (part, future), under_way = under_way, None
                wait([future])
                if part.taken.taken:
                    tally = tally.plus(part.taken)
                    progress(tally)
                future.result()

        with ThreadPoolExecutor(1, "forebay-bulk") as writer:
            try:
                for part in self._parts(drafts):
                    finish()
                    under_way = (part, writer.submit(self._put_part, part))
            finally:
                finish()
        return tally

    def ingested(self, source: str) -> Checkpoint | None:
        found = self._session.server.query(_CHECKPOINT, (source,))
        return Checkpoint(*found[0]) if found else None

    def ingest(
        self, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]
    ) -> Tally | None:
        queues = {draft.queue for draft in drafts}
        move = partial(_move, source, before, after)
        if all(draft.key is None for draft in drafts) and all(self._copies(queue) for queue in queues):
            try:
                tally = self._session.server.transact(
                    partial(self._ingest_plain, move, drafts, queues), within=self._session.server.long_timeout
                )
            except Restart:
                self._session.specs.reload(queues)
            else:
                self._session.waiters.notify(queues, ())
                return tally
        return self._session.write(lambda unit: _ingest(unit, move, drafts), queues)

    def replace_dead(self, drafts: dict[int, Draft]) -> dict[int, Receipt]:
        return self._session.write(partial(_replace_dead, drafts), {draft.queue for draft in drafts.values()})

    def _ingest_plain(
        self, move: Any, drafts: Sequence[Draft], queues: set[str], connection: Connection
    ) -> Tally | None:
        if not move(connection):
            return None
        if drafts:
            self._copy_on(connection, drafts, queues, uuid4())
        return Tally(len(drafts))

    def _parts(self, drafts: Iterable[Draft]) -> Iterator[_Part]:
        part = _Part(copied=True)
        for draft in drafts:
            if type(draft) is not Draft:
                raise Invalid("draft", f"{type(draft).__name__} is not a Draft", "build a Draft(kind, payload, …)")
            copied = draft.key is None and self._copies(draft.queue)
            if part.copied != copied or not part.has_room(draft):
                if part.drafts:
                    yield part
                part = _Part(copied)
            part.add(draft)
        if part.drafts:
            yield part

    def _copies(self, queue: str) -> bool:
        known = self._session.specs.of(queue)
        return known.direct and not known.terms

    def _put_part(self, part: _Part) -> None:
        queues = {draft.queue for draft in part.drafts}
        if part.copied:
            try:
                self._copy(part.drafts, queues, uuid4())
            except Restart:
                # A spec has just changed: `enqueue` reads it again.
                self._session.specs.reload(queues)
            else:
                part.taken = Tally(len(part.drafts))
                self._session.waiters.notify(queues, ())
                return
        for call in _calls(part.drafts):
            for receipts in in_parts(self._intake.enqueue, call):
                part.taken = part.taken.plus(Tally.of(receipts))

    def _copy(self, drafts: Sequence[Draft], queues: set[str], token: UUID) -> None:
        pause = _PAUSE_FIRST
        for left in reversed(range(_MAX_TRIES)):
            try:
                return self._session.server.transact(
                    lambda connection: self._copy_on(connection, drafts, queues, token),
                    within=self._session.server.long_timeout,
                )
            except StoreFailed as failed:
                if not left or not _is_passing(failed):
                    raise
                Event().wait(pause)
                pause = min(_MAX_PAUSE, pause * 2)
        return None

    def _copy_on(self, connection: Connection, drafts: Sequence[Draft], queues: set[str], token: UUID) -> None:
        calls = list(_calls(drafts))
        begun = connection.execute(_BEGIN, (self._session.at, token, len(calls))).fetchall()
        if not begun:
            return
        laned = {name for name in queues if self._session.specs.of(name).laned}
        versions: dict[str, int] = dict(connection.execute(_LOCK, (sorted(queues - laned),)).fetchall())
        stale = any(versions.get(name, 0) != self._session.specs.of(name).version for name in queues - laned)
        if stale or not all(map(self._copies, queues)):
            raise Restart(queues)
        now, firsts = begun[0]
        lanes: dict[str, set[str]] = {name: set() for name in sorted(laned)}
        records = _Records()
        with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
            copy.set_types(list(_COLUMNS.values()))
            for first, call in zip(firsts, calls, strict=True):
                for row in self._rows(call, first, now):
                    copy.write_row(row)
                    records.add(row)
                    if row[_QUEUE] in lanes:
                        lanes[row[_QUEUE]].add(row[_LANE])
        if lanes:
            # The locks are taken last: claims of these queues wait for them until the commit.
            unit = self._session.begin_unit(connection, laned)
            unit.lanes = lanes
            unit.write_lanes()
        for ranges in records.ranges:
            connection.execute(
                INSERT_RECORD, (now, "enqueue", None, None, None, JsonParameter(msgspec.json.encode(ranges)))
            )

    def _rows(self, drafts: Sequence[Draft], first: int, now: Instant) -> Iterator[tuple[Any, ...]]:
        runs = group(drafts, lambda draft: self._session.specs.of(draft.queue).stamp(draft))
        for run, upto in zip(runs, accumulate(len(run.drafts) for run in runs), strict=True):
            yield _row(run, first + upto - 1, now)


class _Records:
    """The records of a part in the ledger: one for all that is alike, else one for about a thousand jobs.

    Readers of the ledger hold whole records in memory, many at a time.
    """

    def __init__(self) -> None:
        self.ranges: list[list[tuple[Any, ...]]] = []
        self._room = 0

    def add(self, row: Sequence[Any]) -> None:
        weight = 1 if row[_FACTS] is None else row[_N]
        if weight > self._room:
            self.ranges.append([])
            self._room = MAX_BATCH
        self.ranges[-1].append(_range_of(row))
        self._room -= weight


def _row(run: DraftRun, last_id: int, now: Instant) -> tuple[Any, ...]:
    """The columns of a new run."""
    n, queue, cls, lane, _, cost, kind, delay, run_at, base, timed, attempts, expires_at, facts, bodies = run.columns()
    due_at = now + delay if run_at is None else max(now, run_at)
    rank = rank_at(base, timed, due_at, now)
    state = LATER if due_at > now else READY
    ids = (last_id, rank, due_at, now, base, expires_at)
    return (*ids, n, n, cost, attempts, state, n == 1, timed, queue, lane, cls, kind, facts, bodies)


def _range_of(row: Sequence[Any]) -> tuple[Any, ...]:
    """The range of a new run, from the columns of `_row`."""
    last_id, _, due_at, now, _, _, n, _, _, attempts, _, _, _, queue, _, _, kind, facts, _ = row
    traits = None if facts is None else msgspec.Raw(facts)
    return (Change.ACCEPTED, last_id - n + 1, n, queue, kind, 0, 0, attempts, now, due_at, 0, 0, traits)


def _calls(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """In groups that share a block of ids."""
    return (drafts[start : start + MAX_BATCH] for start in range(0, len(drafts), MAX_BATCH))


def _is_passing(failed: StoreFailed) -> bool:
    """Whether the call may succeed on another connection, or later."""
    return not isinstance(failed.__cause__, psycopg.Error) or isinstance(failed.__cause__, CONNECTION_ERRORS)


def _move(source: str, before: Checkpoint | None, after: Checkpoint, connection: Any) -> bool:
    """Advance the checkpoint of the source, if it is the expected one."""
    new = (after.batch, after.taken, after.digest, source)
    if before is None:
        connection.execute(_SWEEP)
        return bool(connection.execute(_START, new).rowcount)
    return bool(connection.execute(_ADVANCE, (*new, before.batch, before.taken, before.digest)).rowcount)


def _ingest(unit: UnitOfWork, move: Any, drafts: Sequence[Draft]) -> Tally | None:
    if not move(unit.connection):
        return None
    tally = Tally()
    for start in range(0, len(drafts), MAX_BATCH):
        for receipts in in_parts(lambda some: accept(some, unit), drafts[start : start + MAX_BATCH]):
            tally = tally.plus(Tally.of(receipts))
    return tally


def _replace_dead(drafts: dict[int, Draft], unit: UnitOfWork) -> dict[int, Receipt]:
    dead = set(take_dead(unit, list(drafts)))
    ids = [job_id for job_id in drafts if job_id in dead]
    receipts = dict(zip(ids, accept([drafts[job_id] for job_id in ids], unit), strict=True))
    if ids:
        unit.builder.set_verb("replace_dead")
    return receipts
