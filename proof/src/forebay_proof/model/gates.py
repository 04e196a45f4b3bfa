"""The model of gates, lanes and lines: every number is counted from all jobs and the current specs.

A cap has as many slots in use as running jobs of its queues cost; a rate is paid up to its theoretical arrival time; a
line exposes its smallest unfinished id. What holds a job follows from these alone, not from what claims have met.
Where an expired job is still about, a store may count it or not, so numbers that would include it are not compared.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from forebay.core.gate import Gate, gate_of, is_open, opens_at, tat_after, whole_gates
from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import MAX_INSTANT
from forebay.store.protocol import GateUse, Hold
from forebay_proof.model.jobs import OPEN, Item, JobTable, require


class GateModel:
    """What holds jobs. `given`: the operator's numbers; `tats`: of rates, up to when starts are paid."""

    def __init__(self, jobs: JobTable) -> None:
        self._jobs = jobs
        self.given: dict[str, int] = {}
        self.tats: dict[str, Instant] = {}

    def set_gate(self, name: str, limit: int | None) -> None:
        self.given.pop(name, None)
        if limit is not None:
            self.given[name] = limit

    def whole(self, queue: str) -> tuple[Gate, ...]:
        return whole_gates(self._jobs.spec(queue))

    def lane_gates(self, item: Item) -> list[Gate]:
        """Those it was stamped with, as far as the spec still has them, in the order of their names."""
        spec = self._jobs.spec(item.job.queue)
        return [gate for name in sorted(item.entry.gates) if (gate := gate_of(spec, name)) is not None]

    def closed(self, item: Item, gates: Iterable[Gate], now: Instant) -> list[Gate]:
        """Those without room for what the item costs."""
        return [
            gate
            for gate in gates
            if not is_open(gate, *self.in_use(gate.name), item.entry.cost, now, self.given.get(gate.name))
        ]

    def pay(self, item: Item, now: Instant) -> None:
        """The item starts: its rates are paid that much further."""
        for gate in (*self.whole(item.job.queue), *self.lane_gates(item)):
            if gate.step:
                self.tats[gate.name] = tat_after(gate, self.tats.get(gate.name, 0), item.entry.cost, now)

    def opening(self, gate: Gate, cost: int) -> Instant:
        """When a rate admits such a cost; `MAX_INSTANT`: only an operator can open it."""
        return opens_at(gate, self.tats.get(gate.name, 0), cost, self.given.get(gate.name))

    def heads(self, now: Instant, queue: str | None = None) -> list[Item]:
        """The first unexpired ready job of each lane."""
        lanes: dict[object, Item] = {}
        for item in sorted(self._jobs.in_state(State.READY, queue=queue), key=lambda item: item.place):
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

    def check_next_due(self, now: Instant, shown: Instant | None) -> None:
        """`shown`: the next instant at which there is something to do, by a promotion. It may be early, never late."""
        later = [item for item in self._jobs.in_state(State.WAITING) if item.job.due_at > now]
        surely = [item.job.due_at for item in later if self._jobs.exposed(item) and not item.expired(now)]
        maybe = [item.job.due_at for item in later if self._jobs.line(item)[0] is item]
        for queue in {head.job.queue for head in self.heads(now)}:
            if self._jobs.paused.get(queue, 0) <= now:
                opens = [self._opens(head, now) for head in self.heads(now, queue)]
                surely += [max(opens)] if all(now < at < MAX_INSTANT for at in opens) else []
        legal = {*surely, *maybe, *self.openings(now)}
        require(shown in legal or (shown is None and not surely), "the next due time of promote", legal, shown)
        require(
            (shown or MAX_INSTANT) <= min(surely, default=MAX_INSTANT),
            "the next due time of promote is not late",
            surely,
            shown,
        )

    def check_holds(self, now: Instant, holds: Mapping[int, Hold | None]) -> None:
        """What holds these jobs, as the store shows it once everything that could be ready is."""
        for job_id, shown in holds.items():
            item = self._jobs.items.get(job_id)
            state = None if item is None else item.job.state
            if item is not None and state is State.READY:
                self._held_by_gate(now, item, shown)
            elif item is not None and state is State.WAITING and item.job.due_at <= now and item.entry.line:
                self._held_by_line(now, item, shown)
            else:
                require(shown is None, f"job {job_id} is {state}, held by", shown)

    def check_ahead(self, now: Instant, shown: Mapping[int, int | None]) -> None:
        """How many jobs are ahead of these, as the store shows it."""
        for job_id, before in shown.items():
            item = self._jobs.items.get(job_id)
            if item is None or item.job.state is not State.READY:
                require(before is None, f"job {job_id} is not ready, ahead of it are", before)
            elif (lane := self._lane(item, now)) is not None:
                require(before == lane.index(item), f"ahead of job {job_id} are", lane.index(item), before)

    def check_uses(self, now: Instant, shown: Sequence[GateUse]) -> None:
        """All that are used, owed to, or have an operator's number. A rate that no spec has any more may be shown."""
        names = {gate.name for item in self._jobs.in_state(State.RUNNING) for gate in self._all(item) if not gate.step}
        names |= self.given.keys() | {name for name, tat in self.tats.items() if tat > now}
        found = {use.name: use for use in shown}
        unknown = {name for name in names - self.given.keys() if not self._numbers(name)}
        require(names - unknown <= found.keys() <= names, "gates: expected and shown", names, list(found))
        for name, use in found.items():
            slots = {gate.limit for gate in self._numbers(name)}
            if (given := self.given.get(name)) is not None or not slots:
                slots = {given or 0} if given is not None else {use.slots}
            used = 0 if name.startswith("rate/") else self.in_use(name)[0]
            require(use.slots in slots, f"slots of {name}: expected and shown", slots, use)
            shown_as = GateUse(name, use.slots, used, given, use.parked)
            require(use == shown_as, f"{name}: used, given, shown", used, given, use)
            most = self._held_at(now, name)
            require(0 <= use.parked <= most, f"parked at {name}: at most, and shown", most, use)

    def check_release(self, now: Instant, name: str, count: int, answer: int) -> None:
        """The first ready ones in rank that were stamped with it are not held by it any more."""
        stamped = [
            item for item in self._jobs.in_state(State.READY) if name in item.entry.gates and not item.expired(now)
        ]
        first = sorted(stamped, key=lambda item: item.place)[:count]
        require(answer == len(first), f"the answer of release: how many passed {name}", len(first), answer)
        for item in first:
            gates = tuple(gate for gate in item.entry.gates if gate != name)
            self._jobs.items[item.job.id] = replace(item, entry=replace(item.entry, gates=gates))

    def held_bounds(self, now: Instant, queue: str) -> tuple[int, int]:
        """At least and at most so many ready jobs are held: all at a closed whole gate, else some of closed lanes."""
        ready = self._jobs.in_state(State.READY, queue=queue)
        if ready and self.closed(replace(ready[0], entry=replace(ready[0].entry, cost=1)), self.whole(queue), now):
            return len(ready), len(ready)
        names = {gate.name for item in ready for gate in self.closed(item, self.lane_gates(item), now)}
        return 0, len([item for item in ready if any(gate.name in names for gate in self.lane_gates(item))])

    def _held_at(self, now: Instant, name: str) -> int:
        """Ready jobs that have to pass this gate, if it is closed for one of them."""
        ready = [
            item
            for item in self._jobs.in_state(State.READY)
            if any(gate.name == name for gate in self.lane_gates(item))
        ]
        is_closed = any(gate.name == name for item in ready for gate in self.closed(item, self.lane_gates(item), now))
        return len(ready) if is_closed else 0

    def in_use(self, name: str) -> tuple[int, Instant]:
        running = [
            item for item in self._jobs.in_state(State.RUNNING) if any(gate.name == name for gate in self._all(item))
        ]
        return sum(item.entry.cost for item in running), self.tats.get(name, 0)

    def _all(self, item: Item) -> list[Gate]:
        return [*self.whole(item.job.queue), *self.lane_gates(item)]

    def _numbers(self, name: str) -> list[Gate]:
        """The gate as the specs of queues have it."""
        found = [
            gate for spec in self._jobs.specs.values() for gate in (*whole_gates(spec), gate_of(spec, name)) if gate
        ]
        return [gate for gate in found if gate.name == name]

    def _opens(self, head: Item, now: Instant) -> Instant:
        """When the head may start, held by a rate of the whole queue; `now`: no gate of the queue holds it."""
        closed = self.closed(head, self._all(head), now)
        opens = [self.opening(gate, head.entry.cost) if gate.step else MAX_INSTANT for gate in closed]
        return max(opens) if self.closed(head, self.whole(head.job.queue), now) else now

    def _lane(self, item: Item, now: Instant) -> list[Item] | None:
        """The ready jobs of its lane in order; None: one of them has expired."""
        lane = [each for each in self._jobs.in_state(State.READY) if each.lane == item.lane]
        return None if any(each.expired(now) for each in lane) else sorted(lane, key=lambda each: each.place)

    def _held_by_gate(self, now: Instant, item: Item, shown: Hold | None) -> None:
        lane = self._lane(item, now)
        if lane is None:
            return
        expected = None
        for gate in self.closed(lane[0], self._all(lane[0]), now)[:1]:
            slots = self.given.get(gate.name, gate.limit)
            used = 0 if gate.step else self.in_use(gate.name)[0]
            opens = self.opening(gate, lane[0].entry.cost) if gate.step and slots else None
            expected = Hold(gate.name, slots, used, lane.index(item), None, opens)
        require(shown == expected, f"what holds job {item.job.id}: expected and shown", expected, shown)

    def _held_by_line(self, now: Instant, item: Item, shown: Hold | None) -> None:
        """A head that waits for a later one to finish may be shown either way."""
        line = self._jobs.line(item)
        head = line[0]
        if head is item or any(each.expired(now) for each in line):
            return
        between = [each for each in line[1:] if each.job.id < item.job.id and each.job.state in OPEN]
        runs = int(head.job.state is State.RUNNING)
        expected = Hold(item.entry.line or "", 1, runs, len(between), head.job.id)
        require(shown == expected, f"what holds job {item.job.id}: expected and shown", expected, shown)
