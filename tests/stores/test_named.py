"""The twelve queues everybody knows by name, each as a story: how it classically fails, then that it does not.

A failure is brought about with the containment taken away: another `QueueSpec`, or a few lines of the naive queue that
people write by hand. Then the same thing happens to the named configuration. One clock, turned by hand; no sleeping.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from threading import Thread

import pytest
from msgspec.structs import replace

from forebay.core.decide import decide
from forebay.core.errors import ForebayError, OffsetGone, QueueFull
from forebay.core.gate import condition_gate
from forebay.core.instant import Span, days, minutes, seconds
from forebay.core.job import Draft, State
from forebay.core.lease import Lease, Settled
from forebay.core.named import (
    BOUNDED,
    BROKER,
    COALESCING,
    DEAD_LETTER,
    DELAY,
    DURABLE_LOG,
    FAIR,
    FIFO,
    NAMED,
    PRIORITY,
    RETRY,
    WAITLIST,
    WORK,
)
from forebay.core.outcome import EXPIRED, Abandoned, Ack, Dropped, Failed, Failure, Outcome
from forebay.core.policy import (
    AtMost,
    Bounded,
    DeadLetters,
    FanOut,
    Fixed,
    Immediate,
    KeepFor,
    Priority,
    Retained,
    Route,
    Routing,
    Unbounded,
)
from forebay.core.spec import QueueSpec
from forebay.redrive import Course, Plan, carry_out, chosen
from forebay.store.memory.image import image, restore
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Backlog, Want
from forebay.testing.clock import ManualClock

SECOND: Span = 1_000_000
HOUR: Span = 3_600 * SECOND
BOOM = Failure("Boom", "it broke")


class World:
    """One store, one clock, one queue `q`."""

    def __init__(self, spec: QueueSpec, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.spec = spec
        self.store.put_spec(spec)

    def send(self, *drafts: Draft) -> list[int]:
        queued = [replace(draft, queue=self.spec.name) for draft in drafts]
        batches = [queued[start : start + 1_000] for start in range(0, len(queued), 1_000)]
        return [receipt.id for batch in batches for receipt in self.store.enqueue(batch)]

    def claim(self, count: int = 1, lease_for: float = 30) -> list[Lease]:
        return self.store.claim([Want(self.spec.name, count)], "ada", seconds(lease_for))

    def done(self, leases: Iterable[Lease]) -> list[Settled]:
        return self.store.settle([(lease, Ack()) for lease in leases])

    def settle(self, lease: Lease, outcome: Outcome, draw: float = 0.5) -> Settled:
        return self.store.settle([(lease, decide(lease.job, outcome, self.spec.routing, draw))])[0]

    def reap(self) -> None:
        for lease in self.store.overdue(1_000):
            self.settle(lease, Abandoned(lease.owner))

    def backlog(self) -> Backlog:
        return self.store.backlog([self.spec.name])[0]

    def state(self, job_id: int) -> State | None:
        job = self.store.get([job_id])[0]
        return None if job is None else job.state

    def crash_and_recover(self) -> None:
        """What the journal does: the facts survive, everything else is built anew."""
        self.store = MemoryStore(clock=self.clock, facts=restore(image(self.store._facts)))


def payloads(leases: Iterable[Lease]) -> list[object]:
    return [lease.job.payload for lease in leases]


def steps(subject: str, count: int) -> list[Draft]:
    return [Draft("step", f"{subject}{n}", subject=subject) for n in range(1, count + 1)]


# 1  FIFO


def test_fifo_head_of_line_blocking_and_order_under_parallelism() -> None:
    parallel = World(QueueSpec(name="q"))
    parallel.send(*steps("a", 2))
    first, second = parallel.claim(2)
    assert payloads([second, first]) == ["a2", "a1"], "two workers hold one subject: a2 may well be finished before a1"

    one_at_a_time = World(QueueSpec(name="q", eligibility=AtMost(1)))
    one_at_a_time.send(*steps("a", 1), *steps("b", 1))
    one_at_a_time.claim()
    assert one_at_a_time.claim() == [], "order by one worker: a slow head holds up a stranger"

    world = World(FIFO("q"))
    world.send(*steps("a", 3), *steps("b", 1))
    a1, b1 = world.claim(10)
    assert payloads([a1, b1]) == ["a1", "b1"], "one of each subject at a time, side by side"
    world.done([b1])
    world.settle(a1, Failed(BOOM), draw=0.9)
    assert world.claim(10) == [], "a failed head still stands before its own subject"
    world.clock.advance(HOUR)
    [a1] = world.claim(10)
    world.clock.advance(HOUR)
    world.reap()
    [a1] = world.claim(10)
    assert (a1.job.payload, a1.job.delivery) == ("a1", 3), "after a retry and a crash it is still the first"
    world.done([a1])
    order = []
    while leases := world.claim(10):
        order += payloads(leases)
        world.done(leases)
    assert order == ["a2", "a3"]


# 2  Work queue


def test_work_crash_after_the_effect_and_stuck_in_flight() -> None:
    naive, in_flight, effects = ["job"], list[str](), Counter[str]()
    job = naive.pop()
    in_flight.append(job)
    effects[job] += 1
    assert (naive, in_flight) == ([], ["job"]), "the worker died before its ack: stuck for ever, and nobody knows"

    world = World(WORK("q"))
    [job_id] = world.send(Draft("charge"))
    applied: set[int] = set()
    charged = 0

    def charge(lease: Lease) -> None:
        """An effect that is made once by the job's id, in the same step as the memory of it."""
        nonlocal charged
        if lease.job.id not in applied:
            applied.add(lease.job.id)
            charged += 1

    [crashed] = world.claim()
    charge(crashed)
    assert world.backlog().running == 1
    world.clock.advance(31 * SECOND)
    world.reap()
    [again] = world.claim()
    assert (again.job.id, again.job.delivery, again.job.suspect) == (job_id, 2, True)
    charge(again)
    assert world.done([crashed]) == [Settled.STALE], "the fence knows the late one"
    assert world.done([again]) == [Settled.APPLIED]
    assert (charged, world.backlog().depth) == (1, 0)


