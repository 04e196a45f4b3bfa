"""The rules of lanes, held to their promises by brute force over random histories: no store, no clock, no threads."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import combinations
from random import Random

import pytest

from forebay.core.gate import Gate
from forebay.core.limits import LANES_MET, MAX_INSTANT
from forebay.core.share import UNIT
from forebay.engine.lanes import IDLE_CLASSES, GateState, Lanes, QueueLanes
from forebay.engine.order import Key, Order


@dataclass(eq=False)
class Job:
    id: int
    queue: str
    cls: str
    names: tuple[str, ...]
    rank: int
    cost: int
    expires_at: int | None = None
    state: str = "ready"


@dataclass
class Ready:
    """A heap that skips jobs that are no longer ready; `steps` counts the jobs that were read."""

    heap: list[tuple[int, int, Job]] = field(default_factory=list)

    def head(self) -> tuple[int, int, Job] | None:
        while self.heap and self.heap[0][2].state != "ready":
            heappop(self.heap)
        return self.heap[0] if self.heap else None

    def pop(self) -> object:
        return heappop(self.heap)


class Engine(Lanes[Job]):
    """A store of the smallest kind: what the engine drops of a gate is kept here."""

    def __init__(self) -> None:
        super().__init__()
        self.tats: dict[str, int] = {}
        self.given: dict[str, int] = {}
        self.specs: dict[str, dict[str, Gate]] = {}
        self.jobs: list[Job] = []
        self.steps = 0

    def new_state(self, name: str) -> GateState:
        return GateState(name, 0, self.tats.get(name, 0), self.given.get(name))

    def park(self, *args: object) -> None:
        self.steps += 1
        super().park(*args)  # type: ignore[arg-type]

    def open(self, *args: object) -> None:
        self.steps += 1
        super().open(*args)  # type: ignore[arg-type]

    def put_spec(
        self, queue: str, whole: Iterable[Gate], gates: Iterable[Gate], weights: dict[str, int] | None = None
    ) -> None:
        queue_lanes = self.by_queue.setdefault(queue, QueueLanes(queue, self))
        running = [(job.names, job.cost) for job in self.jobs if job.queue == queue and job.state == "running"]
        spec = self.specs[queue] = {gate.name: gate for gate in gates}
        weight = None if weights is None else weights.__getitem__
        self.configure(
            queue_lanes, whole, weight, lambda names: [spec[name] for name in names if name in spec], running
        )

    def known(self, job: Job) -> list[Gate]:
        spec = self.specs[job.queue]
        return [spec[name] for name in job.names if name in spec]

    def enqueue(
        self, queue: str, cls: str = "", names: Iterable[str] = (), rank: int | None = None, cost: int = 1
    ) -> Job:
        job = Job(len(self.jobs), queue, cls, tuple(sorted(names)), 0, cost)
        job.rank = job.id if rank is None else rank
        self.jobs.append(job)
        self.expose(job)
        return job

    def expose(self, job: Job) -> None:
        job.state = "ready"
        queue_lanes = self.by_queue[job.queue]
        lane = queue_lanes.lanes.get((job.cls, job.names))
        ready = Ready() if lane is None else lane.ready
        assert isinstance(ready, Ready)
        heappush(ready.heap, (job.rank, job.id, job))
        if lane is None:
            self.add(queue_lanes, job.cls, job.names, self.known(job), ready)
        elif ready.heap[0][2] is job:
            self.grew(queue_lanes, lane)

    def shares(self, queue: str) -> bool:
        return self.by_queue[queue].weight is not None

    def claim(self, queue: str, limit: int, now: int, cls: str | None = None) -> list[Job]:
        """Only what is past its expiry and parked has died before: the claim meets the others."""
        for job in [job for job in self.jobs if job.state == "ready" and job.expires_at and job.expires_at <= now]:
            if self.by_queue[job.queue].lanes[job.cls, job.names].at is not None:
                self.cancel(job, now)
        self.tick(now)
        taken = self.take(self.by_queue[queue], limit, now, cls)
        for job in taken.expired:
            job.state = "dead"
        for job in taken.jobs:
            job.state = "running"
        self.tats.update((state.name, state.tat) for state in taken.gates.values())
        return taken.jobs

    def settle(self, job: Job, again: bool, now: int) -> None:
        self.now = now
        job.state = "done"
        self.give_back(self.by_queue[job.queue], job.names, job.cost)
        if again:
            self.expose(job)

    def cancel(self, job: Job, now: int) -> None:
        self.now = now
        queue_lanes = self.by_queue[job.queue]
        job.state = "cancelled"
        self.shrank(queue_lanes, queue_lanes.lanes[job.cls, job.names])

    def set_gate(self, name: str, given: int | None, now: int) -> None:
        self.now = now
        if given is None:
            self.given.pop(name, None)
        else:
            self.given[name] = given
        state = self.gates.get(name)
        if state is not None:
            state.given = given
            self.changed(state)

    def admitted(self, job: Job, now: int) -> bool:
        """By brute force: from running jobs and the specs alone."""
        return not any(self.closed(job, now))

    def closed(self, job: Job, now: int) -> list[str]:
        whole = [gate for gate, _ in self.by_queue[job.queue].whole]
        return [gate.name for gate in (*whole, *self.known(job)) if not self.room(gate, job.cost, now)]

    def room(self, gate: Gate, cost: int, now: int) -> bool:
        limit = self.given.get(gate.name, gate.limit)
        if gate.step:
            return limit > 0 and self.tats.get(gate.name, 0) - (limit - min(cost, limit)) * gate.step <= now
        return self.used(gate.name) + min(cost, max(limit, 1)) <= limit

    def used(self, name: str) -> int:
        running = [job for job in self.jobs if job.state == "running"]
        return sum(job.cost for job in running if name in self.gates_of(job))

    def gates_of(self, job: Job) -> set[str]:
        """What it has to pass, by name."""
        return {*(gate.name for gate, _ in self.by_queue[job.queue].whole), *(self.specs[job.queue].keys() & job.names)}


class History:
    """Random calls of one seed, checked one by one."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.engine, self.now = Engine(), 1_000
        self.starts: dict[str, list[tuple[int, int]]] = {}
        self.costs = random.random() < 0.4
        self.weights = {cls: random.choice([1, 2, 3]) for cls in "abc"} if random.random() < 0.5 else None
        self.sorts = [sort for sort in ("t", "k", "rt", "rk", "until", "both") if random.random() < 0.4]
        self.gates = {
            "t": [self.cap(f"cap/t/{each}") for each in "abc"],
            "k": [self.cap(f"cap/k/{each}") for each in "xy"],
            "rt": [self.rate(f"rate/t/{each}") for each in "abc"],
            "rk": [self.rate(f"rate/k/{each}") for each in "xy"],
            "until": [Gate("until/z", 0)],
            "both": [self.cap(f"cap/@/{each}") for each in "abc"],
        }
        self.whole = [each for each in (self.cap("cap/q"), self.rate("rate/q")) if random.random() < 0.35]
        self.specify()
        self.engine.put_spec("p", [], self.gates["both"])

    def cap(self, name: str) -> Gate:
        return Gate(name, self.random.randint(3 if self.costs else 1, 4))

    def rate(self, name: str) -> Gate:
        return Gate(name, self.random.randint(3, 5), self.random.choice([3, 10]))

    def specify(self) -> None:
        self.engine.now = self.now
        own = [gate for sort in self.sorts for gate in self.gates[sort] if self.random.random() < 0.9]
        self.engine.put_spec("q", self.whole, own, self.weights)

    def put(self) -> None:
        random = self.random
        of, kind, queue = random.choice("abc"), random.choice("xy"), random.choice("qqqp")
        names = {"t": f"cap/t/{of}", "k": f"cap/k/{kind}", "rt": f"rate/t/{of}", "rk": f"rate/k/{kind}"}
        names |= {"until": "until/z", "both": f"cap/@/{of}"}
        mine = [names[sort] for sort in (self.sorts if queue == "q" else ["both"])]
        rank, cost = random.choice([None, random.randint(0, 5)]), random.randint(1, 3) if self.costs else 1
        job = self.engine.enqueue(queue, of if queue == "q" and self.weights else "", mine, rank, cost)
        job.expires_at = self.now + 60 if random.random() < 0.1 else None

    def claim(self) -> None:
        queue, limit = self.random.choice("qqqp"), self.random.randint(1, 6)
        one = self.weights and queue == "q" and self.random.random() < 0.2
        cls = self.random.choice("abc") if one else None
        got = self.engine.claim(queue, limit, self.now, cls)
        check_claim(self.engine, got, limit, queue, cls, self.now)
        for job in got:
            for gate in (*(each for each, _ in self.engine.by_queue[queue].whole), *self.engine.known(job)):
                self.starts.setdefault(gate.name, []).append((self.now, job.cost))

    def step(self) -> None:
        random, engine = self.random, self.engine
        self.now += random.choice([0, 0, 0, 1, 1, 5, 40])
        engine.tick(self.now)
        ready = [job for job in engine.jobs if job.state == "ready"]
        running = [job for job in engine.jobs if job.state == "running"]
        match random.choices(["put", "claim", "settle", "cancel", "gate", "spec"], [38, 30, 24, 3, 3, 1])[0]:
            case "put":
                for _ in range(random.randint(1, 4)):
                    self.put()
            case "claim":
                self.claim()
            case "settle" if running:
                engine.settle(random.choice(running), random.random() < 0.3, self.now)
            case "cancel" if ready:
                engine.cancel(random.choice(ready), self.now)
            case "gate":
                engine.set_gate("until/z", random.choice([None, 0, 1, 3]), self.now)
            case "spec":
                self.specify()
            case _:
                pass
        for name, state in engine.gates.items():
            assert name.startswith("rate") or state.used == engine.used(name), name


