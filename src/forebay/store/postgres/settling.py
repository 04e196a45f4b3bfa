"""The commit point and the other endings: settle, cancel, redrive, purge.

The fence decides, not the time. A settle is one call of one function, pack by pack: whole packs go in one step, parts
are marked in their packs, what is to be tried again or kept is broken out. What the function refuses is looked at one
by one. The last settle is remembered, on the row or, once the job is gone, in a table of calls: a repeated one is
answered alike.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from forebay.core.instant import Duration, Instant
from forebay.core.job import Job, State
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.ledger import Change
from forebay.core.limits import ERRORS_KEPT, MAX_ID
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.core.record_builder import RecordBuilder
from forebay.engine.settle import VERDICT_CODES, Transition, outlived, presumes_expiry, transition
from forebay.store.postgres.claims import CALL, Claims
from forebay.store.postgres.connect import Prepared, array_of
from forebay.store.postgres.intake import check_capacity
from forebay.store.postgres.maintenance import forget, grave_of, left, remember, take_dead
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import (
    RUNNING,
    Ref,
    RunRow,
    errors_before,
    jobs_of_run,
    ref_in,
    ref_of,
    text_of,
)
from forebay.store.postgres.session import Session, UnitOfWork
from forebay.store.postgres.specs import Specs
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

Item = tuple[int, Lease, Verdict]
"""A settlement with its number in the call."""

Group = list[tuple[int, Lease, Verdict, Ref]]
"""Settlements of jobs of one pack."""
_TAKE_OUT: Final = "SELECT forebay.take_out(%s, %s)"
_FIND: Final = (
    "SELECT f.id, f.single, f.last_id, r.queue FROM forebay.find(%s::bigint[]) AS f, LATERAL ("
    "SELECT * FROM forebay.run AS r WHERE r.single = f.single AND r.last_id = f.last_id OFFSET 0) AS r"
)
_FOUND: Final = statement("found")
_MOVE: Final = statement("move")
_BURY: Final = statement("bury")
_DELETE: Final = statement("delete")
_ASK: Final = statement("ask")
_CHANGED: Final = statement("holder_changed")
_DEAD: Final = statement("dead")
_REDRIVE: Final = statement("redrive")
_FINISHED: Final = statement("finished")
_FINISHED_IN: Final = statement("finished_in")
_EXCHANGE: Final = Prepared(
    f"WITH told AS MATERIALIZED (SELECT {SETTLE_CALL} AS applied) "
    "SELECT told.applied, (NULL::forebay.claimed).* FROM told "
    f"UNION ALL SELECT NULL, taken.* FROM told CROSS JOIN LATERAL {CALL} AS taken"
)
"""The first row has the answer to the settle, the others have what was claimed after it."""

_MARKS: Final = statement("marks")
_TOGETHER: Final = 3
_MAX_LOOKS: Final = 5
"""A job may move from row to row while it is looked for."""


def grouped(settlements: Sequence[Settlement]) -> tuple[list[Group], list[Item]]:
    """Settlements pack by pack, in the order in which packs are locked; and those that are looked at one by one."""
    groups: dict[int, Group] = {}
    later: list[Item] = []
    twice = _twice([lease.job.id for lease, _ in settlements])
    for number, (lease, verdict) in enumerate(settlements):
        ref = ref_of(lease)
        if ref is None or lease.job.id in twice:
            later.append((number, lease, verdict))
            continue
        group = groups.get(ref.pack)
        if group is None:
            group = groups[ref.pack] = []
        group.append((number, lease, verdict, ref))
    return [groups[pack] for pack in sorted(groups)], later


def _twice(ids: Sequence[int]) -> set[int]:
    """Jobs that are settled more than once in a call: these are taken one by one, in order."""
    if len(set(ids)) == len(ids):
        return set()
    return {job_id for job_id, count in Counter(ids).items() if count > 1}


def _job_id(item: tuple[int, Lease, Verdict, Ref]) -> int:
    return item[1].job.id


def _goes(verdict: Verdict, kept: bool) -> bool:
    """Whether a job is acknowledged and not kept."""
    return type(verdict) is Ack and not verdict.keep_for and not kept


class SettleCall:
    """The arguments of one call of `forebay.settle`."""

    def __init__(
        self,
        at: Instant | None,
        mine: Sequence[int],
        specs: Specs,
        groups: Sequence[Group],
        claimed: Sequence[str] = (),
    ) -> None:
        """`claimed`: queues from which a claim follows in the same transaction; their locks are taken here too."""
        self._packs: list[tuple[int, str | None, str, Instant | None]] = []
        self._memo: list[tuple[int, int, int, int, str]] = []
        self._outs: list[dict[str, Any]] = []
        self._errors: dict[tuple[Any, ...], int] = {}
        self._error_texts: list[str] = []
        self._told: list[bytes] = []
        self._graves: dict[str, dict[str, Any]] = {}
        locks = specs.locks({group[0][1].job.queue for group in groups}, claimed)
        names = (array_of(locks.names), array_of(locks.versions))
        self._said = (at, array_of(locks.alone), array_of(locks.beside), *names, array_of(mine))
        self._specs = specs
        for number, group in enumerate(groups, 1):
            self._add(number, group)

    def parameters(self) -> tuple[Any, ...]:
        packs = [array_of(column) for column in zip(*self._packs, strict=True)]
        memo = [array_of(column) for column in zip(*self._memo, strict=True)] if self._memo else ["{}"] * 5
        outs = text_of({"jobs": self._outs, "errors": self._error_texts}) if self._outs else None
        return (*self._said, *packs, *memo, outs, b"\n".join(self._told).decode())

    def _add(self, number: int, group: Group) -> None:
        """All of a pack: the server writes what there is to say of members whose jobs go; else each job is told."""
        _, lease, _, ref = group[0]
        kept = self._specs.of(lease.job.queue).stamper.kept_until(0) != 0
        touched = {place.number for _, _, verdict, place in group if not _goes(verdict, kept)}
        whole = len(group) == ref.jobs
        told = [item for item in group if item[3].number in touched] if whole else group
        bits = ["0"] * ref.jobs
        renewed: Instant | None = None
        acked: list[Job] = []
        # What lies ahead is recorded as a length of time, to which the server's now is added.
        record = RecordBuilder(0)
        for _, lease, verdict, place in sorted(told, key=_job_id):
            job = lease.job
            bits[place.place(job.id)] = "1"
            if _goes(verdict, kept):
                self._memorise(number, job.id, job.delivery, VERDICT_CODES[Ack])
                acked.append(job)
                continue
            record.leased(Change.ACKED, acked, 0)
            acked = []
            change = transition(verdict, self._specs.of(job.queue).stamper, 0)
            self._add_change(number, place, lease, verdict, change)
            record.held(change.change, job, change.until, change.error)
            if presumes_expiry(verdict):
                renewed = lease.until if renewed is None else min(renewed, lease.until)
        record.leased(Change.ACKED, acked, 0)
        marks = "".join(["1" if each in touched else "0" for each in range(1, max(touched, default=0) + 1)])
        self._packs.append((ref.pack, None if whole else "".join(bits), marks, renewed))
        self._told.append(_encode(record.spans())[1:-1])

    def _add_change(self, number: int, ref: Ref, lease: Lease, verdict: Verdict, change: Transition) -> None:
        """What becomes of the job: it goes, or goes somewhere else than away."""
        job, code = lease.job, VERDICT_CODES[type(verdict)]
        if change.state is None:
            self._memorise(number, job.id, job.delivery, code)
            return
        out: dict[str, Any] = {"pack": number, "id": job.id, "member": ref.number, "code": code}
        out |= {"at": ref.at(job.id), "place": ref.place(job.id)}
        if change.state is State.WAITING:
            out |= {"after": change.until, "keep_rank": change.keep_rank}
        elif change.state is State.DEAD:
            out |= self._grave(job.queue)
        else:
            out["keep"] = change.until
        if change.error is not None:
            out["error"] = self._error(job, change.error)
        if isinstance(verdict, Ack) and verdict.result is not None:
            out["result"] = verdict.result.decode()
        self._outs.append(out)

    def _error(self, job: Job, failure: Failure) -> int:
        """The number of the text of a job's failures: jobs that failed alike share one."""
        words = (job.errors, failure, job.attempt)
        number = self._errors.get(words)
        if number is None:
            self._error_texts.append(errors_before(job, failure, ERRORS_KEPT))
            number = self._errors[words] = len(self._error_texts)
        return number

    def _memorise(self, number: int, job_id: int, delivery: int, code: str) -> None:
        if self._memo:
            pack, first, size, *last = self._memo[-1]
            if pack == number and last == [delivery, code] and first + size == job_id:
                self._memo[-1] = (pack, first, size + 1, delivery, code)
                return
        self._memo.append((number, job_id, 1, delivery, code))

    def _grave(self, queue: str) -> dict[str, Any]:
        """What an out says of where its job will lie, if not in its queue for good."""
        grave = self._graves.get(queue)
        if grave is None:
            found = grave_of(self._specs, queue, 0)
            grave = self._graves[queue] = {"queue": found.queue, "keep": found.kept_until or None}
        return grave