def test_work_a_job_that_kills_its_workers_has_only_so_many_lives() -> None:
    world = World(replace(WORK("q"), routing=Routing(max_attempts=3)))
    [killer] = world.send(Draft("killer"))
    kills = 0
    while world.claim():
        kills += 1
        world.clock.advance(31 * SECOND)
        world.reap()
    assert (kills, world.state(killer)) == (3, State.DEAD)


# 3  Broker


def test_broker_loss_by_a_wrong_ack_and_a_slow_subscribers_backlog() -> None:
    early = World(QueueSpec(name="q"))
    early.send(Draft("mail"))
    early.done(early.claim())
    early.crash_and_recover()
    assert early.claim() == [], "acknowledged on arrival, lost in the crash before the effect, and no trace of it"

    shared = World(QueueSpec(name="q"))
    shared.send(*[Draft("event")] * 5_000)
    assert shared.backlog().depth == 5_000, "nobody is told that the slow subscriber is drowning"

    world = World(BROKER("q"))
    routes = FanOut((Route("order.*", "slow"), Route("**", "fast")))
    world.store.put_spec(replace(BROKER("q"), fan_out=routes))
    world.store.put_spec(QueueSpec(name="slow", capacity=Bounded(3)))
    world.store.put_spec(QueueSpec(name="fast", retention=KeepFor(days(1))))
    orders = world.store.enqueue([Draft("order.paid", queue="q")] * 3)
    assert [len(receipt.copies) for receipt in orders] == [2, 2, 2]
    with pytest.raises(QueueFull) as full:
        world.store.enqueue([Draft("order.paid", queue="q")])
    assert (full.value.queue, full.value.depth) == ("slow", 3)
    assert [each.depth for each in world.store.backlog(["slow", "fast"])] == [3, 3], "all copies or none"
    [other] = world.store.enqueue([Draft("user.born", queue="q")])
    assert len(other.copies) == 1, "who is not concerned is neither asked nor held up"

    [lease] = world.store.claim([Want("fast", 1)], "ada", seconds(30))
    world.crash_and_recover()
    world.clock.advance(31 * SECOND)
    world.reap()
    [lease] = world.store.claim([Want("fast", 1)], "ada", seconds(30))
    assert lease.job.delivery in (1, 2)
    world.done([lease])
    assert world.state(lease.job.id) is State.DONE, "a wrong ack can be seen for a day"
    world.clock.advance(25 * HOUR)
    world.store.promote(10)
    assert world.state(lease.job.id) is None


# 4  Durable log


class NaiveLog:
    """A list, and one number for each group that anybody may overwrite."""

    def __init__(self, entries: list[str]) -> None:
        self.entries = entries
        self.place: dict[str, int] = {}

    def read(self, group: str) -> list[str]:
        return self.entries[self.place.get(group, 0) :]


