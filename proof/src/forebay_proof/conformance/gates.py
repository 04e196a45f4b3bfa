"""Gates: at most so many run at once, or none until a condition holds. Claims take slots, settles give them back."""

from forebay.core.gate import condition_gate
from forebay.core.job import State
from forebay.core.outcome import Ack, Cancel, DeadLetter, Release, Retry, Verdict
from forebay.core.policy import AtMost, InOrder, Priority, Until
from forebay.store.protocol import CancelAnswer
from forebay_proof.conformance.case import Need, case, case_if
from forebay_proof.conformance.harness import ERROR, SECOND, Harness


@case
def at_most_so_many_are_handed_out_at_once(h: Harness) -> None:
    h.spec(eligibility=AtMost(2))
    ids = h.enqueue(5)
    assert [lease.job.id for lease in h.claim(5)] == ids[:2]
    backlog = h.backlog()
    assert (backlog.running, backlog.ready, backlog.waiting) == (2, 3, 0)
    assert h.claim(5) == []


@case
def a_slot_is_taken_by_the_claim_and_not_before(h: Harness) -> None:
    h.spec(eligibility=AtMost(2))
    ids = h.enqueue(5)
    backlog = h.backlog()
    assert (backlog.ready, backlog.waiting, h.store.gates("", 9)) == (5, 0, [])
    h.store.cancel(ids[:2])
    assert [lease.job.id for lease in h.claim(5)] == ids[2:4]


@case
def every_verdict_frees_the_slot(h: Harness) -> None:
    verdicts: list[Verdict] = [Ack(), Retry(h.short, ERROR), DeadLetter(ERROR), Release(h.short), Cancel()]
    for number, verdict in enumerate(verdicts):
        queue = f"q{number}"
        h.spec(queue, eligibility=AtMost(1))
        _, second = h.enqueue(2, queue=queue)
        h.settle(h.take(queue), verdict)
        assert h.take(queue).job.id == second, verdict


@case
def a_cancelled_ready_job_held_no_slot(h: Harness) -> None:
    h.spec(eligibility=AtMost(1))
    first, second = h.enqueue(2)
    assert h.state(first) is State.READY
    assert h.store.cancel([first]) == [CancelAnswer.CANCELLED]
    assert h.drain() == [second]
    h.nothing_left()


@case
def a_cancelled_held_job_leaves_the_others_alone(h: Harness) -> None:
    h.spec(eligibility=AtMost(1))
    first, second, third = h.enqueue(3)
    lease = h.take()
    assert h.store.cancel([second]) == [CancelAnswer.CANCELLED]
    assert h.claim() == []
    h.ack(lease)
    assert h.drain() == [third]
    assert lease.job.id == first
    h.nothing_left()


@case
def an_expired_job_takes_no_slot(h: Harness) -> None:
    for number, cap in enumerate((AtMost(1), AtMost(1, per="tenant"))):
        queue = f"q{number}"
        h.spec(queue, eligibility=cap)
        expired = h.one(queue=queue, tenant="t", expires_at=h.now() + h.short)
        second = h.one(queue=queue, tenant="t")
        h.store.promote(10)
        h.advance(h.short + 1)
        assert h.take(queue).job.id == second
        assert h.state(expired) is State.DEAD


@case
def a_freed_slot_is_not_given_to_a_job_that_has_expired(h: Harness) -> None:
    h.spec(eligibility=AtMost(1) & AtMost(1, per="subject"))
    h.one(subject="a")
    lease = h.take()
    late = h.enqueue(2, subject="b", expires_at=h.now() + h.short)
    later = h.one(subject="c")
    h.advance(h.short + 1)
    h.ack(lease)
    assert h.drain() == [later]
    assert [h.state(job_id) for job_id in late] == [State.DEAD] * 2
    h.nothing_left()


@case
def the_head_of_a_line_that_has_expired_is_not_handed_out(h: Harness) -> None:
    h.spec(eligibility=InOrder())
    h.one(subject="s")
    lease = h.take()
    late = h.one(subject="s", expires_at=h.now() + h.short)
    later = h.one(subject="s")
    h.advance(h.short + 1)
    h.ack(lease)
    assert h.drain() == [later]
    assert h.state(late) is State.DEAD
    h.nothing_left()


