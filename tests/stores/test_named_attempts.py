"""Named queues that differ in the attempts of a job: work, delay, retry, dead letters. On every store.

First the classic failure, with the containment taken away: another `QueueSpec`, or a few lines of the naive queue that
people write by hand. Then the same thing happens to the named configuration. One clock, turned by hand; no sleeping.
"""

import random
from collections import Counter

from msgspec.structs import replace

from forebay.core.instant import days, seconds
from forebay.core.job import Draft, State
from forebay.core.lease import Lease, Settled
from forebay.core.named import DEAD_LETTER, DELAY, RETRY, WORK
from forebay.core.outcome import Dropped, Failed, Failure
from forebay.core.policy import DeadLetters, Fixed, Routing
from forebay.core.spec import QueueSpec
from forebay.redrive import RedrivePlan, RedriveRun, chosen, run_redrive
from forebay.testing.clock import ManualClock
from tests.stores.world import BOOM, DAY, HOUR, SECOND, Begin, World


def test_work_crash_after_the_effect_and_stuck_in_flight(begin: Begin) -> None:
    naive, in_flight, effects = ["job"], list[str](), Counter[str]()
    job = naive.pop()
    in_flight.append(job)
    effects[job] += 1
    assert (naive, in_flight) == ([], ["job"]), "the worker died before its ack: stuck for ever, without a signal"

    world = begin(WORK("q"))
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
    world.reopen()
    world.reap()
    world.clock.advance(HOUR)
    [again] = world.claim()
    assert (again.job.id, again.job.delivery, again.job.suspect) == (job_id, 2, True)
    charge(again)
    assert world.done([crashed]) == [Settled.STALE], "the fence refuses the late one"
    assert world.done([again]) == [Settled.APPLIED]
    assert (charged, world.backlog().depth) == (1, 0)


def test_work_a_job_that_kills_its_workers_has_only_so_many_attempts(begin: Begin) -> None:
    world = begin(replace(WORK("q"), routing=Routing(max_attempts=3)))
    [killer] = world.send(Draft("killer"))
    kills = 0
    while world.claim():
        kills += 1
        world.reap()
        world.clock.advance(HOUR)
    assert (kills, world.state(killer)) == (3, State.DEAD)