def history(seed: int) -> None:
    whole = History(seed)
    for _ in range(120):
        whole.step()
    gates = {gate.name: gate for each in (*whole.gates.values(), whole.whole) for gate in each}
    for name, log in whole.starts.items():
        check_rate(gates[name], log)


def check_claim(engine: Engine, got: list[Job], limit: int, queue: str, cls: str | None, now: int) -> None:
    """Within the caps; and what was not handed out has a closed gate, or an earlier head waits at one of its gates."""
    for job in got:
        for gate in (*(each for each, _ in engine.by_queue[queue].whole), *engine.known(job)):
            if not gate.step and gate.name not in engine.given:
                assert engine.used(gate.name) <= gate.limit
    if len(got) == limit:
        return
    ready = [job for job in engine.jobs if job.state == "ready" and job.queue == queue and cls in (None, job.cls)]
    waiting = [job for job in engine.jobs if job.state == "ready" and job.queue == queue]
    for job in ready:
        if not engine.admitted(job, now):
            continue
        before = [each for each in waiting if engine.shares(queue) or (each.rank, each.id) < (job.rank, job.id)]
        costly = {name for each in before if each.cost > 1 for name in engine.closed(each, now)}
        assert engine.gates_of(job) & costly, job
    assert engine.workable_at(engine.by_queue[queue], now) > now or cls is not None


