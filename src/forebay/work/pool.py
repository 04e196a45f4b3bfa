"""The pool: starts jobs where their handlers belong and turns what comes of them into verdicts.

Async handlers run on a loop, plain ones in threads, isolated ones in processes; together never more than `concurrency`.
Whatever a handler does (any exception, SystemExit, a hang, a crash of its own process), the pool lives on and the job
follows its rules. A run ends exactly once: by its own end, its timeout, its cancellation, the drain, or its lost lease.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from threading import Condition, Lock, current_thread
from typing import Final

from forebay.core.breaker import Budget, Circuit
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
from forebay.work.handler import DONE, Handler, traced
from forebay.work.isolate import CRASHED, Child, ChildDied
from forebay.work.job_log import JobLog
from forebay.work.loop import LoopSlots
from forebay.work.options import Options
from forebay.work.quarantine import Quarantine
from forebay.work.redacting import RunningJob, running_job
from forebay.work.room import fitting, weight
from forebay.work.run import Run, Stop, lease_clock
from forebay.work.sentinel import Sentinel
from forebay.work.start_marks import IN_QUARANTINE, StartMarks
from forebay.work.threads import ThreadSlots

_log = logging.getLogger("forebay.work")

_SWEEP_EVERY: Final = 0.05
_SWEEP_IDLE: Final = 0.25
_AHEAD: Final = 0.1
"""Seconds for which a claimed job may wait for a slot."""

_AHEAD_MOST: Final = 2_000
_ANY_ROUTING: Final = Routing()
"""For outcomes that look at none."""

_PLAIN_ACK: Final = Ack()
"""The verdict on nearly every job, made once."""

_POSTPONED: Final = 1_000_000
_GRACE: Final = 2.0
_LONELY_MOST: Final = 10.0
_LONELY_AGAIN: Final = 3_000_000
_UNHANDLED_FOR: Final = 180.0
"""Seconds for which a kind that came by is remembered: longer than its jobs wait before they come by again."""


class Pool:
    """Runs jobs; each takes as many slots as it costs (`room`). `settle` takes the verdicts; `step` is called often."""

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
        sentinel: Sentinel | None = None,
        draw: Callable[[], float] = random.random,
        log: JobLog | None = None,
    ) -> None:
        self._registry = registry
        self._routing = routing
        self._settle = settle
        self._store = store
        self._target = target
        self._marks = marks
        self._sentinel = sentinel
        self._draw = draw
        self._job_log = log or JobLog()
        self._size = options.concurrency
        self._claim_batch = options.claim_batch
        self._wedged_most = options.wedged_most
        self._runs: dict[Fence, Run] = {}
        self._unhandled: dict[tuple[str, str], float] = {}
        self.handled_elsewhere: frozenset[tuple[str, str]] = frozenset()
        self._guard = Lock()
        self._room = Condition(self._guard)
        # Loop, threads and processes each hold back what is too much for them, but only together they are the pool.
        self._ahead_most = _AHEAD_MOST if len({handler.where for handler in registry.values()}) == 1 else 0
        self._ahead = 0
        self._heavy: dict[Fence, int] = {}
        self._extra = 0
        self._ended = 0
        self._counted = (0, time.monotonic())
        self._waiting = 0
        self._stuck = 0
        self._circuits = {kind: Circuit(handler.breaker) for kind, handler in registry.items() if handler.breaker}
        self._budget = Budget(options.retry_budget) if options.retry_budget is not None else None
        self._children: dict[Run, Child] = {}
        self._warm: list[Child] = []
        on_loop = None if marks is None else marks.on_loop
        self._loop = LoopSlots(self._size, self._begin, self._finish_all, self._succeed, on_loop)
        self._threads = ThreadSlots("thread", self._size, self._call, self._finish)
        self._processes = ThreadSlots("isolate", self._size, self._call_isolated, self._finish)
        by_place = (("loop", self._loop), ("thread", self._threads), ("process", self._processes))
        self._places: dict[str, LoopSlots | ThreadSlots] = dict(by_place)
        self._uses_loop = any(handler.where == "loop" for handler in registry.values())
        self._apart: dict[Fence, Run] = {}
        self._lonely: tuple[Run, float] | None = None
        self._quarantine: Quarantine | None = None
        if target is not None and quarantine:
            begin = partial(self._begin, thread=IN_QUARANTINE)
            self._quarantine = Quarantine(options, target, begin, self._finish, marks)
        if target is None and any(handler.where == "process" for handler in registry.values()):
            raise Invalid("isolate", "the app has no name that another process could import", "start it as module:name")

    @property
    def free(self) -> int:
        """How many more jobs would begin at once, or within a moment: quick ones are fetched a little ahead.

        Suspects in quarantine take no room; one that has to run alone here takes all of it.
        """
        if self._lonely is not None:
            return 0
        ahead = 0 if self._extra else self._ahead
        return self._size + ahead - len(self._runs) + len(self._apart) - self._extra

    def fits(self, leases: Sequence[Lease]) -> int:
        """How many of these, from the first on, may begin; light ones may wait here, heavy ones may not."""
        light = not self._extra and all(lease.job.cost == 1 for lease in leases)
        return (
            len(leases)
            if light
            else fitting(leases, self._size - len(self._runs) + len(self._apart) - self._extra, self._size)
        )

    @property
    def running(self) -> int:
        """How many jobs are here, those that wait for a slot included."""
        return len(self._runs)

    @property
    def idle(self) -> bool:
        return not self._runs

    @property
    def healthy(self) -> bool:
        """False when the loop died or too many threads hang: the process should be replaced."""
        loop_well = not self._uses_loop or (self._loop.alive and self._loop.silent_for() < _GRACE)
        return loop_well and self._threads.wedged + self._stuck <= self._wedged_most

    def start(self) -> None:
        if self._uses_loop:
            self._loop.start()

    def take(self, leases: Sequence[Lease], lease_ends: float = inf) -> None:
        """Start these jobs; what has no handler here, or whose breaker is open, goes back at once.

        `lease_ends`: when their leases may have ended, on the `lease_clock`; what has not begun by then goes back.
        """
        now, traces = time.monotonic(), spans()
        fresh: dict[Fence, Run] = {}
        started: dict[str, list[Run]] = {"loop": [], "thread": [], "process": []}
        apart: list[Run] = []
        for lease in leases:
            handler = self._registry.get(lease.job.kind)
            if handler is None:
                self._settle([self._return(lease, now)])
            elif (after := self._postpone(lease, now)) > 0:
                self._settle([(lease, Release(int(after * (0.5 + self._draw()))))])
            elif lease.job.cancel_requested:
                # Its holder died before it could end it.
                self._settle([self._verdict(lease, Withdrawn(handler.keep_for))])
            else:
                suspect = bool(lease.job.errors) and lease.job.needs_quarantine
                elsewhere = handler.where == "process" or (suspect and self._quarantine is not None)
                # What runs in another process is traced there.
                seen = handler if traces is None or elsewhere else traced(handler, lease.job, traces)
                run = Run(lease, seen, self._store, lease_ends)
                run.quarantined = suspect
                (apart if suspect else started[handler.where]).append(run)
                fresh[run.fence] = run
        extra = {
            fence: more
            for fence, run in fresh.items()
            if not run.quarantined and (more := weight(run.lease.job, self._size) - 1)
        }
        with self._guard:
            self._runs.update(fresh)
            self._apart.update((run.fence, run) for run in apart)
            self._heavy.update(extra)
            self._extra += sum(extra.values())
        for where, slots in self._places.items():
            if started[where]:
                slots.feed(started[where])
        if apart and self._quarantine is not None:
            self._quarantine.feed(apart)
        elif apart:
            self._lonely = (apart[0], now + _LONELY_MOST)
            self._finish_all([(run, Interrupted()) for run in apart[1:]])

    def quarantine(self, leases: Sequence[Lease], lease_ends: float = inf) -> int:
        """Run these suspects apart from all others, as many as there is room for: how many, from the first on."""
        if self._quarantine is None:
            count = 1 if self._lonely is None else 0
        else:
            count = max(0, min(len(leases), self._quarantine.room))
        self.take(leases[:count], lease_ends)
        return count

    def settled(self, fence: Fence) -> None:
        """The store has the verdict, or there is none."""
        if self._marks is not None:
            self._marks.ended(fence)
        if self._quarantine is not None:
            self._quarantine.settled(fence)
        lonely = self._lonely
        if lonely is not None and lonely[0].fence == fence:
            with self._guard:
                self._lonely = None
                self._room.notify_all()

    def held(self) -> list[Lease]:
        """What is to be renewed: all that runs, but for jobs that are done already."""
        return [run.lease for run in self._under_way() if not run.settled]

    def renewed(self, fences: Iterable[Fence], lease_ends: float) -> None:
        """These leases last until then at least."""
        with self._guard:
            for fence in fences:
                run = self._runs.get(fence)
                if run is not None and run.lease_ends < lease_ends:
                    run.lease_ends = lease_ends

    def progress(self) -> list[ProgressReport]:
        """What runs and says how far it is."""
        runs = [(run, run.context) for run in self._under_way()]
        return [(run.fence, said) for run, told in runs if told is not None and (said := told.reported) is not None]

    def lag(self, patience: float) -> float:
        """Seconds that the loop takes to answer, at most `patience`; 0 where no handler needs one."""
        return self._loop.lag(patience) if self._uses_loop else 0.0

    def unhandled(self) -> tuple[tuple[str, str], ...]:
        """Queue and kind of jobs that were returned lately, because there is no handler for the kind."""
        since = time.monotonic() - _UNHANDLED_FOR
        with self._guard:
            self._unhandled = {pair: at for pair, at in self._unhandled.items() if at > since}
            return tuple(sorted(self._unhandled))

    def circuits(self) -> dict[str, tuple[str, int]]:
        """Per kind with a breaker: its state, and the runs it saved."""
        now = _micros(time.monotonic())
        return {kind: (circuit.state(now), circuit.saved) for kind, circuit in self._circuits.items()}

    def lose(self, fences: Sequence[Fence]) -> None:
        for fence in fences:
            self._interrupt(fence, Stop.LOST)

    def ask_to_end(self, fences: Sequence[Fence]) -> None:
        for fence in fences:
            self._interrupt(fence, Stop.CANCEL)

    def release_waiting(self) -> None:
        """A drain begins: suspects that have not begun need not wait for its end."""
        waiting = [] if self._quarantine is None else self._quarantine.waiting()
        if self._lonely is not None and not self._lonely[0].begun:
            waiting.append(self._lonely[0])
        for run in waiting:
            self._interrupt(run.fence, Stop.DRAIN)

    def interrupt_all(self) -> None:
        """The drain is over: everything still running is handed back."""
        for run in self._under_way():
            self._interrupt(run.fence, Stop.DRAIN)

    def step(self) -> float:
        """Stop what has run too long; what does not stop when told to is settled without it."""
        now = time.monotonic()
        if self._marks is not None:
            self._marks.beat()
        self._loop.flush()
        self._look_ahead(now)
        self._job_log.refresh()
        self._job_log.flush()
        for run in self._under_way():
            if run.deadline is not None and now >= run.deadline:
                self._interrupt(run.fence, Stop.TIMEOUT)
            if run.stop not in (None, Stop.CANCEL) and now >= run.stopped_at + _GRACE:
                self._stuck += self._finish(run, run.stopped_outcome())
        if self._stuck:
            self._loop.ping()
        if self._quarantine is not None:
            self._quarantine.sweep()
        self._mind_lonely(now)
        return _SWEEP_EVERY if self._runs else _SWEEP_IDLE

    def _mind_lonely(self, now: float) -> None:
        """Without a quarantine a suspect begins when the pool is empty, or leaves where long jobs keep it from that."""
        run, until = self._lonely or (None, 0.0)
        if run is None or run.begun or run.over:
            return
        if len(self._runs) == 1:
            run.begun = True
            self._places[run.handler.where].feed([run])
        elif now > until:
            self._finish(run, Snoozed(int(_LONELY_AGAIN * (0.5 + self._draw()))))

    def _under_way(self) -> list[Run]:
        with self._guard:
            return list(self._runs.values())

    @property
    def _enough(self) -> int:
        """So much room is worth a claim: each costs the store about the same, however little it brings."""
        return max(1, min(self._claim_batch, (self._size + self._ahead) // 2))

    def _look_ahead(self, now: float) -> None:
        """As many jobs as end within a moment, at the pace of the last one, may wait here for a slot."""
        ended, since = self._counted
        if now - since >= _SWEEP_EVERY / 2:
            pace = (self._ended - ended) / (now - since)
            self._ahead = min(self._ahead_most, int(pace * _AHEAD))
            self._counted = (self._ended, now)

    def wait_for_room(self, timeout: float, least: int = 0) -> None:
        """Until a good part is free and so much at least, or the time is up."""
        with self._room:
            self._waiting += 1
            self._room.wait_for(lambda: self.free >= max(self._enough, least) or not self._runs, timeout)
            self._waiting -= 1

    def wait_until_idle(self, timeout: float) -> bool:
        with self._room:
            self._waiting += 1
            idle = self._room.wait_for(lambda: self.idle, timeout)
            self._waiting -= 1
            return idle

    def close(self) -> None:
        self._job_log.flush(now=True)
        self._loop.close()
        self._threads.close()
        self._processes.close()
        for child in (*self._warm, *self._children.values()):
            child.close()
        if self._quarantine is not None:
            self._quarantine.close()

    def _return(self, lease: Lease, now: float) -> Settlement:
        """A kind without a handler here costs no attempt: another worker may have it, during a deploy above all."""
        job = lease.job
        elsewhere = (job.queue, job.kind) in self.handled_elsewhere
        verdict = decide(job, Unhandled(elsewhere), _ANY_ROUTING, self._draw())
        with self._guard:
            if len(self._unhandled) < MAX_UNHANDLED or (job.queue, job.kind) in self._unhandled:
                self._unhandled[job.queue, job.kind] = now
        self._job_log.unhandled(job, verdict)
        return lease, verdict

    def _postpone(self, lease: Lease, now: float) -> int:
        """How long the job should rather wait: its breaker is open, or the retry budget is spent."""
        circuit = self._circuits.get(lease.job.kind)
        if circuit is not None and (after := circuit.admit(_micros(now))) > 0:
            return after
        if self._budget is None:
            return 0
        if lease.job.attempt <= 1:
            self._budget.first_run()
            return 0
        if self._budget.may_retry():
            return 0
        if circuit is not None:
            circuit.given_up()
        return _POSTPONED

    def _interrupt(self, fence: Fence, stop: Stop) -> None:
        run = self._runs.get(fence)
        if run is None or run.stop not in (None, Stop.CANCEL) or run.stop is stop:
            return
        if stop is Stop.LOST and run.settled:
            return
        run.stop, run.stopped_at = stop, time.monotonic()
        if run.context is not None:
            run.context.cancelled |= stop is Stop.CANCEL
            run.context.lost |= stop is Stop.LOST
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
                # A cancelled thread is asked (ctx.cancelled) and waited for; the others are not waited for.
                if self._finish(run, run.stopped_outcome()):
                    self._threads.abandon(run)
            case _:
                pass

    def _begin(self, run: Run, thread: int = 0) -> bool:
        """The last thing before the handler: its time runs, and a death of the process is charged to this job.

        False: it must not begin, because its lease may have ended while the process did not run.
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
        running_job.set(RunningJob(run.handler.secrets, run.lease.job.body))
        return True

    def _call(self, run: Run) -> Outcome:
        handler = run.handler
        arguments = handler.signature.unpack(run.lease.job.body)
        if handler.signature.context_name is not None:
            arguments[handler.signature.context_name] = run.context
        if not self._begin(run, current_thread().native_id or 0):
            return run.stopped_outcome()
        return self._succeed(run, handler.function(**arguments))

    def _call_isolated(self, run: Run) -> Outcome:
        child = self._warm.pop() if self._warm else Child(self._target or "")
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
        """The end of a run, once; False if it had ended before."""
        return self._finish_all([(run, outcome)]) > 0

    def _finish_all(self, ended: Sequence[tuple[Run, Outcome]]) -> int:
        """The end of runs, each once; how many had not ended before. Many at a time cost little more than one."""
        if self._sentinel is not None:
            self._sentinel.check()
        with self._guard:
            fresh = [pair for pair in ended if not pair[0].over]
            for run, _ in fresh:
                run.over = True
        try:
            self._settle(self._verdicts(fresh))
        finally:
            # Only now: a drain that sees an empty pool must find every verdict with the settler.
            self._leave([run.fence for run, _ in fresh])
        return len(fresh)

    def _leave(self, fences: Sequence[Fence]) -> None:
        with self._guard:
            for fence in fences:
                self._runs.pop(fence, None)
                if self._apart:
                    self._apart.pop(fence, None)
                if self._extra:
                    self._extra -= self._heavy.pop(fence, 0)
            self._ended += len(fences)
            if self._waiting and (not self._runs or self.free >= self._enough):
                self._room.notify_all()

    def _forget(self, run: Run) -> None:
        """Whatever came of a lost lease is nobody's business."""
        self._job_log.lost(run.lease.job)
        circuit = self._circuits.get(run.lease.job.kind)
        if circuit is not None:
            circuit.given_up()
        self.settled(run.fence)

    def _settled_itself(self, run: Run, outcome: Outcome) -> None:
        """The job ended with its handler's transaction, whatever the handler did after that."""
        circuit = self._circuits.get(run.lease.job.kind)
        if circuit is not None:
            circuit.succeeded()
        self.settled(run.fence)
        match outcome:
            case Succeeded(None):
                pass
            case Succeeded():
                _log.warning("job %s: its result came after its transaction; use ctx.set_result inside", run.fence[0])
            case _:
                _log.warning("job %s is done, and its handler failed after the commit: %s", run.fence[0], outcome)

    def _verdicts(self, ended: Sequence[tuple[Run, Outcome]]) -> list[Settlement]:
        """What is to be written of these; most have succeeded, and nobody looks at them twice."""
        found: list[Settlement] = []
        for run, outcome in ended:
            if outcome is DONE and run.context is None and run.stop is None and not self._circuits:
                found.append((run.lease, _PLAIN_ACK))
                if self._job_log.verbose:
                    self._report(run, _PLAIN_ACK)
            elif run.settled:
                self._settled_itself(run, outcome)
                self._report(run, _PLAIN_ACK)
            elif run.lost:
                self._forget(run)
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
            match outcome:
                case Succeeded():
                    circuit.succeeded()
                case Failed():
                    circuit.failed(_micros(time.monotonic()))
                case _:
                    circuit.given_up()
        routing = _ANY_ROUTING if type(outcome) is Succeeded else self._routing(lease.job.queue)
        return lease, decide(lease.job, outcome, routing, self._draw())


def _micros(seconds: float) -> int:
    return int(seconds * 1_000_000)
