"""The pool runs jobs and turns their outcomes into verdicts.

Async handlers run on an event loop, plain ones in threads, isolated ones in child processes; together never more than
`concurrency`. Whatever a handler does (any exception, SystemExit, a hang, a crash of its child process), the pool
survives and the job follows its retry rules. A run ends exactly once: by its return, its timeout, its cancellation, the
drain, or its lost lease.
"""

import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from threading import Condition, Lock, current_thread
from typing import Any, Final

from forebay.core.breaker import Budget, circuits_of
from forebay.core.decide import decide
from forebay.core.errors import Invalid
from forebay.core.lease import Fence, Lease, Settlement
from forebay.core.outcome import (
    Ack,
    Failed,
    Failure,
    Interrupted,
    Outcome,
    Release,
    Snoozed,
    Succeeded,
    Unhandled,
    Verdict,
    Withdrawn,
)
from forebay.core.policy import Routing
from forebay.core.presence import MAX_UNHANDLED
from forebay.store.protocol import ProgressReport, Store
from forebay.tracing import spans
from forebay.work.capacity import fit_count, slots_of
from forebay.work.handler import DONE, Handler, traced
from forebay.work.isolate import CRASHED, ChildDied, IsolatedProcess
from forebay.work.job_log import JobLog
from forebay.work.loop import LoopSlots
from forebay.work.options import Options
from forebay.work.process_guards import DescriptorGuard
from forebay.work.quarantine import Quarantine
from forebay.work.redacting import JobSecrets, running_job
from forebay.work.run import Run, Stop, lease_clock
from forebay.work.start_marks import IN_QUARANTINE, StartMarks
from forebay.work.threads import ThreadSlots
from forebay.work.versions import newer_than

_log = logging.getLogger("forebay.work")

_SWEEP_EVERY: Final = 0.05
_SWEEP_IDLE: Final = 0.25
_PREFETCH_SECONDS: Final = 0.1
"""Seconds for which a prefetched job may wait for a slot."""

_MAX_PREFETCH: Final = 2_000
_ANY_ROUTING: Final = Routing()
"""For outcomes whose verdict does not depend on the routing."""

_PLAIN_ACK: Final = Ack()
"""The verdict on nearly every job; shared, to save an allocation."""

_BUDGET_DELAY: Final = 1_000_000
_GRACE: Final = 2.0
_MAX_EXCLUSIVE_WAIT: Final = 10.0
_EXCLUSIVE_DELAY: Final = 3_000_000
_UNHANDLED_FOR: Final = 180.0
"""Seconds for which an unhandled kind is kept: longer than the delay with which its jobs are released."""


