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

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from threading import Event, RLock
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from msgspec import Struct

from forebay.client import Forebay
from forebay.core.breaker import Circuit
from forebay.core.clock import Signal
from forebay.core.decide import decide
from forebay.core.errors import Invalid, Unsupported
from forebay.core.instant import Duration, Instant, micros
from forebay.core.job import Draft, Job, Progress
from forebay.core.lease import Lease
from forebay.core.limits import MAX_BATCH, MAX_LEASE
from forebay.core.outcome import Abandoned, Failed, Failure, Outcome, Release, Succeeded, Unhandled, Verdict
from forebay.core.payload import decode_payload
from forebay.core.policy import Routing
from forebay.store.memory.ledger import Ledger
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import CancelAnswer, Receipt, Want
from forebay.testing.clock import ManualClock
from forebay.testing.ledger import RecordsInMemory
from forebay.testing.virtual_loop import VirtualRunner
from forebay.work.handler import Handler
from forebay.work.lifespan import Lifespan
from forebay.work.run import TIMEOUT, Run, Stop
from forebay.work.ticker import Ticker
from forebay.work.versions import newer_than

MAX_RUNS: Final = 10_000
"""Runs of one call. A handler that enqueues itself would go on for ever."""

_PATIENCE: Final = 30.0
"""Seconds of real time for which a thread waits while another one runs jobs."""

_MIDDLE: Final = 0.5
"""The draw of every random delay: the middle of its range, the same in every run of a test."""


class Enqueued(Struct, frozen=True):
    """A job that was accepted: its draft, and the arguments as the handler gets them."""

    id: int
    draft: Draft
    args: Any


class _PassingClock:
    """The clock of a test whose waits let virtual time pass, since no other thread moves it."""

    def __init__(self, tester: "JobTester") -> None:
        self._tester = tester

    def now(self) -> Instant:
        return self._tester.clock.now()

    def wait(self, signal: Signal, duration: Duration) -> None:
        self._tester._wait(signal, duration)


class _RecordingStore(MemoryStore):
    """Remembers every draft that became a job, also of jobs that are gone."""

    def __init__(self, tester: "JobTester") -> None:
        records = RecordsInMemory()
        ledger = partial(Ledger, recorder=records, files=records, durable=lambda: 0)
        super().__init__(clock=_PassingClock(tester), recorder=records, ledger=ledger)
        self._tester = tester

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        self._tester._crash_point()
        receipts = super().enqueue(drafts)
        self._tester._accepted([(receipt.id, draft) for receipt, draft in zip(receipts, drafts, strict=True)])
        self._tester._crash_point()
        return receipts

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        """With the progress that running handlers have reported so far."""
        running = [(run.fence, run.context) for run in self._tester._active if run.context is not None]
        if reported := [(fence, ctx.reported) for fence, ctx in running if ctx.reported is not None]:
            self.report_progress(reported)
        return super().get(ids)

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        fired = super().fire(name, tick, next_at, draft)
        job_id = next((schedule.last_job for schedule in self.schedules() if schedule.name == name), None)
        if fired and draft is not None:
            self._tester._accepted([(job_id or 0, draft)])
        return fired

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        answers = super().cancel(ids)
        self._tester._cancelled(
            {job_id for job_id, answer in zip(ids, answers, strict=True) if answer is CancelAnswer.REQUESTED}
        )
        return answers

    def settle_in(self, _: object, lease: Lease, verdict: Verdict) -> Callable[[], None]:
        """The job ends when the handler reports its commit, by calling what this returns."""

        def committed() -> None:
            self.settle([(lease, verdict)])

        return committed

    def transaction(self, _: Lease, __: Callable[[], Verdict]) -> NoReturn:
        raise Unsupported("a JobTester", "ctx.transaction()", "test this with a worker on a Postgres store")

    atransaction = transaction