def test_durable_log_a_bad_commit_and_a_trim_that_somebody_needed() -> None:
    naive = NaiveLog(["a", "b", "c", "d"])
    naive.place["mail"] = 4
    naive.place["mail"] = 2
    assert naive.read("mail") == ["c", "d"], "a slow reader's late commit moves the group back: mails go out twice"
    naive.place["audit"] = 1
    del naive.entries[:2]
    assert naive.read("audit") == ["d"], "after the trim, b and c were skipped and nobody noticed"

    world = World(DURABLE_LOG("q"))
    log = world.store
    entries = log.append("q", [b"%d" % n for n in range(6)], ["user"] * 6)
    partition = entries[0].partition
    assert {entry.partition for entry in entries} == {partition}
    assert [entry.offset for entry in log.read("q", partition, -1, 10)] == [0, 1, 2, 3, 4, 5]
    assert log.commit("q", "mail", partition, 5) == 5
    assert log.commit("q", "mail", partition, 2) == 5, "a late commit does not move the group back"
    assert log.commit("q", "mail", partition, 1, rewind=True) == 1, "a replay is asked for by name"
    _, following = log.extent("q")[partition]
    assert following - 1 - log.position("q", "mail", partition) == 4, "lag is two numbers and a minus"

    window = world.spec.retention
    assert isinstance(window, Retained)
    assert (window.window, window.lagging) == (days(7), "block")
    world.clock.advance(4 * 24 * HOUR)
    log.commit("q", "mail", partition, 2)
    world.clock.advance(4 * 24 * HOUR)
    log.append("q", [b"6"], ["user"])
    log.promote(1_000)
    assert log.extent("q")[partition][0] == 3, "past the window, but mail still reads and has only come so far"
    world.clock.advance(5 * 24 * HOUR)
    log.promote(1_000)
    with pytest.raises(OffsetGone) as gone:
        log.read("q", partition, log.position("q", "mail", partition), 10)
    assert (gone.value.asked, gone.value.first) == (3, 6), "not seen for a week: an error that says what is left"
    assert [entry.body for entry in log.read("q", partition, gone.value.first - 1, 10)] == [b"6"]


# 5  Delay