def _cancel(unit: UnitOfWork, ids: Sequence[int]) -> list[CancelAnswer]:
    rows = unit.fetch(_FIND, (list(ids),))
    unit.hold({queue for *_, queue in rows})
    for job_id, single, last_id, _ in sorted(rows):
        if not single:
            unit.execute(_TAKE_OUT, (last_id, job_id))
    alone = {columns[0]: columns for columns in unit.fetch(_MOVE, (list(ids),))}
    # What was claimed until now is found by a look that begins after those locks.
    running = _ask(unit, [job_id for job_id in ids if job_id not in alone])
    ended: set[int] = set()
    answers = []
    for job_id in ids:
        columns = alone.get(job_id)
        if job_id in running:
            answers.append(CancelAnswer.REQUESTED)
        elif columns is None or job_id in ended:
            answers.append(CancelAnswer.GONE)
        else:
            ended.add(job_id)
            unit.topics.add(ending_of(job_id))
            _dismiss(unit, columns)
            answers.append(CancelAnswer.CANCELLED)
    return answers


def _ask(unit: UnitOfWork, ids: Sequence[int]) -> set[int]:
    """The holders of those that run will be told; who was asked before hears of it again, but it is no news."""
    places: dict[int, tuple[int, int]] = {}
    for job_id, *columns in unit.fetch(_FOUND, (list(ids),) * 2) if ids else ():
        row = RunRow._make(columns)
        if row.state != RUNNING:
            continue
        places[job_id] = (row.pack, ref_in(row).place(job_id))
        for job in jobs_of_run(row):
            if job.id == job_id and not job.cancel_requested:
                unit.builder.set_verb("cancel")
                unit.builder.held(Change.ASKED, job, 0)
    if places:
        packs, at = map(list, zip(*sorted(places.values()), strict=True))
        holders = {holder for (holder,) in unit.fetch(_ASK, (packs, at))}
        unit.execute(_CHANGED, (sorted(holders),))
        unit.topics.update(map(requests_to, holders))
    return set(places)


