"""Handing out: promote, claim, extend, overdue.

A claim is one call of one function. It takes whole runs while they fit and splits the last one, and what it took from a
queue is one pack. What this process holds is remembered, so that one heartbeat extends everything when everything is to
be extended, however many jobs that are.

"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from threading import Lock
from time import monotonic
from typing import Any, Final

from msgspec.structs import replace

from forebay.core.errors import StoreFailed
from forebay.core.instant import Duration, Instant
from forebay.core.job import Job
from forebay.core.lease import Fence, Heartbeat, Lease
from forebay.core.limits import MAX_BATCH
from forebay.store.postgres.connect import Prepared, Rows, array_of
from forebay.store.postgres.intake import take_inbox
from forebay.store.postgres.maintenance import expire, forget_excess, sweep
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import Held, PackRow, Place, Ref, RunRow, jobs_of_run, leases_of
from forebay.store.postgres.session import Session, UnitOfWork
from forebay.store.protocol import Promotion, Want

_LOOK_EVERY: Final = 0.05
_LOOK_SHARE: Final = 20
"""Claims from the very front take at most this part of the time."""

_MAX_LOOK: Final = 1.0
"""Seconds for which somebody who came back may be overlooked."""

_SLOW: Final = 0.01
_SLACK: Final = 1_000_000
_TRUSTED: Final = 60.0
"""Seconds for which leases are looked for behind a floor; then from the start, whatever that takes."""

_SLOW_PAST: Final = 0.002
"""Seconds. Those who wait look as well, and far more often than the reaper, by whose looks this is measured."""

_BEGINNING: Final = -(2**63)
CALL: Final = (
    "forebay.claim(%s::bigint, %s, %s, %s::bigint, %s::integer[], %s::integer[], %s::boolean[], %s::text[], "
    "%s::integer[], %s::text[], %s::integer[], %s::integer[], %s::bigint[], %s::bigint[])"
)
_CLAIM: Final = Prepared(f"SELECT * FROM {CALL}")
_PROMOTE: Final = Prepared("SELECT p.*, forebay.counts_dead() FROM forebay.promote(%s::bigint, %s, %s) AS p")
_CROWDED: Final = "SELECT forebay.crowded(%s)"
_TRIM: Final = "SELECT forebay.trim_ledger(%s, %s) FROM forebay.number_ledger()"
_HOLDER: Final = (
    "INSERT INTO forebay.holder (owner, seen_at) VALUES (%s, coalesce(%s::bigint, forebay.clock())) RETURNING id"
)
_HEARTBEAT: Final = Prepared("SELECT * FROM forebay.heartbeat(%s::bigint, %s, %s::bigint)")
_EXTEND: Final = Prepared("SELECT * FROM forebay.extend(%s::bigint, %s::bigint, %s::bigint[])")
_RIPEN: Final = "SELECT forebay.ripen(%s, %s, %s)"
_HAND_BACK: Final = (
    "SELECT forebay.hand_back(%s::bigint, %s::integer[], %s::integer[], %s::text[], %s::integer[], %s, %s::bigint[])"
)
_SET_APART: Final = "SELECT forebay.set_apart(%s, %s::integer[])"
_OVERDUE: Final = statement("overdue")
_SILENT: Final = statement("silent")
_FOUND: Final = statement("found")
PLACES: Final = statement("places")
_MAX_CLAIMS: Final = 20
_HOLDER_SECONDS: Final = 43_200.0
_MAX_HOLDERS: Final = 1_000
_SWEEP_EVERY: Final = 30_000_000
_TRIM_EVERY: Final = 5_000_000
_TRIM_LIMIT: Final = 10 * MAX_BATCH


class ClaimCursor:
    """The front of one line, as one process knows it."""

    def __init__(self) -> None:
        self._whole = True
        self._slow = False
        self._look_at = 0.0
        self._lead: int | None = None
        self._floor: int | None = None

    def floors(self) -> tuple[int | None, int | None]:
        """Where to begin among those who lead, and among the others; None: at the very cursor."""
        self._whole = self._floor is None or monotonic() >= self._look_at
        return (None, None) if self._whole else (self._lead, self._floor)

    @property
    def known(self) -> tuple[int | None, int | None]:
        """The same for one who only looks."""
        return (None, None) if self._floor is None or monotonic() >= self._look_at else (self._lead, self._floor)

    def moved(self, took: float, asked: int, found: int, lead: int | None, first: int | None) -> None:
        """A claim took so many seconds, asked for so many jobs and found so many.

        `lead` and `first`: the smallest ranks that it found, below zero and above.
        """
        if self._whole:
            self._slow = took > _SLOW
            self._look_at = monotonic() + min(_MAX_LOOK, max(_LOOK_EVERY, took * _LOOK_SHARE))
        if lead is not None:
            self._lead = lead - _SLACK
        if found < asked and not self._slow:
            self._floor = None
        elif first is not None:
            self._floor = max(0, first - _SLACK)


class LeaseCursor:
    """Up to where leases were looked through in vain, as one process knows it; the same for those that ran out.

    Whoever claims later has a lease that ends later. So where nothing was overdue at an instant, no lease that ends
    before it will ever be: not of a holder whose heart did not beat then, and not of a lease that follows no heart.
    It matters under an old snapshot alone; while looking from the start is quick, every look is from the start.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._silent: dict[int, Instant] = {}
        self._alone: Instant = _BEGINNING

    @property
    def known(self) -> bool:
        return monotonic() < self._until

    def floors(self) -> tuple[list[int], list[Instant], Instant]:
        """Holders, from where to look for the leases of each, and for those that follow no heart."""
        if not self.known:
            return [], [], _BEGINNING
        return list(self._silent), list(self._silent.values()), self._alone

    def worth_knowing(self, took: float) -> bool:
        """Whether a look that took so many seconds should be remembered, if it found nothing."""
        return self.known or took > _SLOW_PAST

    def nothing_at(self, now: Instant, silent: Iterable[int]) -> None:
        """Nothing was overdue at this instant, at which the hearts of these did not beat."""
        if not self.known:
            self._until = monotonic() + _TRUSTED
            self._silent = {}
        self._silent.update(dict.fromkeys(silent, now - _SLACK))
        self._alone = now - _SLACK


