"""Release: the first jobs that a condition holds pass it, once and for good, whatever its slots."""

from datetime import timedelta

from forebay.core.errors import Invalid
from forebay.core.gate import condition_gate
from forebay.core.job import State
from forebay.core.policy import AtMost, Priority, Until
from forebay_proof.conformance.case import case, refused
from forebay_proof.conformance.harness import Harness
from forebay_proof.conformance.racing import RacingCall, answers, race


@case
def a_release_lets_the_first_jobs_pass(h: Harness) -> None:
    h.spec(eligibility=Until("stock"))
    ids = h.enqueue(4)
    assert h.claim(4) == []
    assert h.store.release("stock", 2) == 2
    assert [lease.job.id for lease in h.claim(4)] == ids[:2]
    assert h.store.release("stock", 9) == 2
    assert [lease.job.id for lease in h.claim(4)] == ids[2:]
    assert h.store.release("stock", 9) == 0


@case
def the_first_in_rank_are_released_first(h: Harness) -> None:
    h.spec(eligibility=Until("stock"), selection=Priority())
    low = h.one()
    high = h.one(priority=5)
    middle = h.one(priority=3)
    assert h.store.release("stock", 1) == 1
    assert [lease.job.id for lease in h.claim(5)] == [high]
    assert h.store.release("stock", 1) == 1
    assert [lease.job.id for lease in h.claim(5)] == [middle]
    assert h.state(low) is State.READY


@case
def the_first_in_rank_are_released_whatever_their_lane(h: Harness) -> None:
    h.spec(eligibility=Until("stock") & AtMost(5, per="tenant"), selection=Priority())
    ids = {priority: h.one(tenant=f"t{priority % 3}", priority=priority) for priority in (1, 4, 2, 6, 3, 5)}
    assert h.store.release("stock", 4) == 4
    assert [lease.job.id for lease in h.claim(9)] == [ids[priority] for priority in (6, 5, 4, 3)]


@case
def a_released_job_leaves_the_others_of_its_lane_held(h: Harness) -> None:
    h.spec(eligibility=Until("stock") & AtMost(2, per="tenant"))
    first, second, third = h.enqueue(3, tenant="t")
    assert h.claim(3) == []
    assert h.store.release("stock", 1) == 1
    lease = h.take()
    assert (lease.job.id, h.claim(3)) == (first, [])
    assert [h.store.ahead(job_id) for job_id in (second, third)] == [0, 1]
    h.store.set_gate(condition_gate("stock"), 5)
    assert [lease.job.id for lease in h.claim(3)] == [second]
    h.ack(lease)
    assert [lease.job.id for lease in h.claim(3)] == [third]


@case
def nothing_is_saved_up_for_jobs_that_come_later(h: Harness) -> None:
    h.spec(eligibility=Until("stock"))
    assert h.store.release("stock", 5) == 0
    h.one()
    assert h.claim() == []


@case
def a_released_job_is_never_held_by_it_again(h: Harness) -> None:
    h.spec(eligibility=Until("stock"))
    first = h.one()
    h.store.release("stock", 1)
    h.fail(h.take())
    lease = h.take()
    assert (lease.job.id, lease.job.attempt) == (first, 2)
    h.dead_letter(lease)
    assert h.store.redrive([first]) == [first]
    assert h.drain() == [first]
    h.nothing_left()


@case
def a_released_job_takes_no_slot_of_the_condition(h: Harness) -> None:
    h.spec(eligibility=Until("stock"))
    gate = condition_gate("stock")
    first, second = h.enqueue(2)
    h.store.release("stock", 1)
    h.store.set_gate(gate, 1)
    leases = h.claim(3)
    assert [lease.job.id for lease in leases] == [first, second]
    third = h.one()
    h.ack(leases[0])
    assert h.claim() == []
    h.ack(leases[1])
    assert h.take().job.id == third


@case
def a_released_job_still_has_to_pass_its_other_gates(h: Harness) -> None:
    h.spec(eligibility=Until("stock") & AtMost(1))
    first, second = h.enqueue(2)
    assert h.store.release("stock", 2) == 2
    lease = h.take()
    assert (lease.job.id, h.claim()) == (first, [])
    h.ack(lease)
    assert h.drain() == [second]
    h.nothing_left()


@case
def an_expired_job_dies_and_does_not_count_as_released(h: Harness) -> None:
    h.spec(eligibility=Until("stock"))
    # Past its time by less than a store's timers are exact: the release itself has to notice.
    stale = h.one(expires_at=h.now() + h.short // 4 + 1)
    fresh = h.one()
    h.advance(h.short // 4 + 2)
    assert h.store.release("stock", 1) == 1
    assert h.take().job.id == fresh
    assert h.state(stale) is State.DEAD


@case
def a_condition_per_tenant_is_released_for_that_tenant(h: Harness) -> None:
    h.spec(eligibility=Until("stock", per="tenant"))
    ada, bob = h.one(tenant="ada"), h.one(tenant="bob")
    assert h.store.release("stock", 5, "bob") == 1
    assert [lease.job.id for lease in h.claim(2)] == [bob]
    assert h.state(ada) is State.READY


@case
def jobs_of_several_queues_wait_for_one_condition(h: Harness) -> None:
    for queue in ("a", "b"):
        h.spec(queue, eligibility=Until("stock"))
    first, second = h.one(queue="a"), h.one(queue="b")
    assert h.store.release("stock", 2) == 2
    assert (h.take("a").job.id, h.take("b").job.id) == (first, second)


@case
def a_release_wakes_waiting_workers(h: Harness) -> None:
    h.spec(eligibility=Until("stock"))
    h.one()
    assert h.claim() == []
    task = RacingCall(lambda: h.store.wait(["q"], timedelta(minutes=1)))
    h.until_asleep(1)
    assert task.running
    h.store.release("stock", 1)
    assert task.result() is True


@case
def a_job_that_is_not_due_yet_is_not_released(h: Harness) -> None:
    h.spec(eligibility=Until("stock"))
    h.one(delay=h.short)
    assert h.store.release("stock", 1) == 0
    h.advance(2 * h.short)
    assert h.claim() == []


@case
def a_release_that_makes_no_sense_is_refused(h: Harness) -> None:
    refused(Invalid, lambda: h.store.release("stock", 0))
    refused(Invalid, lambda: h.store.release("no such name/", 1))
    refused(Invalid, lambda: h.store.release("stock", 1, ""))


@case
def racing_releases_let_each_pass_once(h: Harness) -> None:
    h.spec(eligibility=Until("stock"))
    ids = h.enqueue(20)
    assert sum(answers(race(8, lambda _: h.store.release("stock", 2)))) == 16
    assert [lease.job.id for lease in h.claim(20)] == ids[:16]