class Pool:
    """Runs jobs; each takes as many slots as it costs. `settle` receives the verdicts. `step` must be called often.

    `uses_loop`: start the event loop even if no handler is async.
    """

    name = "pool"

    def __init__(
        self,
        registry: Mapping[str, Handler],
        options: Options,
        routing: Callable[[str], Routing],
        settle: Callable[[Sequence[Settlement]], None],
        *,
        store: Callable[[], Store] | None = None,
        target: str | None = None,
        quarantine: bool = True,
        marks: StartMarks | None = None,
        descriptors: DescriptorGuard | None = None,
        draw: Callable[[], float] = random.random,
        log: JobLog | None = None,
        uses_loop: bool = False,
    ) -> None:
        self._registry = registry
        self._routing = routing
        self._settle = settle
        self._store = store
        self._target = target
        self._marks = marks
        self._descriptors = descriptors
        self._draw = draw
        self._job_log = log or JobLog()
        self._size = options.concurrency
        self._claim_batch = options.claim_batch
        self._max_wedged = options.max_wedged
        self._runs: dict[Fence, Run] = {}
        self._unhandled: dict[tuple[str, str], float] = {}
        self.handled_elsewhere: frozenset[tuple[str, str]] = frozenset()
        self._guard = Lock()
        self._capacity = Condition(self._guard)
        # Each executor limits itself to `concurrency`. Prefetched jobs of two executors could exceed it together.
        self._max_prefetch = _MAX_PREFETCH if len({handler.where for handler in registry.values()}) == 1 else 0
        self._prefetch = 0
        self._extra_slots: dict[Fence, int] = {}
        self._extra, self._ended = 0, 0
        self._counted = (0, time.monotonic())
        self._waiting, self._stuck = 0, 0
        self._circuits = circuits_of({kind: each.breaker for kind, each in registry.items() if each.breaker})
        self._rejected = dict.fromkeys(self._circuits, 0)
        self._budget = Budget(options.retry_budget) if options.retry_budget is not None else None
        self._children: dict[Run, IsolatedProcess] = {}
        self._warm: list[IsolatedProcess] = []
        on_loop = None if marks is None else marks.on_loop
        self._loop = LoopSlots(self._size, self._begin, self._finish_all, self._succeed, on_loop)
        self._threads = ThreadSlots("thread", self._size, self._call, self._finish)
        self._processes = ThreadSlots("isolate", self._size, self._call_isolated, self._finish)
        executors = (("loop", self._loop), ("thread", self._threads), ("process", self._processes))
        self._executors: dict[str, LoopSlots | ThreadSlots] = dict(executors)
        self._uses_loop = uses_loop or any(handler.where == "loop" for handler in registry.values())
        self._quarantined: dict[Fence, Run] = {}
        self._exclusive: tuple[Run, float] | None = None
        self._quarantine: Quarantine | None = None
        if target is not None and quarantine:
            begin = partial(self._begin, thread=IN_QUARANTINE)
            self._quarantine = Quarantine(options, target, begin, self._finish, marks)
        if target is None and any(handler.where == "process" for handler in registry.values()):
            raise Invalid("isolate", "the app has no importable name for a child process", "start it as module:name")

    @property
    def free(self) -> int:
        """How many more jobs can start now, plus some to prefetch where jobs end quickly.

        Suspects in quarantine take no slots. Without a quarantine, a suspect takes the whole pool.
        """
        if self._exclusive is not None:
            return 0
        prefetch = 0 if self._extra else self._prefetch
        return self._size + prefetch - len(self._runs) + len(self._quarantined) - self._extra

    def fits(self, leases: Sequence[Lease]) -> int:
        """How many of these, in order, may start. Jobs of cost 1 may be prefetched, others must fit."""
        light = not self._extra and all(lease.job.cost == 1 for lease in leases)
        return (
            len(leases)
            if light
            else fit_count(leases, self._size - len(self._runs) + len(self._quarantined) - self._extra, self._size)
        )

    @property
    def running(self) -> int:
        """The number of jobs held, including prefetched ones."""
        return len(self._runs)

    @property
    def idle(self) -> bool:
        return not self._runs

    @property
    def healthy(self) -> bool:
        """False when the event loop died or too many threads hang: the process should be replaced."""
        loop_healthy = not self._uses_loop or (self._loop.alive and self._loop.silent_for() < _GRACE)
        return loop_healthy and self._threads.wedged + self._stuck <= self._max_wedged

    def start(self) -> None:
        if self._uses_loop:
            self._loop.start()

    def run_on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What the coroutine returns on the event loop of the handlers."""
        return self._loop.run(work)

    def submit(self, leases: Sequence[Lease], lease_ends: float = inf) -> None:
        """Start these jobs. One without a handler here, or with an open circuit breaker, is released at once.

        `lease_ends`: the earliest end of their leases on the `lease_clock`; a job that has not begun by then is
        released.
        """
        now, traces = time.monotonic(), spans()
        fresh: dict[Fence, Run] = {}
        started: dict[str, list[Run]] = {"loop": [], "thread": [], "process": []}
        suspects: list[Run] = []
        for lease in leases:
            handler = self._registry.get(lease.job.kind)
            newer = None if handler is None else newer_than(lease.job, handler.signature.versions.current)
            if handler is None or newer is not None:
                self._settle([self._return(lease, now, newer)])
            elif (after := self._postpone(lease, now)) > 0:
                self._settle([(lease, Release(int(after * (0.5 + self._draw()))))])
            elif lease.job.cancel_requested:
                # Its previous worker died before it could cancel it.
                self._settle([self._verdict(lease, Withdrawn(handler.keep_for))])
            else:
                suspect = bool(lease.job.errors) and lease.job.needs_quarantine
                elsewhere = handler.where == "process" or (suspect and self._quarantine is not None)
                # A child process traces its own runs.
                instrumented = handler if traces is None or elsewhere else traced(handler, lease.job, traces)
                run = Run(lease, instrumented, self._store, lease_ends)
                run.quarantined = suspect
                (suspects if suspect else started[handler.where]).append(run)
                fresh[run.fence] = run
        extra = {
            fence: more
            for fence, run in fresh.items()
            if not run.quarantined and (more := slots_of(run.lease.job, self._size) - 1)
        }
        with self._guard:
            self._runs.update(fresh)
            self._quarantined.update((run.fence, run) for run in suspects)
            self._extra_slots.update(extra)
            self._extra += sum(extra.values())
        for where, slots in self._executors.items():
            if started[where]:
                slots.submit(started[where])
        if suspects and self._quarantine is not None:
            self._quarantine.submit(suspects)
        elif suspects:
            self._exclusive = (suspects[0], now + _MAX_EXCLUSIVE_WAIT)
            self._finish_all([(run, Interrupted()) for run in suspects[1:]])

    def quarantine(self, leases: Sequence[Lease], lease_ends: float = inf) -> int:
        """Run suspects separately from other jobs; returns how many of them, in order, were accepted."""
        if self._quarantine is None:
            count = 1 if self._exclusive is None else 0
        else:
            count = max(0, min(len(leases), self._quarantine.capacity))
        self.submit(leases[:count], lease_ends)
        return count

    def settled(self, fence: Fence) -> None:
        """The store has the verdict, or there is none to write."""
        if self._marks is not None:
            self._marks.ended(fence)
        if self._quarantine is not None:
            self._quarantine.settled(fence)
        exclusive = self._exclusive
        if exclusive is not None and exclusive[0].fence == fence:
            with self._guard:
                self._exclusive = None
                self._capacity.notify_all()

    def held(self) -> list[Lease]:
        """The leases to renew: those of all runs that are not settled yet."""
        return [run.lease for run in self._all_runs() if not run.settled]

    def renewed(self, fences: Iterable[Fence], lease_ends: float) -> None:
        """These leases last at least until `lease_ends`."""
        with self._guard:
            for fence in fences:
                run = self._runs.get(fence)
                if run is not None and run.lease_ends < lease_ends:
                    run.lease_ends = lease_ends

    def progress(self) -> list[ProgressReport]:
        """The progress that running handlers have reported."""
        contexts = [(run.fence, run.context) for run in self._all_runs()]
        return [
            (fence, reported)
            for fence, context in contexts
            if context is not None and (reported := context.reported) is not None
        ]

    def lag(self, timeout: float) -> float:
        """Seconds that the event loop takes to run a callback, at most `timeout`; 0 without async handlers."""
        return self._loop.lag(timeout) if self._uses_loop else 0.0

    def unhandled(self) -> tuple[tuple[str, str], ...]:
        """Queue and kind of jobs that were released recently because this worker has no handler for them."""
        since = time.monotonic() - _UNHANDLED_FOR
        with self._guard:
            self._unhandled = {pair: at for pair, at in self._unhandled.items() if at > since}
            return tuple(sorted(self._unhandled))

    def circuits(self) -> dict[str, tuple[str, int]]:
        """Per kind with a circuit breaker: its state, and the runs of the kind that it postponed."""
        now = _micros(time.monotonic())
        return {kind: (circuit.state(now), self._rejected[kind]) for kind, circuit in self._circuits.items()}

    def mark_lost(self, fences: Sequence[Fence]) -> None:
        for fence in fences:
            self._interrupt(fence, Stop.LOST)

    def request_cancel(self, fences: Sequence[Fence]) -> None:
        for fence in fences:
            self._interrupt(fence, Stop.CANCEL)

    def release_pending(self) -> None:
        """Release the suspects that have not begun, at the start of a drain."""
        waiting = [] if self._quarantine is None else self._quarantine.waiting()
        if self._exclusive is not None and not self._exclusive[0].begun:
            waiting.append(self._exclusive[0])
        for run in waiting:
            self._interrupt(run.fence, Stop.DRAIN)

    def interrupt_all(self) -> None:
        """Stop and release everything that still runs, at the end of a drain."""
        for run in self._all_runs():
            self._interrupt(run.fence, Stop.DRAIN)

    def step(self) -> float:
        """Stop runs that exceed their timeout; settle those that do not stop within the grace period."""
        now = time.monotonic()
        if self._marks is not None:
            self._marks.beat()
        self._loop.flush()
        self._update_prefetch(now)
        self._job_log.refresh()
        self._job_log.flush()
        for run in self._all_runs():
            if run.deadline is not None and now >= run.deadline:
                self._interrupt(run.fence, Stop.TIMEOUT)
            if run.stop not in (None, Stop.CANCEL) and now >= run.stopped_at + _GRACE:
                self._stuck += self._finish(run, run.stopped_outcome())
        if self._stuck:
            self._loop.ping()
        if self._quarantine is not None:
            self._quarantine.sweep()
        self._step_exclusive(now)
        return _SWEEP_EVERY if self._runs else _SWEEP_IDLE

    def _step_exclusive(self, now: float) -> None:
        """Without a quarantine, a suspect begins when the pool is empty, or is released if that takes too long."""
        run, until = self._exclusive or (None, 0.0)
        if run is None or run.begun or run.over:
            return
        if len(self._runs) == 1:
            run.begun = True
            self._executors[run.handler.where].submit([run])
        elif now > until:
            self._finish(run, Snoozed(int(_EXCLUSIVE_DELAY * (0.5 + self._draw()))))

    def _all_runs(self) -> list[Run]:
        with self._guard:
            return list(self._runs.values())

    @property
    def _worthwhile(self) -> int:
        """Free slots that justify a claim: a claim costs the store about the same for one job as for many."""
        return max(1, min(self._claim_batch, (self._size + self._prefetch) // 2))

    def _update_prefetch(self, now: float) -> None:
        """Allow to prefetch as many jobs as end within `_PREFETCH_SECONDS` at the current rate."""
        ended, since = self._counted
        if now - since >= _SWEEP_EVERY / 2:
            rate = (self._ended - ended) / (now - since)
            self._prefetch = min(self._max_prefetch, int(rate * _PREFETCH_SECONDS))
            self._counted = (self._ended, now)

    def wait_for_capacity(self, timeout: float, minimum: int = 0) -> None:
        """Wait until enough slots for a worthwhile claim, and at least `minimum`, are free."""
        with self._capacity:
            self._waiting += 1
            self._capacity.wait_for(lambda: self.free >= max(self._worthwhile, minimum) or not self._runs, timeout)
            self._waiting -= 1

    def wait_until_idle(self, timeout: float) -> bool:
        with self._capacity:
            self._waiting += 1
            idle = self._capacity.wait_for(lambda: self.idle, timeout)
            self._waiting -= 1
            return idle

    def hang_up(self) -> None:
        """Let idle child processes run their shutdown hooks; `close` waits for them."""
        for child in self._warm:
            child.hang_up()
        if self._quarantine is not None:
            self._quarantine.hang_up()

    def close(self, children_by: float = 0.0) -> None:
        """`children_by`: until when child processes that were hung up may exit, on the monotonic clock."""
        self._job_log.flush(now=True)
        self._loop.close()
        self._threads.close()
        self._processes.close()
        for child in (*self._warm, *self._children.values()):
            child.close(max(0.0, children_by - time.monotonic()))
        if self._quarantine is not None:
            self._quarantine.close(children_by)

    def _return(self, lease: Lease, now: float, newer: Failure | None = None) -> Settlement:
        """A job without a handler here, or newer than it, is released uncharged: other workers may have newer code."""
        job = lease.job
        elsewhere = (job.queue, job.kind) in self.handled_elsewhere
        verdict = decide(job, Unhandled(elsewhere, newer), _ANY_ROUTING, self._draw())
        with self._guard:
            if len(self._unhandled) < MAX_UNHANDLED or (job.queue, job.kind) in self._unhandled:
                self._unhandled |= {(job.queue, job.kind): now} if newer is None else {}
        self._job_log.unhandled(job, verdict)
        return lease, verdict

    def _postpone(self, lease: Lease, now: float) -> int:
        """Microseconds for which to delay the job: its circuit breaker is open, or the retry budget is spent."""
        circuit = self._circuits.get(lease.job.kind)
        if circuit is not None and (after := circuit.admit(_micros(now))) > 0:
            self._rejected[lease.job.kind] += 1
            return after
        if self._budget is None:
            return 0
        if lease.job.attempt <= 1:
            self._budget.first_run()
            return 0
        if self._budget.may_retry():
            return 0
        if circuit is not None:
            circuit.abandoned()
        return _BUDGET_DELAY

    def _interrupt(self, fence: Fence, stop: Stop) -> None:
        run = self._runs.get(fence)
        if run is None or run.stop not in (None, Stop.CANCEL) or run.stop is stop:
            return
        if stop is Stop.LOST and run.settled:
            return
        run.mark_stopped(stop)
        if run.quarantined and (self._quarantine is not None or not run.begun):
            if self._quarantine is not None:
                self._quarantine.interrupt(run)
            else:
                self._finish(run, run.stopped_outcome())
            return
        match run.handler.where:
            case "loop":
                self._loop.interrupt(run)
            case "process":
                child = self._children.get(run)
                if child is not None:
                    child.kill()
            case "thread" if stop is not Stop.CANCEL:
                # A thread cannot be stopped. A cancelled one reads ctx.cancelled and is waited for, others are not.
                if self._finish(run, run.stopped_outcome()):
                    self._threads.abandon(run)
            case _:
                pass

    def _begin(self, run: Run, thread: int = 0) -> bool:
        """Called just before the handler: starts its timeout, and marks it as begun for crash recovery.

        False: the handler must not begin, because the lease may have ended while the process was stopped.
        """
        run.started_at = lease_clock()
        if run.started_at >= run.lease_ends:
            return False
        if run.handler.timeout is not None:
            run.deadline = time.monotonic() + run.handler.timeout / 1_000_000
        if self._job_log.verbose:
            self._job_log.started(run.lease.job)
        if self._marks is not None:
            self._marks.started(run.fence, thread)
        running_job.set(JobSecrets(run.handler.secrets, run.lease.job.body))
        return True

    def _call(self, run: Run) -> Outcome:
        handler = run.handler
        arguments = handler.signature.arguments(run.lease.job, run.context)
        if not self._begin(run, current_thread().native_id or 0):
            return run.stopped_outcome()
        return self._succeed(run, handler.function(**arguments))

    def _call_isolated(self, run: Run) -> Outcome:
        child = self._warm.pop() if self._warm else IsolatedProcess(self._target or "")
        self._children[run] = child
        try:
            child.prepare()
            if run.stop is not None or not self._begin(run):
                return run.stopped_outcome()
            return child.run(run)
        except ChildDied as died:
            if run.stop is not None:
                return run.stopped_outcome()
            return Failed(Failure(CRASHED, f"its process {died}"))
        finally:
            del self._children[run]
            self._warm.append(child)

    def _succeed(self, run: Run, value: object) -> Outcome:
        if run.stop is Stop.CANCEL and value is None and run.handler.where == "thread":
            return run.stopped_outcome()
        return run.handler.succeeded(value)

    def _finish(self, run: Run, outcome: Outcome) -> bool:
        """End a run; False if it had ended before."""
        return self._finish_all([(run, outcome)]) > 0

    def _finish_all(self, ended: Sequence[tuple[Run, Outcome]]) -> int:
        """End runs, each at most once; returns how many had not ended before. A batch costs little more than one."""
        if self._descriptors is not None:
            self._descriptors.check()
        with self._guard:
            fresh = [pair for pair in ended if not pair[0].over]
            for run, _ in fresh:
                run.over = True
        try:
            self._settle(self._verdicts(fresh))
        finally:
            # After the verdicts: a drain that sees an empty pool must find every verdict in the settler.
            self._leave([run.fence for run, _ in fresh])
        return len(fresh)

    def _leave(self, fences: Sequence[Fence]) -> None:
        with self._guard:
            for fence in fences:
                self._runs.pop(fence, None)
                if self._quarantined:
                    self._quarantined.pop(fence, None)
                if self._extra:
                    self._extra -= self._extra_slots.pop(fence, 0)
            self._ended += len(fences)
            if self._waiting and (not self._runs or self.free >= self._worthwhile):
                self._capacity.notify_all()

    def _discard_lost(self, run: Run) -> None:
        """Discard the outcome of a run whose lease was lost."""
        self._job_log.lost(run.lease.job)
        circuit = self._circuits.get(run.lease.job.kind)
        if circuit is not None:
            circuit.abandoned()
        self.settled(run.fence)

    def _settled_by_handler(self, run: Run, outcome: Outcome) -> None:
        """The job was settled by its handler's transaction; what the handler did afterwards is only logged."""
        circuit = self._circuits.get(run.lease.job.kind)
        if circuit is not None:
            circuit.succeeded()
        self.settled(run.fence)
        match outcome:
            case Succeeded(None):
                pass
            case Succeeded():
                _log.warning(
                    "job %s: a result after its transaction is lost; use ctx.set_result",
                    run.fence[0],
                )
            case _:
                _log.warning("job %s is done, and its handler failed after the commit: %s", run.fence[0], outcome)

    def _verdicts(self, ended: Sequence[tuple[Run, Outcome]]) -> list[Settlement]:
        """The verdicts to write; the first branch is a fast path for plain successes."""
        found: list[Settlement] = []
        for run, outcome in ended:
            if outcome is DONE and run.context is None and run.stop is None and not self._circuits:
                found.append((run.lease, _PLAIN_ACK))
                if self._job_log.verbose:
                    self._report(run, _PLAIN_ACK)
            elif run.settled:
                self._settled_by_handler(run, outcome)
                self._report(run, _PLAIN_ACK)
            elif run.lost:
                self._discard_lost(run)
            else:
                found.append(self._verdict(run.lease, outcome))
                self._report(run, found[-1][1])
        return found

    def _report(self, run: Run, verdict: Verdict) -> None:
        seconds = None if run.started_at is None else lease_clock() - run.started_at
        self._job_log.ended(run.lease.job, verdict, seconds)

    def _verdict(self, lease: Lease, outcome: Outcome) -> Settlement:
        circuit = self._circuits.get(lease.job.kind) if self._circuits else None
        if circuit is not None:
            circuit.record(outcome, _micros(time.monotonic()))
        routing = _ANY_ROUTING if type(outcome) is Succeeded else self._routing(lease.job.queue)
        return lease, decide(lease.job, outcome, routing, self._draw())


def _micros(seconds: float) -> int:
    return int(seconds * 1_000_000)
