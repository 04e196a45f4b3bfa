"""Handing out: promote, claim, extend, overdue.

A claim is one call of one function. It takes whole runs while they fit and splits the last one. What this process holds
is remembered by run, so that one heartbeat extends everything when everything is to be extended, however many jobs that
are.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, repeat
from threading import Lock
from time import monotonic
from typing import Any, Final

from msgspec.structs import replace

from forebay.core.errors import StoreFailed
from forebay.core.instant import Instant, Span
from forebay.core.job import Job
from forebay.core.lease import Fence, Heartbeat, Lease
from forebay.core.limits import BATCH_MOST
from forebay.store.postgres.base import Turn
from forebay.store.postgres.connect import Rows, array_of
from forebay.store.postgres.front import Front, Past
from forebay.store.postgres.holders import Holder
from forebay.store.postgres.inbox import take_inbox
from forebay.store.postgres.intake import Intake
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import RUNNING, Held, Ref, jobs_of_run, leases_of
from forebay.store.postgres.tend import expire, forget_excess, sweep
from forebay.store.protocol import Promotion, Want

CALL: Final = (
    "forebay.claim(%s::bigint, %s, %s, %s::bigint, %s::integer[], %s::integer[], %s::boolean[], %s::text[], "
    "%s::integer[], %s::text[], %s::integer[], %s::integer[], %s::bigint[], %s::bigint[])"
)
_CLAIM: Final = f"SELECT * FROM {CALL}"
_PROMOTE: Final = "SELECT p.*, forebay.counts_dead() FROM forebay.promote(%s::bigint, %s) AS p"
_CROWDED: Final = "SELECT forebay.crowded(%s)"
_TRIM: Final = "SELECT forebay.trim_ledger(%s, %s) FROM forebay.number_ledger()"
_HOLDER: Final = (
    "INSERT INTO forebay.holder (owner, seen_at) VALUES (%s, coalesce(%s::bigint, forebay.clock())) RETURNING id"
)
_HEARTBEAT: Final = "SELECT * FROM forebay.heartbeat(%s::bigint, %s, %s::bigint)"
_EXTEND: Final = "SELECT * FROM forebay.extend(%s::bigint, %s::bigint, %s::boolean[], %s::bigint[], %s::integer[])"
_ANY_INBOX: Final = "SELECT EXISTS (SELECT FROM forebay.inbox)"
_RIPEN: Final = "SELECT forebay.ripen(%s, %s, %s)"
_HAND_BACK: Final = (
    "SELECT forebay.hand_back(%s::bigint, %s::integer[], %s::integer[], %s::text[], %s::integer[], %s, %s::boolean[], "
    "%s::bigint[])"
)
_SET_APART: Final = "SELECT forebay.set_apart(%s, %s, %s, %s::integer[])"
_OVERDUE: Final = statement("overdue")
_SILENT: Final = statement("silent")
_FOUND: Final = statement("found")

_CLAIMS_MOST: Final = 20
_HOLDER_SECONDS: Final = 43_200.0
_HOLDERS_MOST: Final = 1_000
_SWEEP_EVERY: Final = 30_000_000
_TRIM_EVERY: Final = 5_000_000
_TRIM_LIMIT: Final = 10 * BATCH_MOST
_TEND, _STALE, _LANED = 1, 2, 3
_RUN: Final = 4
"""Where the columns of a run begin in a claimed row."""

_PLACES: Final = -1
"""Where a claimed row tells the places of its jobs in the claim."""


class Claims(Intake):
    """From waiting to running, and leases."""

    def __init__(self, url: str, clock: Any) -> None:
        super().__init__(url, clock)
        self._holders: dict[str, Holder] = {}
        self._holders_guard = Lock()
        self._run_sizes: dict[str, float] = {}
        self._fronts: dict[str, Front] = {}
        self._past = Past()
        self._swept_at: Instant | None = None
        self._trimmed_at: Instant = 0

    def promote(self, limit: int) -> Promotion:
        ready, next_due, stirs, stamp, laned, counted = self._server.query(_PROMOTE, (self._at, limit))[0]
        if self._swept_at is None:
            self._swept_at = stamp
        sweeps = stirs or abs(stamp - self._swept_at) > _SWEEP_EVERY
        if sweeps:
            self._swept_at = stamp
            self._write(lambda turn: _sweep(turn, limit))
        if laned and ready < limit:
            ready += self._write(lambda turn: _ripen(turn, laned, limit - ready), laned)
        if sweeps or laned:
            _, next_due, *_ = self._server.query(_PROMOTE, (self._at, 0))[0]
        if counted and self._server.query(_CROWDED, (stamp,))[0][0]:
            self._write(lambda turn: forget_excess(turn, limit))
        if abs(stamp - self._trimmed_at) > _TRIM_EVERY:
            self._trimmed_at = stamp
            self._server.query(_TRIM, (stamp, _TRIM_LIMIT))
        return Promotion(ready, next_due)

    def claim(self, wants: Sequence[Want], owner: str, span: Span) -> list[Lease]:
        broken = False
        for _ in range(_CLAIMS_MOST if wants else 0):
            holder = self._holder(owner)
            try:
                with holder.claiming():
                    flag, rows = self._claim(wants, holder, span)
                    if flag == _TEND:
                        work = partial(self._claim_tended, wants, holder, span)
                        flag, rows = self._write(work, {want.queue for want in wants})
                    taken = [] if flag else self._leases(rows, owner, holder)
            except StoreFailed:
                # What was taken, if anything was, is unknown: a new holder must not keep it alive.
                self._retire(owner, holder)
                if broken:
                    raise
                broken = True
                continue
            if not flag:
                return taken
            self._refused(flag, wants)
        if wants:
            raise StoreFailed(self._server.name, f"{_CLAIMS_MOST} claims in a row found their queues changed by others")
        return []

    def _refused(self, flag: int, wants: Sequence[Want]) -> None:
        """A claim could not be made with what was known of the queues."""
        if flag == _STALE:
            self._specs.reload({want.queue for want in wants})
        elif flag == _LANED:
            self._specs.set_apart({want.queue for want in wants})

    def extend(self, leases: Sequence[Lease], span: Span) -> list[Lease]:
        unique = {lease.fence: lease for lease in leases}
        beating = self._beat(list(unique.values()), span)
        if beating is not None:
            return beating
        extended = self._extend(unique, span)
        self._let_go(fence for fence in unique.keys() - {lease.fence for lease in extended})
        return extended

    def beat(self, leases: Sequence[Lease], span: Span) -> Heartbeat:
        """New time for all that their owner has claimed here, in one step, and not only for these.

        A worker says so: what is not among its leases is on its way here or back. Runs with a time of their own are
        looked at, and all of them once others have touched some.
        """
        holder = self._holders.get(leases[0].owner) if leases else None
        found = self._server.query(_HEARTBEAT, (self._at, holder.id, span)) if holder is not None else []
        if holder is None or not found:
            return Heartbeat(unknown=[lease.fence for lease in leases])
        held, changes = holder.book(), found[0][1]
        doubtful = held if changes != holder.changes else {fence: ref for fence, ref in held.items() if not ref.beat}
        holder.changes = changes
        unknown = [lease.fence for lease in leases if lease.fence not in held]
        if not doubtful:
            return Heartbeat(unknown=unknown)
        lost, asked = self._look_at(doubtful, span)
        holder.let_go(lost)
        return Heartbeat(lost, asked, unknown)

    def overdue(self, limit: int) -> list[Lease]:
        now = self.now()
        silent, floors, alone = self._past.floors()
        began = monotonic()
        rows = self._server.query(_OVERDUE, (silent, floors, now, limit, now, alone, now, limit, limit))
        if not rows and self._past.worth_knowing(monotonic() - began):
            self._past.nothing_at(now, [holder for (holder,) in self._server.query(_SILENT, (now,))])
        leases: list[Lease] = [lease for row in rows for lease in leases_of(row, row[20] or "")]
        return leases[:limit]

    def _claim(self, wants: Sequence[Want], holder: Holder, span: Span) -> tuple[int, Rows]:
        """What came; or why nothing could come."""
        fronts = [self._front(want) for want in wants]
        began = monotonic()
        asked = self._asked(wants, fronts, holder, span)
        rows = self._server.query(_CLAIM, asked, repeatable=False)
        self._moved(monotonic() - began, wants, fronts, rows)
        return _flag(rows), rows

    def _claim_tended(self, wants: Sequence[Want], holder: Holder, span: Span, turn: Turn) -> tuple[int, Rows]:
        """The same, once what is over was looked after; in one transaction with that."""
        take_inbox(turn)
        expire(turn)
        # What expired is on record before what was claimed: the next of a line runs because the head died.
        turn.finish()
        rows = turn.fetch(_CLAIM, self._asked(wants, [None] * len(wants), holder, span, tended=True))
        return _flag(rows), rows

    def _asked(
        self,
        wants: Sequence[Want],
        fronts: Sequence[Front | None],
        holder: Holder,
        span: Span,
        tended: bool = False,
    ) -> tuple[Any, ...]:
        """The arguments of `forebay.claim`."""
        floors = [(None, None) if front is None else front.floors() for front in fronts]
        locks = self._specs.locks((), [want.queue for want in wants])
        return (
            self._at,
            tended,
            holder.id,
            span,
            array_of(locks.alone),
            array_of(locks.beside),
            array_of([self._specs.is_apart(want.queue) for want in wants]),
            array_of([want.queue for want in wants]),
            array_of([self._specs.of(want.queue).version for want in wants]),
            array_of([want.cls for want in wants]),
            array_of([want.count for want in wants]),
            array_of([self._rows_for(want) for want in wants]),
            array_of([lead for lead, _ in floors]),
            array_of([floor for _, floor in floors]),
        )

    def _moved(self, took: float, wants: Sequence[Want], fronts: Sequence[Front | None], rows: Rows) -> None:
        for number, (front, want) in enumerate(zip(fronts, wants, strict=True), 1):
            if front is not None:
                front.moved(took, want.count, [(row[3], row[_RUN + 2]) for row in rows if row[2] == number])

    def _front(self, want: Want) -> Front | None:
        """Only where newcomers stand behind the others, by the server's own clock, can a claim begin further on.

        The next head of a line, and what a gate held, may stand before all that was claimed last.
        """
        known = self._specs.of(want.queue)
        if self._clock is not None or want.cls is not None or not known.by_time or known.keys:
            return None
        return self._fronts.setdefault(want.queue, Front())

    def _rows_for(self, want: Want) -> int:
        """How many runs will probably be enough."""
        return max(1, round(want.count / self._run_sizes.get(want.queue, 1.0)))

    def _leases(self, rows: Rows, owner: str, holder: Holder) -> list[Lease]:
        """By want; of queues with lanes in the order in which they were taken, else by rank."""
        rows.sort(key=lambda row: (*row[2:4], row[_RUN + 1]))
        taken: list[tuple[int, int, Held]] = []
        sizes: dict[str, list[int]] = {}
        for row in rows:
            found = leases_of(row[_RUN:], owner)
            holder.hold(found)
            taken += zip(repeat(row[2]), row[_PLACES] or repeat(0), found)
            sizes.setdefault(row[_RUN + 5], []).append(row[_RUN + 2])
        for queue, known in sizes.items():
            self._run_sizes[queue] = sum(known) / len(known)
        taken.sort(key=lambda each: each[:2])
        return [lease for _, _, lease in taken]

    def _holder(self, owner: str) -> Holder:
        """This process under that name; known anew twice a day, so that the store can forget who is gone."""
        holder = self._holders.get(owner)
        if holder is not None and monotonic() - holder.since < _HOLDER_SECONDS:
            return holder
        with self._holders_guard:
            holder = self._holders.get(owner)
            if holder is None or monotonic() - holder.since >= _HOLDER_SECONDS:
                holder = Holder(self._server.query(_HOLDER, (owner, self._at), repeatable=True)[0][0])
                if len(self._holders) >= _HOLDERS_MOST:
                    # Over HTTP names may be many; leases of one that is forgotten are extended run by run.
                    self._holders = dict(islice(self._holders.items(), _HOLDERS_MOST // 2, None))
                self._holders[owner] = holder
        return holder

    def _retire(self, owner: str, holder: Holder) -> None:
        """A claim of this holder got no answer: whoever of its claims is last hands back what nobody knows of."""
        with self._holders_guard:
            if self._holders.get(owner) is holder:
                del self._holders[owner]
        if holder.idle:
            with suppress(StoreFailed):
                self._hand_back(holder)

    def _hand_back(self, holder: Holder) -> None:
        """First what needs no lock alone; then the queues of what is left are known."""
        keys = [array_of(column) for column in zip(*(holder.runs() or [(False, 0)]), strict=True)]
        queues: set[str] = set()
        for _ in range(_CLAIMS_MOST):
            locks = self._specs.locks(queues)
            left = self._server.query(_HAND_BACK, (self._at, *locks, holder.id, *keys))[0][0]
            if left == []:
                return
            queues.update(left or ())
            self._specs.reload(queues)

    def _beat(self, leases: Sequence[Lease], span: Span) -> list[Lease] | None:
        """One heartbeat for all, if these are all that a holder has and nobody else touched them; else None."""
        owners = {lease.owner for lease in leases}
        holder = self._holders.get(owners.pop()) if len(owners) == 1 else None
        if holder is None or not holder.has_just([lease.fence for lease in leases]):
            return None
        now = self.now()
        if any(lease.until > now + span for lease in leases):
            return None
        found = self._server.query(_HEARTBEAT, (self._at, holder.id, span))
        if not found:
            return None
        stamp, changes = found[0]
        if changes != holder.changes:
            holder.changes = changes
            return None
        until = stamp + span
        return [_extended(lease, until) for lease in leases]

    def _look_at(self, held: dict[Fence, Ref], span: Span) -> tuple[list[Fence], list[Fence]]:
        """Which of these are lost, and which should end; those that no heartbeat carries get new time."""
        alive: set[Fence] = set()
        asked: list[Fence] = []
        alone: set[tuple[bool, int, int]] = set()
        for row in self._server.query(_FOUND, ([job_id for job_id, _ in held],)):
            fence = (row[0], row[10])
            if row[5] == RUNNING and fence in held:
                ref = Ref(row[1], row[2], row[3], row[10], row[22])
                alive.add(fence)
                if row[20] is not None and row[20][ref.place(row[0])] == "1":
                    asked.append(fence)
                if not ref.beat:
                    alone.add((ref.single, ref.last_id, ref.delivery))
        if alone:
            self._server.query(
                _EXTEND, (self._at, span, *(array_of(part) for part in zip(*sorted(alone), strict=True)))
            )
        return [fence for fence in held if fence not in alive], asked

    def _extend(self, leases: dict[tuple[int, int], Lease], span: Span) -> list[Lease]:
        """Run by run: jobs of a run that are not to be extended are set apart first, with the time that they have."""
        found = self._server.query(_FOUND, ([lease.job.id for lease in leases.values()],))
        wanted: dict[tuple[bool, int], tuple[Ref, str, list[int]]] = {}
        for row in found:
            delivery, gone = row[10], row[19]
            if row[5] == RUNNING and (row[0], delivery) in leases:
                ref = Ref(row[1], row[2], row[3], delivery, row[22])
                wanted.setdefault(ref.key, (ref, gone or "0" * ref.n, []))[2].append(row[0])
        for ref, gone, ids in wanted.values():
            first = ref.last_id - ref.n + 1
            others = [place for place in range(ref.n) if gone[place] == "0" and first + place not in ids]
            if others:
                self._server.query(_SET_APART, (ref.single, ref.last_id, ref.delivery, others))
        keys = [(ref.single, ref.last_id, ref.delivery) for ref, _, _ in wanted.values()]
        if not keys:
            return []
        columns = [array_of(column) for column in zip(*keys, strict=True)]
        survivors = {row[:2]: row[2] for row in self._server.query(_EXTEND, (self._at, span, *columns))}
        alive = {job_id for key, (_, _, ids) in wanted.items() if key in survivors for job_id in ids}
        pictures = self._pictures(sorted(alive))
        extended = []
        for lease in leases.values():
            job = pictures.get(lease.job.id)
            if job is not None and job.delivery == lease.job.delivery and lease.job.id in alive:
                extended.append(replace(lease, job=job, until=job.lease_until or 0))
                # From now on the run has a time of its own, which no heartbeat of its holder changes.
                if isinstance(lease, Held):
                    lease.ref.beat = False
        return extended

    def _empty_inbox(self) -> None:
        """What SQL users put into queues with rules is seen by whoever looks."""
        if self._server.query(_ANY_INBOX)[0][0]:
            self._write(take_inbox)

    def _pictures(self, ids: Sequence[int]) -> dict[int, Job]:
        """Those of these jobs that are not finished, as they look now."""
        rows = self._server.query(_FOUND, (list(ids),)) if ids else []
        return {job.id: job for row in rows for job, _ in jobs_of_run(row[1:]) if job.id == row[0]}

    def _let_go(self, fences: Iterable[Fence]) -> None:
        """These jobs are not in the hands of this process any more."""
        gone = list(fences)
        for holder in list(self._holders.values()):
            holder.let_go(gone)


def _extended(lease: Lease, until: Instant) -> Lease:
    return replace(lease, job=replace(lease.job, lease_until=until), until=until)


def _flag(rows: Rows) -> int:
    return rows[0][0] if rows else 0


def _sweep(turn: Turn, limit: int) -> None:
    take_inbox(turn)
    expire(turn, limit)
    sweep(turn, limit)


def _ripen(turn: Turn, queues: Sequence[str], limit: int) -> int:
    """Due jobs of queues with lanes become ready; how many."""
    ready = 0
    for queue in queues:
        if ready < limit:
            ready += turn.fetch(_RIPEN, (turn.now, queue, limit - ready))[0][0]
    turn.news.update(queues)
    return ready