@case
def an_abandoned_job_frees_its_slot_when_it_is_reaped(h: Harness) -> None:
    h.spec(eligibility=AtMost(1))
    first, second = h.enqueue(2, max_attempts=1)
    lease = h.take(lease_for=h.short_delta)
    h.lapse(lease)
    assert h.claim() == []
    h.reap()
    assert h.drain() == [second]
    assert h.state(first) is State.DEAD


@case
def a_cap_per_tenant_holds_each_tenant_on_its_own(h: Harness) -> None:
    h.spec(eligibility=AtMost(1, per="tenant"))
    ada, bob = h.enqueue(2, tenant="ada"), h.enqueue(2, tenant="bob")
    leases = h.claim(4)
    assert sorted(lease.job.id for lease in leases) == [ada[0], bob[0]]
    h.ack(next(lease for lease in leases if lease.job.id == ada[0]))
    assert [lease.job.id for lease in h.claim(4)] == [ada[1]]


@case
def a_cap_per_kind_or_subject_counts_by_that_field(h: Harness) -> None:
    h.spec("kinds", eligibility=AtMost(1, per="kind"))
    h.spec("subjects", eligibility=AtMost(1, per="subject"))
    for queue, field in (("kinds", "kind"), ("subjects", "subject")):
        first = [h.one(queue=queue, **{field: value}) for value in ("a", "b", "a", "b")][:2]
        assert sorted(lease.job.id for lease in h.claim(4, queue)) == first


@case
def a_job_without_the_field_is_not_held(h: Harness) -> None:
    h.spec(eligibility=AtMost(1, per="tenant") & Until("go", per="subject"))
    h.enqueue(3)
    assert len(h.claim(3)) == 3


@case
def a_gate_of_one_queue_does_not_hold_another(h: Harness) -> None:
    h.spec(eligibility=AtMost(1))
    h.spec("other", eligibility=AtMost(1))
    h.enqueue(2)
    h.enqueue(2, queue="other")
    assert (len(h.claim(2)), len(h.claim(2, "other"))) == (1, 1)


@case
def a_tenant_at_its_cap_does_not_hold_the_others(h: Harness) -> None:
    h.spec(eligibility=AtMost(1, per="tenant"))
    h.enqueue(100, tenant="flood")
    light = h.one(tenant="light")
    assert light in [lease.job.id for lease in h.claim(2)]


@case
def two_caps_hold_together(h: Harness) -> None:
    h.spec(eligibility=AtMost(3) & AtMost(2, per="tenant"))
    h.enqueue(3, tenant="a")
    h.enqueue(3, tenant="b")
    leases = h.claim(6)
    tenants = [lease.job.tenant for lease in leases]
    assert len(leases) == 3
    assert max(tenants.count("a"), tenants.count("b")) <= 2
    assert len(h.drain()) == 0
    h.store.settle([(lease, Ack()) for lease in leases])
    assert len(h.drain()) == 3
    h.nothing_left()


@case_if(Need.EXACT_ORDER)
def a_freed_slot_goes_to_the_first_in_rank(h: Harness) -> None:
    h.spec(selection=Priority(), eligibility=AtMost(1))
    h.one()
    lease = h.take()
    low, high = h.one(priority=1), h.one(priority=5)
    h.ack(lease)
    assert h.drain() == [high, low]


@case
def after_a_drain_no_slot_is_lost(h: Harness) -> None:
    """Jobs end in every way there is; afterwards exactly as many slots are free as at the start."""
    h.spec(eligibility=AtMost(4) & AtMost(2, per="tenant"))
    for number in range(40):
        h.one(tenant=f"t{number % 3}", max_attempts=2, delay=number % 2)
    verdicts: list[Verdict] = [Ack(), Retry(0, ERROR), Release(), DeadLetter(ERROR), Cancel()]
    count = 0
    h.advance(h.short)
    while leases := h.claim(3):
        assert h.backlog().running <= 4
        for lease in leases:
            h.settle(lease, verdicts[count % 5] if lease.job.delivery < 4 else Ack())
            count += 1
    h.nothing_left()
    h.enqueue(3, tenant="t0")
    h.enqueue(3, tenant="t1")
    h.enqueue(3, tenant="t2")
    assert len(h.claim(9)) == 4


