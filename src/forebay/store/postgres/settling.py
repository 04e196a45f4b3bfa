"""The commit point, settle, and the other ends of jobs: cancel, redrive, purge.

The fence decides, not the time. A settle is one call of one function, pack by pack: a whole pack is deleted in one
step, a part is marked in its pack, and jobs that are retried or kept become rows of their own. What the function
refuses is settled job by job. The last settle is stored with the job or, once that is deleted, in `forebay.settled`, so
that a repeated settle gets the same answer.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from forebay.core.instant import Duration, Instant
from forebay.core.job import Job, State
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.ledger import Change
from forebay.core.limits import ERRORS_KEPT, MAX_ID
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.core.record_builder import RecordBuilder
from forebay.engine.intake import check_capacity
from forebay.engine.settle import VERDICT_CODES, Transition, outlived, plan_cancel, presumes_expiry, transition
from forebay.store.postgres.claims import CLAIM_CALL, Claims
from forebay.store.postgres.connect import Prepared, array_literal
from forebay.store.postgres.intake import LockedDepths
from forebay.store.postgres.maintenance import (
    END_SINGLES,
    EXTRACT,
    dead_letter_rule,
    record_purged,
    recount_dead,
    store_settles,
    take_dead,
)
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import (
    RUNNING,
    MemberRef,
    RunRow,
    failures_with,
    jobs_of_run,
    member_ref,
    ref_of,
    text_of,
)
from forebay.store.postgres.session import Session, SpecCache, UnitOfWork
from forebay.store.postgres.waiting import ending_of, requests_to
from forebay.store.protocol import CancelAnswer, Want
from forebay.store.states import CANCELLED, STATES

SETTLE_CALL: Final = (
    "forebay.settle(%s::bigint, %s::integer[], %s::integer[], %s::text[], %s::integer[], %s::integer[], %s::bigint[], "
    "%s::text[], %s::text[], %s::bigint[], %s::integer[], %s::bigint[], %s::integer[], %s::integer[], %s::text[], "
    "%s::json, %s::text)"
)
SETTLE: Final = Prepared(f"SELECT {SETTLE_CALL}")
_encode: Final = msgspec.json.Encoder().encode

NumberedSettlement = tuple[int, Lease, Verdict]
"""A settlement with its number in the call."""


class PackSettlement(NamedTuple):
    """A settlement of a job that is in a pack, with its number in the call."""

    number: int
    lease: Lease
    verdict: Verdict
    member: MemberRef


PackGroup = list[PackSettlement]
"""Settlements of jobs of one pack, and so of one queue."""

_FIND: Final = (
    "SELECT f.id, f.single, f.last_id, r.queue FROM forebay.find(%s::bigint[]) AS f, LATERAL ("
    "SELECT * FROM forebay.run AS r WHERE r.single = f.single AND r.last_id = f.last_id OFFSET 0) AS r"
)
_FOUND: Final = statement("found")
_LOCK_SINGLES: Final = statement("lock_singles")
_DELETE: Final = statement("delete")
_REQUEST_CANCEL: Final = statement("request_cancel")
_HOLDERS_CHANGED: Final = statement("holders_changed")
_DEAD: Final = statement("dead")
_REDRIVE: Final = statement("redrive")
_PURGE: Final = statement("purge")
_PURGE_QUEUE: Final = statement("purge_queue")
_SETTLE_AND_CLAIM: Final = Prepared(
    f"WITH settled AS MATERIALIZED (SELECT {SETTLE_CALL} AS applied) "
    "SELECT settled.applied, (NULL::forebay.claimed).* FROM settled "
    f"UNION ALL SELECT NULL, taken.* FROM settled CROSS JOIN LATERAL {CLAIM_CALL} AS taken"
)
"""The first row has the result of the settle, the others have what was claimed after it."""

_LAST_SETTLES: Final = statement("last_settles")
_MIN_BATCH: Final = 3
_MAX_LOOKUPS: Final = 5
"""A job may move from row to row between its look-up and its settle."""


def grouped(settlements: Sequence[Settlement]) -> tuple[list[PackGroup], list[NumberedSettlement]]:
    """Settlements by pack, in the order in which packs are locked; and those that are settled job by job."""
    groups: dict[int, PackGroup] = {}
    later: list[NumberedSettlement] = []
    repeated = _repeated([lease.job.id for lease, _ in settlements])
    for number, (lease, verdict) in enumerate(settlements):
        ref = ref_of(lease)
        if ref is None or lease.job.id in repeated:
            later.append((number, lease, verdict))
            continue
        group = groups.get(ref.pack)
        if group is None:
            group = groups[ref.pack] = []
        group.append(PackSettlement(number, lease, verdict, ref))
    return [groups[pack] for pack in sorted(groups)], later


def _repeated(ids: Sequence[int]) -> set[int]:
    """Jobs that are settled more than once in a call, which happens job by job, in order."""
    if len(set(ids)) == len(ids):
        return set()
    return {job_id for job_id, count in Counter(ids).items() if count > 1}


def _job_id(item: PackSettlement) -> int:
    return item.lease.job.id


def _queue_of(group: PackGroup) -> str:
    return group[0].lease.job.queue


def _deletes(verdict: Verdict, kept: bool) -> bool:
    """Whether a job is acknowledged and not kept."""
    return type(verdict) is Ack and not verdict.keep_for and not kept


class SettleCall:
    """The arguments of one call of `forebay.settle`."""

    def __init__(
        self,
        at: Instant | None,
        holder_ids: Sequence[int],
        specs: SpecCache,
        groups: Sequence[PackGroup],
        claimed: Sequence[str] = (),
    ) -> None:
        """`claimed`: queues of a claim that follows in the same transaction; the settle takes their locks as well."""
        self._packs: list[tuple[int, str | None, str, Instant | None]] = []
        self._memo: list[tuple[int, int, int, int, str]] = []
        self._outs: list[dict[str, Any]] = []
        self._errors: dict[tuple[Any, ...], int] = {}
        self._error_texts: list[str] = []
        self._ranges: list[bytes] = []
        self._dead_letter_columns: dict[str, dict[str, Any]] = {}
        locks = specs.locks({_queue_of(group) for group in groups}, claimed)
        self._fixed = (at, *[array_literal(column) for column in locks], array_literal(holder_ids))
        self._specs = specs
        for number, group in enumerate(groups, 1):
            self._add(number, group)

    def parameters(self) -> tuple[Any, ...]:
        packs = [array_literal(column) for column in zip(*self._packs, strict=True)]
        memo = [array_literal(column) for column in zip(*self._memo, strict=True)] if self._memo else ["{}"] * 5
        outs = text_of({"jobs": self._outs, "errors": self._error_texts}) if self._outs else None
        ranges = b"\n".join(self._ranges).decode() if any(self._ranges) else ""
        return (*self._fixed, *packs, *memo, outs, ranges)

    def _add(self, number: int, group: PackGroup) -> None:
        """Of a whole pack, the server handles members whose jobs are all deleted; all other jobs are listed."""
        ref = group[0].member
        kept = self._specs.of(_queue_of(group)).keeps_done
        touched = {member.number for _, _, verdict, member in group if not _deletes(verdict, kept)}
        whole = len(group) == ref.jobs
        if whole and not touched:
            self._packs.append((ref.pack, None, "", None))
            self._ranges.append(b"")
        else:
            self._list(
                number, [item for item in group if item.member.number in touched] if whole else group, touched, whole
            )

    def _list(self, number: int, listed: PackGroup, touched: set[int], whole: bool) -> None:
        """Add the jobs of a pack that the call lists."""
        ref = listed[0].member
        known = self._specs.of(_queue_of(listed))
        bits = ["0"] * ref.jobs
        renewed: Instant | None = None
        acked: list[Job] = []
        # Instants in the future are recorded as durations, to which the server adds its time.
        record = RecordBuilder(0)
        for _, lease, verdict, member in sorted(listed, key=_job_id):
            job = lease.job
            bits[member.position(job.id)] = "1"
            if _deletes(verdict, known.keeps_done):
                self._keep_settle(number, job.id, job.delivery, VERDICT_CODES[Ack])
                acked.append(job)
                continue
            record.leased(Change.ACKED, acked, 0)
            acked = []
            change = transition(verdict, known.stamper, 0)
            self._add_change(number, member, lease, verdict, change)
            record.held(change.change, job, change.until, change.error)
            if presumes_expiry(verdict):
                renewed = lease.until if renewed is None else min(renewed, lease.until)
        record.leased(Change.ACKED, acked, 0)
        marks = "".join(["1" if each in touched else "0" for each in range(1, max(touched, default=0) + 1)])
        self._packs.append((ref.pack, None if whole else "".join(bits), marks, renewed))
        self._ranges.append(_encode(record.ranges())[1:-1])

    def _add_change(self, number: int, ref: MemberRef, lease: Lease, verdict: Verdict, change: Transition) -> None:
        """The job is deleted, or becomes a row of its own."""
        job, code = lease.job, VERDICT_CODES[type(verdict)]
        if change.state is None:
            self._keep_settle(number, job.id, job.delivery, code)
            return
        out: dict[str, Any] = {"pack": number, "id": job.id, "member": ref.number, "code": code}
        out |= {"at": ref.offset(job.id), "position": ref.position(job.id)}
        if change.state is State.WAITING:
            out |= {"after": change.until, "keep_rank": change.keep_rank}
        elif change.state is State.DEAD:
            out |= self._dead_letter(job.queue)
        else:
            out["keep"] = change.until
        if change.error is not None:
            out["error"] = self._error(job, change.error)
        if isinstance(verdict, Ack) and verdict.result is not None:
            out["result"] = verdict.result.decode()
        self._outs.append(out)

    def _error(self, job: Job, failure: Failure) -> int:
        """The number of the text of a job's failures: jobs that failed alike share one."""
        key = (job.errors, failure, job.attempt)
        number = self._errors.get(key)
        if number is None:
            self._error_texts.append(failures_with(job, failure, ERRORS_KEPT))
            number = self._errors[key] = len(self._error_texts)
        return number

    def _keep_settle(self, number: int, job_id: int, delivery: int, code: str) -> None:
        if self._memo:
            pack, first, size, *last = self._memo[-1]
            if pack == number and last == [delivery, code] and first + size == job_id:
                self._memo[-1] = (pack, first, size + 1, delivery, code)
                return
        self._memo.append((number, job_id, 1, delivery, code))

    def _dead_letter(self, queue: str) -> dict[str, Any]:
        """Where a dead letter of this queue is kept, and for how long."""
        columns = self._dead_letter_columns.get(queue)
        if columns is None:
            rule = dead_letter_rule(self._specs, queue, 0)
            columns = self._dead_letter_columns[queue] = {"queue": rule.queue, "keep": rule.kept_until or None}
        return columns