class NaiveTimers:
    """A dict in one process, read with the clock of whoever asks."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}

    def due(self, now: int) -> list[str]:
        return [name for name, at in self.at.items() if at <= now]


def test_delay_clock_skew_a_storm_of_timers_and_timers_missed_in_a_crash() -> None:
    now = ManualClock().now()
    timers = NaiveTimers()
    timers.at["reminder"] = now + HOUR
    fast_machine = now + 2 * HOUR
    assert timers.due(fast_machine) == ["reminder"], "whoever asks brings the time: an hour early on a fast machine"
    timers = NaiveTimers()
    assert timers.due(now + 24 * HOUR) == [], "the process that kept the timers died, and they with it"

    world = World(DELAY("q"))
    [job_id] = world.send(Draft("reminder", run_at=world.clock.now() + HOUR))
    world.clock.advance(HOUR - 1)
    assert world.claim() == [], "the store's clock decides, to the microsecond, whoever asks"
    world.crash_and_recover()
    world.clock.advance(24 * HOUR)
    [late] = world.claim()
    assert late.job.id == job_id, "the store was down when it was due: it is run late, not never"
    world.done([late])

    at = world.clock.now() + HOUR
    ids = world.send(*[Draft("alarm", run_at=at + n % 10) for n in range(3_000)])
    world.clock.advance(HOUR + 10)
    assert world.store.promote(100).ready == 100, "a storm is taken in bounded steps"
    assert world.backlog().waiting >= 2_000
    order = [lease.job for _ in range(3) for lease in world.claim(1_000)]
    assert [job.due_at for job in order] == sorted(at + n % 10 for n in range(3_000)), "and in the order of due times"
    assert {job.id for job in order} == set(ids)


# 6  Priority


def low_among_high(world: World, rounds: int) -> int | None:
    """Every second a new urgent job arrives and one is served: when does the old low one get its turn?"""
    [low] = world.send(Draft("low"))
    for second in range(rounds):
        world.send(Draft("high", priority=5))
        [lease] = world.claim()
        if lease.job.id == low:
            return second
        world.done([lease])
        world.clock.advance(SECOND)
    return None


def test_priority_starvation() -> None:
    strict = World(QueueSpec(name="q", selection=Priority()))
    assert low_among_high(strict, 1_000) is None, "everything is urgent: the low one starves"

    world = World(PRIORITY("q"))
    assert low_among_high(world, 1_000) == 300, "five points are worth five minutes, no more"


def test_priority_still_means_something() -> None:
    world = World(PRIORITY("q"))
    world.send(*[Draft("job", priority=priority) for priority in (1, 9, 5)])
    assert [lease.job.priority for lease in world.claim(3)] == [9, 5, 1]


# 7  Retry


def returns(world: World, attempts: int) -> Counter[int]:
    """1,000 jobs fail together, again and again; the second in which each comes back after its last failure."""
    rng = random.Random(7)
    ids = world.send(*[Draft("call")] * 1_000)
    for _ in range(attempts):
        world.clock.advance(HOUR)
        for lease in world.claim(1_000):
            world.settle(lease, Failed(BOOM), draw=rng.random())
    jobs = [job for job in world.store.get(ids) if job is not None and job.attempt == attempts]
    return Counter((job.due_at - world.clock.now()) // SECOND for job in jobs)


def test_retry_a_storm_of_retries() -> None:
    storm = returns(World(QueueSpec(name="q", routing=Routing(backoff=Fixed(seconds(16))))), 5)
    assert storm == {16: 1_000}, "all of them come back in the same second, and knock the dependency down again"

    spread = returns(World(RETRY("q")), 5)
    assert len(spread) == 16
    assert max(spread.values()) <= 150


def test_retry_of_what_cannot_succeed_and_effects_twice() -> None:
    stubborn = World(QueueSpec(name="q", routing=Routing(max_attempts=1_000, backoff=Fixed())))
    stubborn.send(Draft("no-such-address"))
    for _ in range(500):
        [lease] = stubborn.claim()
        stubborn.settle(lease, Failed(BOOM))
    assert stubborn.backlog().depth == 1, "five hundred runs, and it will never work"

    world = World(RETRY("q"))
    hopeless, unlucky = world.send(Draft("no-such-address"), Draft("flaky"))
    first, second = world.claim(2)
    world.settle(first, Dropped(BOOM))
    assert world.state(hopeless) is State.DEAD, "the handler knows better: dead at once"
    runs = 1
    world.settle(second, Failed(BOOM))
    world.clock.advance(HOUR)
    while leases := world.claim():
        runs += 1
        world.settle(leases[0], Failed(BOOM))
        world.clock.advance(HOUR)
    assert (runs, world.state(unlucky)) == (8, State.DEAD), "eight lives, exactly"

    world.send(Draft("slow"))
    [late] = world.claim()
    world.clock.advance(HOUR)
    world.reap()
    [current] = world.claim()
    fences = {late.fence, current.fence}
    assert len(fences) == 2, "the effect can tell the two runs apart"
    assert world.done([late]) == [Settled.STALE]
    assert world.done([current]) == [Settled.APPLIED]


# 8  Dead letters


def test_dead_letter_nobody_looks_a_second_backlog_and_no_way_back() -> None:
    silent = World(QueueSpec(name="q"))
    silent.send(*[Draft("poison", {"card": "4111 1111"})] * 20)
    for _ in range(24):
        for lease in silent.claim(20):
            silent.settle(lease, Failed(Failure("Unreadable", f"cannot read {lease.job.payload}")))
        silent.clock.advance(HOUR)
    assert silent.backlog().dead == 0, "480 failures, and nobody has anything to look at"
    assert "4111" in repr(silent.claim()[0].job.errors), "a careless handler: the secret is in every log by now"
    assert len(silent.send(*[Draft("quarantined")] * 20_000)) == 20_000, "a second backlog that nothing bounds"

    world = World(QueueSpec(name="q", routing=Routing(max_attempts=1, dead=DeadLetters("graves"))))
    graves = DEAD_LETTER("graves")
    world.store.put_spec(graves)
    ids = world.send(*[Draft("mail", {"card": "4111 1111"})] * 50)
    for lease in world.claim(50):
        world.settle(lease, Failed(Failure("Unreadable", "no such field: amount")))
    [own, dead] = world.store.backlog(["q", "graves"])
    assert (own.depth, own.dead, dead.dead) == (0, 0, 50), (
        "one try each; they lie elsewhere, and the backlog shows them"
    )
    job = world.store.get(ids[:1])[0]
    assert job is not None
    assert "4111" not in repr(job.errors), "the error is kept, the payload is not copied into it"

    plan = Plan(queue="graves", sample=2)
    course = carry_out(world.store, Course(plan, [job.id for job in chosen(world.store, plan)]))
    assert len(course.moved) == 2
    assert world.store.redrive(course.moved) == [], "once"
    assert {lease.job.queue for lease in world.claim(2)} == {"q"}, "a sample went home, under their own ids"

    assert graves.routing.dead == DeadLetters(keep=days(30), most=1_000_000)
    world.store.put_spec(replace(graves, routing=Routing(dead=DeadLetters(keep=days(30), most=10))))
    world.store.promote(1_000)
    assert world.store.backlog(["graves"])[0].dead == 10, "bounded in number: the oldest went"
    world.clock.advance(31 * 24 * HOUR)
    world.store.promote(1_000)
    assert world.store.backlog(["graves"])[0].dead == 0, "and in age"


# 9  Bounded


def in_background(call: Callable[[], object]) -> tuple[Thread, list[object]]:
    answers: list[object] = []

    def run() -> None:
        try:
            answers.append(call())
        except ForebayError as error:
            answers.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread, answers


def test_bounded_latency_without_a_bound_and_a_stalled_producer_with_one() -> None:
    unbounded = World(replace(BOUNDED("q"), capacity=Unbounded()))
    for _ in range(60):
        unbounded.send(*[Draft("job")] * 300)
        unbounded.done(unbounded.claim(200))
        unbounded.clock.advance(SECOND)
    assert unbounded.backlog().oldest_age >= 20 * SECOND, (
        "too fast a producer: nobody tells it, and the wait only grows"
    )

    world = World(BOUNDED("q"))
    world.send(*[Draft("job")] * 10_000)
    stalled, answers = in_background(lambda: world.send(Draft("one-more")))
    world.clock.until_asleep(1)
    assert world.backlog().depth == 10_000, "the bound is exact"
    world.clock.advance(5 * SECOND)
    stalled.join(10)
    [full] = answers
    assert isinstance(full, QueueFull), "the stall ends by itself"
    assert (full.depth, full.limit, full.retry_after > 0) == (10_000, 10_000, True)

    waiting, answers = in_background(lambda: world.send(Draft("one-more")))
    world.clock.until_asleep(1)
    world.done(world.claim(1))
    waiting.join(10)
    assert answers == [[10_001]], "room for one lets one in"
    with pytest.raises(QueueFull, match="can never fit"):
        World(replace(BOUNDED("q"), capacity=Bounded(5))).send(*[Draft("job")] * 6)


# 10  Fair


def served(world: World, count: int) -> Counter[str | None]:
    tenants: Counter[str | None] = Counter()
    for _ in range(count):
        leases = world.claim()
        tenants.update(lease.job.tenant for lease in leases)
        world.done(leases)
    return tenants


def test_fair_a_loud_tenant_and_idle_ones() -> None:
    loud = [Draft("job", tenant="loud")] * 1_000
    plain = World(QueueSpec(name="q"))
    plain.send(*loud, *[Draft("job", tenant="quiet")] * 10)
    assert served(plain, 500)["quiet"] == 0, "the quiet tenant waits for a thousand jobs that are not its own"

    reserved = World(QueueSpec(name="q", eligibility=AtMost(32, per="tenant")))
    reserved.send(*loud)
    assert len(reserved.claim(64)) == 32, "half of the workers are kept for a tenant that has nothing to do"

    world = World(FAIR("q"))
    world.send(*loud, *[Draft("job", tenant="quiet")] * 10)
    assert served(world, 20) == {"loud": 10, "quiet": 10}, "turn by turn"
    assert served(world, 100) == {"loud": 100}, "and an idle tenant gives its turns away"
    world.send(*[Draft("job", tenant="quiet")] * 100)
    assert served(world, 50) == {"loud": 25, "quiet": 25}, "it has saved nothing up, and owes nothing"
    assert len(world.claim(64)) == 64, "all workers are busy"
    assert Counter(lease.job.tenant for lease in world.claim(1_000)) == {"loud": 32, "quiet": 32}


# 11  Coalescing


def test_coalescing_repeated_work_a_lost_event_and_a_hot_key() -> None:
    changes = [Draft("reindex", version, subject="page") for version in range(1, 101)]
    other = Draft("reindex", "other", subject="other")
    plain = World(QueueSpec(name="q"))
    plain.send(*changes, other)
    assert plain.claim(100)[-1].job.payload == 100, "a hundred runs where one would do, and the rest wait behind them"

    pending: dict[str, int] = {}
    for change in changes:
        pending.setdefault("page", int(change.payload))
    assert pending == {"page": 1}, "first one wins: the index stays at version 1 for ever"

    world = World(COALESCING("q"))
    assert len(set(world.send(*changes))) == 1
    world.send(other)
    running, stranger = world.claim(10)
    assert payloads([running, stranger]) == [100, "other"], (
        "one run with the newest payload, and nobody waits behind it"
    )

    world.send(Draft("reindex", 101, subject="page"))
    world.send(Draft("reindex", 102, subject="page"))
    assert world.claim(10) == [], "one runs, one waits"
    world.settle(running, Failed(BOOM), draw=0.9)
    runs = []
    for _ in range(3):
        world.clock.advance(HOUR)
        for lease in world.claim(10):
            runs.append(lease.job.payload)
            world.done([lease])
    assert runs == [100, 102], "also after a failure the newest is the last to run"


# 12  Waitlist


class NaiveDoor:
    """Look first, enter later."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.inside = 0

    def has_room(self) -> bool:
        return self.inside < self.slots


