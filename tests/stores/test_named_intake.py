"""Named queues that differ in intake and retention: broker, durable log, bounded, waitlist.

First the classic failure, with the containment taken away: another `QueueSpec`, or a few lines of the naive queue that
people write by hand. Then the same thing happens to the named configuration, on every store. Where a bound of
thousands would only take time, the story says so and has a smaller one. One clock, turned by hand; no sleeping.
"""

import pytest
from msgspec.structs import replace

from forebay.core.errors import OffsetGone, QueueFull
from forebay.core.gate import condition_gate
from forebay.core.instant import days, seconds
from forebay.core.job import Draft, State
from forebay.core.named import BOUNDED, BROKER, DURABLE_LOG, WAITLIST
from forebay.core.outcome import EXPIRED
from forebay.core.policy import Block, Bounded, FanOut, Immediate, KeepFor, Reject, Retained, Route, Unbounded
from forebay.core.spec import QueueSpec
from forebay_proof.conformance.racing import RacingCall
from tests.stores.world import DAY, HOUR, SECOND, Begin, World, payloads


def test_broker_loss_by_a_wrong_ack_and_a_slow_subscribers_backlog(begin: Begin) -> None:
    early = begin(QueueSpec(name="q"))
    early.send(Draft("mail"))
    early.done(early.claim())
    early.reopen()
    assert early.claim() == [], "acknowledged on arrival, lost in the crash before the effect, and no trace of it"

    shared = begin(QueueSpec(name="q"))
    shared.send(*[Draft("event")] * 1_000)
    assert shared.backlog().depth == 1_000, "there is no signal that the slow subscriber falls behind"

    broker = BROKER("q")
    assert broker.fan_out == FanOut((Route("**", "q.all"),))
    world = begin(replace(broker, fan_out=FanOut((*broker.fan_out.routes, Route("order.*", "slow")))))
    world.store.put_spec(QueueSpec(name="q.all", retention=KeepFor(days(1))))
    world.store.put_spec(QueueSpec(name="slow", capacity=Bounded(3)))
    orders = world.store.enqueue([Draft("order.paid", queue="q")] * 3)
    assert [len(receipt.copies) for receipt in orders] == [2, 2, 2]
    with pytest.raises(QueueFull) as full:
        world.send(Draft("order.paid"))
    assert (full.value.queue, full.value.depth) == ("slow", 3)
    assert [world.backlog(queue).depth for queue in ("slow", "q.all")] == [3, 3], "all copies or none"
    [other] = world.store.enqueue([Draft("user.born", queue="q")])
    assert len(other.copies) == 1, "a queue that no route names is not delayed"

    [lost] = world.claim(queue="q.all")
    world.reopen()
    world.reap()
    world.clock.advance(HOUR)
    leases = world.claim(10, queue="q.all")
    assert [lease.job.delivery for lease in leases if lease.job.id == lost.job.id] == [2], "not acknowledged, not lost"
    world.done(leases)
    assert world.state(lost.job.id) is State.DONE, "a wrong ack can be seen for a day"
    world.clock.advance(25 * HOUR)
    world.store.promote(10)
    assert world.state(lost.job.id) is None


class NaiveLog:
    """A list, and one number for each group, without a fence."""

    def __init__(self, entries: list[str]) -> None:
        self.entries = entries
        self.place: dict[str, int] = {}

    def read(self, group: str) -> list[str]:
        return self.entries[self.place.get(group, 0) :]


def test_durable_log_a_bad_commit_and_a_trim_of_needed_entries(begin: Begin) -> None:
    naive = NaiveLog(["a", "b", "c", "d"])
    naive.place["mail"] = 4
    naive.place["mail"] = 2
    assert naive.read("mail") == ["c", "d"], "a slow reader's late commit moves the group back: mails go out twice"
    naive.place["audit"] = 1
    del naive.entries[:2]
    assert naive.read("audit") == ["d"], "after the trim, b and c were skipped without an error"

    world = begin(DURABLE_LOG("q"))
    log, appended = world.store, world.clock.now()
    entries = log.append("q", [b"%d" % n for n in range(6)], ["user"] * 6)
    partition = entries[0].partition
    assert {entry.partition for entry in entries} == {partition}
    assert [entry.offset for entry in log.read("q", partition, -1, 10)] == [0, 1, 2, 3, 4, 5]
    assert log.commit("q", "mail", partition, 5) == 5
    assert log.commit("q", "mail", partition, 2) == 5, "a late commit does not move the group back"
    assert log.commit("q", "mail", partition, 1, rewind=True) == 1, "a replay needs `rewind`"
    [standing] = [each for each in log.groups("q", "", 10) if each.partition == partition]
    assert (standing.lag, standing.lost, standing.loses_at) == (4, 0, appended + 7 * DAY), "visible before it loses any"

    window = world.spec.retention
    assert isinstance(window, Retained)
    assert (window.window, window.lagging) == (days(7), "block")
    world.clock.advance(4 * DAY)
    log.commit("q", "mail", partition, 2)
    world.clock.advance(4 * DAY)
    log.append("q", [b"6"], ["user"])
    log.promote(1_000)
    assert log.extent("q")[partition][0] == 3, "past the window, but mail still reads and has only come so far"
    world.clock.advance(5 * DAY)
    log.promote(1_000)
    with pytest.raises(OffsetGone) as gone:
        log.read("q", partition, log.position("q", "mail", partition), 10)
    assert (gone.value.requested, gone.value.first) == (3, 6), "not seen for a week: an error that says what is left"
    assert [entry.body for entry in log.read("q", partition, gone.value.first - 1, 10)] == [b"6"]
    [standing] = [each for each in log.groups("q", "", 10) if each.partition == partition]
    assert standing.lost == 3, "and what it lost is counted"