def _cancel(unit: UnitOfWork, ids: Sequence[int]) -> list[CancelAnswer]:
    rows = unit.fetch(_FIND, (list(ids),))
    unit.require_locks({queue for *_, queue in rows})
    for job_id, single, last_id, _ in sorted(rows):
        if not single:
            unit.execute(EXTRACT, (last_id, job_id))
    singles = {columns[0]: columns for columns in unit.fetch(_LOCK_SINGLES, (list(ids),))}
    # A statement that begins after those locks finds what was claimed until then.
    rest = [job_id for job_id in ids if job_id not in singles]
    found = ((job_id, RunRow._make(columns)) for job_id, *columns in (unit.fetch(_FOUND, (rest,) * 2) if rest else ()))
    running = {job_id: row for job_id, row in found if row.state == RUNNING}
    states = dict.fromkeys(singles, State.WAITING) | dict.fromkeys(running, State.RUNNING)
    plan = plan_cancel(ids, states)
    _request_cancel(unit, {job_id: running[job_id] for job_id in plan.requested})
    for job_id in plan.ended:
        unit.topics.add(ending_of(job_id))
        _cancel_unclaimed(unit, singles[job_id])
    return plan.answers


def _request_cancel(unit: UnitOfWork, rows: Mapping[int, RunRow]) -> None:
    """Request the cancellation of jobs that run; only the first request of a job is recorded."""
    positions = [(row.pack, member_ref(row).position(job_id)) for job_id, row in rows.items()]
    for job_id, row in rows.items():
        for job in jobs_of_run(row):
            if job.id == job_id and not job.cancel_requested:
                unit.builder.set_verb("cancel")
                unit.builder.held(Change.CANCEL_REQUESTED, job, 0)
    if positions:
        packs, each = map(list, zip(*sorted(positions), strict=True))
        holders = {holder for (holder,) in unit.fetch(_REQUEST_CANCEL, (packs, each))}
        unit.execute(_HOLDERS_CHANGED, (sorted(holders),))
        unit.topics.update(map(requests_to, holders))


