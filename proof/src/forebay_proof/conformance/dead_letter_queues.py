"""Rules for dead letters: which queue keeps them, for how long and how many of them, and how a redrive returns them."""

from datetime import timedelta

from forebay.core.errors import QueueFull
from forebay.core.instant import hours
from forebay.core.job import Job, State
from forebay.core.lease import Settled
from forebay.core.ledger import Change
from forebay.core.limits import MAX_BATCH
from forebay.core.outcome import DeadLetter
from forebay.core.policy import AtMost, Bounded, DeadLetters, InOrder, KeepFor, Reject, Routing
from forebay_proof.conformance.case import Need, case, case_if, refused
from forebay_proof.conformance.harness import ERROR, QUEUE, SECOND, Harness
from forebay_proof.conformance.racing import answers, race

_DEAD = "dead-letters"
_EDGE = Routing(dead=DeadLetters(_DEAD))


def _places(job: Job) -> tuple[State, str, str | None]:
    return job.state, job.queue, job.home


def _keeping(keep: timedelta | None = None, limit: int | None = None) -> Routing:
    return Routing(dead=DeadLetters(keep=keep, limit=limit))


@case
def a_dead_letter_is_kept_in_the_queue_that_its_spec_names(h: Harness) -> None:
    h.spec(routing=_EDGE)
    job_id = h.dead(payload={"a": 1}, tenant="t", priority=3)
    job = h.get(job_id)
    assert _places(job) == (State.DEAD, _DEAD, QUEUE)
    assert (job.payload, job.tenant, job.priority, len(job.errors)) == ({"a": 1}, "t", 3, 1)
    assert [each.id for each in h.jobs(queue=_DEAD, state=State.DEAD)] == [job_id]
    assert h.jobs(queue=QUEUE) == []
    assert (h.backlog().dead, h.backlog().depth, h.backlog(_DEAD).dead) == (0, 0, 1)


@case
def a_dead_letter_is_not_handed_out_by_the_queue_that_keeps_it(h: Harness) -> None:
    h.spec(routing=_EDGE)
    h.spec(_DEAD)
    h.dead()
    assert h.claim(9, _DEAD) == []
    own = h.one(queue=_DEAD)
    assert h.drain(_DEAD) == [own]
    assert h.backlog(_DEAD).dead == 1


@case
def a_redrive_returns_a_dead_letter_to_its_queue(h: Harness) -> None:
    h.spec(routing=_EDGE)
    job_id = h.dead()
    assert h.store.redrive([job_id]) == [job_id]
    assert _places(h.get(job_id))[1:] == (QUEUE, None)
    assert h.backlog(_DEAD).dead == 0
    assert h.drain() == [job_id]
    h.nothing_left(QUEUE, _DEAD)


@case
def a_job_may_become_a_dead_letter_again_and_again(h: Harness) -> None:
    h.spec(routing=_EDGE)
    job_id = h.dead()
    for _ in range(3):
        h.store.redrive([job_id])
        h.dead_letter(h.take())
        assert _places(h.get(job_id)) == (State.DEAD, _DEAD, QUEUE)
    assert (h.get(job_id).delivery, h.backlog(_DEAD).dead) == (4, 1)


@case
def the_bound_of_its_queue_decides_whether_a_dead_letter_can_be_redriven(h: Harness) -> None:
    h.spec(routing=_EDGE, capacity=Bounded(1, Reject()))
    h.spec(_DEAD, capacity=Bounded(1, Reject()))
    dead = h.dead()
    h.one(queue=_DEAD)
    in_the_way = h.one()
    with h.unchanged():
        assert refused(QueueFull, lambda: h.store.redrive([dead])).queue == QUEUE
    assert h.drain() == [in_the_way]
    assert h.store.redrive([dead]) == [dead]


@case
def dead_letters_take_no_room_in_the_queue_that_keeps_them(h: Harness) -> None:
    h.spec(routing=_EDGE)
    h.spec(_DEAD, capacity=Bounded(1, Reject()))
    for _ in range(3):
        h.dead()
    assert h.one(queue=_DEAD)


@case
def an_expired_job_is_kept_in_the_same_queue(h: Harness) -> None:
    h.spec(routing=_EDGE, eligibility=AtMost(1))
    holder = h.one()
    h.take()
    held = h.one(expires_at=h.now() + h.short)
    ready = h.one(queue="other", expires_at=h.now() + h.short)
    h.spec("other", routing=_EDGE)
    h.advance(h.short + SECOND)
    assert h.state(held) is State.DEAD
    assert [_places(h.get(each)) for each in (held, ready)] == [
        (State.DEAD, _DEAD, QUEUE),
        (State.DEAD, _DEAD, "other"),
    ]
    assert (h.backlog().depth, h.state(holder)) == (1, State.RUNNING)
    assert h.store.redrive([ready]) == [ready]
    assert h.drain("other") == [ready]


