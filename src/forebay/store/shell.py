"""The shell around every store: it checks each call, makes producers wait for capacity, and orders the answers.

A store is a `Shell` around its `Backend`. Checks come first, so an invalid call
changes nothing, costs no round trip, and raises the same error on every store.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Final, Generic, TypeVar

from forebay.core.content import holds
from forebay.core.entries import LogEntry
from forebay.core.errors import Invalid, QueueFull
from forebay.core.gate import checked_gate
from forebay.core.instant import Duration, Instant, checked_instant, checked_micros, micros
from forebay.core.job import Draft, Job, State
from forebay.core.lease import Fence, Lease, Settled, Settlement
from forebay.core.ledger import LedgerEntry, LedgerRule
from forebay.core.limits import CONTENT_SCAN, MAX_INSTANT, MAX_LEASE, MAX_SLOTS, MIN_LEASE
from forebay.core.names import check_name, check_text
from forebay.core.outcome import Ack, Cancel, DeadLetter, Release, Retry
from forebay.core.policy import Block, Bounded, check_between
from forebay.core.presence import Presence
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.backend import Backend, PipeliningBackend
from forebay.store.checks import (
    ALWAYS_FIT,
    check_batch,
    check_bytes,
    check_epoch,
    check_gate,
    check_gates_page,
    check_ids,
    check_ingest,
    check_limit,
    check_names_page,
    check_offset,
    check_purge,
    check_rule,
    check_spec,
    check_workers_page,
    checked_condition,
    checked_entries,
    checked_member,
    checked_owner,
    checked_presence,
    checked_queues,
    checked_reports,
    checked_total,
    checked_wait,
)
from forebay.store.log import Owned, Standing
from forebay.store.protocol import (
    Backlog,
    CancelAnswer,
    Capabilities,
    Checkpoint,
    GateUse,
    Hold,
    Page,
    ProgressReport,
    Promotion,
    Query,
    Receipt,
    Tally,
    Totals,
    Want,
)

B = TypeVar("B", bound=Backend)
E = TypeVar("E", bound=PipeliningBackend)
_VERDICTS: Final = frozenset((Ack, Retry, DeadLetter, Release, Cancel))


class Shell(Generic[B]):
    """The contract of `store.protocol` on a backend."""

    def __init__(self, backend: B) -> None:
        self.backend: Final = backend

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    def now(self) -> Instant:
        return self.backend.now()

    def close(self) -> None:
        self.backend.close()

    # -- the life of a job

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        check_batch("enqueue", len(drafts))
        check_drafts("enqueue", drafts)
        try:
            return self.backend.enqueue(drafts)
        except QueueFull as full:
            return self._enqueue_later(drafts, full)

    def _enqueue_later(self, drafts: Sequence[Draft], full: QueueFull) -> list[Receipt]:
        """Wait for capacity as long as the full queue allows."""
        give_up_at = self.now() + self._max_wait(full)
        while self.now() < give_up_at:
            self.backend.wait_for_room(full, give_up_at)
            try:
                return self.backend.enqueue(drafts)
            except QueueFull as again:
                full = again
        raise full

    def _max_wait(self, full: QueueFull) -> Duration:
        """A batch that can never fit does not wait at all."""
        capacity = next((spec.capacity for spec in self.backend.specs() if spec.name == full.queue), None)
        if isinstance(capacity, Bounded) and isinstance(capacity.when_full, Block) and full.requested <= full.limit:
            return micros(capacity.when_full.timeout)
        return 0

    def promote(self, limit: int) -> Promotion:
        check_limit("promote", limit)
        return self.backend.promote(limit)

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        owner, duration = checked_owner(owner), checked_lease(lease_for)
        checked_total(wants)
        return self.backend.claim(wants, owner, duration)

    def extend(self, leases: Sequence[Lease], lease_for: timedelta) -> list[Lease]:
        check_batch("extend", len(leases))
        return self.backend.extend(leases, checked_lease(lease_for))

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        check_settlements(settlements)
        return self.backend.settle(settlements)

    def overdue(self, limit: int) -> list[Lease]:
        check_limit("overdue", limit)
        return self.backend.overdue(limit)

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        check_ids("cancel", ids)
        return self.backend.cancel(ids)

    def redrive(self, ids: Sequence[int]) -> list[int]:
        check_ids("redrive", ids)
        return self.backend.redrive(ids)

    def purge(self, state: State, before: Instant, limit: int, queue: str | None = None) -> int:
        check_purge(state, before, limit, queue)
        return self.backend.purge(state, before, limit, queue)

    def purge_dead(self, ids: Sequence[int]) -> list[int]:
        check_ids("purge_dead", ids)
        return self.backend.purge_dead(ids)

    def report_progress(self, reports: Sequence[ProgressReport]) -> list[Settled]:
        current = self.backend.report_progress(checked_reports(reports))
        return [Settled.APPLIED if current[fence] else Settled.STALE for fence, _ in reports]

    # -- reading

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        check_ids("get", ids)
        return self.backend.get(ids)

    def browse(self, query: Query, after: int, limit: int) -> Page:
        check_limit("browse", limit)
        if type(query) is not Query or type(after) is not int:
            raise Invalid("browse", "it takes a Query and the id to go on after", "start with Query(), after=0")
        if query.meta or query.payload:
            return self._search(query, after, limit)
        return self.backend.browse(query, after, limit)

    def _search(self, query: Query, after: int, limit: int) -> Page:
        """The jobs of one page whose content matches: the same rule on every store, whatever its indexes narrow."""
        page = self.backend.browse(query, after, CONTENT_SCAN)
        found = [job for job in page.jobs if holds(job.meta, job.body, query.meta, query.payload)]
        return Page(found, page.next) if len(found) <= limit else Page(found[:limit], found[limit - 1].id)

    def backlog(self, queues: Sequence[str] | None = None) -> list[Backlog]:
        return self.backend.backlog(None if queues is None else checked_queues("backlog", queues))

    def queues(self, after: str, limit: int, prefix: str = "") -> list[str]:
        check_names_page(after, limit, prefix)
        return self.backend.queues(after, limit, prefix)

    def totals(self, limit: int) -> Totals:
        check_limit("totals", limit)
        return self.backend.totals(limit)

    def hold(self, job_id: int) -> Hold | None:
        check_ids("hold", [job_id])
        return self.backend.hold(job_id)

    def ahead(self, job_id: int) -> int | None:
        check_ids("ahead", [job_id])
        return self.backend.ahead(job_id)

    # -- queues, gates, schedules

    def put_spec(self, spec: QueueSpec) -> None:
        check_spec(spec)
        self.backend.put_spec(spec)

    def specs(self) -> list[QueueSpec]:
        return self.backend.specs()

    def pause(self, queue: str, until: Instant | None = None) -> None:
        queue = check_name("queue", queue)
        self.backend.pause(queue, MAX_INSTANT if until is None else checked_instant("until", until))

    def resume(self, queue: str) -> None:
        self.backend.pause(check_name("queue", queue), None)

    def set_gate(self, name: str, limit: int | None) -> None:
        check_gate(name)
        checked_gate(name)
        if limit is not None:
            check_between("gate limit", limit, 0, MAX_SLOTS)
        self.backend.set_gate(name, limit)

    def release(self, condition: str, count: int, value: str | None = None) -> int:
        return self.backend.release(checked_condition(condition, count, value), count)

    def gates(self, after: str, limit: int, prefix: str = "") -> list[GateUse]:
        check_gates_page(after, limit, prefix)
        return self.backend.gates(after, limit, prefix)

    def put_schedule(self, schedule: Schedule) -> None:
        if type(schedule) is not Schedule:
            raise Invalid("schedule", f"{type(schedule).__name__} is not a Schedule", "build a Schedule(…)")
        self.backend.put_schedule(schedule)

    def drop_schedule(self, name: str) -> bool:
        return self.backend.drop_schedule(check_name("schedule", name))

    def schedules(self) -> list[Schedule]:
        return self.backend.schedules()

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        name = check_name("schedule", name)
        checked_instant("tick", tick)
        if checked_instant("next_at", next_at) <= tick:
            raise Invalid("next_at", "it is not after the tick", "a schedule only moves forward")
        if draft is not None:
            check_drafts("fire", [draft])
        return self.backend.fire(name, tick, next_at, draft)

    # -- workers, sources, the ledger

    def announce(self, presence: Presence, keep_for: timedelta) -> None:
        self.backend.announce(presence, checked_presence(presence, keep_for))

    def withdraw(self, owner: str) -> bool:
        return self.backend.withdraw(checked_owner(owner))

    def workers(self, after: str, limit: int) -> list[Presence]:
        check_workers_page(after, limit)
        return self.backend.workers(after, limit)

    def ingested(self, source: str) -> Checkpoint | None:
        return self.backend.ingested(check_text("source", source))

    def ingest(
        self, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]
    ) -> Tally | None:
        return self.backend.ingest(check_ingest(source, drafts), before, after, drafts)

    def replace_dead(self, pairs: Sequence[tuple[int, Draft]]) -> list[Receipt | None]:
        check_batch("replace_dead", len(pairs))
        check_drafts("replace_dead", [draft for _, draft in pairs])
        if any(draft.key is not None for _, draft in pairs):
            reason = "a draft has a key, and could be a duplicate of the job that it replaces"
            raise Invalid("replace_dead", reason, "leave the key out")
        drafts: dict[int, Draft] = {}
        for job_id, draft in pairs:
            drafts.setdefault(job_id, draft)
        receipts = self.backend.replace_dead(drafts)
        return [receipts.pop(job_id, None) for job_id, _ in pairs]

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        check_limit("ledger", limit)
        check_offset(after)
        return self.backend.ledger(after, limit)

    def ledger_extent(self) -> tuple[int, int]:
        return self.backend.ledger_extent()

    def ledger_rule(self) -> LedgerRule:
        return self.backend.ledger_rule()

    def put_ledger_rule(self, rule: LedgerRule) -> None:
        check_rule(rule)
        self.backend.put_ledger_rule(rule)

    def trim_ledger(self, limit: int) -> int:
        check_limit("trim_ledger", limit)
        return self.backend.trim_ledger(limit)

    # -- waiting

    def wait(self, queues: Sequence[str], timeout: timedelta) -> bool:
        return self.backend.wait(checked_queues("wait", queues), checked_wait(timeout))

    def wait_ended(self, ids: Sequence[int], timeout: timedelta) -> list[int]:
        check_ids("wait_ended", ids)
        return self.backend.wait_ended(ids, checked_wait(timeout))

    def wait_cancel_requests(self, owner: str, timeout: timedelta, known: Collection[Fence] = ()) -> list[Fence]:
        return self.backend.wait_cancel_requests(checked_owner(owner), checked_wait(timeout), known)

    # -- logs

    def append(self, log: str, bodies: Sequence[bytes], keys: Sequence[str | None] | None = None) -> list[LogEntry]:
        return self.backend.append(check_name("log", log), checked_entries(bodies, keys))

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        check_limit("read", limit)
        check_offset(after)
        return self.backend.read(check_name("log", log), partition, after, limit)

    def commit(
        self, log: str, group: str, partition: int, offset: int, *, rewind: bool = False, epoch: int | None = None
    ) -> int:
        check_epoch(epoch)
        names = check_name("log", log), check_name("group", group)
        return self.backend.commit(*names, partition, offset, bool(rewind), epoch)

    def position(self, log: str, group: str, partition: int) -> int:
        return self.backend.position(check_name("log", log), group, partition)

    def extent(self, log: str) -> list[tuple[int, int]]:
        return self.backend.extent(check_name("log", log))

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        return self.backend.offset_at(check_name("log", log), partition, checked_instant("instant", instant))

    def trim(self, log: str, before: Instant, limit: int) -> int:
        check_limit("trim", limit)
        return self.backend.trim(check_name("log", log), checked_instant("before", before), limit)

    def own(self, log: str, group: str, member: str, lease_for: timedelta) -> list[Owned]:
        return self.backend.own(*checked_member(log, group, member, lease_for))

    def disown(self, log: str, group: str, member: str) -> int:
        log, group, member, _ = checked_member(log, group, member)
        return self.backend.disown(log, group, member)

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        check_limit("groups", limit)
        return self.backend.groups(check_name("log", log), after, limit)


class PipeliningShell(Shell[E]):
    """A store that can settle and claim in one call."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, lease_for: timedelta
    ) -> tuple[list[Settled], list[Lease]]:
        check_settlements(settlements)
        checked_total(wants)
        return self.backend.settle_and_claim(settlements, wants, checked_owner(owner), checked_lease(lease_for))


def check_drafts(verb: str, drafts: Sequence[Draft]) -> None:
    for draft in drafts:
        if type(draft) is not Draft:
            raise Invalid("draft", f"{type(draft).__name__} is not a Draft", "build a Draft(kind, payload, …)")
    if len(drafts) > ALWAYS_FIT:
        check_bytes(verb, [draft.body for draft in drafts])


def check_settlements(settlements: Sequence[Settlement]) -> None:
    check_batch("settle", len(settlements))
    for _, verdict in settlements:
        if type(verdict) not in _VERDICTS:
            raise Invalid("verdict", f"{type(verdict).__name__} is not a verdict", "use what decide() returns")
    if len(settlements) > ALWAYS_FIT:
        check_bytes("settle", [verdict.result if type(verdict) is Ack else None for _, verdict in settlements])


def checked_lease(lease_for: timedelta) -> Duration:
    return (_known_lease if type(lease_for) is timedelta else _new_lease)(lease_for)


def _new_lease(lease_for: timedelta) -> Duration:
    return checked_micros("lease_for", lease_for, MIN_LEASE, MAX_LEASE)


_known_lease: Final = lru_cache(maxsize=256)(_new_lease)
"""Leases of few lengths are claimed very often."""
