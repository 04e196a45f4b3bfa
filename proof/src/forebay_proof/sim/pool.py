"""A simulated pool: what the claimer and the renewer need of one, with handlers that follow their payloads.

Promise: it keeps the rules of the real pool (never more than `concurrency`, a run ends exactly once, a lost lease is
never concluded, breakers and timeouts) on virtual time, with the real `decide` and the real `Circuit`. A payload says
what its handler does: how long it takes, and whether it works, raises, hangs, snoozes, gives up or kills its process,
at first or always. Handlers on a loop end when they are stopped; those in threads cannot be, and go on as ghosts whose
effects are noted all the same.

Suspects run in quarantine, by the board of the real one; the death of such a process is not the worker's. A handler
that holds the interpreter stops its whole process, until the watchdog ends that.

What can go wrong is checked at once: more runs than slots, a suspect in the wrong place or beside a verdict that is not
durable, a start with a lost lease.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from forebay.core.breaker import Breaker, Circuit
from forebay.core.decide import decide
from forebay.core.instant import seconds
from forebay.core.lease import Fence, Lease, Settlement
from forebay.core.outcome import (
    Abandoned,
    Dropped,
    Failed,
    Failure,
    Interrupted,
    Outcome,
    Release,
    Snoozed,
    Succeeded,
    Withdrawn,
)
from forebay.core.policy import Routing
from forebay.work.capacity import fit_count, slots_of
from forebay.work.options import Options
from forebay.work.quarantine import SuspectBoard, SuspectStart
from forebay.work.run import TIMEOUT, Stop
from forebay.work.stall_watch import describe_stall, stall_bound
from forebay.work.start_marks import IN_QUARANTINE, Stall
from forebay_proof.sim.evidence import HandlerStart, RunEvidence
from forebay_proof.sim.faults import Faults, Kind
from forebay_proof.sim.world import EPOCH, SECOND, Process, SteppedRole, Task, World

RAISED: Final = "sim.Raised"
DROPPED: Final = "sim.Dropped"
TIMEOUTS: Final = {"slow": 2 * SECOND}
BREAKERS: Final = {"frail": Breaker(failures=3, cooldown=seconds(2))}
_NEVER: Final = 10**15
_LOOK_AGAIN: Final = 1.0
_MAX_WAITING: Final = 3
_HELD_LONGER: Final = 20


class HandlerRun:
    """One handler at work."""

    def __init__(self, lease: Lease, ghostly: bool) -> None:
        self.lease = lease
        self.ghostly = ghostly
        self.stop: Stop | None = None
        self.over = False
        self.end: Task | None = None


class SimPool:
    """The slots of one worker."""

    def __init__(
        self,
        world: World,
        process: Process,
        options: Options,
        routing: Callable[[str], Routing],
        settle: Callable[[Sequence[Settlement]], None],
        evidence: RunEvidence,
        faults: Faults,
        die: Callable[[int], None],
    ) -> None:
        self._world = world
        self._process = process
        self._size = options.concurrency
        self._stall_bound = int(stall_bound(options.lease_for.total_seconds()) * SECOND)
        self._routing = routing
        self._settle = settle
        self._evidence = evidence
        self._faults = faults
        self._die = die
        self._runs: dict[Fence, HandlerRun] = {}
        self._circuits = {kind: Circuit(breaker) for kind, breaker in BREAKERS.items()}
        self._waiting: SteppedRole | None = None
        self._board = SuspectBoard(world.between(1, 2), _MAX_WAITING)
        self._suspects: dict[Fence, tuple[Lease, float]] = {}
        self._quarantined: dict[Fence, int] = {}
        self._last_in: dict[int, Fence] = {}
        self.marks: dict[Fence, int] = {}
        self.saved = 0

    @property
    def free(self) -> int:
        inside = [run for fence, run in self._runs.items() if fence not in self._quarantined]
        return self._size - sum(slots_of(run.lease.job, self._size) for run in inside)

    @property
    def idle(self) -> bool:
        return not self._runs and not self._suspects

    def fits(self, leases: Sequence[Lease]) -> int:
        return fit_count(leases, self.free, self._size)

    def quarantine(self, leases: Sequence[Lease], lease_ends: float) -> int:
        count = max(0, min(len(leases), self._board.capacity))
        for lease in leases[:count]:
            self._suspects[lease.fence] = (lease, lease_ends)
        self._begin_in_quarantine(self._board.admit([lease.fence for lease in leases[:count]]))
        return count

    def settled(self, fence: Fence) -> None:
        """The verdict is durable, or there is none."""
        self.marks.pop(fence, None)
        self._begin_in_quarantine(self._board.settled(fence))

    def _begin_in_quarantine(self, starts: Sequence[SuspectStart]) -> None:
        for fence, place in starts:
            lease, lease_ends = self._suspects.pop(fence)
            before = self._last_in.get(place)
            if before is not None and before not in self._evidence.answered and before not in self._evidence.lost:
                self._world.violation(
                    "I17 one suspect at a time",
                    f"{fence} begins in the process of {before}, whose verdict is not durable",
                )
            self._last_in[place] = fence
            self._quarantined[fence] = place
            self.submit([lease], lease_ends)

    def submit(self, leases: Sequence[Lease], lease_ends: float) -> None:
        for lease in leases:
            if self._world.now >= lease_ends * SECOND:
                self._conclude(lease, Interrupted())
                continue
            circuit = self._circuits.get(lease.job.kind)
            after = 0 if circuit is None else circuit.admit(self._world.now)
            if after > 0:
                self.saved += 1
                self._settle([(lease, Release(int(after * (0.5 + self._world.random.random()))))])
            else:
                self._begin(lease)
        if leases:
            self._routing(leases[0].job.queue)

    def held(self) -> list[Lease]:
        return [run.lease for run in self._runs.values()] + [lease for lease, _ in self._suspects.values()]

    def renewed(self, fences: Iterable[Fence], lease_ends: float) -> None:
        for fence in fences:
            if fence in self._suspects:
                lease, ends = self._suspects[fence]
                self._suspects[fence] = (lease, max(ends, lease_ends))

    def mark_lost(self, fences: Sequence[Fence]) -> None:
        for fence in fences:
            self._interrupt(fence, Stop.LOST)

    def request_cancel(self, fences: Sequence[Fence]) -> None:
        for fence in fences:
            self._interrupt(fence, Stop.CANCEL)

    def release_pending(self) -> None:
        for fence in list(self._suspects):
            self._interrupt(fence, Stop.DRAIN)

    def interrupt_all(self) -> None:
        for fence in (*self._suspects, *self._runs):
            self._interrupt(fence, Stop.DRAIN)

    def wait_for_capacity(self, timeout: float, least: int = 0) -> None:
        if self.free <= max(0, least - 1):
            self._rest()

    def wait_until_idle(self, timeout: float) -> bool:
        if not self.idle:
            self._rest()
        return self.idle

    def _rest(self) -> None:
        """Looking again before something has ended would find the same: rest until then."""
        if self._world.acting is not None:
            self._waiting = self._world.acting
            self._waiting.rest(_LOOK_AGAIN)

    def _begin(self, lease: Lease) -> None:
        self._check_start(lease)
        world, evidence, job = self._world, self._evidence, lease.job
        plan: Any = job.payload
        evidence.starts_of[job.id] += 1
        nth = evidence.starts_of[job.id]
        suspect = job.needs_quarantine
        start = HandlerStart(
            lease.fence, self._process.name, job.attempt, world.now, plan.get("n"), job.subject, suspect
        )
        if lease.fence in evidence.starts:
            world.violation("effects once per delivery", f"the handler of {lease.fence} was started twice")
        evidence.starts[lease.fence] = start
        evidence.alone += suspect
        self.marks[lease.fence] = IN_QUARANTINE if lease.fence in self._quarantined else 0
        run = self._runs[lease.fence] = HandlerRun(lease, ghostly=plan.get("ghostly", False))
        does = plan["does"] if nth <= plan.get("times", 0) else "work"
        duration = _NEVER if does == "hang" else plan["us"]
        world.record(f"starts {lease.fence} attempt {job.attempt} {does}")
        run.end = world.after(duration * 4 // 5, lambda: self._reach_effect(run, does, plan), self._process)
        if does == "hold":
            self._hold(run, plan["us"] * _HELD_LONGER)
        limit = TIMEOUTS.get(job.kind)
        if limit is not None:
            world.after(limit, lambda: self._interrupt(run.lease.fence, Stop.TIMEOUT), self._process)

    def _hold(self, run: HandlerRun, duration: int) -> None:
        """The handler holds the interpreter of its process. After half a lease the watchdog of the process ends it."""
        world, bound = self._world, self._stall_bound
        held = min(duration, bound)
        if run.lease.fence in self._quarantined:
            if duration >= bound:
                world.after(bound, lambda: self._end_held(run, bound), self._process)
            return
        self._process.stalled_until = max(self._process.stalled_until, world.now + held + 1)
        self._process.trouble.append((world.now, world.now + held + 1))
        if duration >= bound:
            world.after(bound, lambda: self._stalled(run, bound))

    def _end_held(self, run: HandlerRun, held: int) -> None:
        if not run.over:
            self._faults.count(Kind.HOLD)
            self._finish(run, Abandoned(describe_stall(Stall(held / SECOND))))

    def _stalled(self, run: HandlerRun, held: int) -> None:
        if self._process.alive and not run.over and run.lease.fence in self.marks:
            self._faults.count(Kind.HOLD)
            # Where other threads sleep without the GIL, its holder cannot be identified.
            known = len(self._runs) == 1 or self._world.chance(0.5)
            self._evidence.stalls[self._process.name] = Stall(held / SECOND, run.lease.fence if known else None)
            self._die(run.lease.job.id)

    def _check_start(self, lease: Lease) -> None:
        world, name = self._world, self._process.name
        if self.free <= 0 and lease.fence not in self._quarantined:
            world.violation("I6 the pool is never overfull", f"{name} starts {lease.fence} with {self._size} running")
        if lease.job.needs_quarantine != (lease.fence in self._quarantined):
            world.violation("I17 suspects run in quarantine", f"{name} starts {lease.fence} in the wrong place")
        step_began = 0 if world.acting is None else world.acting.began
        if self._evidence.lost.get(lease.fence, step_began) < step_began:
            world.violation("I2 no start with a lost lease", f"{name} starts {lease.fence} after it was reported lost")
        claimed_at = (lease.job.claimed_at or 0) - EPOCH - world.skew
        waited = lease.fence in self._quarantined
        if not waited and world.jumped_at < claimed_at and EPOCH + world.now + world.skew >= lease.until:
            world.violation(
                "I2 no start after the lease", f"{name} starts {lease.fence}, whose lease has ended meanwhile"
            )

    def _reach_effect(self, run: HandlerRun, does: str, plan: Any) -> None:
        """Ghosts do what they do; runs that were really stopped do not. A process may die between effect and end."""
        if does in ("work", "hold") and (not run.over or run.ghostly):
            self._evidence.effects[run.lease.fence] += 1
        run.end = self._world.after(plan["us"] // 5, lambda: self._end(run, does, plan), self._process)

    def _end(self, run: HandlerRun, does: str, plan: Any) -> None:
        if run.over:
            return
        outcome: Outcome
        match does:
            case "raise":
                self._faults.count(Kind.RAISE)
                outcome = Failed(Failure(RAISED, "as planned"))
            case "drop":
                self._faults.count(Kind.DROP)
                outcome = Dropped(Failure(DROPPED, "as planned"))
            case "snooze":
                self._faults.count(Kind.SNOOZE)
                outcome = Snoozed(plan["snooze"])
            case "poison" if run.lease.fence in self._quarantined:
                self._faults.count(Kind.POISON)
                outcome = Abandoned("the process died with SIGSEGV while running it")
            case "poison":
                self._faults.count(Kind.POISON)
                self._die(run.lease.job.id)
                return
            case _:
                outcome = Withdrawn() if run.stop is Stop.CANCEL and plan.get("yields") else Succeeded()
        self._finish(run, outcome)

    def _interrupt(self, fence: Fence, stop: Stop) -> None:
        if fence in self._suspects:
            lease, _ = self._suspects.pop(fence)
            self._board.settled(fence)
            if stop is Stop.LOST:
                self.settled(fence)
            else:
                self._conclude(lease, _stopped(stop))
            return
        run = self._runs.get(fence)
        if run is None or run.stop not in (None, Stop.CANCEL) or run.stop is stop:
            return
        run.stop = stop
        self._world.record(f"stops {fence} {stop}")
        if stop is Stop.TIMEOUT:
            self._faults.count(Kind.HANG)
        if run.ghostly and stop is Stop.CANCEL:
            return
        if run.ghostly:
            self._finish(run, _stopped(stop))
        else:
            self._world.after(self._world.between(100, 5_000), lambda: self._stopped(run, stop), self._process)

    def _stopped(self, run: HandlerRun, stop: Stop) -> None:
        if not run.over:
            if run.end is not None:
                run.end.live = False
            self._finish(run, _stopped(stop))

    def _finish(self, run: HandlerRun, outcome: Outcome) -> None:
        run.over = True
        fence = run.lease.fence
        self._runs.pop(fence, None)
        self._quarantined.pop(fence, None)
        start = self._evidence.starts[fence]
        start.ended_at = self._world.now
        start.outcome = "Lost" if run.stop is Stop.LOST else type(outcome).__name__
        if self._waiting is not None:
            self._waiting.nudge(self._world.between(10, 500))
            self._waiting = None
        if run.stop is Stop.LOST:
            self.settled(fence)
            circuit = self._circuits.get(run.lease.job.kind)
            if circuit is not None:
                circuit.abandoned()
        else:
            self._conclude(run.lease, outcome)

    def _conclude(self, lease: Lease, outcome: Outcome) -> None:
        circuit = self._circuits.get(lease.job.kind)
        if circuit is not None:
            match outcome:
                case Succeeded():
                    circuit.succeeded()
                case Failed():
                    circuit.failed(self._world.now)
                case _:
                    circuit.abandoned()
        verdict = decide(lease.job, outcome, self._routing(lease.job.queue), self._world.random.random())
        self._settle([(lease, verdict)])


def _stopped(stop: Stop) -> Outcome:
    match stop:
        case Stop.CANCEL:
            return Withdrawn()
        case Stop.TIMEOUT:
            return Failed(Failure(TIMEOUT, "it ran too long"))
        case _:
            return Interrupted()