@case
def an_expired_job_that_a_claim_finds_is_kept_there_too(h: Harness) -> None:
    h.spec(routing=_EDGE)
    late, good = h.one(expires_at=h.now() + h.short), h.one()
    h.advance(h.short + 1)
    assert [lease.job.id for lease in h.claim(2)] == [good]
    h.advance(SECOND)
    assert h.state(late) is State.DEAD
    assert _places(h.get(late)) == (State.DEAD, _DEAD, QUEUE)


@case
def a_repeated_settle_of_a_dead_letter_elsewhere_is_answered_alike(h: Harness) -> None:
    h.spec(routing=_EDGE)
    h.one()
    lease = h.take()
    assert h.dead_letter(lease) is Settled.APPLIED
    assert h.dead_letter(lease) is Settled.APPLIED
    assert h.ack(lease) is Settled.STALE
    assert h.backlog(_DEAD).dead == 1


@case
def only_the_dead_jobs_of_a_batch_move(h: Harness) -> None:
    h.spec(routing=_EDGE, retention=KeepFor(hours(1)))
    ids = h.enqueue(6)
    leases = h.claim(6)
    for lease in leases[:2]:
        h.ack(lease)
    assert h.store.settle([(lease, DeadLetter(ERROR)) for lease in leases[2:4]]) == [Settled.APPLIED] * 2
    for lease in leases[4:]:
        h.fail(lease)
    assert [_places(h.get(job_id))[:2] for job_id in ids] == [
        *[(State.DONE, QUEUE)] * 2,
        *[(State.DEAD, _DEAD)] * 2,
        *[(State.READY, QUEUE)] * 2,
    ]


@case
def a_dead_head_kept_elsewhere_still_blocks_its_line(h: Harness) -> None:
    h.spec(routing=_EDGE, eligibility=InOrder(dead_head="block"))
    head = h.dead(subject="s")
    following = h.one(subject="s")
    assert h.claim() == []
    h.store.redrive([head])
    assert h.drain() == [head, following]
    h.nothing_left()


@case
def a_new_rule_holds_for_jobs_that_die_from_then_on(h: Harness) -> None:
    before = h.dead()
    h.spec(routing=_EDGE)
    after = h.dead()
    h.spec(routing=Routing())
    again = h.dead()
    assert [h.get(job_id).queue for job_id in (before, after, again)] == [QUEUE, _DEAD, QUEUE]
    assert h.store.redrive([before, after, again]) == [before, after, again]
    assert {h.get(job_id).queue for job_id in (before, after, again)} == {QUEUE}


@case
def dead_letters_are_dropped_when_their_retention_is_over(h: Harness) -> None:
    h.spec(routing=_keeping(keep=h.short_delta))
    job_id = h.dead()
    assert h.state(job_id) is State.DEAD
    h.advance(h.short + SECOND)
    assert h.state(job_id) is None
    assert h.backlog().dead == 0
    assert h.store.redrive([job_id]) == []


@case
def a_redriven_dead_letter_is_not_dropped(h: Harness) -> None:
    h.spec(routing=_keeping(keep=h.short_delta))
    job_id = h.dead()
    h.store.redrive([job_id])
    h.advance(h.short + SECOND)
    assert h.state(job_id) is State.READY
    assert h.drain() == [job_id]


@case
def the_queue_that_keeps_dead_letters_decides_for_how_long(h: Harness) -> None:
    h.spec(routing=_EDGE)
    h.spec(_DEAD, routing=_keeping(keep=h.short_delta))
    kept_here = h.dead(queue="other")
    job_id = h.dead()
    h.advance(h.short + SECOND)
    assert (h.state(job_id), h.state(kept_here)) == (None, State.DEAD)
    h.spec(_DEAD)
    job_id = h.dead()
    h.advance(h.short + SECOND)
    assert h.state(job_id) is State.DEAD


@case
def a_queue_has_no_more_dead_letters_than_it_keeps(h: Harness) -> None:
    h.spec(routing=_EDGE)
    h.spec(_DEAD, routing=_keeping(limit=2))
    ids = []
    for _ in range(5):
        ids.append(h.dead())
        h.advance(1_000)
    other = h.dead(queue="other")
    assert h.backlog(_DEAD).dead == 2
    assert [job.id for job in h.jobs(state=State.DEAD)] == [*ids[3:], other]


@case
def a_smaller_limit_counts_for_earlier_dead_letters(h: Harness) -> None:
    ids = []
    for _ in range(4):
        ids.append(h.dead())
        h.advance(1_000)
    h.spec(routing=_keeping(limit=1))
    while h.store.backlog([QUEUE])[0].dead > 1:
        h.store.promote(2)
    assert [job.id for job in h.jobs()] == ids[3:]