class Holder:
    """This process under one of its names. `jobs` are those in its hands; `changes` as a heartbeat last saw them.

    `asked`: jobs whose end was requested, as of the changes in `looked_at`.
    """

    def __init__(self, holder_id: int) -> None:
        self.id = holder_id
        self.since = monotonic()
        self.changes = 0
        self.looked_at = 0
        self.asked: list[Fence] = []
        self._claims = 0
        self.jobs: dict[Fence, Ref] = {}
        self.guard = Lock()

    def hold(self, leases: Sequence[Held]) -> None:
        with self.guard:
            self.jobs.update([((lease.job.id, lease.job.delivery), lease.ref) for lease in leases])

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """While a claim is under way, what it takes is not yet known."""
        with self.guard:
            self._claims += 1
        try:
            yield
        finally:
            with self.guard:
                self._claims -= 1

    @property
    def idle(self) -> bool:
        """Whether everything that it has taken is known."""
        return not self._claims

    def packs(self) -> list[int]:
        """Where the jobs in its hands are."""
        with self.guard:
            return sorted({ref.pack for ref in self.jobs.values()})

    def let_go(self, fences: Iterable[Fence]) -> None:
        with self.guard:
            for fence in fences:
                self.jobs.pop(fence, None)

    def book(self) -> dict[Fence, Ref]:
        """What is in its hands, and where."""
        with self.guard:
            return dict(self.jobs)

    def has_just(self, fences: Collection[Fence]) -> bool:
        """Whether these are all that it holds, each as its claim left it."""
        with self.guard:
            if len(fences) != len(self.jobs):
                return False
            refs = [self.jobs.get(fence) for fence in fences]
        return all(ref is not None and ref.beat for ref in refs)


_TEND, _STALE, _LANED = 1, 2, 3