def _dismiss(unit: UnitOfWork, columns: Sequence[Any]) -> None:
    """A job that nobody holds will not run."""
    job_id, queue, _, lane, line, kind, delivery, code = columns
    keep = unit.known(queue).stamper.kept_until(0)
    kept_until = unit.now + keep if keep else 0
    unit.builder.set_verb("cancel")
    unit.builder.job(Change.CANCELLED, job_id, queue, kind, 0, 0, 0, 0, 0, 0, kept_until)
    if keep:
        unit.execute(_BURY, ([job_id], [None], [None], [kept_until], unit.now, CANCELLED))
    else:
        unit.execute(_DELETE, ([job_id],))
        remember(unit, [(job_id, delivery, code)] if delivery else [])
    unit.eased.add(queue)
    unit.touch(queue, lane, line)


def _redrive(unit: UnitOfWork, ids: Sequence[int]) -> list[int]:
    found = unit.fetch(_DEAD, (list(ids), unit.now))
    dead = {columns[0] for columns in found}
    arrivals: dict[str, int] = {}
    for *_, home in found:
        arrivals[home] = arrivals.get(home, 0) + 1
    unit.hold(arrivals)
    check_capacity(unit, arrivals)
    if dead:
        unit.execute(_REDRIVE, (sorted(dead), unit.now))
        unit.builder.set_verb("redrive")
        for job_id, _, _, lane, line, kind, home in found:
            unit.builder.job(Change.REDRIVEN, job_id, home, kind, 0, 0, 0, 0, 0, 0, unit.now)
            unit.touch(home, lane, line)
        unit.news.update(arrivals)
        left(unit, [columns[1] for columns in found])
    return [job_id for job_id in dict.fromkeys(ids) if job_id in dead]


def _purge(unit: UnitOfWork, state: int, before: Instant, limit: int, queue: str | None) -> int:
    which = (state, before, unit.now, limit)
    finished = unit.fetch(_FINISHED, which) if queue is None else unit.fetch(_FINISHED_IN, (queue, *which))
    forget(unit, finished)
    if finished:
        unit.builder.set_verb("purge")
    return len(finished)