@case
def redriven_and_purged_ones_make_room_for_other_dead_letters(h: Harness) -> None:
    h.spec(routing=_keeping(limit=2))
    first, second = h.dead(), h.dead()
    assert h.store.redrive([first]) == [first]
    assert h.dead_letter(h.take()) is Settled.APPLIED
    assert (h.state(first), h.state(second)) == (State.DEAD, State.DEAD)
    h.advance(2)
    assert h.store.purge(State.DEAD, h.now(), 1) == 1
    h.dead()
    assert h.backlog().dead == 2


@case
def racing_deaths_and_redrives_lose_no_job(h: Harness) -> None:
    h.spec(routing=_EDGE)
    ids = h.enqueue(24)
    leases = h.claim(24)
    answers(race(8, lambda n: [h.dead_letter(lease) for lease in leases[n::8]]))
    assert h.backlog(_DEAD).dead == 24
    moved = answers(race(8, lambda _: h.store.redrive(ids)))
    assert sorted(job_id for batch in moved for job_id in batch) == ids
    assert sorted(h.drain(batch=5)) == ids
    h.nothing_left(QUEUE, _DEAD)


@case
def one_queue_is_purged_alone(h: Harness) -> None:
    mine, other = h.dead(), h.dead(queue="other")
    h.advance(2)
    assert h.store.purge(State.DEAD, h.now(), 10, "unknown") == 0
    assert h.store.purge(State.DEAD, h.now(), 10, QUEUE) == 1
    assert (h.state(mine), h.state(other)) == (None, State.DEAD)
    assert h.store.purge(State.DEAD, h.now(), 10) == 1


@case
def purging_one_queue_is_bounded_and_oldest_first(h: Harness) -> None:
    ids = []
    for number in range(6):
        ids.append(h.dead(queue=("other", QUEUE)[number % 2]))
        h.advance(1_000)
    assert h.store.purge(State.DEAD, h.now(), 2, QUEUE) == 2
    assert [job.id for job in h.jobs()] == [ids[0], ids[2], ids[4], ids[5]]


@case
def purging_one_queue_takes_one_state_only(h: Harness) -> None:
    h.spec(retention=KeepFor(hours(1)))
    dead, done = h.dead(), h.one()
    h.ack(h.take())
    h.advance(2)
    assert h.store.purge(State.DONE, h.now(), 10, QUEUE) == 1
    assert (h.state(dead), h.state(done)) == (State.DEAD, None)


@case
def dead_letters_elsewhere_outlive_a_reopening(h: Harness) -> None:
    h.spec(routing=_EDGE)
    h.spec(_DEAD, routing=_keeping(limit=2))
    ids = [h.dead() for _ in range(2)]
    if h.store.capabilities.durable:
        before = h.jobs()
        h.reopen()
        assert h.jobs() == before
    assert h.backlog(_DEAD).dead == 2
    assert h.store.redrive(ids[:1]) == ids[:1]
    assert h.drain() == ids[:1]


@case_if(Need.DURABLE)
def the_ledger_records_dead_letters_under_the_queue_they_died_in(h: Harness) -> None:
    h.spec(routing=_EDGE)
    h.spec(_DEAD, routing=_keeping(limit=1))
    first, second = h.dead(), h.dead()
    h.store.redrive([second])
    h.dead_letter(h.take())
    h.store.promote(MAX_BATCH)
    ranges = [job_range for entry in h.store.ledger(-1, MAX_BATCH) for job_range in entry.record.ranges]
    assert {job_range.queue for job_range in ranges} == {QUEUE}
    changes = {job_id: [s.change for s in ranges if s.first <= job_id < s.first + s.n] for job_id in (first, second)}
    assert Change.REDRIVEN in changes[second]
    assert [Change.PURGED in each for each in changes.values()].count(True) == 1


@case
def a_job_that_killed_its_worker_is_recorded_as_such(h: Harness) -> None:
    killer, clumsy, both = h.one(max_attempts=1), h.dead(queue="other"), h.one(queue="third", max_attempts=2)
    h.lapse(h.take(lease_for=h.short_delta), h.take("third", lease_for=h.short_delta))
    h.reap()
    assert [job.id for job in h.jobs(suspect=True)] == [killer, both]
    assert [job.id for job in h.jobs(state=State.DEAD, suspect=True)] == [killer]
    assert [job.id for job in h.jobs(state=State.DEAD, suspect=False)] == [clumsy]
    running = h.take("third")
    assert [job.id for job in h.jobs(state=State.RUNNING, suspect=True)] == [both]
    assert h.jobs(state=State.RUNNING, suspect=False) == []
    h.dead_letter(running)
    assert [job.id for job in h.jobs(suspect=False)] == [clumsy, both]