def check_rate(gate: Gate, log: list[tuple[int, int]]) -> None:
    """In no window did more start than the burst and what the window's time pays for."""
    if not gate.step:
        return
    for first in range(len(log)):
        units = 0
        for at, cost in log[first:]:
            units += cost
            assert units <= gate.limit + (at - log[first][0]) // gate.step, gate


@pytest.mark.parametrize("seeds", [range(at, at + 25) for at in range(0, 200, 25)], ids=lambda seeds: str(seeds.start))
def test_every_history_keeps_caps_rates_and_is_work_conserving(seeds: range) -> None:
    for seed in seeds:
        history(seed)


@pytest.mark.parametrize("seed", range(60))
def test_shares_are_exact_within_one_quantum_beside_a_cap_and_a_rate(seed: int) -> None:
    random = Random(seed)
    engine, now = Engine(), 1_000_000
    weights = {cls: random.choice([1, 2, 3, 4, 6]) for cls in "abcd"[: random.randint(2, 4)]}
    cap, rate = Gate("cap/q", random.randint(1, 9)), Gate("rate/q", random.randint(1, 5), random.choice([2, 7]))
    engine.put_spec("q", [gate for gate in (cap, rate) if random.random() < 0.7], [], weights)
    for cls in weights:
        for _ in range(200):
            engine.enqueue("q", cls)
    started = dict.fromkeys(weights, 0)
    bounds = dict.fromkeys(combinations(weights, 2), (0.0, 0.0))
    running: list[Job] = []
    while max(started.values()) < 200:
        for job in engine.claim("q", random.randint(1, 7), now):
            started[job.cls] += 1
            running.append(job)
            if max(started.values()) == 200:
                break
            for (one, other), (low, high) in bounds.items():
                apart = started[one] / weights[one] - started[other] / weights[other]
                bounds[one, other] = min(low, apart), max(high, apart)
        for _ in range(min(len(running), random.randint(0, 6))):
            engine.settle(running.pop(random.randrange(len(running))), again=False, now=now)
        now += random.choice([0, 1, 3])
    for (one, other), (low, high) in bounds.items():
        assert high - low <= 1 / weights[one] + 1 / weights[other] + 1e-9


def test_a_class_that_was_idle_or_held_has_saved_no_turns_up() -> None:
    engine = Engine()
    engine.put_spec("q", [], [Gate("until/z", 0)], {"a": 1, "b": 1, "c": 1})
    for _ in range(100):
        engine.enqueue("q", "a")
        engine.enqueue("q", "b", ["until/z"])
    assert {job.cls for job in engine.claim("q", 60, 1)} == {"a"}
    engine.set_gate("until/z", 100, 1)
    for _ in range(10):
        engine.enqueue("q", "c")
    got = [job.cls for job in engine.claim("q", 30, 1)]
    # a is one start ahead of the other two, and at equal turns the smaller id goes first.
    assert [got.count(cls) for cls in "abc"] == [9, 11, 10]


