"""One simulated worker process: the real claimer, settler, renewer, reaper, promoter and ticker, stepped by the world.

Promise: the roles are the ones that run in production, unchanged, each an actor of its own; only the pool is simulated
and the connection bad. `crash` is kill -9: roles and handlers vanish at once, the start marks show what had
started. `drain` is SIGTERM, in the steps of the real worker. A `SimulatedSlot` is what a supervisor keeps filled: it
reclaims the jobs of a dead process by its marks, where it sees the death, and starts the next one after a pause.

Authority: the world about time, the roles about everything else.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from forebay.core.errors import StoreFailed
from forebay.core.instant import seconds
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.policy import Routing
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Store
from forebay.work.claimer import Claimer
from forebay.work.heartbeat import Renewer
from forebay.work.options import Options
from forebay.work.reaper import Promoter, Reaper
from forebay.work.recovery import reclaim_jobs
from forebay.work.settler import Settler
from forebay.work.start_marks import ProcessMarks
from forebay.work.ticker import Ticker
from forebay_proof.sim.connection import ProcessStore, SimulatedConnection
from forebay_proof.sim.evidence import Exit, RunEvidence
from forebay_proof.sim.faults import Faults, Kind
from forebay_proof.sim.pool import SimPool
from forebay_proof.sim.store_process import StoreProcess, Stores
from forebay_proof.sim.world import SECOND, Process, SteppedRole, World

_LOOK_EVERY: Final = SECOND // 20
_MAX_CLAIM: Final = 2 * SECOND
_MAX_INTERRUPTED: Final = SECOND
_MAX_FLUSH: Final = 10 * SECOND
_SETTLER_REST: Final = 5.0
_SPECS_EVERY: Final = 5 * SECOND


class SimContext:
    """What every worker of a run shares."""

    def __init__(
        self, world: World, store_process: Stores, faults: Faults, evidence: RunEvidence, queues: tuple[str, ...]
    ) -> None:
        self.world = world
        self.store_process = store_process
        self.faults = faults
        self.evidence = evidence
        self.queues = queues
        self.tenants: Sequence[str] = ("big", "small")
        self.subjects = 2
        self.repeats = 0.0
        self.edits_slots = True
        self.specs: Sequence[QueueSpec] = ()
        self.leases: Sequence[int] = (2, 3, 5)
        self.pauses: Sequence[float] = (5.0, 7.0, 10.0)
        self.workers: dict[str, SimWorker] = {}

    def marks_seen_from(self, machine: int, owner: str) -> ProcessMarks | None:
        """The start marks of a process, where another process of this machine can read them."""
        worker = self.workers.get(owner)
        if worker is None or worker.machine != machine:
            return None
        return ProcessMarks(dict(worker.pool.marks), worker.alive, self.evidence.stalls.get(owner))

    def can_start(self) -> bool:
        """Whether a process that begins now would find its stores."""
        return True

    def connect(self, process: Process) -> ProcessStore:
        assert isinstance(self.store_process, StoreProcess)
        return SimulatedConnection(self.world, self.store_process, self.faults, self.evidence, process)


class SimRoutings:
    """The routing of each queue as the store has it; when the store is unreachable, as it was last known.

    It is looked up where a role acts, never at the end of a handler: a verdict must not wait for the store.
    """

    def __init__(self, world: World, store: Store) -> None:
        self._world = world
        self._store = store
        self._known: dict[str, Routing] = {}
        self._read_at = -_SPECS_EVERY

    def __call__(self, queue: str) -> Routing:
        if self._world.acting is not None and self._world.now - self._read_at >= _SPECS_EVERY:
            try:
                self._known = {spec.name: spec.routing for spec in self._store.specs()}
                self._read_at = self._world.now
            except (ConnectionError, StoreFailed):
                pass
        return self._known.get(queue, Routing())


class SimWorker(Process):
    """One process. `owner` is its name: no other process, before or after it, has it."""

    def __init__(
        self, owner: str, machine: int, around: SimContext, options: Options, on_gone: Callable[[bool], None]
    ) -> None:
        super().__init__(owner)
        self.machine = machine
        around.workers[owner] = self
        world = around.world
        draw = world.random.random
        self._around = around
        self._world = world
        self._options = options
        self._on_gone = on_gone
        self._store = around.connect(self)
        routing = SimRoutings(world, self._store)
        self.settler = Settler(self._store, self._answered, pause=self._pause)
        self.pool = SimPool(
            world, self, options, routing, self._put, around.evidence, around.faults, self._die_of_poison
        )
        self.claimer = Claimer(self._store, self.pool, options, owner, self._put, draw, clock=self._now)
        every = world.random.choice((0.5, 1.0))
        renewer = Renewer(self._store, self.pool, options, self._now)
        marks = partial(around.marks_seen_from, machine)
        reaper, promoter = (
            Reaper(self._store, routing, draw, every, marks=marks, owner=owner),
            Promoter(self._store, every),
        )
        ticker = Ticker(self._store, draw)
        roles = (self.settler, renewer, reaper, promoter, ticker, self.claimer)
        self._actors = {role.name: SteppedRole(world, self, role.name, role.step) for role in roles}
        around.evidence.troubles[owner] = self.trouble
        self.asked_at: int | None = None
        self._interrupted_at: int | None = None

    def start(self) -> None:
        for actor in self._actors.values():
            actor.start(self._world.between(0, SECOND // 2))

    def _now(self) -> float:
        return self._world.now / SECOND

    def wake(self, duration: int) -> None:
        """Notify the claimer: it may find jobs."""
        self._actors["claimer"].nudge(duration)

    def crash(self) -> None:
        """kill -9."""
        if not self.alive:
            return
        self.alive = False
        self._around.evidence.died_at[self.name] = self._world.now
        self._world.record(f"{self.name} dies with {list(self.pool.marks)}")
        self._on_gone(True)

    def drain(self) -> None:
        """SIGTERM."""
        if self.asked_at is not None or not self.alive:
            return
        self.asked_at = self._world.now
        self._world.record(f"{self.name} drains")
        self.claimer.close()
        self.pool.release_pending()
        self._actors["claimer"].stop()
        self._look()

    def _look(self) -> None:
        """The steps of a drain: the last claim, let it finish, hand back the rest, write every verdict, be gone."""
        world, asked_at = self._world, self.asked_at or 0
        again, claiming = True, self._actors["claimer"].busy
        if claiming and world.now < asked_at + _MAX_CLAIM:
            pass
        elif self._interrupted_at is None:
            if self.pool.idle or world.now >= asked_at + self._options.drain_timeout.total_seconds() * SECOND:
                self.pool.interrupt_all()
                self._interrupted_at = world.now
        elif self.pool.idle or world.now >= self._interrupted_at + _MAX_INTERRUPTED:
            written = self.settler.empty and not self._actors["settler"].busy
            again = not written and world.now < self._interrupted_at + _MAX_FLUSH
        if again:
            world.after(_LOOK_EVERY, self._look, self)
        else:
            self._leave()

    def _leave(self) -> None:
        self.alive = False
        evidence, flushed = self._around.evidence, self.settler.empty
        if not flushed:
            evidence.unwritten[self.name] = None
        jobs = self._around.store_process.running()
        fences = [(job.id, job.delivery) for job in jobs if job.owner == self.name]
        running = [fence for fence in fences if fence in evidence.received]
        evidence.exits.append(Exit(self.name, self.asked_at or 0, self._world.now, flushed, tuple(running)))
        self._world.record(f"{self.name} is gone, flushed={flushed}")
        self._on_gone(False)

    def _put(self, verdicts: Sequence[Settlement]) -> None:
        evidence = self._around.evidence
        for lease, verdict in verdicts:
            if lease.fence in evidence.concluded:
                self._world.violation("I10 one verdict a run", f"a second verdict for {lease.fence}")
            evidence.concluded[lease.fence] = (self.name, type(verdict).__name__)
            self._world.record(f"verdict {lease.fence} {type(verdict).__name__}")
        self.settler.put(verdicts)
        if verdicts:
            self._actors["settler"].nudge(self._world.between(10, 500))

    def _answered(self, lease: Lease, answer: Settled) -> None:
        self._around.evidence.answered[lease.fence] = answer.value
        self.pool.settled(lease.fence)

    def _pause(self, timeout: float) -> None:
        """The settler sleeps until it is given something: `_put` wakes it."""
        if self._world.acting is not None:
            self._world.acting.rest(_SETTLER_REST)

    def _die_of_poison(self, job_id: int) -> None:
        self._around.evidence.poison_deaths[job_id] += 1
        self.crash()


class SimulatedSlot:
    """A place for one worker after another."""

    def __init__(self, number: int, around: SimContext) -> None:
        world = around.world
        self._number = number
        self._around = around
        self._count = 0
        self._supervisor = Process(f"s{number}")
        self._machine = world.between(0, 1)
        self._supervised = world.chance(0.5)
        self.closed = False
        self._options = Options(
            queues=around.queues,
            concurrency=world.between(2, 5),
            claim_batch=world.between(1, 6),
            lease_for=seconds(world.random.choice(around.leases)),
            drain_timeout=seconds(world.random.choice((0.5, 2, 4))),
        )
        self.worker = self._start()

    @property
    def lease(self) -> int:
        return int(self._options.lease_for.total_seconds() * SECOND)

    def _start(self) -> SimWorker:
        self._count += 1
        owner = f"w{self._number}.{self._count}"
        worker = SimWorker(owner, self._machine, self._around, self._options, self._gone)
        worker.start()
        return worker

    def _gone(self, died: bool) -> None:
        world, worker = self._around.world, self.worker
        if died and self._supervised:
            world.after(world.between(1_000, SECOND // 10), lambda: self._reclaim_jobs(worker))
        elif died and world.chance(0.5):
            # Another worker of the machine finds the marks, or this one when it is started again.
            world.after(world.between(SECOND, 5 * SECOND // 2), lambda: self._reclaim_jobs(worker))
        world.after(world.between(SECOND // 10, 3 * SECOND), self._restart)

    def _restart(self) -> None:
        if self.closed:
            return
        if not self._around.can_start():
            self._around.world.after(SECOND // 2, self._restart)
            return
        try:
            self.worker = self._start()
        except StoreFailed:
            self._around.world.after(SECOND // 2, self._restart)
        else:
            self._around.faults.count(Kind.RESTART)

    def _reclaim_jobs(self, dead: SimWorker) -> None:
        world = self._around.world
        try:
            store = self._around.connect(self._supervisor)
            marks = ProcessMarks(dict(dead.pool.marks), False, self._around.evidence.stalls.get(dead.name))
            reclaim_jobs(store, dead.name, marks, None, SimRoutings(world, store))
        except (ConnectionError, StoreFailed):
            world.record(f"the jobs of {dead.name} wait for their leases")
