"""Claims and leases: promote, claim, extend, overdue.

A claim is one call of one function. It takes whole runs while they fit and splits the last one; what it took from a
queue is one pack. The process keeps a list of the leases that it holds, so that one heartbeat extends all of them when
all are to be extended.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
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
from forebay.store.postgres.connect import Prepared, Rows, array_literal
from forebay.store.postgres.intake import take_inbox
from forebay.store.postgres.maintenance import expire, purge_excess_dead, sweep
from forebay.store.postgres.queries import SQL
from forebay.store.postgres.runs import MemberRef, PackLease, PackRow, RunningRow, RunRow, jobs_of_run, leases_of
from forebay.store.postgres.session import Session, UnitOfWork
from forebay.store.protocol import Promotion, Want

_RESCAN_EVERY: Final = 0.05
_RESCAN_SHARE: Final = 20
"""Claims that scan from the start take at most one part in so many of the time."""

_MAX_RESCAN: Final = 1.0
"""Seconds for which a job that was released may be missed."""

_SLOW: Final = 0.01
_SLACK: Final = 1_000_000
_TRUSTED: Final = 60.0
"""Seconds for which leases are scanned from a floor; then from the start, whatever that costs."""

_SLOW_LEASE_SCAN: Final = 0.002
"""Seconds. Waiters scan leases as well, and far more often than the reaper, whose scans are measured."""

_BEGINNING: Final = -(2**63)
CLAIM_CALL: Final = (
    "forebay.claim("
    "at => %s::bigint, maintained => %s, holder_id => %s, lease_for => %s::bigint, exclusive_keys => %s::integer[], "
    "shared_keys => %s::integer[], serial => %s::boolean[], names => %s::text[], versions => %s::integer[], "
    "classes => %s::text[], counts => %s::integer[], rows => %s::integer[], leads => %s::bigint[], "
    "floors => %s::bigint[])"
)
_CLAIM: Final = Prepared(f"SELECT * FROM {CLAIM_CALL}")
_PROMOTE: Final = Prepared("SELECT p.*, forebay.has_dead_limits() FROM forebay.promote(%s::bigint, %s, %s) AS p")
_OVER_DEAD_LIMIT: Final = "SELECT forebay.is_over_dead_limit(%s)"
_TRIM: Final = "SELECT forebay.trim_ledger(%s, %s) FROM forebay.number_ledger()"
_HOLDER: Final = (
    "INSERT INTO forebay.holder (owner, seen_at) VALUES (%s, coalesce(%s::bigint, forebay.clock())) RETURNING id"
)
_HEARTBEAT: Final = Prepared("SELECT * FROM forebay.heartbeat(%s::bigint, %s, %s::bigint)")
_EXTEND: Final = Prepared("SELECT * FROM forebay.extend(%s::bigint, %s::bigint, %s::bigint[])")
_PROMOTE_DUE: Final = "SELECT forebay.promote_due(%s, %s, %s)"
_RELEASE_LOST: Final = (
    "SELECT forebay.release_lost("
    "at => %s::bigint, exclusive_keys => %s::integer[], shared_keys => %s::integer[], names => %s::text[], "
    "versions => %s::integer[], v_holder => %s, known => %s::bigint[])"
)
_SPLIT_PACK: Final = "SELECT forebay.split_pack(%s, %s::integer[])"
_MAX_CLAIMS: Final = 20
_HOLDER_SECONDS: Final = 43_200.0
_MAX_HOLDERS: Final = 1_000
_SWEEP_EVERY: Final = 30_000_000
_TRIM_EVERY: Final = 5_000_000
_TRIM_LIMIT: Final = 10 * MAX_BATCH
"""Records and calls that a promotion removes. If there were as many, the next promotion goes on."""

_CALL_MEMORY: Final = 600_000_000


class ClaimCursor:
    """From which ranks on the claims of this process scan one queue.

    An old snapshot keeps dead index entries at the start of a queue, and a scan over all of them would take longer and
    longer. So claims begin near the last one, and only now and then at the start.
    """

    def __init__(self) -> None:
        self._from_start = True
        self._slow = False
        self._rescan_at = 0.0
        self._lead: int | None = None
        self._floor: int | None = None

    def begin(self) -> tuple[int | None, int | None]:
        """Where a claim begins among ranks below zero and above; None: at the start."""
        lead, floor = self.floors
        self._from_start = floor is None
        return lead, floor

    @property
    def floors(self) -> tuple[int | None, int | None]:
        """The same for a scan that claims nothing."""
        return (None, None) if self._floor is None or monotonic() >= self._rescan_at else (self._lead, self._floor)

    def advance(self, took: float, wanted: int, found: int, lead: int | None, first: int | None) -> None:
        """A claim took so many seconds, wanted so many jobs and found so many.

        `lead` and `first`: the smallest ranks that it found, below zero and above.
        """
        if self._from_start:
            self._slow = took > _SLOW
            self._rescan_at = monotonic() + min(_MAX_RESCAN, max(_RESCAN_EVERY, took * _RESCAN_SHARE))
        if lead is not None:
            self._lead = lead - _SLACK
        if found < wanted and not self._slow:
            self._floor = None
        elif first is not None:
            self._floor = max(0, first - _SLACK)


class LeaseCursor:
    """From which instants on this process scans leases for overdue ones.

    Later claims have leases that end later. So if nothing was overdue at an instant, no lease that ends before it will
    ever be: neither of a holder without a heartbeat at that time nor of a pack that no heartbeat extends. This matters
    only under an old snapshot; while a scan from the start is quick, every scan is from the start.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._silent: dict[int, Instant] = {}
        self._alone: Instant = _BEGINNING

    @property
    def valid(self) -> bool:
        return monotonic() < self._until

    def floors(self) -> tuple[list[int], list[Instant], Instant]:
        """Holders with the floor of each, and the floor of packs that no heartbeat extends."""
        if not self.valid:
            return [], [], _BEGINNING
        return list(self._silent), list(self._silent.values()), self._alone

    def is_worthwhile(self, took: float) -> bool:
        """Whether a scan of so many seconds that found nothing should move the floors."""
        return self.valid or took > _SLOW_LEASE_SCAN

    def advance(self, now: Instant, silent: Iterable[int]) -> None:
        """Nothing was overdue at this instant, at which these holders had no heartbeat."""
        if not self.valid:
            self._until = monotonic() + _TRUSTED
            self._silent = {}
        self._silent.update(dict.fromkeys(silent, now - _SLACK))
        self._alone = now - _SLACK