def _cancel_unclaimed(unit: UnitOfWork, columns: Sequence[Any]) -> None:
    job_id, queue, _, lane, line, kind, delivery, code = columns
    keep = unit.known(queue).stamper.kept_until(0)
    kept_until = unit.now + keep if keep else 0
    unit.builder.set_verb("cancel")
    unit.builder.unheld(Change.CANCELLED, job_id, queue, kind, kept_until)
    if keep:
        unit.execute(END_SINGLES, ([job_id], [None], [None], [kept_until], unit.now, CANCELLED))
    else:
        unit.execute(_DELETE, ([job_id],))
        store_settles(unit, [(job_id, delivery, code)] if delivery else [])
    unit.has_room.add(queue)
    unit.touch(queue, lane, line)


def _redrive(unit: UnitOfWork, ids: Sequence[int]) -> list[int]:
    found = unit.fetch(_DEAD, (list(ids), unit.now))
    dead = {job_id for job_id, *_ in found}
    arrivals: dict[str, int] = {}
    for *_, home in found:
        arrivals[home] = arrivals.get(home, 0) + 1
    unit.require_locks(arrivals)
    depths = LockedDepths(unit, arrivals)
    check_capacity(depths, arrivals)
    depths.write()
    if dead:
        unit.execute(_REDRIVE, (sorted(dead), unit.now))
        unit.builder.set_verb("redrive")
        for job_id, _, _, lane, line, kind, home in found:
            unit.builder.unheld(Change.REDRIVEN, job_id, home, kind, unit.now)
            unit.touch(home, lane, line)
        unit.has_work.update(arrivals)
        recount_dead(unit, [queue for _, queue, *_ in found])
    return [job_id for job_id in dict.fromkeys(ids) if job_id in dead]


