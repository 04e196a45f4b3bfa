"""Handing out: promote, claim, extend, overdue.

A claim takes the smallest (rank, id) of a class straight from one index; classes take turns by `core.share`, each
process keeping its own turns. What fell due is promoted, and what expired is buried, before anything is handed out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any, Final

from forebay.core.instant import Instant, checked_micros
from forebay.core.job import Job
from forebay.core.lease import Lease
from forebay.core.ledger import Change
from forebay.core.limits import LEASE_LEAST, LEASE_MOST
from forebay.store.checks import check_batch, check_limit, checked_owner, checked_total
from forebay.store.protocol import Promotion, Want
from forebay.store.sqlite.intake import Intake
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import id_list, lease_of, picture
from forebay.store.sqlite.tally import Line
from forebay.store.sqlite.tend import TEND_LIMIT, TRIES, ready_of, start, sweep_keys, sweep_rates, tend
from forebay.store.sqlite.turn import Turn
from forebay.store.states import READY, RUNNING

_CLAIM: Final = statement("claim")
_NEXT_DUE: Final = statement("next_due")
_NEXT_OPENING: Final = statement("next_opening")
_OVERDUE: Final = statement("overdue")
_FENCES: Final = statement("fences")
_EXTEND: Final = statement("extend")
_PICTURES: Final = statement("pictures")
_JOINED: Final = statement("joined")
_CLASS_STARTS: Final = statement("class_starts")
_START_AT: Final = statement("start_at")
_place: Final = itemgetter(Job.__struct_fields__.index("progress"), 0)

Columns = tuple[Any, ...]


class Claims(Intake):
    """From waiting to running, and leases."""

    def promote(self, limit: int) -> Promotion:
        check_limit("promote", limit)
        return self._write(lambda turn: _promote(turn, limit))

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        owner = checked_owner(owner)
        span = checked_micros("lease_for", lease_for, LEASE_LEAST, LEASE_MOST)
        total = checked_total(wants)
        return self._write(lambda turn: _claim(turn, wants, owner, turn.now + span, total))

    def extend(self, leases: Sequence[Lease], lease_for: timedelta) -> list[Lease]:
        check_batch("extend", len(leases))
        span = checked_micros("lease_for", lease_for, LEASE_LEAST, LEASE_MOST)
        return self._write(lambda turn: _extend(turn, leases, turn.now + span))

    def overdue(self, limit: int) -> list[Lease]:
        check_limit("overdue", limit)
        with self._read() as (reader, now):
            return [lease_of(columns) for columns in reader.execute(_OVERDUE, (now, limit))]


def _promote(turn: Turn, limit: int) -> Promotion:
    ready, _ = tend(turn, limit, limit)
    sweep_keys(turn, limit)
    sweep_rates(turn, limit)
    turn.trim_ledger(limit)
    instants = [turn.connection.execute(each).fetchone()[0] for each in (_NEXT_DUE, _NEXT_OPENING)]
    return Promotion(ready, min((at for at in instants if at is not None), default=None))


def _claim(turn: Turn, wants: Sequence[Want], owner: str, until: Instant, total: int) -> list[Lease]:
    _, through = tend(turn, total + TEND_LIMIT)
    if not through:
        return []
    leases: list[Lease] = []
    for want in wants:
        line = turn.line(want.queue)
        if (line.paused_until or 0) > turn.now:
            continue
        turns = None
        if turn.paced or turn.gated:
            turns = _start(turn, line, want)
        if line.counts[READY]:
            rows = _pop(turn, line, want, turns, owner, until)
            leases += [Lease(picture(columns), owner, until) for columns in rows]
    if leases and turn.scribe is not None:
        turn.scribe.tell("claim", owner=owner)
        turn.scribe.leased(Change.CLAIMED, [lease.job for lease in leases], until)
    return leases


def _start(turn: Turn, line: Line, want: Want) -> list[tuple[str, int]] | None:
    """Let in at rates what the claim wants beyond what is ready.

    Where classes take turns, with what is ready and with what their rates let in: who gives how many.
    """
    if want.cls is not None or line.spec.share is None or not _starts(turn, line):
        start(turn, line, want.count, want.cls, TRIES)
        return None
    turns: list[tuple[str, int]] = []
    given: Counter[str] = Counter()
    tries = TRIES
    while tries > 0 and given.total() < want.count and (dealt := _deal(turn, line, 1, given, starting=True)):
        name = dealt[0][0]
        tries = start(turn, line, given[name] + 1, name, tries)
        if ready_of(turn, line, name) > given[name]:
            given[name] += 1
            turns.append((name, 1))
        else:
            tries -= 1
    return turns


def _starts(turn: Turn, line: Line) -> bool:
    """Whether a rate of the queue stands open."""
    turn.tally.starting(turn.gates.write_paces() if turn.gated else ())
    return bool(turn.connection.execute(_START_AT, (line.name,)).fetchone()[0])


def _pop(
    turn: Turn, line: Line, want: Want, turns: list[tuple[str, int]] | None, owner: str, until: Instant
) -> list[Columns]:
    """The next jobs of a queue, smallest rank first within a class, classes by their shares; `turns`: known already."""
    if want.cls is not None:
        return _pop_class(turn, line, want.cls, want.count, owner, until)
    if turns is None and not line.classed:
        return _pop_class(turn, line, "", want.count, owner, until)
    turns = _deal(turn, line, want.count, {}) if turns is None else turns
    totals: dict[str, int] = {}
    for name, count in turns:
        totals[name] = totals.get(name, 0) + count
    taken = {name: iter(_pop_class(turn, line, name, count, owner, until)) for name, count in totals.items()}
    rows = [next(taken[name], None) for name, count in turns for _ in range(count)]
    return [row for row in rows if row is not None]


def _pop_class(turn: Turn, line: Line, cls: str, count: int, owner: str, until: Instant) -> list[Columns]:
    rows: list[Columns] = turn.connection.execute(_CLAIM, (owner, turn.now, until, line.name, cls, count)).fetchall()
    if rows:
        rows.sort(key=_place)
        turn.tally.moved(line.name, cls, READY, RUNNING, len(rows))
    return rows


def _deal(
    turn: Turn, line: Line, count: int, given: Mapping[str, int], *, starting: bool = False
) -> list[tuple[str, int]]:
    """Who gives how many, beside what was `given`. Classes that joined since this process last looked come first.

    `starting`: who has nobody ready may have somebody whom a rate lets in.
    """
    turn.write_classes()
    turns = turn.turns(line)

    def starts(name: str) -> bool:
        return starting and bool(turn.connection.execute(_CLASS_STARTS, (line.name, name)).fetchone()[0])

    taken = Counter(given)

    def waiting(name: str) -> int:
        return ready_of(turn, line, name) - taken[name] + 2 * starts(name)

    def deal(count: int) -> list[tuple[str, int]]:
        for name, joined in turn.connection.execute(_JOINED, (line.name, turns.seen)).fetchall():
            turns.share.join(name)
            turns.seen = joined
        if waiting(""):
            turns.share.join("")
        dealt = turns.share.deal(count, waiting)
        for name, part in dealt:
            taken[name] += part
        return dealt

    dealt = deal(count)
    short = min(count, max(line.counts[READY] - sum(given.values()), 1)) - sum(part for _, part in dealt)
    if short > 0:
        # Turns are only this process's memory: whatever it holds, ready jobs are found.
        turns.seen = 0
        dealt += deal(short)
    return dealt


def _extend(turn: Turn, leases: Sequence[Lease], until: Instant) -> list[Lease]:
    asked = {lease.job.id: lease.job.delivery for lease in leases}
    fences = dict(turn.connection.execute(_FENCES, (id_list(asked),)).fetchall())
    held = {lease.job.id: None for lease in leases if fences.get(lease.job.id) == lease.job.delivery}
    if not held:
        return []
    ids = id_list(held)
    turn.connection.execute(_EXTEND, (ids, until))
    found = {columns[0]: lease_of(columns) for columns in turn.connection.execute(_PICTURES, (ids,))}
    survivors = [found[job_id] for job_id in held]
    if turn.scribe is not None:
        turn.scribe.tell("extend")
        turn.scribe.leased(Change.EXTENDED, [lease.job for lease in survivors], until)
    return survivors