@case
def set_gate_overrides_a_cap_and_restores_it(h: Harness) -> None:
    h.spec(eligibility=AtMost(1))
    h.enqueue(6)
    h.store.set_gate("cap/q", 3)
    leases = h.claim(6)
    assert len(leases) == 3
    h.store.set_gate("cap/q", None)
    for lease in leases[:2]:
        h.ack(lease)
    assert h.claim() == []
    h.ack(leases[2])
    assert len(h.claim(6)) == 1


@case
def a_gate_set_to_zero_is_closed(h: Harness) -> None:
    h.spec(eligibility=AtMost(2))
    h.store.set_gate("cap/q", 0)
    h.enqueue(2)
    assert h.claim(2) == []
    assert h.backlog().ready == 2
    h.store.set_gate("cap/q", None)
    assert len(h.claim(2)) == 2


@case
def a_job_is_held_until_its_condition_is_opened(h: Harness) -> None:
    h.spec(eligibility=Until("go"))
    ids = h.enqueue(2)
    assert h.claim(2) == []
    assert h.backlog().ready == 2
    h.store.set_gate(condition_gate("go"), 10)
    assert [lease.job.id for lease in h.claim(2)] == ids


@case
def a_condition_opened_before_is_open(h: Harness) -> None:
    h.store.set_gate(condition_gate("go"), 10)
    h.spec(eligibility=Until("go"))
    assert len(h.enqueue(2)) == len(h.claim(2))


@case
def a_condition_opens_as_many_slots_as_it_was_given(h: Harness) -> None:
    h.spec(eligibility=Until("go"))
    h.enqueue(4)
    h.store.set_gate(condition_gate("go"), 2)
    leases = h.claim(4)
    assert len(leases) == 2
    h.ack(leases[0])
    assert len(h.claim(4)) == 1


@case
def a_condition_can_be_closed_again(h: Harness) -> None:
    h.spec(eligibility=Until("go"))
    gate = condition_gate("go")
    h.store.set_gate(gate, 10)
    h.drain()
    h.store.set_gate(gate, None)
    job_id = h.one()
    assert h.claim() == []
    h.store.set_gate(gate, 1)
    assert h.drain() == [job_id]
    h.nothing_left()


@case
def a_condition_per_subject_opens_for_that_subject_only(h: Harness) -> None:
    h.spec(eligibility=Until("paid", per="subject"))
    ada, bob = h.one(subject="ada"), h.one(subject="bob")
    h.store.set_gate(condition_gate("paid", "bob"), 1)
    assert [lease.job.id for lease in h.claim(2)] == [bob]
    h.store.set_gate(condition_gate("paid", "ada"), 1)
    assert [lease.job.id for lease in h.claim(2)] == [ada]


@case
def a_job_at_a_closed_condition_holds_no_slot_of_a_cap(h: Harness) -> None:
    h.spec(eligibility=AtMost(1) & Until("paid", per="subject"))
    held = h.one(subject="ada")
    free = h.one()
    assert h.take().job.id == free
    h.store.set_gate(condition_gate("paid", "ada"), 1)
    assert h.claim() == []
    assert h.state(held) is State.READY


@case
def a_delayed_job_holds_no_slot(h: Harness) -> None:
    h.spec(eligibility=AtMost(1))
    h.one(delay=3_600 * SECOND)
    now = h.one()
    assert h.drain() == [now]


@case
def a_redriven_job_needs_a_slot_again(h: Harness) -> None:
    h.spec(eligibility=AtMost(1))
    dead = h.dead()
    h.one()
    lease = h.take()
    assert h.store.redrive([dead]) == [dead]
    assert h.claim() == []
    h.ack(lease)
    assert h.drain() == [dead]
    h.nothing_left()


@case_if(Need.DURABLE)
def slots_and_gates_outlive_a_reopening(h: Harness) -> None:
    h.spec(eligibility=AtMost(2) & Until("go", per="subject"))
    h.enqueue(4)
    held = h.one(subject="s")
    leases = h.claim(1)
    h.reopen()
    leases += h.claim(5)
    assert len(leases) == 2
    h.store.set_gate(condition_gate("go", "s"), 1)
    h.reopen()
    h.store.settle([(lease, Ack()) for lease in leases])
    assert held in h.drain()
    h.nothing_left()
