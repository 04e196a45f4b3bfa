"""One run: faults for a while, then recovery, then a drain of all processes, then the checks.

Promise: `simulate(seed)` gives the same result for the same seed and options, on every machine and in every process.
The safety phase lets everything go wrong. The healing ends all faults; from then on every accepted job must end within
`PATIENCE` of simulated time. Then all workers drain, and nothing may be left in their hands. A run in which too little
happened is no proof of anything, and fails as invalid.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from forebay_proof.sim.actors import QUEUES, SCHEDULES, Operator, Producer, chosen_queues, schedule
from forebay_proof.sim.checks import check_run
from forebay_proof.sim.evidence import RunEvidence
from forebay_proof.sim.faults import PLANNED, Faults, Kind
from forebay_proof.sim.store_process import StoreProcess, Stores
from forebay_proof.sim.worker import SimContext, SimulatedSlot, SimWorker
from forebay_proof.sim.world import EPOCH, SECOND, CannotContinue, Process, World

CHAOS_SECONDS: Final = 90
PATIENCE: Final = 240 * SECOND
_AMBUSHED: Final = {
    Kind.CRASH: ("claim", "settle", "extend", "fire"),
    Kind.STALL: ("claim", "settle", "extend", "overdue"),
    Kind.CUT: ("claim",),
    Kind.DRAIN: ("claim", "extend"),
}
"""In the middle of which calls half of what happens to workers happens."""

_MIN_ACCEPTED: Final = 15
_MIN_DONE: Final = 10
_MIN_FAULTS: Final = 10


class SeedResult(Struct):
    """What became of one seed. `digest` is the hash of its whole history."""

    seed: int
    digest: str
    simulated: float
    steps: int
    accepted: int
    done: int
    dead: int
    cancelled: int
    starts: int
    stale: int
    alone: int
    events: int
    faults: dict[str, int]
    violations: list[tuple[str, str]]
    trace: list[str]

    @property
    def ok(self) -> bool:
        return not self.violations


class Simulation:
    """The parts of one run, put together."""

    workers = (2, 3)
    max_producers = 2
    planned: Sequence[tuple[Kind, int]] = PLANNED
    per_call = 1.0
    patience = PATIENCE
    ticks_more = 5 * SECOND

    def __init__(self, seed: int, duration: int, chosen: Collection[Kind] | None, keep: bool) -> None:
        world = self.world = World(seed, keep=keep)
        self._seed = seed
        self._duration = duration
        self._limited = chosen is not None
        self.faults = Faults(world, chosen, self.planned, self.per_call)
        self.evidence = RunEvidence()
        self.store_process, around = self._build()
        for name, rule in SCHEDULES:
            self.store_process.store.put_schedule(schedule(name, rule, EPOCH))
        self.places = [SimulatedSlot(number, around) for number in range(world.between(*self.workers))]
        self.producers = [Producer(number, around) for number in range(1, self.max_producers + 1)]
        self.operator = Operator(around)
        if world.chance(0.7):
            self.store_process.notify = self._wake_one
        self.quiet_after: int | None = None
        self.last_tick_at = 0

    def _build(self) -> tuple[Stores, SimContext]:
        """The store with its queues, and what its users share."""
        world = self.world
        store_process = StoreProcess(world, self.faults.slow_sync)
        # Few queues a seed: what one of them can do then happens often.
        specs = chosen_queues(world.random.sample(QUEUES[:-1], world.between(2, 4)))
        for spec in specs:
            store_process.store.put_spec(spec)
        names = tuple(spec.name for spec in specs)
        return store_process, SimContext(world, store_process, self.faults, self.evidence, names)

    def _struck(self) -> StoreProcess:
        """The store to which the next fault happens."""
        assert isinstance(self.store_process, StoreProcess)
        return self.store_process

    def run(self) -> SeedResult:
        world = self.world
        for actor in (*(producer.actor for producer in self.producers), self.operator.actor):
            actor.start(world.between(0, SECOND))
        self._plan()
        counts: Counter[str] = Counter()
        try:
            world.run_until(self._duration)
            self._heal()
            self._end()
            counts = check_run(self.evidence, self.store_process, world, self.last_tick_at)
        except CannotContinue:
            world.record("the end")
        return self._result(counts)

    def _plan(self) -> None:
        pause = self.faults.profile.pause
        self.world.after(int(self.world.random.expovariate(1 / pause) * SECOND), self._strike)

    def _strike(self) -> None:
        kind = self.faults.planned()
        if kind is None:
            return
        if self._happen(kind):
            self.faults.count(kind)
        self._plan()

    def _happen(self, kind: Kind) -> bool:
        """False: it could not, or counts itself when it comes to it."""
        world, store_process = self.world, self._struck()
        worker = world.random.choice(self.places).worker
        match kind:
            case Kind.POWER if store_process.up:
                store_process.arm()
            case Kind.STORE_KILL if store_process.up:
                store_process.fall(power=False)
            case Kind.OUTAGE if store_process.up:
                store_process.out_until = world.now + world.between(SECOND // 5, 6 * SECOND)
                store_process.trouble.append((world.now, store_process.out_until))
            case Kind.JUMP:
                far = world.chance(0.1)
                world.skew += world.between(60 * SECOND, 90 * SECOND) if far else world.between(SECOND // 5, 6 * SECOND)
                world.jumped_at = world.now
                world.trouble.append((world.now, world.now + 10 * SECOND))
                world.record(f"the store's clock is {world.skew} ahead")
            case Kind.COMPACT:
                store_process.compact()
            case Kind.CRASH | Kind.STALL | Kind.CUT | Kind.DRAIN if worker.alive:
                if world.chance(0.5):
                    self._hurt(kind, worker)
                else:
                    verb = world.random.choice(_AMBUSHED[kind])
                    worker.ambush = (verb, lambda: self._hurt(kind, worker))
                return False
            case _:
                return False
        return True

    def _hurt(self, kind: Kind, worker: SimWorker) -> None:
        world = self.world
        duration = world.between(SECOND // 2, 8 * SECOND)
        world.record(f"{kind} for {worker.name}, {duration}")
        self.faults.count(kind)
        match kind:
            case Kind.CRASH:
                worker.crash()
            case Kind.DRAIN:
                worker.drain()
            case Kind.STALL:
                worker.stalled_until = world.now + duration
                worker.trouble.append((world.now, world.now + duration))
            case _:
                worker.cut_until = world.now + duration
                worker.trouble.append((world.now, world.now + duration))

    def _heal(self) -> None:
        """No more faults; producers finish what they began; everything accepted must end."""
        world, store_process = self.world, self.store_process
        world.record("healing begins")
        self.faults.stop()
        store_process.recover_now()
        for process in self._processes():
            process.stalled_until = process.cut_until = 0
            process.ambush = None
        for producer in self.producers:
            producer.sending = False
        self.operator.actor.stop()
        begun = world.now
        world.run_until(begun + self.ticks_more)
        # From here on nothing is enqueued, so each schedule stays at the slot that its tickers have fired.
        self.last_tick_at = store_process.store.now()
        world.run_until(world.now + 2 * SECOND)
        while not self._quiet():
            if world.now > begun + self.patience:
                open_jobs = {line.queue: line.depth for line in store_process.store.backlog() if line.depth}
                world.violation("I1L liveness", f"still open long after all faults ended: {open_jobs}")
                return
            world.run_until(world.now + SECOND)
        self.quiet_after = world.now - begun

    def _quiet(self) -> bool:
        """Whether everything has ended; schedules are paused until then."""
        store = self.store_process.store
        for current in store.schedules():
            if not current.paused:
                store.put_schedule(replace(current, paused=True))
        return all(producer.done for producer in self.producers) and not any(line.depth for line in store.backlog())

    def _processes(self) -> list[Process]:
        return [*(place.worker for place in self.places), *self.producers, self.operator]

    def _end(self) -> None:
        """SIGTERM to all; the places are not filled again."""
        world = self.world
        workers = [place.worker for place in self.places]
        for place in self.places:
            place.closed = True
        for worker in workers:
            worker.drain()
        world.run_until(world.now + 20 * SECOND)
        late = [worker.name for worker in workers if worker.alive]
        if late:
            world.violation("I10 drain", f"{late} did not end")

    def _wake_one(self) -> None:
        """One sleeping claimer is woken, as a store would; the others poll."""
        worker = self.world.random.choice(self.places).worker
        if worker.alive:
            worker.wake(self.world.between(50, 2_000))

    def _result(self, counts: Counter[str]) -> SeedResult:
        world = self.world
        faults = {kind.value: count for kind, count in sorted(self.faults.counts.items())}
        accepted = sum(bool(sent_draft.ids) for sent_draft in self.evidence.sent_drafts.values())
        short = self._duration < CHAOS_SECONDS * SECOND or self._limited
        if not short and (accepted < _MIN_ACCEPTED or counts["done"] < _MIN_DONE or sum(faults.values()) < _MIN_FAULTS):
            world.violation(
                "the run is valid",
                f"too little happened: {accepted} accepted, {counts['done']} done, {sum(faults.values())} faults",
            )
        return SeedResult(
            self._seed,
            world.trace.digest(),
            world.now / SECOND,
            world.trace.count,
            accepted,
            counts["done"],
            counts["dead"],
            counts["cancelled"],
            len(self.evidence.starts),
            self.evidence.stale,
            self.evidence.alone,
            len(self.store_process.ledger),
            faults,
            world.violations,
            list(world.trace.last),
        )
