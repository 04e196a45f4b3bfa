"""One process's connection to its store: requests and replies get lost, come twice or late, and the store may be gone.

Promise: a `ConnectionLost` call had no effect, a `ReplyLost` one may have had. What a process receives (leases,
lost leases, answers to settles, slots of schedules) is recorded as evidence when it is received, what it sends when it
is sent. A process that is killed or stopped while it waits for an answer ends or continues there.

Authority: `faults` draws what happens to a call; the store_process says whether the store can be reached.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from forebay.core.errors import PartlyDone, QueueFull
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.outcome import Release, Retry
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Receipt, Store, Want
from forebay_proof.faulty import ConnectionLost, FaultyStore, ReplyLost, scripted
from forebay_proof.sim.evidence import RunEvidence, Sent
from forebay_proof.sim.faults import Faults, Kind
from forebay_proof.sim.store_process import StoreProcess, Stores
from forebay_proof.sim.world import SECOND, Process, World

T = TypeVar("T")

_SLOWEST = SECOND // 2
_NEWS = frozenset({"enqueue", "redrive"})


class ProcessStore(FaultyStore):
    """A store as one process sees it. What the process sends and receives is evidence."""

    def __init__(self, world: World, store: Store, stores: Stores, evidence: RunEvidence, process: Process) -> None:
        super().__init__(store, scripted())
        self._world = world
        self._stores = stores
        self._evidence = evidence
        self._process = process
        self._sending: Sequence[Draft] = ()

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        leases = super().claim(wants, owner, lease_for)
        for lease in leases:
            self._evidence.received[lease.fence] = owner
        if leases:
            self._world.record(f"claimed {[lease.fence for lease in leases]}")
        return leases

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        self._sending = drafts
        try:
            return super().enqueue(drafts)
        finally:
            self._sending = ()

    def _sent(self, drafts: Sequence[Draft], count: int = 1) -> None:
        for draft in drafts:
            self._evidence.sent_drafts[draft.payload["n"]].sent += count

    def extend(self, leases: Sequence[Lease], lease_for: timedelta) -> list[Lease]:
        survivors = super().extend(leases, lease_for)
        alive = {lease.fence for lease in survivors}
        for lease in leases:
            if lease.fence not in alive:
                self._evidence.lost.setdefault(lease.fence, self._world.now)
                self._world.record(f"lost {lease.fence}")
        return survivors

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        role = self._world.acting.role if self._world.acting is not None else "supervisor"
        sent: list[Sent] = []
        for lease, verdict in settlements:
            after = verdict.after if isinstance(verdict, Retry | Release) else 0
            error = getattr(verdict, "error", None) is not None
            sent.append(Sent(self._process.name, role, type(verdict).__name__, after, error, self._world.now))
            self._evidence.sent.setdefault(lease.fence, []).append(sent[-1])
        answers: Sequence[object] = [None] * len(settlements)
        try:
            answers = settled = super().settle(settlements)
        except PartlyDone as error:
            answers = error.answers
            raise
        finally:
            self._note(settlements, sent, answers)
        return settled

    def _note(self, settlements: Sequence[Settlement], sent: Sequence[Sent], answers: Sequence[object]) -> None:
        for (lease, verdict), one, answer in zip(settlements, sent, answers, strict=True):
            if answer is None:
                continue
            if answer is Settled.APPLIED:
                one.applied = True
                self._evidence.applied.setdefault(lease.fence, []).append(type(verdict).__name__)
            else:
                self._evidence.stale += 1
            self._world.record(f"settled {lease.fence} {type(verdict).__name__} {answer}")

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        won = super().fire(name, tick, next_at, draft)
        if won:
            self._evidence.fires[name, tick] += 1
        self._world.record(f"fire {name} {tick} {won}")
        return won

    def redrive(self, ids: Sequence[int]) -> list[int]:
        moved = super().redrive(ids)
        self._evidence.redriven.update(moved)
        self._world.record(f"redriven {moved}")
        return moved

    def specs(self) -> list[QueueSpec]:
        return self._call("specs", self._now_specs)

    def schedules(self) -> list[Schedule]:
        return self._call("schedules", self._now_schedules)

    def _now_specs(self) -> list[QueueSpec]:
        """Called on the store that is there when the call arrives, which may be another than when it was sent."""
        return self.inner.specs()

    def _now_schedules(self) -> list[Schedule]:
        return self.inner.schedules()

    def now(self) -> Instant:
        return self._stores.store.now()

    def _answered(self, verb: str, answer: object) -> None:
        """Wake a waiting claimer; an ambush of this call strikes before its caller goes on."""
        if verb in _NEWS:
            self._stores.notify()
        ambush = self._process.ambush
        if ambush is not None and verb == ambush[0] and answer:
            self._process.ambush = None
            ambush[1]()
            self._world.linger(self._process, self._world.between(1_000, _SLOWEST))

    def _tarry(self) -> None:
        world = self._world
        world.linger(self._process, world.between(1_000, _SLOWEST if world.chance(0.3) else SECOND // 20))


class SimulatedConnection(ProcessStore):
    """A process and the only store."""

    def __init__(
        self, world: World, store_process: StoreProcess, faults: Faults, evidence: RunEvidence, process: Process
    ) -> None:
        super().__init__(world, store_process.store, store_process, evidence, process)
        self._store_process = store_process
        self._dice = faults
        self.doubled = False

    def wait(self, queues: Sequence[str], timeout: timedelta) -> bool:
        """The claimer's sleep becomes its rest."""
        self.inner = self._store_process.store
        self._store_process.clock.slept = 0
        notified = super().wait(queues, timeout)
        if not notified and self._world.acting is not None:
            self._world.acting.rest(self._store_process.clock.slept / SECOND)
        return notified

    def _call(self, verb: str, action: Callable[[], T]) -> T:
        world = self._world
        begun = world.now
        self.doubled = False
        fault = self._dice.for_call()
        try:
            answer = self._perform(action) if fault is None else self._call_badly(fault, verb, action)
            self._answered(verb, answer)
            return answer
        except ConnectionError:
            self._process.trouble.append((begun, world.now))
            raise
        finally:
            if world.now > begun or fault is not None:
                self._process.trouble.append((begun, world.now))

    def _call_badly(self, fault: Kind, verb: str, action: Callable[[], T]) -> T:
        world = self._world
        world.record(f"{verb} meets {fault}")
        if fault is Kind.LOST_REQUEST:
            self._tarry()
            raise ConnectionLost(f"{verb} was lost on its way")
        if fault is Kind.DELAY and world.chance(0.5):
            self._tarry()
        answer = self._perform(action)
        if fault is Kind.DUPLICATE:
            self.doubled = True
            answer = self._perform(action)
        if fault is Kind.LOST_REPLY:
            self._tarry()
            raise ReplyLost(f"the reply to {verb} was lost")
        if fault is Kind.DELAY:
            self._tarry()
        return answer

    def _perform(self, action: Callable[[], T]) -> T:
        if self._process.cut_until > self._world.now:
            raise ConnectionLost("cut off")
        self.inner = self._store_process.store
        self._sent(self._sending, self._store_process.reachable)
        try:
            return self._store_process.perform(action)
        except QueueFull:
            self._sent(self._sending, -1)
            raise