class JobTester:
    """Puts a store in memory under the app until `close`, and runs its jobs when the test says so.

    inline    each enqueue runs its jobs before it returns; an exception of a handler is raised there
    clock     virtual time
    errors    what handlers raised, oldest first
    progress  the last progress of each job, by its id; `fb.get(id).progress` is that of a job that runs

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
        self.progress: dict[int, Progress] = {}
        self._inline = inline
        self._failing: defaultdict[str, deque[BaseException]] = defaultdict(deque)
        self._crashing: defaultdict[str, int] = defaultdict(int)
        self._enqueued: list[Enqueued] = []
        self._running = RLock()
        self._depth = 0
        self._claimed: deque[Lease] = deque()
        self._last_queue = ""
        self._circuits: dict[object, Circuit] = {}
        self._active: list[Run] = []
        self.store: Final = _RecordingStore(self)
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
            return self._run_ready(Event())

    def advance(self, **duration: float) -> int:
        """Let virtual time pass (`minutes=5`): what falls due on the way runs at its instant; how many runs."""
        with self._running:
            return self._pass(self.clock.now() + micros(timedelta(**duration)), Event())

    def _wait(self, signal: Signal, duration: Duration) -> None:
        """A caller of the store waits: jobs run and time passes until its signal is set, or its time is over."""
        until = self.clock.now() + duration
        if self._loop.running or not self._running.acquire(timeout=_PATIENCE):
            what = "a handler on the event loop, or in a thread of its own, waits for another job"
            raise Invalid("JobTester", what, "enqueue the next job instead of waiting (docs/guides/next-job.md)")
        try:
            self._pass(until, signal)
        finally:
            self._running.release()

    def _pass(self, until: Instant, stop: Signal) -> int:
        """Run what is ready and what falls due until then, each at its instant, or until the signal is set."""
        runs = 0
        while True:
            runs += self._run_ready(stop)
            if runs > MAX_RUNS:
                raise Invalid("advance", f"more than {MAX_RUNS:,} runs", "let less time pass at once")
            fired = self._ticker.fired
            if not stop.is_set():
                self._ticker.step()
            if self._ticker.fired > fired:
                continue
            at = self._next_instant()
            if stop.is_set() or at is None or at > until:
                break
            self.clock.advance(at - self.clock.now())
        if not stop.is_set():
            self.clock.advance(max(0, until - self.clock.now()))
        return runs

    def _run_ready(self, stop: Signal) -> int:
        runs = 0
        while not stop.is_set():
            if not self._claimed:
                self._claimed.extend(self._claim())
            if not self._claimed:
                break
            runs += self._run(self._gather(self._claimed.popleft()))
            if runs > MAX_RUNS:
                raise Invalid("run_all", f"more than {MAX_RUNS:,} runs", "does a handler enqueue itself?")
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
        """The next job: that of one queue after the other."""
        ready = self._ready_queues()
        for name in sorted(ready, key=lambda name: (name <= self._last_queue, name)):
            if leases := self.store.claim([Want(name, 1)], "tester", MAX_LEASE):
                self._last_queue = name
                return leases
        return []

    def _ready_queues(self) -> list[str]:
        self.store.promote(MAX_BATCH)
        return [backlog.queue for backlog in self.store.backlog(None) if backlog.ready]

    def _next_instant(self) -> Instant | None:
        """When something may happen next. What is late already, such as a schedule of a full queue, waits for that."""
        now = self.clock.now()
        instants = [schedule.next_at for schedule in self.store.schedules() if not schedule.paused]
        instants += [backlog.paused_until or now for backlog in self.store.backlog(None)]
        instants.append(self.store.promote(MAX_BATCH).next_due or now)
        return min((at for at in instants if at > now), default=None)

    def _gather(self, first: Lease) -> list[Lease]:
        """The jobs that share a call with this one: those of its kind that are ready, as many as its batch takes."""
        handler = self.app.registry.get(first.job.kind)
        size, members = 1 if handler is None else handler.batch, [first]
        while len(members) < size:
            found = next((lease for lease in self._claimed if lease.job.kind == first.job.kind), None)
            if found is not None:
                self._claimed.remove(found)
                members.append(found)
            elif more := self.store.claim([Want(first.job.queue, size)], "tester", MAX_LEASE):
                self._claimed.extend(more)
            else:
                break
        return members

    def _run(self, leases: Sequence[Lease]) -> int:
        """Run one job, or those of one batch; how many runs began."""
        self._depth += 1
        try:
            runs = [run for lease in leases if (run := self._begin(lease)) is not None]
            self._active += runs
            try:
                outcomes = self._outcomes(runs) if runs else []
            finally:
                del self._active[len(self._active) - len(runs) :]
            for run, outcome in zip(runs, outcomes, strict=True):
                self._end(run, outcome)
        finally:
            self._depth -= 1
        return len(runs)

    def _cancelled(self, ids: Collection[int]) -> None:
        """The end of these jobs is requested, as far as they run now."""
        for run in self._active:
            if run.lease.job.id in ids and run.stop is None:
                run.mark_stopped(Stop.CANCEL)
                if isinstance(run.task, asyncio.Task):
                    run.task.get_loop().call_soon_threadsafe(run.task.cancel)

    def _begin(self, lease: Lease) -> Run | None:
        """None: it cannot run now, and was released."""
        job = lease.job
        handler = self.app.registry.get(job.kind)
        newer = None if handler is None else newer_than(job, handler.signature.versions.current)
        if handler is None or newer is not None:
            self.store.settle([(lease, decide(job, Unhandled(error=newer), Routing(), self._draw()))])
            return None
        circuit = self._circuit(handler)
        if circuit is not None and (after := circuit.admit(self.clock.now())) > 0:
            self.store.settle([(lease, Release(int(after * (0.5 + self._draw()))))])
            return None
        self._lifespan.start()
        self._lifespan.make_values(handler)
        return Run(lease, self._lifespan.wire(handler), lambda: self.store)

    def _end(self, run: Run, outcome: Outcome) -> None:
        job = run.lease.job
        if run.context is not None and run.context.reported is not None:
            self.progress[job.id] = run.context.reported
        if self._crashing[job.kind]:
            self._crashing[job.kind] -= 1
            outcome = Abandoned()
        circuit = self._circuit(run.handler)
        if circuit is not None:
            circuit.record(Succeeded() if run.settled else outcome, self.clock.now())
        if not run.settled:
            self.store.settle([(run.lease, decide(job, outcome, self._routing(job), self._draw()))])

    def _circuit(self, handler: Handler) -> Circuit | None:
        if handler.breaker is None:
            return None
        return self._circuits.setdefault(handler.breaker.key(handler.kind), Circuit(handler.breaker))

    def _outcomes(self, runs: Sequence[Run]) -> list[Outcome]:
        """How these runs of one handler end."""
        if runs[0].handler.where != "loop":
            return [self._outcome(run) for run in runs]

        async def together() -> list[Outcome]:
            return await asyncio.gather(*[self._awaited_outcome(run) for run in runs])

        return self._loop.run(together())

    def _outcome(self, run: Run) -> Outcome:
        began = self.clock.now()
        try:
            value = self._call(run)
            stopped = run.stop is not None and value is None
            outcome: Outcome = run.stopped_outcome() if stopped else run.handler.succeeded(value)
        except Exception as error:
            outcome = self._raised(run, error)
        return self._in_time(run, began, outcome)

    async def _awaited_outcome(self, run: Run) -> Outcome:
        began, run.task = self.clock.now(), asyncio.current_task()
        try:
            async with self._limited(run):
                value = await self._call(run)
            outcome: Outcome = run.handler.succeeded(value)
        except asyncio.CancelledError:
            if run.stop is None:
                raise
            outcome = run.stopped_outcome()
        except Exception as error:
            outcome = self._raised(run, error)
        return self._in_time(run, began, outcome)

    def _call(self, run: Run) -> Any:
        job = run.lease.job
        arguments = run.handler.signature.arguments(job, run.context)
        if self._failing[job.kind]:
            raise self._failing[job.kind].popleft()
        return run.handler.function(**arguments)

    def _raised(self, run: Run, error: Exception) -> Outcome:
        self.errors.append(error)
        return run.handler.outcome_of(error, run.lease.job.body)

    def _in_time(self, run: Run, began: Instant, outcome: Outcome) -> Outcome:
        """This outcome, unless the run took too long."""
        timeout = run.handler.timeout
        if timeout is None or self.clock.now() - began < timeout:
            return outcome
        return Failed(Failure(TIMEOUT, f"it ran longer than {timeout / 1_000_000:g} s"))

    def _draw(self) -> float:
        return _MIDDLE

    def _limit(self, run: Run) -> float | None:
        """Virtual seconds for which an async handler runs."""
        return None if run.handler.timeout is None else run.handler.timeout / 1_000_000

    @asynccontextmanager
    async def _limited(self, run: Run) -> AsyncIterator[None]:
        """Stop an async handler at its limit; its context says so if that is its timeout."""
        limit, timeout = self._limit(run), run.handler.timeout
        at_timeout = limit is not None and timeout is not None and limit >= timeout / 1_000_000
        timer = asyncio.get_running_loop().call_later(limit, self._time_out, run) if limit and at_timeout else None
        try:
            async with asyncio.timeout(limit):
                yield
        finally:
            if timer is not None:
                timer.cancel()

    def _time_out(self, run: Run) -> None:
        if run.context is not None:
            run.context.stop = Stop.TIMEOUT

    def _crash_point(self) -> None:
        """Called before and after each enqueue."""

    def _routing(self, job: Job) -> Routing:
        return next((spec.routing for spec in self.store.specs() if spec.name == job.queue), Routing())