class Settling:
    """How jobs end."""

    def __init__(self, session: Session, claims: Claims) -> None:
        self._session = session
        self._claims = claims

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        groups, later = grouped(settlements)
        applied = self._apply(groups) if groups else set()
        return self._answers(settlements, groups, later, applied)

    def settle_and_claim(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, span: Duration
    ) -> tuple[list[Settled], list[Lease]]:
        """Settle, and claim what comes next, in one round trip and one commit. What is not plain takes two."""
        groups, later = grouped(settlements)
        if later or not groups or not wants:
            return self.settle(settlements), self._claims.claim(wants, owner, span)
        asked = self.call_of(groups, [want.queue for want in wants])
        numbers, taken = self._claims.claim_after(_EXCHANGE, asked, wants, owner, span)
        answers = self._answers(settlements, groups, later, self._applied(groups, numbers))
        return answers, self._claims.claim(wants, owner, span) if taken is None else taken

    def _answers(
        self, settlements: Sequence[Settlement], groups: Sequence[Group], later: list[Item], applied: set[int]
    ) -> list[Settled]:
        """What was not applied with its run is looked at one by one."""
        answers = [Settled.APPLIED] * len(settlements)
        for number, group in enumerate(groups, 1):
            if number not in applied:
                later += [(place, lease, verdict) for place, lease, verdict, _ in group]
        for number, lease, verdict in sorted(self._settle_found(later), key=lambda item: item[0]):
            answers[number] = self._settle_one(lease, verdict)
        self._claims.let_go([(lease.job.id, lease.job.delivery) for lease, _ in settlements])
        return answers

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        return self._session.write(lambda unit: _cancel(unit, ids)) if ids else []

    def redrive(self, ids: Sequence[int]) -> list[int]:
        return self._session.write(lambda unit: _redrive(unit, ids)) if ids else []

    def purge(self, state: State, before: Instant, limit: int, queue: str | None) -> int:
        return self._session.write(lambda unit: _purge(unit, STATES.index(state), before, limit, queue))

    def discard(self, ids: Sequence[int]) -> list[int]:
        known = [job_id for job_id in dict.fromkeys(ids) if 0 < job_id <= MAX_ID]
        return self._session.write(partial(_discard, known)) if known else []

    def _apply(self, groups: Sequence[Group]) -> set[int]:
        """Which of these packs were settled as asked, by number."""
        return self._applied(groups, self._session.server.query(SETTLE, self.call_of(groups))[0][0])

    def _applied(self, groups: Sequence[Group], numbers: list[int] | None) -> set[int]:
        """The same from the answer to a call; None: it knew an old spec and is made again."""
        for _ in range(_MAX_LOOKS):
            if numbers is not None:
                break
            self._session.specs.reload({group[0][1].job.queue for group in groups})
            numbers = self._session.server.query(SETTLE, self.call_of(groups))[0][0]
        done = set(numbers or ())
        self._settled([group for place, group in enumerate(groups, 1) if place in done])
        return done

    def call_of(self, groups: Sequence[Group], claimed: Sequence[str] = ()) -> tuple[Any, ...]:
        """The arguments of `forebay.settle`."""
        mine = [holder.id for holder in list(self._claims.holders.values())]
        return SettleCall(self._session.at, mine, self._session.specs, groups, claimed).parameters()

    def _settled(self, groups: Sequence[Group]) -> None:
        """Bookkeeping of this process, and news for those who sleep."""
        news: set[str] = set()
        eased: set[str] = set()
        topics = [ending_of(job_id) for job_id in self._ended(groups)]
        for group in groups:
            queue = group[0][1].job.queue
            if self._session.specs.of(queue).keys or any(
                type(verdict) in (Retry, Release) for _, _, verdict, _ in group
            ):
                news.add(queue)
            if self._session.specs.of(queue).bounded:
                eased.add(queue)
        if news or eased or topics:
            self._session.waiters.notify(news, eased, topics)

    def _ended(self, groups: Sequence[Group]) -> Iterator[int]:
        """Jobs whose end others may wait for; most go with their acknowledgement, of which only this process hears."""
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

    def _settle_found(self, items: list[Item]) -> list[Item]:
        """Settle in one look what is where its fence says, as all that a dead process held; the others come back."""
        ids = [lease.job.id for _, lease, _ in items]
        if len(ids) < _TOGETHER or len(set(ids)) < len(ids):
            return items
        refs = {place.fence: place.ref for place in self._claims.places(ids)}
        groups: dict[int, Group] = {}
        for item in items:
            if (ref := refs.get(item[1].fence)) is not None:
                groups.setdefault(ref.pack, []).append((*item, ref))
        ordered = [groups[pack] for pack in sorted(groups)]
        applied = self._apply(ordered) if ordered else set()
        done = {item[0] for number, group in enumerate(ordered, 1) if number in applied for item in group}
        return [item for item in items if item[0] not in done]

    def _settle_one(self, lease: Lease, verdict: Verdict) -> Settled:
        """The job where it is by now; or what is remembered of it."""
        fence = lease.fence
        for _ in range(_MAX_LOOKS):
            found = [place for place in self._claims.places([fence[0]]) if place.fence == fence]
            if not found or outlived(lease, verdict, found[0].until):
                break
            if self._apply([[(0, lease, verdict, found[0].ref)]]):
                return Settled.APPLIED
        marks = self._session.server.query(_MARKS, ([fence[0]],) * 4)
        last = max(((delivery, code) for _, delivery, code in marks), default=None)
        return Settled.APPLIED if last == (fence[1], VERDICT_CODES[type(verdict)]) else Settled.STALE


def _discard(ids: Sequence[int], unit: UnitOfWork) -> list[int]:
    dead = set(take_dead(unit, ids))
    if dead:
        unit.builder.set_verb("purge")
    return [job_id for job_id in ids if job_id in dead]