def test_bounded_latency_without_a_bound_and_a_stalled_producer_with_one(begin: Begin) -> None:
    unbounded = begin(replace(BOUNDED("q"), capacity=Unbounded()))
    for _ in range(60):
        unbounded.send(*[Draft("job")] * 30)
        unbounded.done(unbounded.claim(20))
        unbounded.clock.advance(SECOND)
    assert unbounded.backlog().oldest_age >= 20 * SECOND, "too fast a producer gets no signal, and the wait only grows"

    assert BOUNDED("q").capacity == Bounded(10_000, Block(timeout=seconds(5)))
    world = begin(replace(BOUNDED("q"), capacity=Bounded(100, Block(timeout=seconds(5)))))
    world.send(*[Draft("job")] * 100)
    stalled = RacingCall(lambda: world.send(Draft("one-more")))
    world.clock.until_asleep(1)
    assert world.backlog().depth == 100, "the bound is exact"
    world.clock.advance(5 * SECOND)
    with pytest.raises(QueueFull) as full:
        stalled.result()
    assert (full.value.depth, full.value.limit) == (100, 100), "the stall ends by itself"
    assert full.value.retry_after > 0, "and the refusal says when to come back"

    waiting = RacingCall(lambda: world.send(Draft("one-more")))
    world.clock.until_asleep(1)
    world.done(world.claim(1))
    [accepted] = waiting.result()
    assert world.state(accepted) is State.READY, "room for one lets one in"
    assert world.backlog().depth == 100
    with pytest.raises(QueueFull, match="can never fit"):
        world.send(*[Draft("job")] * 101)


class NaiveIntake:
    """Checks the bound first and inserts later."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.inside = 0

    def has_room(self) -> bool:
        return self.inside < self.slots


def guests(world: World) -> list[int]:
    """Four guests: calm, stale (gone within the hour, and the most urgent), urgent and soon."""
    now = world.clock.now()
    return world.send(
        Draft("guest", "calm", deadline=now + 9 * HOUR),
        Draft("guest", "stale", deadline=now + 1, expires_at=now + HOUR),
        Draft("guest", "urgent", deadline=now + 2 * HOUR),
        Draft("guest", "soon", deadline=now + 3 * HOUR),
    )


def expired(world: World, job_id: int) -> bool:
    [job] = world.store.get([job_id])
    return job is not None and job.state is State.DEAD and job.errors[-1].kind == EXPIRED


def test_waitlist_overbooking_stale_promotion_and_waiting_for_ever(begin: Begin) -> None:
    door = NaiveIntake(slots=2)
    welcome = [door.has_room() for _ in range(3)]
    for _ in filter(None, welcome):
        door.inside += 1
    assert door.inside > door.slots, "three read before the first one enters: overbooked"
    immediate = begin(replace(WAITLIST("q"), eligibility=Immediate()))
    immediate.send(*[Draft("guest")] * 5)
    assert len(immediate.claim(10)) == 5, "without a gate every job is claimed"

    world = begin(WAITLIST("q"))
    calm, stale, urgent, soon = guests(world)
    assert world.claim(10) == [], "closed until an operator opens it"
    world.clock.advance(2 * HOUR)
    world.store.set_gate(condition_gate("capacity"), 2)
    admitted = world.claim(10)
    assert payloads(admitted) == ["urgent", "soon"], "as many as there are slots, the most urgent first"
    assert expired(world, stale), "a job that expired in the meantime is not promoted"
    assert world.claim(10) == []
    world.done(admitted[:1])
    assert payloads(world.claim(10)) == ["calm"], "a slot that is freed goes to the next"
    assert [world.state(job_id) for job_id in (urgent, soon, calm)] == [None, State.RUNNING, State.RUNNING]


def test_waitlist_a_release_lets_in_by_name_and_never_the_stale(begin: Begin) -> None:
    by_hand = begin(replace(WAITLIST("q"), eligibility=Immediate()))
    guests(by_hand)
    by_hand.clock.advance(30 * SECOND)
    assert payloads(by_hand.claim(1)) == ["stale"], "promoted by looking at the list: for the place that was meant"

    world = begin(WAITLIST("q"))
    calm, stale, urgent, soon = guests(world)
    world.clock.advance(2 * HOUR)
    assert world.store.release("capacity", 1) == 1, "one place has become free"
    assert expired(world, stale), "the first in the list had expired and did not count"
    [inside] = world.claim(10)
    assert inside.job.id == urgent
    assert world.store.hold(soon) is not None, "the next one is still held, and `hold` says why"
    world.done([inside])
    assert world.claim(10) == [], "a release is one place, not a slot that comes back"
    world.store.set_gate(condition_gate("capacity"), 1)
    assert payloads(world.claim(10)) == ["soon"], "beside it, capacity promotes as it did"
    assert world.store.release("capacity", 10) == 1
    assert [lease.job.id for lease in world.claim(10)] == [calm], "no other job is left"
    assert world.store.release("capacity", 10) == 0, "and nothing is saved up for later jobs"
    world.send(Draft("guest"))
    assert world.claim(10) == []


def test_waitlist_is_bounded_and_empties_itself(begin: Begin) -> None:
    assert WAITLIST("q").capacity == Bounded(10_000, Reject())
    world = begin(replace(WAITLIST("q"), capacity=Bounded(100, Reject())))
    world.send(*[Draft("guest", expires_at=world.clock.now() + HOUR)] * 90)
    world.send(*[Draft("guest")] * 10)
    with pytest.raises(QueueFull):
        world.send(Draft("one-too-many"))
    world.clock.advance(2 * HOUR)
    world.store.promote(100)
    assert (world.backlog().ready, world.backlog().dead) == (10, 90), "no job waits for ever"
    world.send(Draft("there-is-room-again"))