def test_waitlist_overbooking_stale_promotion_and_waiting_for_ever() -> None:
    door = NaiveDoor(slots=2)
    welcome = [door.has_room() for _ in range(3)]
    for _ in filter(None, welcome):
        door.inside += 1
    assert door.inside > door.slots, "three look before the first one enters: overbooked"
    immediate = World(replace(WAITLIST("q"), eligibility=Immediate()))
    immediate.send(*[Draft("guest")] * 5)
    assert len(immediate.claim(10)) == 5, "without a gate everybody is let in"

    world = World(WAITLIST("q"))
    now = world.clock.now()
    calm, stale, urgent, soon = world.send(
        Draft("guest", "calm", deadline=now + 9 * HOUR),
        Draft("guest", "stale", deadline=now + 1, expires_at=now + HOUR),
        Draft("guest", "urgent", deadline=now + 2 * HOUR),
        Draft("guest", "soon", deadline=now + 3 * HOUR),
    )
    assert world.claim(10) == [], "closed until somebody opens it"
    world.clock.advance(2 * HOUR)
    world.store.set_gate(condition_gate("capacity"), 2)
    admitted_now = world.claim(10)
    assert payloads(admitted_now) == ["urgent", "soon"], "as many as there are slots, the most urgent first"
    dead = world.store.get([stale])[0]
    assert dead is not None
    assert (dead.state, dead.errors[-1].kind) == (State.DEAD, EXPIRED), "who left in the meantime is not promoted"
    assert world.claim(10) == []
    world.done(admitted_now[:1])
    assert payloads(world.claim(10)) == ["calm"], "a slot that is freed goes to the next"
    assert [world.state(job_id) for job_id in (urgent, soon, calm)] == [None, State.RUNNING, State.RUNNING]

    for _ in range(9):
        world.send(*[Draft("guest", expires_at=world.clock.now() + HOUR)] * 1_000)
    world.send(*[Draft("guest")] * 998)
    with pytest.raises(QueueFull):
        world.send(Draft("one-too-many"))
    world.clock.advance(2 * HOUR)
    while world.store.promote(1_000).ready or world.backlog().waiting > 998:
        assert world.backlog().dead <= 9_001
    assert world.backlog().dead == 9_001, "nobody waits for ever: the list empties itself"


# All of them


def test_every_name_travels_prints_and_tells_how_it_fails() -> None:
    assert len(NAMED) == 12
    vectors = set()
    for name, named in NAMED.items():
        spec = named(name)
        assert QueueSpec.from_json(spec.to_json()) == spec
        assert spec.vector().startswith(f"{name} = {{")
        assert spec.vector().count(", ") >= 4
        assert named.fails_by
        assert named.contained_by
        assert named.test
        assert spec.commit_point
        vectors.add(named("q").vector())
    assert len(vectors) == 12, "a reader can tell them apart"


def test_a_name_is_a_shortcut_and_every_field_may_be_changed() -> None:
    spec = replace(NAMED["work"]("q"), retention=KeepFor(minutes(5)))
    assert "keep 5 min" in spec.vector()
