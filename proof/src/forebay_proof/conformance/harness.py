"""What a case works with: a fresh store, its clock, and short helpers for the verbs of the contract.

The store comes from an `Opener`, so any author can plug one in. With virtual time the opener is given a `ManualClock`
and `advance` moves it; a store that owns its clock is opened with None and `advance` really waits, which is why cases
count in units of `short`. Every helper works on the queue `q` unless another one is given.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from threading import Event
from types import TracebackType
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from forebay.core.clock import Clock
from forebay.core.decide import decide
from forebay.core.instant import Duration, Instant, minutes
from forebay.core.job import Draft, Job, State
from forebay.core.lease import Lease, Settled
from forebay.core.limits import MAX_BATCH
from forebay.core.outcome import Abandoned, Ack, DeadLetter, Failure, Outcome, Release, Retry, Verdict
from forebay.core.policy import Fixed, Routing
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Backlog, Page, Query, Receipt, Store, Want
from forebay.testing.clock import ManualClock
from forebay_proof.conformance.racing import RacingCall

Opener: TypeAlias = Callable[[Clock | None], Store]

QUEUE: Final = "q"
LONG: Final = minutes(30)
SECOND: Final[Duration] = 1_000_000
ERROR: Final = Failure("Boom", "it broke")
_LATE_NOTIFICATIONS: Final = 100
_REAL_SHORT: Final[Duration] = 400_000


class Harness:
    """One store for one case; a context manager that closes it."""

    def __init__(self, opener: Opener, *, virtual_time: bool = True) -> None:
        self._opener = opener
        self.clock = ManualClock() if virtual_time else None
        self.short: Duration = SECOND if virtual_time else _REAL_SHORT
        self.store = opener(self.clock)
        if self.clock is not None:
            assert self.store.now() == self.clock.now(), "the store does not follow the clock that it was opened with"
        assert not self.jobs(), "the store is not empty: every case needs a fresh one, see `reset` of run()"

    def __enter__(self) -> "Harness":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.store.close()

    def reopen(self) -> None:
        """Close the store and open the same state again."""
        assert self.store.capabilities.durable, "only a durable store can be opened again: mark the case with Need"
        self.store.close()
        self.store = self._opener(self.clock)

    @contextmanager
    def handles(self, count: int) -> Iterator[list[Store]]:
        """Stores open on the same state, as several processes have them; the same one where only one may open it."""
        if self.store.capabilities.processes == "one":
            yield [self.store] * count
            return
        with ExitStack() as opened:
            yield [opened.enter_context(closing(self._opener(self.clock))) for _ in range(count)]

    @property
    def short_delta(self) -> timedelta:
        """`short`, as a `timedelta`."""
        return timedelta(microseconds=self.short)

    def now(self) -> Instant:
        return self.store.now()

    def advance(self, duration: Duration) -> None:
        """Let so much time pass on the store's clock."""
        if self.clock is not None:
            self.clock.advance(duration)
            return
        end = self.store.now() + duration
        while (left := end - self.store.now()) > 0:
            Event().wait(left / SECOND)

    def lapse(self, *leases: Lease) -> None:
        """Let these leases run out."""
        self.advance(max(0, max(lease.until for lease in leases) - self.now()) + 1)

    def until_asleep(self, count: int) -> None:
        """Return when so many threads sleep in the store; a store with its own clock is given a moment."""
        if self.clock is not None:
            self.clock.until_asleep(count)
        else:
            Event().wait(self.short / SECOND)

    def until_asleep_or_done(self, task: RacingCall[Any]) -> None:
        """Return when a task that may have been signalled has checked again, and sleeps or is done."""
        while self.clock is not None and task.running and not self.clock.asleep():
            Event().wait(0.001)

    def asleep_in(self, wait: Callable[[], bool]) -> RacingCall[bool]:
        """A thread that sleeps in this call. A late notification may wake it: then it waits again."""
        for _ in range(_LATE_NOTIFICATIONS):
            task = RacingCall(wait)
            if self.clock is None:
                self.until_asleep(1)
            else:
                self.until_asleep_or_done(task)
            if task.running:
                return task
            task.result()
        raise AssertionError(f"the call did not sleep, {_LATE_NOTIFICATIONS} times in a row")

    def spec(self, name: str = QUEUE, **axes: Any) -> QueueSpec:
        spec = QueueSpec(name=name, **axes)
        self.store.put_spec(spec)
        return spec

    def draft(self, **fields: Any) -> Draft:
        return Draft(**{"kind": "work", "queue": QUEUE, **fields})

    def send(self, *drafts: Draft) -> list[Receipt]:
        return self.store.enqueue(drafts)

    def enqueue(self, count: int = 1, **fields: Any) -> list[int]:
        """Ids of so many alike jobs, accepted in one call."""
        return [receipt.id for receipt in self.send(*[self.draft(**fields)] * count)]

    def one(self, **fields: Any) -> int:
        return self.enqueue(1, **fields)[0]

    def claim(
        self,
        count: int = 1,
        queue: str = QUEUE,
        *,
        cls: str | None = None,
        owner: str = "worker",
        lease_for: timedelta = LONG,
    ) -> list[Lease]:
        return self.store.claim([Want(queue, count, cls)], owner, lease_for)

    def take(self, queue: str = QUEUE, **how: Any) -> Lease:
        """The next job, which must be there."""
        leases = self.claim(1, queue, **how)
        assert len(leases) == 1, f"one job was expected from {queue!r}, {len(leases)} were claimed"
        return leases[0]

    def settle(self, lease: Lease, verdict: Verdict) -> Settled:
        return self.store.settle([(lease, verdict)])[0]

    def ack(self, lease: Lease, result: bytes | None = None) -> Settled:
        return self.settle(lease, Ack(result))

    def fail(self, lease: Lease, after: Duration = 0) -> Settled:
        return self.settle(lease, Retry(after, ERROR))

    def dead_letter(self, lease: Lease) -> Settled:
        return self.settle(lease, DeadLetter(ERROR))

    def release(self, lease: Lease, after: Duration = 0) -> Settled:
        return self.settle(lease, Release(after))

    def conclude(self, lease: Lease, outcome: Outcome) -> Settled:
        """Settle as core decides, without a backoff."""
        return self.settle(lease, decide(lease.job, outcome, Routing(backoff=Fixed()), 0.0))

    def reap(self) -> list[Lease]:
        """One round of a reaper: overdue jobs are abandoned."""
        overdue = self.store.overdue(MAX_BATCH)
        for lease in overdue:
            self.conclude(lease, Abandoned(expired=True))
        return overdue

    def dead(self, **fields: Any) -> int:
        """The id of a new dead letter."""
        job_id = self.one(**fields)
        lease = self.take(fields.get("queue", QUEUE))
        assert lease.job.id == job_id
        assert self.dead_letter(lease) is Settled.APPLIED
        return job_id

    def drain(self, queue: str = QUEUE, batch: int = 1) -> list[int]:
        """Claim and acknowledge until nothing more comes; the ids in the order of their claims."""
        ids: list[int] = []
        while leases := self.claim(batch, queue):
            answers = self.store.settle([(lease, Ack()) for lease in leases])
            assert set(answers) == {Settled.APPLIED}
            ids += [lease.job.id for lease in leases]
        return ids

    def get(self, job_id: int) -> Job:
        job = self.store.get([job_id])[0]
        assert job is not None, f"job {job_id} is gone"
        return job

    def state(self, job_id: int) -> State | None:
        """The state of a job, once due jobs are promoted; None when it is gone."""
        self.store.promote(MAX_BATCH)
        job = self.store.get([job_id])[0]
        return None if job is None else job.state

    def backlog(self, queue: str = QUEUE) -> Backlog:
        """The backlog of the queue, once due jobs are promoted."""
        self.store.promote(MAX_BATCH)
        return self.store.backlog([queue])[0]

    def pages(self, query: Query, limit: int) -> Iterator[Page]:
        after: int | None = 0
        while after is not None:
            page = self.store.browse(query, after, limit)
            yield page
            assert page.next is None or page.next > after, "a page must have a larger `next` than the one before"
            after = page.next

    def jobs(self, **query: Any) -> list[Job]:
        """Every job that matches, in the order of the ids."""
        return [job for page in self.pages(Query(**query), MAX_BATCH) for job in page.jobs]

    def nothing_left(self, *queues: str) -> None:
        """No depth and no lease is left behind in these queues, and nothing will fall due."""
        for queue in queues or (QUEUE,):
            left = self.backlog(queue)
            assert (left.waiting, left.ready, left.running) == (0, 0, 0), f"left behind: {left}"
            assert self.claim(1, queue) == []
        assert self.store.promote(1).next_due is None
        if self.clock is not None:
            self.clock.advance(2 * int(LONG.total_seconds()) * SECOND)
            assert self.store.overdue(1) == []

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """The block has no effect that a caller could see."""
        before = self._snapshot()
        yield
        after = self._snapshot()
        assert after == before, f"it should have no effect; before: {before}; after: {after}"

    def _snapshot(self) -> Sequence[object]:
        self.store.promote(MAX_BATCH)
        backlogs = [replace(backlog, oldest_age=0, held=0) for backlog in self.store.backlog()]
        busy = sorted(repr(backlog) for backlog in backlogs if backlog != _idle(backlog.queue))
        logs = [(spec.name, self.store.extent(spec.name)) for spec in self.store.specs() if spec.is_log]
        return busy, logs, self.jobs(), self.store.specs(), self.store.schedules()


def _idle(queue: str) -> Backlog:
    return Backlog(queue, 0, 0, 0, 0, 0, 0, 0, None, 0)