class Holder:
    """This process under one of its owner names, and the leases that it holds.

    `changes`: the counter of its row at the last heartbeat. `cancel_requests`: as of the counter `checked_changes`.
    """

    def __init__(self, holder_id: int) -> None:
        self.id = holder_id
        self.since = monotonic()
        self.changes = 0
        self.checked_changes = 0
        self.cancel_requests: list[Fence] = []
        self._claims = 0
        self._jobs: dict[Fence, MemberRef] = {}
        self._guard = Lock()

    def add(self, leases: Sequence[PackLease]) -> None:
        with self._guard:
            self._jobs.update([((lease.job.id, lease.job.delivery), lease.ref) for lease in leases])

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """A claim is under way: what it takes is not in the list yet."""
        with self._guard:
            self._claims += 1
        try:
            yield
        finally:
            with self._guard:
                self._claims -= 1

    @property
    def idle(self) -> bool:
        """Whether no claim is under way."""
        return not self._claims

    def packs(self) -> list[int]:
        with self._guard:
            return sorted({ref.pack for ref in self._jobs.values()})

    def remove(self, fences: Iterable[Fence]) -> None:
        with self._guard:
            for fence in fences:
                self._jobs.pop(fence, None)

    def jobs(self) -> dict[Fence, MemberRef]:
        with self._guard:
            return dict(self._jobs)

    def holds_exactly(self, fences: Collection[Fence]) -> bool:
        """Whether these are all that it holds, and all are extended by its heartbeat."""
        with self._guard:
            if len(fences) != len(self._jobs):
                return False
            refs = [self._jobs.get(fence) for fence in fences]
        return all(ref is not None and ref.by_heartbeat for ref in refs)


