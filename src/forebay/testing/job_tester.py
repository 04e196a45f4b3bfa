"""`JobTester`: an application in a test, on a store in memory and in virtual time.

    with JobTester(fb) as jobs:
        order.submit(7)                                # the code under test enqueues
        jobs.assert_enqueued("charge", order_id=7)
        jobs.fail_next("charge", ConnectionError())
        jobs.run_all()                                 # one failed attempt; its retry waits
        jobs.advance(minutes=5)                        # retries, delays, schedules, timeouts

Handlers run one after the other in the calling thread, in the order in which a worker would claim them, by the same
rules as in a worker: signature, retries, routing, dead letters, results. No test has to sleep.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from threading import RLock
from types import TracebackType
from typing import Any, Final, Self

from msgspec import Struct

from forebay.client import Forebay
from forebay.core.clock import Clock
from forebay.core.decide import decide
from forebay.core.errors import Invalid
from forebay.core.instant import Instant, micros
from forebay.core.job import Draft, Job
from forebay.core.lease import Lease
from forebay.core.limits import MAX_BATCH, MAX_LEASE
from forebay.core.outcome import Abandoned, Failed, Failure, Outcome, Unhandled
from forebay.core.payload import decode_payload
from forebay.core.policy import Routing
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Receipt, Want
from forebay.testing.clock import ManualClock
from forebay.testing.virtual_loop import VirtualRunner
from forebay.work.handler import Handler
from forebay.work.lifespan import Lifespan
from forebay.work.run import TIMEOUT, Run
from forebay.work.ticker import Ticker
from forebay.work.versions import newer_than

MAX_RUNS: Final = 10_000
"""Runs of one call. A handler that enqueues itself would go on for ever."""

_MIDDLE: Final = 0.5
"""The draw of every random delay: the middle of its range, the same in every run of a test."""


class Enqueued(Struct, frozen=True):
    """A job that was accepted: its draft, and the arguments as the handler gets them."""

    id: int
    draft: Draft
    args: Any


class _RecordingStore(MemoryStore):
    """Remembers every draft that became a job, also of jobs that are gone."""

    def __init__(self, clock: Clock, tester: "JobTester") -> None:
        super().__init__(clock=clock)
        self._tester = tester

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        self._tester._crash_point()
        receipts = super().enqueue(drafts)
        self._tester._accepted([(receipt.id, draft) for receipt, draft in zip(receipts, drafts, strict=True)])
        self._tester._crash_point()
        return receipts

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        fired = super().fire(name, tick, next_at, draft)
        job_id = next((schedule.last_job for schedule in self.schedules() if schedule.name == name), None)
        if fired and draft is not None:
            self._tester._accepted([(job_id or 0, draft)])
        return fired


class JobTester:
    """Puts a store in memory under the app until `close`, and runs its jobs when the test says so.

    inline   each enqueue runs its jobs before it returns; an exception of a handler is raised there
    clock    virtual time
    errors   what handlers raised, oldest first

    The app's start-up hooks run before the first job, its shutdown hooks in `close`. `provided`: values by type, which
    are injected instead of those that the app provides.
    """

    def __init__(
        self,
        app: Forebay,
        *,
        inline: bool = False,
        clock: ManualClock | None = None,
        provided: Mapping[Any, Any] | None = None,
    ) -> None:
        self.app = app
        self.clock = clock or ManualClock()
        self.errors: list[BaseException] = []
        self._inline = inline
        self._failing: defaultdict[str, deque[BaseException]] = defaultdict(deque)
        self._crashing: defaultdict[str, int] = defaultdict(int)
        self._enqueued: list[Enqueued] = []
        self._running = RLock()
        self._depth = 0
        self.store: Final = _RecordingStore(self.clock, self)
        self._ticker = Ticker(self.store, self._draw, app.hooks.enqueue_layers_for(app.registry))
        self._loop = VirtualRunner(self.clock)
        self._lifespan = Lifespan(app.hooks, self._loop.run, provided)
        self._before = app.replace_store(self.store)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """The app has its own store again."""
        self._lifespan.stop()
        self._loop.close()
        self.app.replace_store(self._before)
        self.store.close()

    def run_all(self) -> int:
        """Run what is ready, and what that enqueues, until nothing is ready; how many runs that took.

        Failures follow their retry rules and are in `errors`; a retry that is not due yet waits for `advance`.
        """
        with self._running:
            runs = 0
            while leases := self._claim():
                for lease in leases:
                    self._run(lease)
                runs += len(leases)
                if runs > MAX_RUNS:
                    raise Invalid("run_all", f"more than {MAX_RUNS:,} runs", "does a handler enqueue itself?")
            return runs

    def advance(self, **duration: float) -> int:
        """Let virtual time pass (`minutes=5`): what falls due on the way runs at its instant; how many runs."""
        with self._running:
            until = self.clock.now() + micros(timedelta(**duration))
            runs = self.run_all()
            while (at := self._next_instant()) is not None and at <= until:
                self.clock.advance(max(0, at - self.clock.now()))
                self._ticker.step()
                runs += self.run_all()
                if runs > MAX_RUNS:
                    raise Invalid("advance", f"more than {MAX_RUNS:,} runs", "let less time pass at once")
            self.clock.advance(max(0, until - self.clock.now()))
            return runs

    def enqueued(self, kind: str | None = None) -> list[Enqueued]:
        """The jobs that were accepted since the test began, oldest first."""
        return [each for each in self._enqueued if kind is None or each.draft.kind == kind]

    def assert_enqueued(self, kind: str, count: int | None = None, /, **args: object) -> None:
        """At least one job of this kind was accepted with these arguments among others; exactly `count`, if given."""
        of_kind = self.enqueued(kind)
        found = sum(isinstance(each.args, dict) and each.args.items() >= args.items() for each in of_kind)
        if found == count or (count is None and found):
            return
        wanted = "at least one" if count is None else str(count)
        calls = "".join(f"\n  {kind} {each.args}" for each in of_kind[-20:]) or "\n  none of this kind"
        raise AssertionError(f"{wanted} {kind} with {args} expected, {found} found among {len(of_kind)}:{calls}")

    def fail_next(self, kind: str, error: BaseException, times: int = 1) -> None:
        """The next runs of this kind raise the error instead of calling the handler."""
        self._handler(kind)
        self._failing[kind].extend([error] * times)

    def crash_next(self, kind: str, times: int = 1) -> None:
        """The worker dies after the next runs of this kind, before they are acknowledged: the job runs again."""
        self._handler(kind)
        self._crashing[kind] += times

    def _handler(self, kind: str) -> Handler:
        handler = self.app.registry.get(kind)
        if handler is None:
            known = ", ".join(sorted(self.app.registry)) or "none"
            raise Invalid("kind", f"the app has no handler for {kind!r}", f"it has: {known}")
        return handler

    def _accepted(self, drafts: Sequence[tuple[int, Draft]]) -> None:
        for job_id, draft in drafts:
            body = self.app.codec.open(draft.kind, draft.body)
            self._enqueued.append(Enqueued(job_id, draft, decode_payload(body)))
        if self._inline and not self._depth:
            seen = len(self.errors)
            self.run_all()
            if len(self.errors) > seen:
                raise self.errors[seen]

    def _claim(self) -> list[Lease]:
        self.store.promote(MAX_BATCH)
        ready = [backlog.queue for backlog in self.store.backlog(None) if backlog.ready]
        return self.store.claim([Want(name, 1) for name in ready[:MAX_BATCH]], "tester", MAX_LEASE)

    def _next_instant(self) -> Instant | None:
        instants = [schedule.next_at for schedule in self.store.schedules() if not schedule.paused]
        due = self.store.promote(MAX_BATCH).next_due
        return min([*instants, *([] if due is None else [due])], default=None)

    def _run(self, lease: Lease) -> None:
        job = lease.job
        handler = self.app.registry.get(job.kind)
        newer = None if handler is None else newer_than(job, handler.signature.versions.current)
        if handler is None or newer is not None:
            outcome: Outcome = Unhandled(error=newer)
        else:
            self._depth += 1
            try:
                self._lifespan.start()
                self._lifespan.make_values(handler)
                wired = self._lifespan.wire(handler)
                outcome = self._outcome(Run(lease, wired, lambda: self.store), wired)
            finally:
                self._depth -= 1
            if self._crashing[job.kind]:
                self._crashing[job.kind] -= 1
                outcome = Abandoned()
        self.store.settle([(lease, decide(job, outcome, self._routing(job), self._draw()))])

    def _outcome(self, run: Run, handler: Handler) -> Outcome:
        job, timeout = run.lease.job, handler.timeout
        began = self.clock.now()
        try:
            arguments = handler.signature.arguments(job, run.context)
            if self._failing[job.kind]:
                raise self._failing[job.kind].popleft()
            value = handler.function(**arguments)
            if handler.where == "loop":
                value = self._loop.run(value, self._limit(timeout))
            outcome: Outcome = handler.succeeded(value)
        except Exception as error:
            self.errors.append(error)
            outcome = handler.outcome_of(error, job.body)
        if timeout is not None and self.clock.now() - began >= timeout:
            return Failed(Failure(TIMEOUT, f"it ran longer than {timeout / 1_000_000:g} s"))
        return outcome

    def _draw(self) -> float:
        return _MIDDLE

    def _limit(self, timeout: int | None) -> float | None:
        """Virtual seconds for which an async handler runs."""
        return None if timeout is None else timeout / 1_000_000

    def _crash_point(self) -> None:
        """Called before and after each enqueue."""

    def _routing(self, job: Job) -> Routing:
        return next((spec.routing for spec in self.store.specs() if spec.name == job.queue), Routing())