def test_classes_leave_nothing_behind() -> None:
    engine = Engine()
    engine.put_spec("q", [], [Gate(f"cap/t/{number}", 1) for number in range(1_000)], {str(n): 1 for n in range(1_000)})
    for number in range(1_000):
        engine.enqueue("q", str(number), [f"cap/t/{number}"])
        for job in engine.claim("q", 1, 1):
            engine.settle(job, again=False, now=1)
    queue_lanes = engine.by_queue["q"]
    assert not queue_lanes.lanes
    assert not engine.gates
    assert len(queue_lanes.classes) <= IDLE_CLASSES


def test_a_hundred_thousand_jobs_behind_a_closed_gate_cost_a_claim_nothing() -> None:
    engine = Engine()
    engine.put_spec("q", [], [Gate("cap/t/a", 1), *(Gate(f"until/z/{number}", 0) for number in range(10))])
    for number in range(100_000):
        engine.enqueue("q", names=["cap/t/a"] if number % 2 else [f"until/z/{number % 10}"])
    for _ in range(100):
        engine.enqueue("q")
    engine.steps = 0
    assert len(engine.claim("q", 100, 1)) == 100
    assert engine.steps < 200


def test_lanes_that_close_at_once_are_met_in_bounded_steps_and_none_is_lost() -> None:
    engine = Engine()
    lanes = 2 * LANES_MET + 500
    engine.put_spec("q", [], [Gate("until/z", 5), *(Gate(f"cap/s/{number}", 1) for number in range(lanes))])
    for number in range(lanes):
        engine.enqueue("q", names=["until/z", f"cap/s/{number}"])
    engine.enqueue("q")
    engine.set_gate("until/z", 0, 1)
    engine.steps = 0
    assert engine.claim("q", 1, 1) == []
    assert engine.steps <= LANES_MET
    assert engine.claim("q", 1, 1) == []
    assert [job.id for job in engine.claim("q", 1, 1)] == [lanes]
    engine.set_gate("until/z", 3, 1)
    assert [job.id for job in engine.claim("q", 9, 1)] == [0, 1, 2]


def test_nothing_passes_a_costly_head_at_its_gate() -> None:
    engine = Engine()
    engine.put_spec("q", [], [Gate("cap/k/x", 3), Gate("cap/t/a", 9), Gate("cap/t/b", 9)])
    small, costly = engine.enqueue("q", names=["cap/k/x"]), engine.enqueue("q", names=["cap/k/x", "cap/t/a"], cost=3)
    late, free = engine.enqueue("q", names=["cap/k/x", "cap/t/b"]), engine.enqueue("q", names=["cap/t/b"])
    assert engine.claim("q", 9, 1) == [small, free]
    engine.settle(small, again=False, now=1)
    assert engine.claim("q", 9, 1) == [costly]
    engine.settle(costly, again=False, now=1)
    assert engine.claim("q", 9, 1) == [late]


def test_a_claim_of_one_class_finds_room_that_another_class_was_first_for() -> None:
    engine = Engine()
    engine.put_spec("q", [], [Gate("cap/k/x", 1)], {"a": 1, "b": 1})
    jobs = [engine.enqueue("q", cls, ["cap/k/x"]) for cls in "aab"]
    (running,) = engine.claim("q", 9, 1)
    engine.settle(running, again=False, now=1)
    assert engine.claim("q", 9, 1, "b") == [jobs[2]]


def test_a_rate_says_when_it_opens_and_opens_then() -> None:
    engine = Engine()
    engine.put_spec("q", [], [Gate("rate/t/a", 1, 10)])
    first, second = engine.enqueue("q", names=["rate/t/a"]), engine.enqueue("q", names=["rate/t/a"])
    assert engine.claim("q", 1, 100) == [first]
    assert engine.next_opening() == 110
    assert engine.claim("q", 1, 109) == []
    assert engine.workable_at(engine.by_queue["q"], 109) == MAX_INSTANT
    assert [state.name for state in engine.tick(110)] == ["rate/t/a"]
    assert engine.workable_at(engine.by_queue["q"], 110) == 110
    assert engine.claim("q", 1, 110) == [second]
    assert engine.next_opening() is None


def test_a_turn_moves_by_the_weight() -> None:
    engine = Engine()
    engine.put_spec("q", [], [], {"a": 3})
    engine.enqueue("q", "a")
    engine.enqueue("q", "a")
    engine.claim("q", 1, 1)
    assert engine.by_queue["q"].classes["a"].turn == UNIT // 3


def test_an_order_loads_what_may_come_before_its_first() -> None:
    pages = [[1, 5], [6, 9], []]

    def load() -> Key | None:
        page = pages.pop(0)
        for number in page:
            order.put(number)
        return (page[-1],) if page else None

    order: Order[int] = Order(lambda number: (number,), load)
    found = []
    while (number := order.first()) is not None:
        found.append(number)
        order.drop(number)
    assert found == [1, 5, 6, 9]
    assert not pages
