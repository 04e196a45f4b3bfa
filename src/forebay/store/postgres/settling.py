"""The commit point and the other endings: settle, cancel, redrive, purge.

The fence decides, not the time. A settle is one call of one function, run by run: whole runs go in one step, parts are
marked in their runs, what is to be tried again or kept is broken out. What the function refuses is looked at one by
one. The last settle is remembered, on the row or, once the job is gone, in a table of calls: a repeated one is answered
alike.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Final

from forebay.core.errors import Invalid, StoreFailed
from forebay.core.instant import Instant, checked_instant, checked_micros
from forebay.core.job import State
from forebay.core.lease import Lease, Settled, Settlement, outlived
from forebay.core.limits import ERRORS_KEPT, LEASE_LEAST, LEASE_MOST
from forebay.core.outcome import Ack, Cancel, DeadLetter, Release, Retry, Verdict
from forebay.store.checks import check_batch, check_bytes, check_ids, check_limit, checked_owner, checked_total
from forebay.store.gating import CANCELLED, READY, RUNNING, STATES, Row
from forebay.store.postgres.base import Turn
from forebay.store.postgres.claims import CALL, Claims
from forebay.store.postgres.connect import array_of
from forebay.store.postgres.intake import check_capacity
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import Ref, errors_before, ref_of, span_kept, text_of
from forebay.store.postgres.tend import forget, remember, tend
from forebay.store.protocol import CancelAnswer, Want

_CODES: Final[dict[type, str]] = {Ack: "a", Retry: "r", DeadLetter: "d", Release: "l", Cancel: "c"}
_CALL: Final = (
    "forebay.settle(%s::bigint, %s, %s::integer[], %s::boolean[], %s::bigint[], %s::integer[], %s::text[], "
    "%s::bigint[], %s::integer[], %s::bigint[], %s::integer[], %s::text[], %s::json)"
)
SETTLE: Final = f"SELECT {_CALL}"
_EXCHANGE: Final = (
    f"WITH told AS MATERIALIZED (SELECT {_CALL} AS applied) "
    f"SELECT told.applied, taken.* FROM told LEFT JOIN LATERAL {CALL} AS taken ON true"
)
_TAKE_OUT: Final = "SELECT forebay.take_out(%s, %s)"
_FIND: Final = "SELECT id, single, last_id FROM forebay.find(%s::bigint[])"
_FOUND: Final = statement("found")
_MARKS: Final = statement("marks")
_MOVE: Final = statement("move")
_BURY: Final = statement("bury")
_DELETE: Final = statement("delete")
_ASK: Final = statement("ask")
_CHANGED: Final = statement("holder_changed")
_DEAD: Final = statement("dead")
_REDRIVE: Final = statement("redrive")
_FINISHED: Final = statement("finished")

_LOOKS_MOST: Final = 5
"""A job may move from row to row while it is looked for."""

Item = tuple[int, Lease, Verdict]
"""A settlement with its number in the call."""

Group = tuple[Ref, list[Item]]
"""Settlements of jobs of one run."""


class Settling(Claims):
    """How jobs end."""

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        groups, later = _grouped(settlements)
        applied = self._apply(groups) if groups else set()
        return self._answers(settlements, groups, later, applied)

    def exchange(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, lease_for: timedelta
    ) -> tuple[list[Settled], list[Lease]]:
        """Settle, and claim what comes next, in one round trip and one commit. What is not plain takes two."""
        owner = checked_owner(owner)
        span = checked_micros("lease_for", lease_for, LEASE_LEAST, LEASE_MOST)
        checked_total(wants)
        groups, later = _grouped(settlements)
        if later or not groups or not wants:
            return self.settle(settlements), self.claim(wants, owner, lease_for)
        holder = self._holder(owner)
        fronts = [self._front(want) for want in wants]
        asked = self._asked(wants, fronts, holder, span, tended=False)
        told = SettleCall(self, groups).parameters()
        began = monotonic()
        try:
            with holder.claiming():
                rows = self._server.query(_EXCHANGE, (*told, *asked), repeatable=False)
                found = [row[1:] for row in rows if row[1] is not None]
                flag = found[0][0] if found else 0
                leases = [] if flag else self._leases(found, owner, holder)
        except StoreFailed:
            self._retire(owner, holder)
            raise
        self._moved(monotonic() - began, wants, fronts, found)
        applied = set(rows[0][0])
        self._settled([group for place, group in enumerate(groups, 1) if place in applied])
        answers = self._answers(settlements, groups, later, applied)
        return answers, self.claim(wants, owner, lease_for) if flag else leases

    def _answers(
        self, settlements: Sequence[Settlement], groups: Sequence[Group], later: list[Item], applied: set[int]
    ) -> list[Settled]:
        """What was not applied with its run is looked at one by one."""
        answers = [Settled.APPLIED] * len(settlements)
        for place, (_, items) in enumerate(groups, 1):
            if place not in applied:
                later += items
        for number, lease, verdict in sorted(later, key=lambda item: item[0]):
            answers[number] = self._settle_one(lease, verdict)
        self._let_go([(lease.job.id, lease.job.delivery) for lease, _ in settlements])
        return answers

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        check_ids("cancel", ids)
        return self._write(lambda turn: _cancel(turn, ids), gated=True) if ids else []

    def redrive(self, ids: Sequence[int]) -> list[int]:
        check_ids("redrive", ids)
        return self._write(lambda turn: _redrive(turn, ids), gated=True) if ids else []

    def purge(self, state: State, before: Instant, limit: int) -> int:
        check_limit("purge", limit)
        checked_instant("before", before)
        if not isinstance(state, State) or not state.terminal:
            raise Invalid("purge state", f"{state!r} is not finished", "purge done, dead or cancelled jobs")
        return self._write(lambda turn: _purge(turn, STATES.index(state), before, limit), gated=True)

    def _apply(self, groups: Sequence[Group]) -> set[int]:
        """Which of these runs were settled as asked, by number."""
        (applied,) = self._server.query(SETTLE, SettleCall(self, groups).parameters())[0]
        done = set(applied)
        self._settled([group for place, group in enumerate(groups, 1) if place in done])
        return done

    def _mine(self) -> list[int]:
        return [holder.id for holder in list(self._holders.values())]

    def _settled(self, groups: Sequence[Group]) -> None:
        """Bookkeeping of this process, and news for those who sleep."""
        news: set[str] = set()
        eased: set[str] = set()
        for ref, items in groups:
            queue = items[0][1].job.queue
            if ref.gated or any(type(verdict) in (Retry, Release) for _, _, verdict in items):
                news.add(queue)
            if self._specs.of(queue).bounded:
                eased.add(queue)
        if news or eased:
            self._sleepers.hear(news, eased)

    def _settle_one(self, lease: Lease, verdict: Verdict) -> Settled:
        """The job where it is by now; or what is remembered of it."""
        fence = lease.fence
        for _ in range(_LOOKS_MOST):
            found = [
                row for row in self._server.query(_FOUND, ([fence[0]],)) if row[5] == RUNNING and row[10] == fence[1]
            ]
            if not found or outlived(lease, verdict, found[0][14]):
                break
            row = found[0]
            groups: list[Group] = [(Ref(row[1], row[2], row[3], row[10], row[16]), [(0, lease, verdict)])]
            if self._apply(groups):
                return Settled.APPLIED
        marks = self._server.query(_MARKS, ([fence[0]],) * 3)
        last = max(((delivery, code) for _, delivery, code in marks), default=None)
        return Settled.APPLIED if last == (fence[1], _CODES[type(verdict)]) else Settled.STALE


def _grouped(settlements: Sequence[Settlement]) -> tuple[list[Group], list[Item]]:
    """Settlements run by run, in the order in which runs are locked; and those that are looked at one by one."""
    check_batch("settle", len(settlements))
    check_bytes("settle", [verdict.result if type(verdict) is Ack else None for _, verdict in settlements])
    for _, verdict in settlements:
        if type(verdict) not in _CODES:
            raise Invalid("verdict", f"{type(verdict).__name__} is not one", "use what decide() returns")
    groups: dict[int, Group] = {}
    later: list[Item] = []
    twice = _twice([lease.job.id for lease, _ in settlements])
    for number, (lease, verdict) in enumerate(settlements):
        ref = ref_of(lease)
        if ref is None or lease.job.id in twice:
            later.append((number, lease, verdict))
            continue
        group = groups.get(id(ref))
        if group is None:
            group = groups[id(ref)] = (ref, [])
        group[1].append((number, lease, verdict))
    # Two references to one run, as from a claim and a look at what is overdue, cannot be settled in one call.
    found: dict[tuple[bool, int], Group] = {}
    for ref, items in groups.values():
        if found.setdefault(ref.key, (ref, items))[1] is not items:
            later += items
    return [found[key] for key in sorted(found)], later


def _twice(ids: Sequence[int]) -> set[int]:
    """Jobs that are settled more than once in a call: these are taken one by one, in order."""
    if len(set(ids)) == len(ids):
        return set()
    return {job_id for job_id, count in Counter(ids).items() if count > 1}


class SettleCall:
    """The arguments of one call of `forebay.settle`."""

    def __init__(self, store: Settling, groups: Sequence[Group]) -> None:
        self._runs: list[tuple[bool, int, int, str | None, Instant | None]] = []
        self._memo: list[tuple[int, int, int, str]] = []
        self._outs: list[dict[str, Any]] = []
        self._keeps: dict[str, int] = {}
        self._store = store
        self._gated = any(ref.gated for ref, _ in groups)
        for number, (ref, items) in enumerate(groups, 1):
            self._add(number, ref, items)

    def parameters(self) -> tuple[Any, ...]:
        runs = [array_of(column) for column in zip(*self._runs, strict=True)]
        memo = [array_of(column) for column in zip(*self._memo, strict=True)] if self._memo else ["{}"] * 4
        said = (self._store._at, self._gated, array_of(self._store._mine()))
        return (*said, *runs, *memo, text_of(self._outs) if self._outs else None)

    def _add(self, number: int, ref: Ref, items: Sequence[Item]) -> None:
        job = items[0][1].job
        if len(items) == ref.n and not self._keep(job.queue) and all(type(verdict) is Ack for _, _, verdict in items):
            self._memo.append((number, ref.last_id - ref.n + 1, ref.n, "a"))
            self._runs.append((ref.single, ref.last_id, ref.delivery, None, None))
            return
        outs = len(self._outs)
        renewed: Instant | None = None
        bits = ["0"] * ref.n
        for _, lease, verdict in sorted(items, key=lambda item: item[1].job.id):
            job = lease.job
            bits[ref.place(job.id)] = "1"
            code, keep = _CODES[type(verdict)], 0
            if isinstance(verdict, Ack | Cancel):
                keep = self._keep(job.queue)
            if isinstance(verdict, Ack | Cancel) and not keep:
                self._memorise(number, job.id, code)
            else:
                self._outs.append(_out(number, ref, lease, verdict, code, keep))
            if isinstance(verdict, Retry | DeadLetter) and verdict.error.abandoned:
                renewed = lease.until if renewed is None else min(renewed, lease.until)
        whole = len(items) == ref.n and len(self._outs) == outs
        self._runs.append((ref.single, ref.last_id, ref.delivery, None if whole else "".join(bits), renewed))

    def _memorise(self, number: int, job_id: int, code: str) -> None:
        if self._memo:
            run, first, size, last = self._memo[-1]
            if run == number and last == code and first + size == job_id:
                self._memo[-1] = (run, first, size + 1, code)
                return
        self._memo.append((number, job_id, 1, code))

    def _keep(self, queue: str) -> int:
        keep = self._keeps.get(queue)
        if keep is None:
            keep = self._keeps[queue] = span_kept(self._store._specs.of(queue).stamper)
        return keep


def _out(number: int, ref: Ref, lease: Lease, verdict: Verdict, code: str, keep: int) -> dict[str, Any]:
    job = lease.job
    out: dict[str, Any] = {"run": number, "id": job.id, "place": ref.place(job.id), "code": code}
    match verdict:
        case Ack(result):
            out |= {"keep": keep, "result": None if result is None else result.decode()}
        case Cancel():
            out["keep"] = keep
        case Retry(after, error):
            out |= {"after": after, "errors": errors_before(job, error, ERRORS_KEPT)}
        case DeadLetter(error):
            out["errors"] = errors_before(job, error, ERRORS_KEPT)
        case Release(after):
            out["after"] = after
    return out


def _cancel(turn: Turn, ids: Sequence[int]) -> list[CancelAnswer]:
    found = {job_id: (single, last_id) for job_id, single, last_id in turn.fetch(_FIND, (list(ids),))}
    for job_id, (single, last_id) in sorted(found.items()):
        if not single:
            turn.execute(_TAKE_OUT, (last_id, job_id))
    found = {job_id: (single, last_id) for job_id, single, last_id in turn.fetch(_FIND, (list(ids),))}
    rows = {columns[0]: columns for columns in turn.fetch(_MOVE, (list(ids),))}
    asked: list[int] = []
    ended: set[int] = set()
    answers = []
    for job_id in ids:
        columns = rows.get(job_id)
        running = columns[3] == RUNNING if columns is not None else job_id in found
        if running:
            asked.append(job_id)
            answers.append(CancelAnswer.REQUESTED)
        elif columns is None or job_id in ended:
            answers.append(CancelAnswer.GONE)
        else:
            ended.add(job_id)
            _dismiss(turn, columns)
            answers.append(CancelAnswer.CANCELLED)
    told = {job_id for job_id in asked if job_id in found}
    if told:
        keys = [(job_id, *found[job_id]) for job_id in sorted(told)]
        holders = {holder for _, holder in turn.fetch(_ASK, [list(column) for column in zip(*keys, strict=True)])}
        turn.execute(_CHANGED, (sorted(holders - {None}),))
    if turn.gated:
        tend(turn)
    return answers


def _dismiss(turn: Turn, columns: Sequence[Any]) -> None:
    """A job that nobody holds will not run."""
    row, (delivery, code) = Row.of(columns), columns[8:10]
    keep = span_kept(turn.known(row.queue).stamper)
    if keep:
        turn.execute(_BURY, ([row.id], [None], turn.now, turn.now + keep, CANCELLED))
    else:
        turn.execute(_DELETE, ([row.id],))
        remember(turn, [(row.id, delivery, code)] if delivery else [])
    turn.eased.add(row.queue)
    if row.gates:
        if row.state == READY:
            turn.gates.release(row)
        turn.gates.end(row, CANCELLED)


def _redrive(turn: Turn, ids: Sequence[int]) -> list[int]:
    dead = {columns[0]: Row.of(columns) for columns in turn.fetch(_DEAD, (list(ids),))}
    arrivals: dict[str, int] = {}
    for row in dead.values():
        arrivals[row.queue] = arrivals.get(row.queue, 0) + 1
    check_capacity(turn, arrivals)
    if dead:
        turn.execute(_REDRIVE, (list(dead), turn.now))
        for row in dead.values():
            turn.news.add(row.queue)
            if row.gates:
                turn.gates.rejoin(row)
        tend(turn)
    return [job_id for job_id in dict.fromkeys(ids) if job_id in dead]


def _purge(turn: Turn, state: int, before: Instant, limit: int) -> int:
    finished = turn.fetch(_FINISHED, (state, before, turn.now, limit))
    forget(turn, finished)
    if turn.gated:
        tend(turn)
    return len(finished)