class Claims:
    """From waiting to running, and leases. `holders`: this process by its names; `cursors`: by queue."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.holders: dict[str, Holder] = {}
        self._holders_guard = Lock()
        self._run_sizes: dict[str, float] = {}
        self.cursors: dict[str, ClaimCursor] = {}
        self.past = LeaseCursor()
        self.swept_at: Instant | None = None
        self._trimmed_at: Instant = 0

    def promote(self, limit: int) -> Promotion:
        ready, next_due, stirs, stamp, laned, counted = self._session.server.query(
            _PROMOTE, (self._session.at, limit, False)
        )[0]
        if self.swept_at is None:
            self.swept_at = stamp
        if stirs or abs(stamp - self.swept_at) > _SWEEP_EVERY:
            self.swept_at = stamp
            ready += self._session.write(lambda unit: _sweep(unit, limit))
            some, next_due, _, _, laned, _ = self._session.server.query(
                _PROMOTE, (self._session.at, max(0, limit - ready), True)
            )[0]
            ready += some
        if laned and ready < limit:
            ready += self._session.write(lambda unit: _ripen(unit, laned, limit - ready), laned)
            _, next_due, *_ = self._session.server.query(_PROMOTE, (self._session.at, 0, True))[0]
        if counted and self._session.server.query(_CROWDED, (stamp,))[0][0]:
            self._session.write(lambda unit: forget_excess(unit, limit))
        if abs(stamp - self._trimmed_at) > _TRIM_EVERY:
            self._trimmed_at = stamp
            self._session.server.query(_TRIM, (stamp, _TRIM_LIMIT))
        return Promotion(ready, next_due)

    def claim(self, wants: Sequence[Want], owner: str, span: Duration) -> list[Lease]:
        broken = False
        for _ in range(_MAX_CLAIMS if wants else 0):
            holder = self._holder(owner)
            try:
                with holder.claiming():
                    flag, rows = self._claim(wants, holder, span)
                    if flag == _TEND:
                        work = partial(self._claim_tended, wants, holder, span)
                        flag, rows = self._session.write(work, {want.queue for want in wants})
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
            raise StoreFailed(
                self._session.server.name, f"{_MAX_CLAIMS} claims in a row found their queues changed by others"
            )
        return []

    def claim_after(
        self, statement: str, settled: Sequence[Any], wants: Sequence[Want], owner: str, span: Duration
    ) -> tuple[list[int] | None, list[Lease] | None]:
        """Claim in the statement that settles first: the answer to that, and what was taken.

        None: nothing could be claimed with what was known of the queues, which is better known by now.
        """
        holder = self._holder(owner)
        cursors = [self._cursor(want) for want in wants]
        asked = self._asked(wants, cursors, holder, span)
        began = monotonic()
        try:
            with holder.claiming():
                rows = self._session.server.query(statement, (*settled, *asked), repeatable=False)
                found = [PackRow._make(row[1:]) for row in rows[1:]]
                flag = _flag(found)
                taken = [] if flag else self._leases(found, owner, holder)
        except StoreFailed:
            self._retire(owner, holder)
            raise
        self._moved(monotonic() - began, wants, cursors, found)
        self._refused(flag, wants)
        return rows[0][0], None if flag else taken

    def _refused(self, flag: int, wants: Sequence[Want]) -> None:
        """A claim could not be made with what was known of the queues."""
        if flag == _STALE:
            self._session.specs.reload({want.queue for want in wants})
        elif flag == _LANED:
            self._session.specs.set_apart({want.queue for want in wants})

    def extend(self, leases: Sequence[Lease], span: Duration) -> list[Lease]:
        unique = {lease.fence: lease for lease in leases}
        beating = self._beat(list(unique.values()), span)
        if beating is not None:
            return beating
        extended = self._extend(unique, span)
        self.let_go(fence for fence in unique.keys() - {lease.fence for lease in extended})
        return extended

    def beat(self, leases: Sequence[Lease], span: Duration) -> Heartbeat:
        """New time for all that their owner has claimed here, in one step, and not only for these.

        A worker says so: what is not among its leases is on its way here or back. Runs with a time of their own are
        looked at, and all of them once others have touched some.
        """
        holder = self.holders.get(leases[0].owner) if leases else None
        found = (
            self._session.server.query(_HEARTBEAT, (self._session.at, holder.id, span)) if holder is not None else []
        )
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
        now = self._session.now()
        silent, floors, alone = self.past.floors()
        began = monotonic()
        rows = self._session.server.query(_OVERDUE, (silent, floors, now, limit, now, alone, now, limit, limit))
        if not rows and self.past.worth_knowing(monotonic() - began):
            self.past.nothing_at(now, [holder for (holder,) in self._session.server.query(_SILENT, (now,))])
        leases: list[Lease] = [lease for row in rows for lease in leases_of(RunRow._make(row))]
        return leases[:limit]

    def _claim(self, wants: Sequence[Want], holder: Holder, span: Duration) -> tuple[int, list[PackRow]]:
        """What came; or why nothing could come."""
        cursors = [self._cursor(want) for want in wants]
        began = monotonic()
        asked = self._asked(wants, cursors, holder, span)
        rows = _packs(self._session.server.query(_CLAIM, asked, repeatable=False))
        self._moved(monotonic() - began, wants, cursors, rows)
        return _flag(rows), rows

    def _claim_tended(
        self, wants: Sequence[Want], holder: Holder, span: Duration, unit: UnitOfWork
    ) -> tuple[int, list[PackRow]]:
        """The same, once what is over was looked after; in one transaction with that."""
        take_inbox(unit)
        expire(unit)
        # What expired is on record before what was claimed: the next of a line runs because the head died.
        unit.finish()
        rows = _packs(unit.fetch(_CLAIM, self._asked(wants, [None] * len(wants), holder, span, tended=True)))
        return _flag(rows), rows

    def _asked(
        self,
        wants: Sequence[Want],
        cursors: Sequence[ClaimCursor | None],
        holder: Holder,
        span: Duration,
        tended: bool = False,
    ) -> tuple[Any, ...]:
        """The arguments of `forebay.claim`."""
        floors = [(None, None) if cursor is None else cursor.floors() for cursor in cursors]
        locks = self._session.specs.locks((), [want.queue for want in wants])
        return (
            self._session.at,
            tended,
            holder.id,
            span,
            array_of(locks.alone),
            array_of(locks.beside),
            array_of([self._session.specs.is_apart(want.queue) for want in wants]),
            array_of([want.queue for want in wants]),
            array_of([self._session.specs.of(want.queue).version for want in wants]),
            array_of([want.cls for want in wants]),
            array_of([want.count for want in wants]),
            array_of([self._rows_for(want) for want in wants]),
            array_of([lead for lead, _ in floors]),
            array_of([floor for _, floor in floors]),
        )

    def _moved(
        self, took: float, wants: Sequence[Want], cursors: Sequence[ClaimCursor | None], rows: Sequence[PackRow]
    ) -> None:
        found = {row.want: (row.n, row.lead, row.floor) for row in rows}
        for number, (cursor, want) in enumerate(zip(cursors, wants, strict=True), 1):
            if cursor is not None:
                cursor.moved(took, want.count, *found.get(number, (0, None, None)))

    def _cursor(self, want: Want) -> ClaimCursor | None:
        """Only where newcomers stand behind the others, by the server's own clock, can a claim begin further on.

        The next head of a line, and what a gate held, may stand before all that was claimed last.
        """
        known = self._session.specs.of(want.queue)
        if self._session.clock is not None or want.cls is not None or not known.by_time or known.keys:
            return None
        return self.cursors.setdefault(want.queue, ClaimCursor())

    def _rows_for(self, want: Want) -> int:
        """How many runs will probably be enough."""
        return max(1, round(want.count / self._run_sizes.get(want.queue, 1.0)))

    def _leases(self, rows: Sequence[PackRow], owner: str, holder: Holder) -> list[Lease]:
        """By want; of queues with lanes in the order in which they were taken, else by rank."""
        taken: list[Lease] = []
        for row in rows:
            found = row.leases(owner)
            holder.hold(found)
            taken += found
            self._run_sizes[found[0].job.queue] = row.n / found[-1].ref.number
        return taken

    def _holder(self, owner: str) -> Holder:
        """This process under that name; known anew twice a day, so that the store can forget who is gone."""
        holder = self.holders.get(owner)
        if holder is not None and monotonic() - holder.since < _HOLDER_SECONDS:
            return holder
        with self._holders_guard:
            holder = self.holders.get(owner)
            if holder is None or monotonic() - holder.since >= _HOLDER_SECONDS:
                holder = Holder(self._session.server.query(_HOLDER, (owner, self._session.at), repeatable=True)[0][0])
                if len(self.holders) >= _MAX_HOLDERS:
                    # Over HTTP names may be many; leases of one that is forgotten are extended run by run.
                    self.holders = dict(islice(self.holders.items(), _MAX_HOLDERS // 2, None))
                self.holders[owner] = holder
        return holder

    def _retire(self, owner: str, holder: Holder) -> None:
        """A claim of this holder got no answer: whoever of its claims is last hands back what nobody knows of."""
        with self._holders_guard:
            if self.holders.get(owner) is holder:
                del self.holders[owner]
        if holder.idle:
            with suppress(StoreFailed):
                self._hand_back(holder)

    def _hand_back(self, holder: Holder) -> None:
        """First what needs no lock alone; then the queues of what is left are known."""
        known = array_of(holder.packs())
        queues: set[str] = set()
        for _ in range(_MAX_CLAIMS):
            locks = self._session.specs.locks(queues)
            left = self._session.server.query(_HAND_BACK, (self._session.at, *locks, holder.id, known))[0][0]
            if left == []:
                return
            queues.update(left or ())
            self._session.specs.reload(queues)

    def _beat(self, leases: Sequence[Lease], span: Duration) -> list[Lease] | None:
        """One heartbeat for all, if these are all that a holder has and nobody else touched them; else None."""
        owners = {lease.owner for lease in leases}
        holder = self.holders.get(owners.pop()) if len(owners) == 1 else None
        if holder is None or not holder.has_just([lease.fence for lease in leases]):
            return None
        now = self._session.now()
        if any(lease.until > now + span for lease in leases):
            return None
        found = self._session.server.query(_HEARTBEAT, (self._session.at, holder.id, span))
        if not found:
            return None
        stamp, changes = found[0]
        if changes != holder.changes:
            holder.changes = changes
            return None
        until = stamp + span
        return [_extended(lease, until) for lease in leases]

    def _look_at(self, held: dict[Fence, Ref], span: Duration) -> tuple[list[Fence], list[Fence]]:
        """Which of these are lost, and which should end; those that no heartbeat carries get new time."""
        found = {place.fence: place for place in self.places([job_id for job_id, _ in held]) if place.fence in held}
        alone = {place.pack for place in found.values() if not place.beat}
        if alone:
            self._session.server.query(_EXTEND, (self._session.at, span, array_of(sorted(alone))))
        return [fence for fence in held if fence not in found], [place.fence for place in found.values() if place.asked]

    def places(self, ids: Sequence[int]) -> list[Place]:
        """Those of these jobs that run."""
        return [Place._make(row) for row in self._session.server.query(PLACES, (list(ids),))]

    def _extend(self, leases: dict[tuple[int, int], Lease], span: Duration) -> list[Lease]:
        """Pack by pack: jobs of a pack that are not to be extended are set apart first, with the time they have."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for place in self.places([lease.job.id for lease in leases.values()]):
            if place.fence in leases:
                wanted.setdefault(place.pack, []).append((place.id, place.ref.place(place.id)))
        if not wanted:
            return []
        for pack, jobs in sorted(wanted.items()):
            self._session.server.query(_SET_APART, (pack, array_of([at for _, at in jobs])))
        survivors = self._session.server.query(_EXTEND, (self._session.at, span, array_of(sorted(wanted))))
        alive = {job_id for (pack,) in survivors for job_id, _ in wanted[pack]}
        pictures = unfinished(self._session, sorted(alive))
        extended = []
        for lease in leases.values():
            job = pictures.get(lease.job.id)
            if job is not None and job.delivery == lease.job.delivery and lease.job.id in alive:
                extended.append(replace(lease, job=job, until=job.lease_until or 0))
                # From now on the pack has a time of its own, which no heartbeat of its holder changes.
                if isinstance(lease, Held):
                    lease.ref.beat = False
        return extended

    def let_go(self, fences: Iterable[Fence]) -> None:
        """These jobs are not in the hands of this process any more."""
        gone = list(fences)
        for holder in list(self.holders.values()):
            holder.let_go(gone)


