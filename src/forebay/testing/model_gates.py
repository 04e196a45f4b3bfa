"""The reference model of gates: who holds a slot and who is next in line, found by looking at every job.

Every ready or running job that is stamped with the gate holds as many slots as it costs. The number of slots is the
operator's, or the stamped one; while jobs with stamps of two specs are about, any number between the two is legal.
Where a job with several gates is parked is the store's choice: `model_holds` takes it over, and knows from then on whom
nobody may pass.
"""

from msgspec import Struct

from forebay.core.event import Entry
from forebay.core.gate import Gate, has_room
from forebay.core.instant import Instant, Span
from forebay.core.job import Job, State
from forebay.testing.model_logs import LogModel, require

OPEN = (State.WAITING, State.READY, State.RUNNING)


class Item(Struct, frozen=True):
    """One job and what its picture does not show. `fresh`: never claimed nor ended, so newer work may merge into it."""

    entry: Entry
    job: Job
    rank: int
    fresh: bool = True
    kept_until: Instant = 0

    @property
    def place(self) -> tuple[int, int]:
        return self.rank, self.job.id

    @property
    def paced(self) -> bool:
        return any(gate.step for gate in self.entry.gates)

    def expired(self, now: Instant) -> bool:
        return self.job.expires_at is not None and self.job.expires_at <= now

    def at(self, names: set[str]) -> bool:
        return any(gate.name in names for gate in self.entry.gates)

    def gate(self, name: str) -> Gate | None:
        return next((gate for gate in self.entry.gates if gate.name == name), None)


class GateModel(LogModel):
    """Jobs and the gates in front of them. `parked`: where the store says that they are, since the last look."""

    def __init__(self) -> None:
        super().__init__()
        self.items: dict[int, Item] = {}
        self.parked: dict[int, str] = {}
        self.gate_limits: dict[str, int] = {}
        self._stamps: dict[str, set[tuple[int, Span]]] = {}

    def jobs(self, *states: State, queue: str | None = None) -> list[Item]:
        """In the order of their ids."""
        return [
            self.items[job_id]
            for job_id in sorted(self.items)
            if self.items[job_id].job.state in states and queue in (None, self.items[job_id].job.queue)
        ]

    def parked_at(self, name: str) -> list[Item]:
        """Those that are known to be, first in rank first."""
        items = [self.items[job_id] for job_id, gate in self.parked.items() if gate == name and job_id in self.items]
        return sorted(items, key=lambda item: item.place)

    def _stamp(self, item: Item) -> None:
        for gate in item.entry.gates:
            self._stamps.setdefault(gate.name, set()).add((gate.limit, gate.step))

    def _slots(self, gate: Gate) -> tuple[int, int]:
        """At least and at most so many, as long as jobs of two specs stand at the gate; never two in order."""
        stamped = {limit for limit, _ in self._stamps[gate.name]}
        limits = {self.gate_limits[gate.name]} if gate.name in self.gate_limits else stamped
        slots = {min(limit, 1) for limit in limits} if gate.ordered else limits
        return min(slots), max(slots)

    def _taken(self, name: str) -> int:
        return sum(gate.cost for item in self.jobs(State.READY, State.RUNNING) if (gate := item.gate(name)))

    def _first_in_line(self, name: str) -> int | None:
        """The smallest id that is not finished, or that died where a dead head blocks."""
        for item in self.jobs(*OPEN, State.DEAD):
            gate = item.gate(name)
            if gate and (gate.blocks or item.job.state is not State.DEAD):
                return item.job.id
        return None

    def blocked(self, queue: str) -> set[str]:
        """Lines of the queue whose head is dead."""
        heads = [gate.name for item in self.jobs(State.DEAD) for gate in item.entry.gates if gate.blocks]
        dead = {name for name in heads if self.items[self._first_in_line(name) or 0].job.state is State.DEAD}
        return {name for name in dead if name.startswith(f"order/{queue}/")}

    def _check_admission(self, item: Item, now: Instant) -> None:
        for gate in item.entry.gates:
            self._check_nobody_passed(item, gate, now)
            if gate.step:
                continue
            taken, most = self._taken(gate.name), self._slots(gate)[1]
            room = has_room(taken - gate.cost, gate.cost, most)
            require(room, f"gate {gate.name} let job {item.job.id} in: slots and holders", most, taken)
            first = self._first_in_line(gate.name) if gate.ordered else item.job.id
            require(first == item.job.id, f"gate {gate.name} let job {item.job.id} in before", first)

    def _check_nobody_passed(self, item: Item, gate: Gate, now: Instant) -> None:
        """Who is held by several gates may have gone from this one to another in the same step: he does not count."""
        waiting = [each for each in self.parked_at(gate.name) if len(each.entry.gates) == 1 and not each.expired(now)]
        mine = [each for each in waiting if not gate.step or each.job.queue == item.job.queue]
        if gate.share:
            mine = [each for each in mine if self._in_class(each, item, gate)]
        passed = [each.job.id for each in mine if not gate.ordered and each.place < item.place]
        require(not passed, f"gate {gate.name} let job {item.job.id} pass", passed)

    def _surely_let_in(self, item: Item, now: Instant) -> bool:
        """A rate lets nobody in by itself; `model_paces` says whom a claim starts."""
        return item.job.due_at <= now and all(self._surely_open(gate, item, now) for gate in item.entry.gates)

    def _surely_open(self, gate: Gate, item: Item, now: Instant, claimed: str | None = None) -> bool:
        """`claimed`: a claim of that queue wants the item, and starts whom it finds before it."""
        if gate.step:
            return False
        taken, least = self._taken(gate.name), self._slots(gate)[0]
        if gate.ordered:
            return has_room(taken, gate.cost, least) and self._first_in_line(gate.name) == item.job.id
        ahead = self._ahead(item, gate, now)
        staying = [(each, stamp) for each, stamp in ahead if self._may_stay(each, now)]
        if any(each.job.queue != claimed for each, _ in staying):
            return False
        promised = taken + sum(stamp.cost for _, stamp in staying)
        return has_room(promised, gate.cost, least) and all(has_room(taken, each.cost, least) for _, each in ahead)

    def _may_stay(self, item: Item, now: Instant) -> bool:
        """Whether it may keep its place at a gate that has room, since others wait before it at a rate."""
        raise NotImplementedError

    def _ahead(self, item: Item, gate: Gate, now: Instant, queue: str | None = None) -> list[tuple[Item, Gate]]:
        """Who may go before the item at the gate, by rank or because it is its class's turn; with the stamps there."""
        waiting = [(each, other) for each in self.jobs(State.WAITING, queue=queue) if (other := each.gate(gate.name))]
        due = [(each, other) for each, other in waiting if each.job.due_at <= now and each is not item]
        before = [(each, other) for each, other in due if each.place < item.place]
        turns = {each.job.queue for each, other in (*before, (item, gate)) if other.share}
        ahead = {each.job.id: (each, other) for each, other in before}
        ahead |= {each.job.id: (each, other) for each, other in due if other.share and each.job.queue in turns}
        return list(ahead.values())

    def _in_class(self, each: Item, item: Item, gate: Gate) -> bool:
        """Whether the two take the turns of one class at a gate where classes do."""
        other = each.gate(gate.name)
        mine = (item.job.queue, item.entry.cls)
        return other is not None and other.share > 0 and (each.job.queue, each.entry.cls) == mine
