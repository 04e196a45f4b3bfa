"""One cell: a backend whose ids carry the cell's number, behind its guard.

It has every verb of `store.backend`, so a cell by itself is a store too: that is how the ledger of each cell is read.
Verbs of producers and workers run within the cell's deadline; those of operators take as long as their store.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from msgspec.structs import replace

from forebay.core.entries import LogEntry
from forebay.core.errors import KeyConflict, QueueFull, StoreFailed
from forebay.core.instant import Duration, Instant
from forebay.core.job import Draft, Job, Progress, State
from forebay.core.lease import Fence, Lease, Settled, Settlement
from forebay.core.ledger import LedgerEntry, LedgerRule
from forebay.core.outcome import Release
from forebay.core.presence import Presence
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.backend import Backend
from forebay.store.cells.cell_map import MAP_LOG
from forebay.store.cells.guard import Guard
from forebay.store.cells.ids import LOCAL_BITS, CellIds, cell_of
from forebay.store.log import Owned, Standing
from forebay.store.protocol import (
    Backlog,
    CancelAnswer,
    Capabilities,
    Checkpoint,
    GateUse,
    Hold,
    Page,
    Promotion,
    Query,
    Receipt,
    Tally,
    Totals,
    Want,
)

T = TypeVar("T")


class Cell:
    """A store among others. Verbs run `_within` its deadline, or as a `_call` that takes as long as the store does."""

    def __init__(self, name: str, number: int, backend: Backend, guard: Guard) -> None:
        self.name: Final = name
        self.number: Final = number
        self.backend: Final = backend
        self.guard: Final = guard
        self._ids = ids = CellIds(number)
        self._call, self._within = self.guard.call, self.guard.within
        self._specs: list[QueueSpec] = []
        self._outside, self._local = ids.outside, ids.local

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    def now(self) -> Instant:
        return self._within(self.backend.now)

    def close(self) -> None:
        self.guard.close()
        self.backend.close()

    # -- the life of a job

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return [self._ids.receipt(each) for each in self._keyed(lambda: self.backend.enqueue(drafts))]

    def offer(self, drafts: Sequence[Draft]) -> Sequence[Receipt | None]:
        """None: the queue has left this cell. Each draft may still be a duplicate here, or merged."""
        try:
            return self.enqueue(drafts)
        except QueueFull as full:
            if full.limit > 0:
                raise
        if len(drafts) == 1:
            return [None]
        plain = [draft.key is None and draft.subject is None for draft in drafts]
        return [None if each else self.offer([draft])[0] for each, draft in zip(plain, drafts, strict=True)]

    def _keyed(self, call: Callable[[], T]) -> T:
        try:
            return self._within(call)
        except KeyConflict as error:
            raise KeyConflict(error.queue, error.key, self._outside(error.job_id)) from None

    def wait_for_room(self, full: QueueFull, until: Instant) -> None:
        self._call(lambda: self.backend.wait_for_room(full, until))

    def promote(self, limit: int) -> Promotion:
        return self._within(lambda: self.backend.promote(limit))

    def claim(self, wants: Sequence[Want], owner: str, lease_for: Duration) -> list[Lease]:
        leases = self._within(lambda: self.backend.claim(wants, owner, lease_for), self._release_late)
        return [self._ids.lease(lease) for lease in leases]

    def _release_late(self, leases: list[Lease]) -> None:
        """Jobs that were claimed after their caller had left."""
        if leases:
            with suppress(StoreFailed):
                self.backend.settle([(lease, Release()) for lease in leases])

    def extend(self, leases: Sequence[Lease], lease_for: Duration) -> list[Lease]:
        inside = [self._ids.inside(lease) for lease in leases]
        return [self._ids.lease(lease) for lease in self._within(lambda: self.backend.extend(inside, lease_for))]

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        inside = [(self._ids.inside(lease), verdict) for lease, verdict in settlements]
        return self._within(lambda: self.backend.settle(inside))

    def overdue(self, limit: int) -> list[Lease]:
        """None just after an outage: leases of workers that are alive ended in it, and are about to be renewed."""
        if self.guard.recovering:
            return []
        return [self._ids.lease(lease) for lease in self._within(lambda: self.backend.overdue(limit))]

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        return self._within(lambda: self.backend.cancel([self._local(each) for each in ids]))

    def redrive(self, ids: Sequence[int]) -> list[int]:
        moved = self._call(lambda: self.backend.redrive([self._local(each) for each in ids]))
        return [self._outside(each) for each in moved]

    def purge(self, state: State, before: Instant, limit: int, queue: str | None) -> int:
        return self._call(lambda: self.backend.purge(state, before, limit, queue))

    def purge_dead(self, ids: Sequence[int]) -> list[int]:
        gone = self._call(lambda: self.backend.purge_dead([self._local(each) for each in ids]))
        return [self._outside(each) for each in gone]

    def report_progress(self, newest: dict[Fence, Progress]) -> dict[Fence, bool]:
        local = {(self._local(job_id), delivery): progress for (job_id, delivery), progress in newest.items()}
        current = self._within(lambda: self.backend.report_progress(local))
        return {(job_id, delivery): current[self._local(job_id), delivery] for job_id, delivery in newest}

    # -- reading

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        jobs = self._within(lambda: self.backend.get([self._local(each) for each in ids]))
        return [None if job is None else self._ids.job(job) for job in jobs]

    def browse(self, query: Query, after: int, limit: int) -> Page:
        """From its first job for an `after` of an earlier cell."""
        behind = self._local(after) if cell_of(after) <= self.number else after
        page = self._call(lambda: self.backend.browse(query, behind, limit))
        jobs = [self._ids.job(job) for job in page.jobs]
        return Page(jobs, None if page.next is None else page.next + (self.number << LOCAL_BITS))

    def backlog(self, queues: Sequence[str] | None) -> list[Backlog]:
        found = self._within(lambda: self.backend.backlog(queues))
        return found if queues is not None else [backlog for backlog in found if backlog.queue != MAP_LOG]

    def queues(self, after: str, limit: int, prefix: str) -> list[str]:
        found = self._within(lambda: self.backend.queues(after, limit + 1, prefix))
        return [name for name in found if name != MAP_LOG][:limit]

    def totals(self, limit: int) -> Totals:
        found = self._within(lambda: self.backend.totals(limit + 1))
        deepest = [backlog for backlog in found.deepest if backlog.queue != MAP_LOG]
        return replace(found, deepest=deepest[:limit], queues=found.queues - 1)

    def specs(self) -> list[QueueSpec]:
        """The last known ones while the cell does not answer."""
        with suppress(StoreFailed):
            self._specs = [spec for spec in self._within(self.backend.specs) if spec.name != MAP_LOG]
        return self._specs

    def hold(self, job_id: int) -> Hold | None:
        hold = self._call(lambda: self.backend.hold(self._local(job_id)))
        return hold if hold is None or hold.head is None else replace(hold, head=self._outside(hold.head))

    def ahead(self, job_id: int) -> int | None:
        return self._call(lambda: self.backend.ahead(self._local(job_id)))

    # -- queues, gates, schedules

    def put_spec(self, spec: QueueSpec) -> None:
        self._call(lambda: self.backend.put_spec(spec))

    def pause(self, queue: str, until: Instant | None) -> None:
        self._call(lambda: self.backend.pause(queue, until))

    def set_gate(self, name: str, limit: int | None) -> None:
        self._call(lambda: self.backend.set_gate(name, limit))

    def release(self, gate: str, count: int) -> int:
        return self._call(lambda: self.backend.release(gate, count))

    def gates(self, after: str, limit: int, prefix: str) -> list[GateUse]:
        return self._within(lambda: self.backend.gates(after, limit, prefix))

    def put_schedule(self, schedule: Schedule) -> None:
        self._call(lambda: self.backend.put_schedule(schedule))

    def stop_schedule(self, schedule: Schedule) -> Schedule:
        """Pause it, and return it as it is then: it may have fired after it was read. `paused` is as it was before."""
        self.put_schedule(replace(schedule, paused=True))
        stopped = next((each for each in self.schedules() if each.name == schedule.name), schedule)
        return replace(stopped, paused=schedule.paused)

    def drop_schedule(self, name: str) -> bool:
        return self._call(lambda: self.backend.drop_schedule(name))

    def schedules(self) -> list[Schedule]:
        return [self._with_last_job(each) for each in self._within(self.backend.schedules)]

    def _with_last_job(self, schedule: Schedule) -> Schedule:
        last = schedule.last_job
        return schedule if last is None else replace(schedule, last_job=self._outside(last))

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        return self._within(lambda: self.backend.fire(name, tick, next_at, draft))

    # -- workers, sources, the ledger

    def announce(self, presence: Presence, duration: Duration) -> None:
        self._within(lambda: self.backend.announce(presence, duration))

    def withdraw(self, owner: str) -> bool:
        return self._within(lambda: self.backend.withdraw(owner))

    def workers(self, after: str, limit: int) -> list[Presence]:
        return self._within(lambda: self.backend.workers(after, limit))

    def ingested(self, source: str) -> Checkpoint | None:
        return self._within(lambda: self.backend.ingested(source))

    def ingest(
        self, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]
    ) -> Tally | None:
        return self._keyed(lambda: self.backend.ingest(source, before, after, drafts))

    def replace_dead(self, drafts: dict[int, Draft]) -> dict[int, Receipt]:
        local = {self._local(job_id): draft for job_id, draft in drafts.items()}
        receipts = self._keyed(lambda: self.backend.replace_dead(local))
        return {self._outside(job_id): self._ids.receipt(receipt) for job_id, receipt in receipts.items()}

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        return [self._ids.entry(entry) for entry in self._call(lambda: self.backend.ledger(after, limit))]

    def ledger_extent(self) -> tuple[int, int]:
        return self._within(self.backend.ledger_extent)

    def ledger_rule(self) -> LedgerRule:
        return self._within(self.backend.ledger_rule)

    def put_ledger_rule(self, rule: LedgerRule) -> None:
        self._call(lambda: self.backend.put_ledger_rule(rule))

    def trim_ledger(self, limit: int) -> int:
        return self._call(lambda: self.backend.trim_ledger(limit))

    # -- waiting

    def wait(self, queues: Sequence[str], duration: Duration) -> bool:
        return self._call(lambda: self.backend.wait(queues, duration))

    def wait_ended(self, ids: Sequence[int], duration: Duration) -> list[int]:
        ended = self._call(lambda: self.backend.wait_ended([self._local(each) for each in ids], duration))
        return [job_id for job_id in ids if self._local(job_id) in ended]

    def wait_cancel_requests(self, owner: str, duration: Duration, known: Collection[Fence]) -> list[Fence]:
        local = {(self._local(job_id), delivery) for job_id, delivery in known if cell_of(job_id) == self.number}
        fences = self._call(lambda: self.backend.wait_cancel_requests(owner, duration, local))
        return [(self._outside(job_id), delivery) for job_id, delivery in fences]

    # -- logs

    def append(self, log: str, entries: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
        return self._call(lambda: self.backend.append(log, entries))

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        return self._call(lambda: self.backend.read(log, partition, after, limit))

    def commit(self, log: str, group: str, partition: int, offset: int, rewind: bool, epoch: int | None) -> int:
        return self._call(lambda: self.backend.commit(log, group, partition, offset, rewind, epoch))

    def position(self, log: str, group: str, partition: int) -> int:
        return self._call(lambda: self.backend.position(log, group, partition))

    def extent(self, log: str) -> list[tuple[int, int]]:
        return self._call(lambda: self.backend.extent(log))

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        return self._call(lambda: self.backend.offset_at(log, partition, instant))

    def trim(self, log: str, before: Instant, limit: int) -> int:
        return self._call(lambda: self.backend.trim(log, before, limit))

    def own(self, log: str, group: str, member: str, lease_for: Duration) -> list[Owned]:
        return self._call(lambda: self.backend.own(log, group, member, lease_for))

    def disown(self, log: str, group: str, member: str) -> int:
        return self._call(lambda: self.backend.disown(log, group, member))

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        return self._call(lambda: self.backend.groups(log, after, limit))