class Refusal(IntEnum):
    """Why `forebay.take` claimed nothing: maintenance is due, a spec has changed, or the queue has lanes."""

    MAINTAIN = 1
    STALE = 2
    LANED = 3


"""Why a claim was refused: maintenance comes first; a spec has changed; a queue has lanes of an older spec."""


class Claims:
    """Claims and leases. `holders`: by owner; `cursors`: by queue."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.holders: dict[str, Holder] = {}
        self._holders_guard = Lock()
        self._run_sizes: dict[str, float] = {}
        self.cursors: dict[str, ClaimCursor] = {}
        self.lease_cursor = LeaseCursor()
        self.swept_at: Instant | None = None
        self.trimmed_at: Instant = 0

    def promote(self, limit: int) -> Promotion:
        ready, next_due, maintain, stamp, laned, limited = self._session.server.query(
            _PROMOTE, (self._session.at, limit, False)
        )[0]
        if self.swept_at is None:
            self.swept_at = stamp
        if maintain or abs(stamp - self.swept_at) > _SWEEP_EVERY:
            self.swept_at = stamp
            ready += self._session.write(lambda unit: _sweep(unit, limit))
            some, next_due, _, _, laned, _ = self._session.server.query(
                _PROMOTE, (self._session.at, max(0, limit - ready), True)
            )[0]
            ready += some
        if laned and ready < limit:
            ready += self._session.write(lambda unit: _promote_due(unit, laned, limit - ready), laned)
            _, next_due, *_ = self._session.server.query(_PROMOTE, (self._session.at, 0, True))[0]
        if limited and self._session.server.query(_OVER_DEAD_LIMIT, (stamp,))[0][0]:
            self._session.write(lambda unit: purge_excess_dead(unit, limit))
        if abs(stamp - self.trimmed_at) > _TRIM_EVERY:
            trimmed = self._session.server.query(_TRIM, (stamp, _TRIM_LIMIT))[0][0]
            swept = self._session.server.query(SQL.sweep_calls, (stamp - _CALL_MEMORY, _TRIM_LIMIT))[0][0]
            if max(trimmed, swept) < _TRIM_LIMIT:
                self.trimmed_at = stamp
        return Promotion(ready, next_due)

    def claim(self, wants: Sequence[Want], owner: str, lease_for: Duration) -> list[Lease]:
        broken = False
        for _ in range(_MAX_CLAIMS if wants else 0):
            holder = self._holder(owner)
            try:
                with holder.claiming():
                    flag, rows = self._claim(wants, holder, lease_for)
                    if flag == Refusal.MAINTAIN:
                        work = partial(self._maintain_and_claim, wants, holder, lease_for)
                        flag, rows = self._session.write(work, {want.queue for want in wants})
                    taken = [] if flag else self._leases(rows, owner, holder)
            except StoreFailed:
                # It is unknown what was taken: the heartbeats of the next holder must not extend it.
                self._retire(owner, holder)
                if broken:
                    raise
                broken = True
                continue
            if not flag:
                return taken
            self._refresh_specs(flag, wants)
        if wants:
            raise StoreFailed(
                self._session.server.name, f"{_MAX_CLAIMS} claims in a row found their queues changed by others"
            )
        return []

    def claim_after(
        self, statement: str, settled: Sequence[Any], wants: Sequence[Want], owner: str, lease_for: Duration
    ) -> tuple[list[int] | None, list[Lease] | None]:
        """Claim in the statement that settles first: the result of the settle, and what was claimed.

        None: the claim was refused; specs have been read again since.
        """
        holder = self._holder(owner)
        cursors = [self._cursor(want) for want in wants]
        arguments = self._claim_arguments(wants, cursors, holder, lease_for)
        began = monotonic()
        try:
            with holder.claiming():
                rows = self._session.server.query(statement, (*settled, *arguments), repeatable=False)
                found = [PackRow._make(row[1:]) for row in rows[1:]]
                flag = _flag(found)
                taken = [] if flag else self._leases(found, owner, holder)
        except StoreFailed:
            self._retire(owner, holder)
            raise
        self._advance(monotonic() - began, wants, cursors, found)
        self._refresh_specs(flag, wants)
        return rows[0][0], None if flag else taken

    def _refresh_specs(self, flag: int, wants: Sequence[Want]) -> None:
        """After a refused claim."""
        if flag == Refusal.STALE:
            self._session.specs.reload({want.queue for want in wants})
        elif flag == Refusal.LANED:
            self._session.specs.mark_serial({want.queue for want in wants})

    def extend(self, leases: Sequence[Lease], lease_for: Duration) -> list[Lease]:
        unique = {lease.fence: lease for lease in leases}
        extended = self._extend_by_heartbeat(list(unique.values()), lease_for)
        if extended is not None:
            return extended
        extended = self._extend(unique, lease_for)
        self.remove(fence for fence in unique.keys() - {lease.fence for lease in extended})
        return extended

    def beat(self, leases: Sequence[Lease], lease_for: Duration) -> Heartbeat:
        """Extend all that their owner has claimed here, not only these leases: those that a worker does not list are
        being claimed or settled. Packs that no heartbeat extends are checked, and all packs once others changed some.
        """
        holder = self.holders.get(leases[0].owner) if leases else None
        found = (
            self._session.server.query(_HEARTBEAT, (self._session.at, holder.id, lease_for))
            if holder is not None
            else []
        )
        if holder is None or not found:
            return Heartbeat(unknown=[lease.fence for lease in leases])
        held, changes = holder.jobs(), found[0][1]
        fixed = {fence: ref for fence, ref in held.items() if not ref.by_heartbeat}
        checked = held if changes != holder.changes else fixed
        holder.changes = changes
        unknown = [lease.fence for lease in leases if lease.fence not in held]
        if not checked:
            return Heartbeat(unknown=unknown)
        lost, cancelled = self._check_leases(checked, lease_for)
        holder.remove(lost)
        return Heartbeat(lost, cancelled, unknown)

    def overdue(self, limit: int) -> list[Lease]:
        now = self._session.now()
        silent, floors, fixed = self.lease_cursor.floors()
        began = monotonic()
        rows = self._session.server.query(SQL.overdue, (silent, floors, now, limit, now, fixed, now, limit, limit))
        if not rows and self.lease_cursor.is_worthwhile(monotonic() - began):
            silent_now = self._session.server.query(SQL.silent_holders, (now,))
            self.lease_cursor.advance(now, [holder for (holder,) in silent_now])
        leases: list[Lease] = [lease for row in rows for lease in leases_of(RunRow._make(row))]
        return leases[:limit]

    def _claim(self, wants: Sequence[Want], holder: Holder, lease_for: Duration) -> tuple[int, list[PackRow]]:
        """Why the claim was refused, if not 0, and what it took."""
        cursors = [self._cursor(want) for want in wants]
        began = monotonic()
        arguments = self._claim_arguments(wants, cursors, holder, lease_for)
        rows = _packs(self._session.server.query(_CLAIM, arguments, repeatable=False))
        self._advance(monotonic() - began, wants, cursors, rows)
        return _flag(rows), rows

    def _maintain_and_claim(
        self, wants: Sequence[Want], holder: Holder, lease_for: Duration, unit: UnitOfWork
    ) -> tuple[int, list[PackRow]]:
        """The same after maintenance, in one transaction."""
        take_inbox(unit)
        expire(unit)
        # Expiries are recorded before claims: the next job of a line runs because the head died.
        unit.finish()
        arguments = self._claim_arguments(wants, [None] * len(wants), holder, lease_for, maintained=True)
        rows = _packs(unit.fetch(_CLAIM, arguments))
        return _flag(rows), rows

    def _claim_arguments(
        self,
        wants: Sequence[Want],
        cursors: Sequence[ClaimCursor | None],
        holder: Holder,
        lease_for: Duration,
        maintained: bool = False,
    ) -> tuple[Any, ...]:
        """The arguments of `forebay.claim`."""
        floors = [(None, None) if cursor is None else cursor.begin() for cursor in cursors]
        locks = self._session.specs.locks((), [want.queue for want in wants])
        return (
            self._session.at,
            maintained,
            holder.id,
            lease_for,
            array_literal(locks.exclusive),
            array_literal(locks.shared),
            array_literal([self._session.specs.is_serial(want.queue) for want in wants]),
            array_literal([want.queue for want in wants]),
            array_literal([self._session.specs.of(want.queue).version for want in wants]),
            array_literal([want.cls for want in wants]),
            array_literal([want.count for want in wants]),
            array_literal([self._rows_for(want) for want in wants]),
            array_literal([lead for lead, _ in floors]),
            array_literal([floor for _, floor in floors]),
        )

    def _advance(
        self, took: float, wants: Sequence[Want], cursors: Sequence[ClaimCursor | None], rows: Sequence[PackRow]
    ) -> None:
        found = {row.want: (row.n, row.lead, row.floor) for row in rows}
        for number, (cursor, want) in enumerate(zip(cursors, wants, strict=True), 1):
            if cursor is not None:
                cursor.advance(took, want.count, *found.get(number, (0, None, None)))

    def _cursor(self, want: Want) -> ClaimCursor | None:
        """Only where new jobs rank behind the others, by the server's own clock, may a claim begin further on.

        The next head of a line, and what a gate held, may rank before all that was claimed last.
        """
        known = self._session.specs.of(want.queue)
        if self._session.clock is not None or want.cls is not None or not known.by_time or known.lock_keys:
            return None
        return self.cursors.setdefault(want.queue, ClaimCursor())

    def _rows_for(self, want: Want) -> int:
        """How many runs will probably suffice."""
        return max(1, round(want.count / self._run_sizes.get(want.queue, 1.0)))

    def _leases(self, rows: Sequence[PackRow], owner: str, holder: Holder) -> list[Lease]:
        """By want; of queues with lanes in the order of the claim, else by rank."""
        taken: list[Lease] = []
        for row in rows:
            found = row.leases(owner)
            holder.add(found)
            taken += found
            self._run_sizes[found[0].job.queue] = row.n / found[-1].ref.number
        return taken

    def _holder(self, owner: str) -> Holder:
        """This process under that name; renewed twice a day, so that rows of processes that are gone can be removed."""
        holder = self.holders.get(owner)
        if holder is not None and monotonic() - holder.since < _HOLDER_SECONDS:
            return holder
        with self._holders_guard:
            holder = self.holders.get(owner)
            if holder is None or monotonic() - holder.since >= _HOLDER_SECONDS:
                holder = Holder(self._session.server.query(_HOLDER, (owner, self._session.at), repeatable=True)[0][0])
                if len(self.holders) >= _MAX_HOLDERS:
                    # Over HTTP there may be many owners; leases of a dropped one are extended pack by pack.
                    self.holders = dict(islice(self.holders.items(), _MAX_HOLDERS // 2, None))
                self.holders[owner] = holder
        return holder

    def _retire(self, owner: str, holder: Holder) -> None:
        """A claim of this holder got no answer: the last of its claims to end releases what no client holds."""
        with self._holders_guard:
            if self.holders.get(owner) is holder:
                del self.holders[owner]
        if holder.idle:
            with suppress(StoreFailed):
                self._release_lost(holder)

    def _release_lost(self, holder: Holder) -> None:
        """First what needs no exclusive lock; the function returns the queues of what is left."""
        known = array_literal(holder.packs())
        queues: set[str] = set()
        for _ in range(_MAX_CLAIMS):
            locks = self._session.specs.locks(queues)
            left = self._session.server.query(_RELEASE_LOST, (self._session.at, *locks, holder.id, known))[0][0]
            if left == []:
                return
            queues.update(left or ())
            self._session.specs.reload(queues)

    def _extend_by_heartbeat(self, leases: Sequence[Lease], lease_for: Duration) -> list[Lease] | None:
        """One heartbeat for all, if these are all that a holder has and no other process changed them; else None."""
        owners = {lease.owner for lease in leases}
        holder = self.holders.get(owners.pop()) if len(owners) == 1 else None
        if holder is None or not holder.holds_exactly([lease.fence for lease in leases]):
            return None
        now = self._session.now()
        if any(lease.until > now + lease_for for lease in leases):
            return None
        found = self._session.server.query(_HEARTBEAT, (self._session.at, holder.id, lease_for))
        if not found:
            return None
        stamp, changes = found[0]
        if changes != holder.changes:
            holder.changes = changes
            return None
        until = stamp + lease_for
        return [_extended(lease, until) for lease in leases]

    def _check_leases(self, held: dict[Fence, MemberRef], lease_for: Duration) -> tuple[list[Fence], list[Fence]]:
        """Which of these are lost, and which are to be cancelled; packs that no heartbeat extends are extended."""
        running = self.running_jobs([job_id for job_id, _ in held])
        found = {job.fence: job for job in running if job.fence in held}
        fixed = {job.pack for job in found.values() if not job.by_heartbeat}
        if fixed:
            self._session.server.query(_EXTEND, (self._session.at, lease_for, array_literal(sorted(fixed))))
        lost = [fence for fence in held if fence not in found]
        return lost, [job.fence for job in found.values() if job.cancel_requested]

    def running_jobs(self, ids: Sequence[int]) -> list[RunningRow]:
        """Those of these jobs that run."""
        return [RunningRow._make(row) for row in self._session.server.query(SQL.running_jobs, (list(ids),))]

    def _extend(self, leases: dict[Fence, Lease], lease_for: Duration) -> list[Lease]:
        """Pack by pack: jobs that are not to be extended are split off first and keep their lease."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for job in self.running_jobs([lease.job.id for lease in leases.values()]):
            if job.fence in leases:
                wanted.setdefault(job.pack, []).append((job.id, job.ref.position(job.id)))
        if not wanted:
            return []
        for pack, jobs in sorted(wanted.items()):
            self._session.server.query(_SPLIT_PACK, (pack, array_literal([position for _, position in jobs])))
        survivors = self._session.server.query(_EXTEND, (self._session.at, lease_for, array_literal(sorted(wanted))))
        alive = {job_id for (pack,) in survivors for job_id, _ in wanted[pack]}
        current = unfinished(self._session, sorted(alive))
        extended = []
        for lease in leases.values():
            now = current.get(lease.job.id)
            if now is not None and now.delivery == lease.job.delivery and lease.job.id in alive:
                extended.append(replace(lease, job=now, until=now.lease_until or 0))
                # From now on no heartbeat of its holder extends the pack.
                if isinstance(lease, PackLease):
                    lease.ref.by_heartbeat = False
        return extended

    def remove(self, fences: Iterable[Fence]) -> None:
        """This process does not hold these jobs any more."""
        gone = list(fences)
        for holder in list(self.holders.values()):
            holder.remove(gone)