def unfinished(session: Session, ids: Sequence[int]) -> dict[int, Job]:
    """Those of these jobs that are not finished, as they look now."""
    rows = session.server.query(_FOUND, (list(ids),) * 2) if ids else []
    return {job.id: job for job_id, *row in rows for job in jobs_of_run(RunRow._make(row)) if job.id == job_id}


def _extended(lease: Lease, until: Instant) -> Lease:
    return replace(lease, job=replace(lease.job, lease_until=until), until=until)


def _packs(rows: Rows) -> list[PackRow]:
    return [PackRow._make(row) for row in rows]


def _flag(rows: Sequence[PackRow]) -> int:
    return rows[0].flag if rows else 0


def _sweep(unit: UnitOfWork, limit: int) -> int:
    """What outlived its time goes; how many jobs became ready since the head of their line expired."""
    take_inbox(unit)
    expire(unit, limit)
    sweep(unit, limit)
    unit.write_lanes()
    return unit.exposed


def _ripen(unit: UnitOfWork, queues: Sequence[str], limit: int) -> int:
    """Due jobs of queues with lanes become ready; how many."""
    ready = 0
    for queue in queues:
        if ready < limit:
            ready += unit.fetch(_RIPEN, (unit.now, queue, limit - ready))[0][0]
    unit.news.update(queues)
    return ready
