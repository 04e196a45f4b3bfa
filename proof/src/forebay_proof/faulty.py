"""`FaultyStore`: another store seen through a bad connection, for tests of whatever talks to stores.

A plan says for each call what goes wrong. `scripted` names the calls, `seeded` draws by a seed, so that a seed is a
full account of a failure. `history` keeps what happened, verb by verb.

    refused     the call is not performed; `ConnectionLost`
    reply lost  the call is performed, but the caller gets no answer; `ReplyLost`
    delayed     time passes first (`delay`), then the call is performed
    duplicated  the call is performed twice, as by a network that sends again; the second reply arrives
    crashed     the call is performed, then the caller is cut off for good; `ReplyLost`, later `ConnectionLost`

`capabilities`, `now` and `close` are spared: they need no connection, or end it.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from enum import StrEnum
from random import Random
from threading import Lock
from typing import Final, TypeAlias, TypeVar

from forebay.core.entries import LogEntry
from forebay.core.instant import Instant
from forebay.core.job import Draft, Job, State
from forebay.core.lease import Fence, Lease, Settled, Settlement
from forebay.core.ledger import LedgerEntry, LedgerRule
from forebay.core.presence import Presence
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
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
    Store,
    Tally,
    Totals,
    Want,
)

T = TypeVar("T")


class Fault(StrEnum):
    NONE = "none"
    REFUSED = "refused"
    REPLY_LOST = "reply lost"
    DELAYED = "delayed"
    DUPLICATED = "duplicated"
    CRASHED = "crashed"


class ConnectionLost(ConnectionError):
    """The call did not reach the store: it had no effect."""


class ReplyLost(ConnectionError):
    """The call may have had its effect; that is unknown until it is repeated."""


Plan: TypeAlias = Callable[[str], Fault]
"""The fault for the next call of this verb."""

PASSING: Final = (Fault.REFUSED, Fault.REPLY_LOST, Fault.DELAYED, Fault.DUPLICATED)
"""Faults after which the same store can be called again."""


def scripted(*steps: tuple[str, Fault]) -> Plan:
    """Each verb meets its own steps in their order; then nothing goes wrong any more."""
    waiting: dict[str, deque[Fault]] = {}
    for verb, fault in steps:
        waiting.setdefault(verb, deque()).append(fault)

    def plan(verb: str) -> Fault:
        faults = waiting.get(verb)
        return faults.popleft() if faults else Fault.NONE

    return plan


def seeded(
    seed: int, rate: float = 0.25, faults: Sequence[Fault] = PASSING, verbs: Collection[str] | None = None
) -> Plan:
    """One call in `1/rate` meets one of the faults; with `verbs`, only calls of these."""
    draw = Random(seed)

    def plan(verb: str) -> Fault:
        if verbs is not None and verb not in verbs:
            return Fault.NONE
        return draw.choice(faults) if draw.random() < rate else Fault.NONE

    return plan


class FaultyStore:
    """A `Store` whose calls meet the plan's faults. `delay` lets time pass, such as `lambda: clock.advance(…)`."""

    def __init__(self, inner: Store, plan: Plan, *, delay: Callable[[], object] = lambda: None) -> None:
        self.inner = inner
        self.history: list[tuple[str, Fault]] = []
        self._plan = plan
        self._delay = delay
        self._lock = Lock()
        self._cut_off = False

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def now(self) -> Instant:
        return self.inner.now()

    def report_progress(self, reports: Sequence[ProgressReport]) -> list[Settled]:
        return self._call("report_progress", lambda: self.inner.report_progress(reports))

    def wait_ended(self, ids: Sequence[int], timeout: timedelta) -> list[int]:
        return self._call("wait_ended", lambda: self.inner.wait_ended(ids, timeout))

    def wait_cancel_requests(self, owner: str, timeout: timedelta, known: Collection[Fence] = ()) -> list[Fence]:
        return self._call("wait_cancel_requests", lambda: self.inner.wait_cancel_requests(owner, timeout, known))

    def close(self) -> None:
        self.inner.close()

    @property
    def faults(self) -> list[Fault]:
        """What went wrong so far."""
        return [fault for _, fault in self.history if fault is not Fault.NONE]

    def _call(self, verb: str, action: Callable[[], T]) -> T:
        fault = self._next(verb)
        match fault:
            case Fault.NONE:
                return action()
            case Fault.REFUSED:
                raise ConnectionLost(f"{verb} was refused by the plan; it had no effect, call it again")
            case Fault.REPLY_LOST | Fault.CRASHED:
                action()
                raise ReplyLost(f"the reply to {verb} was lost by the plan; call it again to learn what became of it")
            case Fault.DELAYED:
                self._delay()
                return action()
            case Fault.DUPLICATED:
                action()
                return action()

    def _next(self, verb: str) -> Fault:
        with self._lock:
            if self._cut_off:
                raise ConnectionLost(f"{verb} came after the crash; open the store again")
            fault = self._plan(verb)
            self._cut_off = fault is Fault.CRASHED
            self.history.append((verb, fault))
            return fault

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return self._call("enqueue", lambda: self.inner.enqueue(drafts))

    def promote(self, limit: int) -> Promotion:
        return self._call("promote", lambda: self.inner.promote(limit))

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        return self._call("claim", lambda: self.inner.claim(wants, owner, lease_for))

    def extend(self, leases: Sequence[Lease], lease_for: timedelta) -> list[Lease]:
        return self._call("extend", lambda: self.inner.extend(leases, lease_for))

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        return self._call("settle", lambda: self.inner.settle(settlements))

    def overdue(self, limit: int) -> list[Lease]:
        return self._call("overdue", lambda: self.inner.overdue(limit))

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        return self._call("cancel", lambda: self.inner.cancel(ids))

    def redrive(self, ids: Sequence[int]) -> list[int]:
        return self._call("redrive", lambda: self.inner.redrive(ids))

    def purge(self, state: State, before: Instant, limit: int, queue: str | None = None) -> int:
        return self._call("purge", lambda: self.inner.purge(state, before, limit, queue))

    def purge_dead(self, ids: Sequence[int]) -> list[int]:
        return self._call("purge_dead", lambda: self.inner.purge_dead(ids))

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        return self._call("get", lambda: self.inner.get(ids))

    def browse(self, query: Query, after: int, limit: int) -> Page:
        return self._call("browse", lambda: self.inner.browse(query, after, limit))

    def backlog(self, queues: Sequence[str] | None = None) -> list[Backlog]:
        return self._call("backlog", lambda: self.inner.backlog(queues))

    def queues(self, after: str, limit: int, prefix: str = "") -> list[str]:
        return self._call("queues", lambda: self.inner.queues(after, limit, prefix))

    def totals(self, limit: int) -> Totals:
        return self._call("totals", lambda: self.inner.totals(limit))

    def put_spec(self, spec: QueueSpec) -> None:
        self._call("put_spec", lambda: self.inner.put_spec(spec))

    def specs(self) -> list[QueueSpec]:
        return self._call("specs", self.inner.specs)

    def pause(self, queue: str, until: Instant | None = None) -> None:
        self._call("pause", lambda: self.inner.pause(queue, until))

    def resume(self, queue: str) -> None:
        self._call("resume", lambda: self.inner.resume(queue))

    def set_gate(self, name: str, limit: int | None) -> None:
        self._call("set_gate", lambda: self.inner.set_gate(name, limit))

    def release(self, condition: str, count: int, value: str | None = None) -> int:
        return self._call("release", lambda: self.inner.release(condition, count, value))

    def hold(self, job_id: int) -> Hold | None:
        return self._call("hold", lambda: self.inner.hold(job_id))

    def ahead(self, job_id: int) -> int | None:
        return self._call("ahead", lambda: self.inner.ahead(job_id))

    def put_schedule(self, schedule: Schedule) -> None:
        self._call("put_schedule", lambda: self.inner.put_schedule(schedule))

    def drop_schedule(self, name: str) -> bool:
        return self._call("drop_schedule", lambda: self.inner.drop_schedule(name))

    def schedules(self) -> list[Schedule]:
        return self._call("schedules", self.inner.schedules)

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        return self._call("fire", lambda: self.inner.fire(name, tick, next_at, draft))

    def announce(self, presence: Presence, keep_for: timedelta) -> None:
        self._call("announce", lambda: self.inner.announce(presence, keep_for))

    def withdraw(self, owner: str) -> bool:
        return self._call("withdraw", lambda: self.inner.withdraw(owner))

    def workers(self, after: str, limit: int) -> list[Presence]:
        return self._call("workers", lambda: self.inner.workers(after, limit))

    def gates(self, after: str, limit: int, prefix: str = "") -> list[GateUse]:
        return self._call("gates", lambda: self.inner.gates(after, limit, prefix))

    def ingested(self, source: str) -> Checkpoint | None:
        return self._call("ingested", lambda: self.inner.ingested(source))

    def ingest(
        self, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]
    ) -> Tally | None:
        return self._call("ingest", lambda: self.inner.ingest(source, before, after, drafts))

    def replace_dead(self, pairs: Sequence[tuple[int, Draft]]) -> list[Receipt | None]:
        return self._call("replace_dead", lambda: self.inner.replace_dead(pairs))

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        return self._call("ledger", lambda: self.inner.ledger(after, limit))

    def ledger_extent(self) -> tuple[int, int]:
        return self._call("ledger_extent", self.inner.ledger_extent)

    def ledger_rule(self) -> LedgerRule:
        return self._call("ledger_rule", self.inner.ledger_rule)

    def put_ledger_rule(self, rule: LedgerRule) -> None:
        self._call("put_ledger_rule", lambda: self.inner.put_ledger_rule(rule))

    def trim_ledger(self, limit: int) -> int:
        return self._call("trim_ledger", lambda: self.inner.trim_ledger(limit))

    def wait(self, queues: Sequence[str], timeout: timedelta) -> bool:
        return self._call("wait", lambda: self.inner.wait(queues, timeout))

    def append(self, log: str, bodies: Sequence[bytes], keys: Sequence[str | None] | None = None) -> list[LogEntry]:
        return self._call("append", lambda: self.inner.append(log, bodies, keys))

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        return self._call("read", lambda: self.inner.read(log, partition, after, limit))

    def commit(
        self, log: str, group: str, partition: int, offset: int, *, rewind: bool = False, epoch: int | None = None
    ) -> int:
        commit = self.inner.commit
        return self._call("commit", lambda: commit(log, group, partition, offset, rewind=rewind, epoch=epoch))

    def position(self, log: str, group: str, partition: int) -> int:
        return self._call("position", lambda: self.inner.position(log, group, partition))

    def extent(self, log: str) -> list[tuple[int, int]]:
        return self._call("extent", lambda: self.inner.extent(log))

    def trim(self, log: str, before: Instant, limit: int) -> int:
        return self._call("trim", lambda: self.inner.trim(log, before, limit))

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        return self._call("offset_at", lambda: self.inner.offset_at(log, partition, instant))

    def own(self, log: str, group: str, member: str, lease_for: timedelta) -> list[Owned]:
        return self._call("own", lambda: self.inner.own(log, group, member, lease_for))

    def disown(self, log: str, group: str, member: str) -> int:
        return self._call("disown", lambda: self.inner.disown(log, group, member))

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        return self._call("groups", lambda: self.inner.groups(log, after, limit))