def unfinished(session: Session, ids: Sequence[int]) -> dict[int, Job]:
    """Those of these jobs that are not finished."""
    rows = session.server.query(SQL.found, (list(ids),) * 2) if ids else []
    return {job.id: job for job_id, *row in rows for job in jobs_of_run(RunRow._make(row)) if job.id == job_id}


def _extended(lease: Lease, until: Instant) -> Lease:
    return replace(lease, job=replace(lease.job, lease_until=until), until=until)


def _packs(rows: Rows) -> list[PackRow]:
    return [PackRow._make(row) for row in rows]


def _flag(rows: Sequence[PackRow]) -> int:
    return rows[0].flag if rows else 0


def _sweep(unit: UnitOfWork, limit: int) -> int:
    """Maintenance; returns how many jobs became ready since the head of their line expired."""
    take_inbox(unit)
    expire(unit, limit)
    sweep(unit, limit)
    unit.write_lanes()
    return unit.exposed


def _promote_due(unit: UnitOfWork, queues: Sequence[str], limit: int) -> int:
    """Make due jobs of queues with lanes ready; returns how many."""
    ready = 0
    for queue in queues:
        if ready < limit:
            ready += unit.fetch(_PROMOTE_DUE, (unit.now, queue, limit - ready))[0][0]
    unit.has_work.update(queues)
    return ready