class NaiveTimers:
    """A dict in one process, read with the caller's clock."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}

    def due(self, now: int) -> list[str]:
        return [name for name, at in self.at.items() if at <= now]


def test_delay_clock_skew_a_storm_of_timers_and_timers_missed_in_a_crash(begin: Begin) -> None:
    now = ManualClock().now()
    timers = NaiveTimers()
    timers.at["reminder"] = now + HOUR
    fast_machine = now + 2 * HOUR
    assert timers.due(fast_machine) == ["reminder"], "the caller's clock decides: an hour early on a fast machine"
    timers = NaiveTimers()
    assert timers.due(now + DAY) == [], "the process that kept the timers died, and they with it"

    world = begin(DELAY("q"))
    [job_id] = world.send(Draft("reminder", run_at=world.clock.now() + HOUR))
    world.clock.advance(HOUR - 1)
    assert world.claim() == [], "the store's clock decides, to the microsecond"
    world.reopen()
    world.clock.advance(DAY)
    [late] = world.claim()
    assert late.job.id == job_id, "the store was down when it was due: it is run late, not never"
    world.done([late])

    world.send(Draft("backlog"))
    at = world.clock.now() + HOUR
    ids = world.send(*[Draft("alarm", run_at=at + n % 10) for n in range(600)])
    world.clock.advance(HOUR + 10)
    assert world.store.promote(100).ready == 100, "a storm is taken in bounded steps"
    assert world.backlog().waiting >= 200
    order = [lease.job for _ in range(3) for lease in world.claim(200)]
    assert [job.due_at for job in order] == sorted(at + n % 10 for n in range(600)), "and in the order of due times"
    assert {job.id for job in order} == set(ids), "before the backlog, which did not have to wait for a time"


def returns(world: World, attempts: int) -> Counter[int]:
    """320 jobs fail together, again and again; the second in which each comes back after its last failure."""
    rng = random.Random(7)
    ids = world.send(*[Draft("call")] * 320)
    for _ in range(attempts):
        world.clock.advance(HOUR)
        world.settle(world.claim(320), Failed(BOOM), rng.random)
    jobs = [job for job in world.store.get(ids) if job is not None and job.attempt == attempts]
    return Counter((job.due_at - world.clock.now()) // SECOND for job in jobs)


def test_retry_a_storm_of_retries(begin: Begin) -> None:
    storm = returns(begin(QueueSpec(name="q", routing=Routing(backoff=Fixed(seconds(16))))), 5)
    assert storm == {16: 320}, "all of them come back in the same second, and knock the dependency down again"

    spread = returns(begin(RETRY("q")), 5)
    assert len(spread) == 16, "the fifth rest is anything up to 16 s"
    assert max(spread.values()) <= 40, "a sixteenth of them a second is 20"


def test_retry_of_what_cannot_succeed_and_effects_twice(begin: Begin) -> None:
    stubborn = begin(QueueSpec(name="q", routing=Routing(max_attempts=1_000, backoff=Fixed())))
    stubborn.send(Draft("no-such-address"))
    for _ in range(50):
        stubborn.settle(stubborn.claim(), Failed(BOOM))
    assert stubborn.backlog().depth == 1, "fifty runs, and it will never work"

    world = begin(RETRY("q"))
    hopeless, unlucky = world.send(Draft("no-such-address"), Draft("flaky"))
    first, second = world.claim(2)
    world.settle([first], Dropped(BOOM))
    assert world.state(hopeless) is State.DEAD, "the handler gave it up: dead at once"
    runs = 1
    world.settle([second], Failed(BOOM))
    world.clock.advance(HOUR)
    while leases := world.claim():
        runs += 1
        world.settle(leases, Failed(BOOM))
        world.clock.advance(HOUR)
    assert (runs, world.state(unlucky)) == (8, State.DEAD), "eight attempts, exactly"

    world.send(Draft("slow"))
    [late] = world.claim()
    world.reap()
    world.clock.advance(HOUR)
    [current] = world.claim()
    fences = {late.fence, current.fence}
    assert len(fences) == 2, "the effect can distinguish the two runs"
    assert world.done([late]) == [Settled.STALE]
    assert world.done([current]) == [Settled.APPLIED]


def test_dead_letter_a_second_backlog_and_no_way_back(begin: Begin) -> None:
    silent = begin(QueueSpec(name="q"))
    silent.send(*[Draft("poison", {"card": "4111 1111"})] * 20)
    for _ in range(24):
        silent.settle(silent.claim(20), Failed(Failure("Unreadable", "cannot read {'card': '4111 1111'}")))
        silent.clock.advance(HOUR)
    assert silent.backlog().dead == 0, "480 failures, and none is recorded"
    assert "4111" in repr(silent.claim()[0].job.errors), "a careless handler: the secret is in every log by now"
    assert len(silent.send(*[Draft("quarantined")] * 2_000)) == 2_000, "a second backlog that nothing bounds"

    world = begin(QueueSpec(name="q", routing=Routing(max_attempts=1, dead=DeadLetters("graves"))))
    graves = DEAD_LETTER("graves")
    world.store.put_spec(graves)
    [job_id, *_] = world.send(*[Draft("mail", {"card": "4111 1111"})] * 50)
    world.settle(world.claim(50), Failed(Failure("Unreadable", "no such field: amount")))
    own, dead = world.backlog(), world.backlog("graves")
    assert (own.depth, own.dead, dead.dead) == (0, 0, 50), (
        "one attempt each; they are in the other queue, as the backlog shows"
    )
    [job] = world.store.get([job_id])
    assert job is not None
    assert "4111" not in repr(job.errors), "the error is kept, the payload is not copied into it"

    plan = RedrivePlan(queue="graves", sample=2)
    course = run_redrive(world.store, RedriveRun(plan, [job.id for job in chosen(world.store, plan)]))
    assert len(course.moved) == 2
    assert world.store.redrive(course.moved) == [], "once"
    assert {lease.job.queue for lease in world.claim(2)} == {"q"}, "a sample went home, under their own ids"

    assert graves.routing.dead == DeadLetters(keep=days(30), limit=1_000_000)
    world.store.put_spec(replace(graves, routing=Routing(dead=DeadLetters(keep=days(30), limit=10))))
    world.store.promote(1_000)
    assert world.backlog("graves").dead == 10, "bounded in number: the oldest went"
    world.clock.advance(31 * DAY)
    world.store.promote(1_000)
    assert world.backlog("graves").dead == 0, "and in age"
