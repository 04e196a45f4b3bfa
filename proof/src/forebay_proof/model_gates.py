"""The reference model of gates, lanes and lines: every number is counted from all jobs and the specs of now.

A cap has as many slots in use as running jobs of its queues cost; a rate is paid up to its theoretical arrival time; a
line exposes its smallest unfinished id. What holds a job follows from these alone, not from what claims have met.
Where an expired job is still about, a store may count it or not, so numbers that would include it are not compared.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.entries import Entry
from forebay.core.gate import Gate, gate_of, is_open, opens_at, tat_after, whole_gates
from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.core.limits import MAX_INSTANT
from forebay.core.spec import QueueSpec
from forebay.store.protocol import GateUse, Hold
from forebay_proof.model_logs import LogModel, require

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
    def lane(self) -> tuple[str, str, tuple[str, ...]]:
        return self.job.queue, self.entry.cls, self.entry.gates

    def expired(self, now: Instant) -> bool:
        return self.job.expires_at is not None and self.job.expires_at <= now


class GateModel(LogModel):
    """Jobs and what holds them. `given`: the operator's numbers; `tats`: of rates, up to when starts are paid."""

    def __init__(self) -> None:
        super().__init__()
        self.items: dict[int, Item] = {}
        self.given: dict[str, int] = {}
        self.tats: dict[str, Instant] = {}
        self.paused: dict[str, Instant] = {}

    def spec(self, queue: str) -> QueueSpec:
        return self.specs.get(queue) or QueueSpec(name=queue)

    def jobs(self, *states: State, queue: str | None = None) -> list[Item]:
        """In the order of their ids."""
        items = [self.items[job_id] for job_id in sorted(self.items)]
        return [item for item in items if item.job.state in states and queue in (None, item.job.queue)]

    def set_gate(self, name: str, limit: int | None) -> None:
        self.given.pop(name, None)
        if limit is not None:
            self.given[name] = limit

    def whole(self, queue: str) -> tuple[Gate, ...]:
        return whole_gates(self.spec(queue))

    def lane_gates(self, item: Item) -> list[Gate]:
        """Those it was stamped with, as far as the spec still has them, in the order of their names."""
        spec = self.spec(item.job.queue)
        return [gate for name in sorted(item.entry.gates) if (gate := gate_of(spec, name)) is not None]

    def closed(self, item: Item, gates: Iterable[Gate], now: Instant) -> list[Gate]:
        """Those without room for what the item costs."""
        return [
            gate
            for gate in gates
            if not is_open(gate, *self._state(gate.name), item.entry.cost, now, self.given.get(gate.name))
        ]

    def pay(self, item: Item, now: Instant) -> None:
        """The item starts: its rates are paid that much further."""
        for gate in (*self.whole(item.job.queue), *self.lane_gates(item)):
            if gate.step:
                self.tats[gate.name] = tat_after(gate, self.tats.get(gate.name, 0), item.entry.cost, now)

    def line(self, item: Item) -> list[Item]:
        """The unfinished jobs of its line, and dead ones that nothing may pass; itself alone where it has none."""
        if item.entry.line is None:
            return [item]
        line = [each for each in self.jobs(*OPEN, State.DEAD) if each.entry.line == item.entry.line]
        return [each for each in line if each.job.state is not State.DEAD or each.entry.blocks]

    def exposed(self, item: Item) -> bool:
        """The first of its line, and none of the others runs."""
        line = self.line(item)
        return line[0] is item and not any(each.job.state is State.RUNNING for each in line[1:])

    def blocked(self, queue: str) -> set[str]:
        """Lines of the queue whose head is dead."""
        dead = [item for item in self.jobs(State.DEAD) if item.entry.blocks and self.line(item)[0] is item]
        return {item.entry.line for item in dead if item.entry.line and item.entry.line.startswith(f"order/{queue}/")}

    def opening(self, gate: Gate, cost: int) -> Instant:
        """When a rate admits such a cost; `MAX_INSTANT`: only an operator can open it."""
        return opens_at(gate, self.tats.get(gate.name, 0), cost, self.given.get(gate.name))

    def heads(self, now: Instant, queue: str | None = None) -> list[Item]:
        """The first unexpired ready job of each lane."""
        lanes: dict[object, Item] = {}
        for item in sorted(self.jobs(State.READY, queue=queue), key=lambda item: item.place):
            if not item.expired(now):
                lanes.setdefault(item.lane, item)
        return list(lanes.values())

    def openings(self, now: Instant) -> list[Instant]:
        """When closed rates admit the heads of lanes, or what costs less."""
        found = set()
        for head in self.heads(now):
            for gate in (*self.whole(head.job.queue), *self.lane_gates(head)):
                found |= {self.opening(gate, cost) for cost in (1, head.entry.cost) if gate.step}
        return sorted(at for at in found if now < at < MAX_INSTANT)

    def next_due(self, now: Instant, shown: Instant | None) -> None:
        """What a promotion may tell as the next instant at which there is something to do, and must not tell later."""
        later = [item for item in self.jobs(State.WAITING) if item.job.due_at > now]
        surely = [item.job.due_at for item in later if self.exposed(item) and not item.expired(now)]
        maybe = [item.job.due_at for item in later if self.line(item)[0] is item]
        for queue in {head.job.queue for head in self.heads(now)}:
            if self.paused.get(queue, 0) <= now:
                opens = [self._opens(head, now) for head in self.heads(now, queue)]
                surely += [max(opens)] if all(now < at < MAX_INSTANT for at in opens) else []
        legal = {*surely, *maybe, *self.openings(now)}
        require(shown in legal or (shown is None and not surely), "promote tells the next due time", legal, shown)
        require((shown or MAX_INSTANT) <= min(surely, default=MAX_INSTANT), "promote tells it in time", surely, shown)

    def held(self, now: Instant, holds: Mapping[int, Hold | None]) -> None:
        """What the store says holds these jobs, once everything that could be ready is."""
        for job_id, shown in holds.items():
            item = self.items.get(job_id)
            state = None if item is None else item.job.state
            if item is not None and state is State.READY:
                self._held_by_gate(now, item, shown)
            elif item is not None and state is State.WAITING and item.job.due_at <= now and item.entry.line:
                self._held_by_line(now, item, shown)
            else:
                require(shown is None, f"job {job_id} is {state}, held by", shown)

    def ahead(self, now: Instant, shown: Mapping[int, int | None]) -> None:
        """What the store says of these jobs."""
        for job_id, before in shown.items():
            item = self.items.get(job_id)
            if item is None or item.job.state is not State.READY:
                require(before is None, f"job {job_id} is not ready, ahead of it are", before)
            elif (lane := self._lane(item, now)) is not None:
                require(before == lane.index(item), f"ahead of job {job_id} are", lane.index(item), before)

    def gates(self, now: Instant, shown: Sequence[GateUse]) -> None:
        """All that are used, owed to, or have an operator's number. A rate that no spec has any more may be shown."""
        names = {gate.name for item in self.jobs(State.RUNNING) for gate in self._all(item) if not gate.step}
        names |= self.given.keys() | {name for name, tat in self.tats.items() if tat > now}
        found = {use.name: use for use in shown}
        unknown = {name for name in names - self.given.keys() if not self._numbers(name)}
        require(names - unknown <= found.keys() <= names, "gates: expected and shown", names, list(found))
        for name, use in found.items():
            slots = {gate.limit for gate in self._numbers(name)}
            if (given := self.given.get(name)) is not None or not slots:
                slots = {given or 0} if given is not None else {use.slots}
            used = 0 if name.startswith("rate/") else self._state(name)[0]
            require(use.slots in slots, f"slots of {name}: expected and shown", slots, use)
            require(use == GateUse(name, use.slots, used, given), f"{name}: used, given, shown", used, given, use)

    def released(self, now: Instant, name: str, count: int, answer: int) -> None:
        """The first ready ones in rank that were stamped with it are not held by it any more."""
        stamped = [item for item in self.jobs(State.READY) if name in item.entry.gates and not item.expired(now)]
        first = sorted(stamped, key=lambda item: item.place)[:count]
        require(answer == len(first), f"release says how many passed {name}", len(first), answer)
        for item in first:
            gates = tuple(gate for gate in item.entry.gates if gate != name)
            self.items[item.job.id] = replace(item, entry=replace(item.entry, gates=gates))

    def held_most(self, now: Instant, queue: str) -> tuple[int, int]:
        """At least and at most so many ready jobs are held: all at a closed whole gate, else some of closed lanes."""
        ready = self.jobs(State.READY, queue=queue)
        if ready and self.closed(replace(ready[0], entry=replace(ready[0].entry, cost=1)), self.whole(queue), now):
            return len(ready), len(ready)
        names = {gate.name for item in ready for gate in self.closed(item, self.lane_gates(item), now)}
        return 0, len([item for item in ready if any(gate.name in names for gate in self.lane_gates(item))])

    def _state(self, name: str) -> tuple[int, Instant]:
        running = [item for item in self.jobs(State.RUNNING) if any(gate.name == name for gate in self._all(item))]
        return sum(item.entry.cost for item in running), self.tats.get(name, 0)

    def _all(self, item: Item) -> list[Gate]:
        return [*self.whole(item.job.queue), *self.lane_gates(item)]

    def _numbers(self, name: str) -> list[Gate]:
        """The gate as the specs of queues have it."""
        found = [gate for spec in self.specs.values() for gate in (*whole_gates(spec), gate_of(spec, name)) if gate]
        return [gate for gate in found if gate.name == name]

    def _opens(self, head: Item, now: Instant) -> Instant:
        """When the head may start, held by a rate of the whole queue; `now`: no gate of the queue holds it."""
        closed = self.closed(head, self._all(head), now)
        opens = [self.opening(gate, head.entry.cost) if gate.step else MAX_INSTANT for gate in closed]
        return max(opens) if self.closed(head, self.whole(head.job.queue), now) else now

    def _lane(self, item: Item, now: Instant) -> list[Item] | None:
        """The ready jobs of its lane in order; None: one of them has expired."""
        lane = [each for each in self.jobs(State.READY) if each.lane == item.lane]
        return None if any(each.expired(now) for each in lane) else sorted(lane, key=lambda each: each.place)

    def _held_by_gate(self, now: Instant, item: Item, shown: Hold | None) -> None:
        lane = self._lane(item, now)
        if lane is None:
            return
        expected = None
        for gate in self.closed(lane[0], self._all(lane[0]), now)[:1]:
            slots = self.given.get(gate.name, gate.limit)
            used = 0 if gate.step else self._state(gate.name)[0]
            opens = self.opening(gate, lane[0].entry.cost) if gate.step and slots else None
            expected = Hold(gate.name, slots, used, lane.index(item), None, opens)
        require(shown == expected, f"what holds job {item.job.id}: expected and shown", expected, shown)

    def _held_by_line(self, now: Instant, item: Item, shown: Hold | None) -> None:
        """A head that waits for a later one to finish may be shown either way."""
        line = self.line(item)
        head = line[0]
        if head is item or any(each.expired(now) for each in line):
            return
        between = [each for each in line[1:] if each.job.id < item.job.id and each.job.state in OPEN]
        runs = int(head.job.state is State.RUNNING)
        expected = Hold(item.entry.line or "", 1, runs, len(between), head.job.id)
        require(shown == expected, f"what holds job {item.job.id}: expected and shown", expected, shown)