def _purge(unit: UnitOfWork, state: int, before: Instant, limit: int, queue: str | None) -> int:
    which = (state, before, unit.now, limit)
    finished = unit.fetch(_PURGE, which) if queue is None else unit.fetch(_PURGE_QUEUE, (queue, *which))
    record_purged(unit, finished)
    if finished:
        unit.builder.set_verb("purge")
    return len(finished)


class Settling:
    """The ends of jobs."""

    def __init__(self, session: Session, claims: Claims) -> None:
        self._session = session
        self._claims = claims

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        groups, later = grouped(settlements)
        applied = self._apply(groups) if groups else set()
        return self._answers(settlements, groups, later, applied)

    def settle_and_claim(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, lease_for: Duration
    ) -> tuple[list[Settled], list[Lease]]:
        """Settle and claim in one round trip and one commit; in two if some are settled job by job."""
        groups, later = grouped(settlements)
        if later or not groups or not wants:
            return self.settle(settlements), self._claims.claim(wants, owner, lease_for)
        arguments = self.call_of(groups, [want.queue for want in wants])
        numbers, taken = self._claims.claim_after(_SETTLE_AND_CLAIM, arguments, wants, owner, lease_for)
        answers = self._answers(settlements, groups, later, self._applied(groups, numbers))
        return answers, self._claims.claim(wants, owner, lease_for) if taken is None else taken

    def _answers(
        self,
        settlements: Sequence[Settlement],
        groups: Sequence[PackGroup],
        later: list[NumberedSettlement],
        applied: set[int],
    ) -> list[Settled]:
        """Settlements that were not applied with their packs are tried job by job."""
        answers = [Settled.APPLIED] * len(settlements)
        for number, group in enumerate(groups, 1):
            if number not in applied:
                later += [(item.number, item.lease, item.verdict) for item in group]
        for number, lease, verdict in sorted(self._settle_found(later), key=lambda item: item[0]):
            answers[number] = self._settle_one(lease, verdict)
        self._claims.remove([(lease.job.id, lease.job.delivery) for lease, _ in settlements])
        return answers

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        return self._session.write(lambda unit: _cancel(unit, ids)) if ids else []

    def redrive(self, ids: Sequence[int]) -> list[int]:
        return self._session.write(lambda unit: _redrive(unit, ids)) if ids else []

    def purge(self, state: State, before: Instant, limit: int, queue: str | None) -> int:
        return self._session.write(lambda unit: _purge(unit, STATES.index(state), before, limit, queue))

    def purge_dead(self, ids: Sequence[int]) -> list[int]:
        known = [job_id for job_id in dict.fromkeys(ids) if 0 < job_id <= MAX_ID]
        return self._session.write(partial(_purge_dead, known)) if known else []

    def _apply(self, groups: Sequence[PackGroup]) -> set[int]:
        """The numbers of the packs that were settled."""
        return self._applied(groups, self._session.server.query(SETTLE, self.call_of(groups))[0][0])

    def _applied(self, groups: Sequence[PackGroup], numbers: list[int] | None) -> set[int]:
        """The same from the result of a call; None: it had an old spec and is repeated."""
        for _ in range(_MAX_LOOKUPS):
            if numbers is not None:
                break
            self._session.specs.reload({_queue_of(group) for group in groups})
            numbers = self._session.server.query(SETTLE, self.call_of(groups))[0][0]
        done = set(numbers or ())
        self._notify([group for number, group in enumerate(groups, 1) if number in done])
        return done

    def call_of(self, groups: Sequence[PackGroup], claimed: Sequence[str] = ()) -> tuple[Any, ...]:
        """The arguments of `forebay.settle`."""
        holder_ids = [holder.id for holder in list(self._claims.holders.values())]
        return SettleCall(self._session.at, holder_ids, self._session.specs, groups, claimed).parameters()

    def _notify(self, groups: Sequence[PackGroup]) -> None:
        has_work: set[str] = set()
        has_room: set[str] = set()
        topics = [ending_of(job_id) for job_id in self._ended(groups)]
        for group in groups:
            queue = _queue_of(group)
            known = self._session.specs.of(queue)
            if known.lock_keys or any(type(verdict) in (Retry, Release) for _, _, verdict, _ in group):
                has_work.add(queue)
            if known.bounded:
                has_room.add(queue)
        if has_work or has_room or topics:
            self._session.waiters.notify(has_work, has_room, topics)

    def _ended(self, groups: Sequence[PackGroup]) -> Iterator[int]:
        """Jobs whose end is notified. That of one that is acknowledged and not kept only reaches this process."""
        watched = self._session.waiters.watched
        for group in groups:
            for _, lease, verdict, _ in group:
                match verdict:
                    case Ack(_, 0) if not watched:
                        continue
                    case Ack() | Cancel() | DeadLetter():
                        yield lease.job.id
                    case _:
                        pass

    def _settle_found(self, items: list[NumberedSettlement]) -> list[NumberedSettlement]:
        """Settle those whose fences are valid after one look-up, as of a dead process; returns the others."""
        ids = [lease.job.id for _, lease, _ in items]
        if len(ids) < _MIN_BATCH or len(set(ids)) < len(ids):
            return items
        refs = {job.fence: job.ref for job in self._claims.running_jobs(ids)}
        groups: dict[int, PackGroup] = {}
        for number, lease, verdict in items:
            if (ref := refs.get(lease.fence)) is not None:
                groups.setdefault(ref.pack, []).append(PackSettlement(number, lease, verdict, ref))
        ordered = [groups[pack] for pack in sorted(groups)]
        applied = self._apply(ordered) if ordered else set()
        done = {item.number for number, group in enumerate(ordered, 1) if number in applied for item in group}
        return [(number, lease, verdict) for number, lease, verdict in items if number not in done]

    def _settle_one(self, lease: Lease, verdict: Verdict) -> Settled:
        """Settle the job in its current row, or compare with its last settle."""
        fence = lease.fence
        for _ in range(_MAX_LOOKUPS):
            found = [job for job in self._claims.running_jobs([fence[0]]) if job.fence == fence]
            if not found or outlived(lease, verdict, found[0].until):
                break
            if self._apply([[PackSettlement(0, lease, verdict, found[0].ref)]]):
                return Settled.APPLIED
        settles = self._session.server.query(_LAST_SETTLES, ([fence[0]],) * 4)
        last = max(((delivery, code) for _, delivery, code in settles), default=None)
        return Settled.APPLIED if last == (fence[1], VERDICT_CODES[type(verdict)]) else Settled.STALE


def _purge_dead(ids: Sequence[int], unit: UnitOfWork) -> list[int]:
    dead = set(take_dead(unit, ids))
    if dead:
        unit.builder.set_verb("purge")
    return [job_id for job_id in ids if job_id in dead]
