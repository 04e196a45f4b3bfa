"""Turns at gates: what a cap, a rate or a condition lets through comes from the classes as their weights say."""

from collections import Counter

from forebay.core.job import Draft
from forebay.core.policy import AtMost, Eligibility, Fair, Priority, Rate, Until
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Want
from forebay.testing.conformance.case import Need, case, case_if
from forebay.testing.conformance.harness import LONG, QUEUE, Harness


def _flooded(h: Harness, eligibility: Eligibility, weight: int = 3, count: int = 60) -> None:
    """First all that one has, then all that the other has."""
    h.spec(share=Fair(weights={"a": weight}), eligibility=eligibility)
    h.enqueue(count, tenant="a")
    h.enqueue(count, tenant="b")


def _served(h: Harness, rounds: int, batch: int = 1, *, passing: bool = False) -> Counter[str | None]:
    """Whose jobs came; every job is done before the next claim. `passing`: and some time has passed."""
    served: Counter[str | None] = Counter()
    for _ in range(rounds):
        leases = h.claim(batch)
        served.update(lease.job.tenant for lease in leases)
        for lease in leases:
            h.ack(lease)
        if passing:
            h.advance(h.short)
    return served


@case
def classes_take_turns_at_a_cap_of_the_whole_queue(h: Harness) -> None:
    _flooded(h, AtMost(2))
    _served(h, 2)
    served = _served(h, 40)
    assert abs(served["a"] - 30) <= 1.5, served


@case
def a_flood_at_a_cap_lets_a_light_tenant_through(h: Harness) -> None:
    h.spec(share=Fair(), eligibility=AtMost(2))
    h.enqueue(100, tenant="flood")
    _served(h, 10)
    h.one(tenant="light")
    assert _served(h, 4)["light"] == 1


@case
def classes_take_turns_at_a_cap_per_something_else(h: Harness) -> None:
    _flooded(h, AtMost(2, per="kind"), weight=1)
    _served(h, 1, 2)
    served = _served(h, 20, 2)
    assert served == Counter(a=20, b=20)


@case
def a_cap_that_queues_share_is_shared_by_the_classes_of_each(h: Harness) -> None:
    for name in (QUEUE, "other"):
        h.store.put_spec(QueueSpec(name=name, share=Fair(), eligibility=AtMost(2, shared="gpu")))
    for tenant in "ab":
        h.store.enqueue([Draft("k", queue=name, tenant=tenant) for name in (QUEUE, "other") * 30])
    served: Counter[tuple[str, str | None]] = Counter()
    for _ in range(42):
        leases = h.store.claim([Want(QUEUE, 1), Want("other", 1)], "worker", LONG)
        served.update((lease.job.queue, lease.job.tenant) for lease in leases)
        for lease in leases:
            h.ack(lease)
    assert served.total() >= 42, served
    for name in (QUEUE, "other"):
        assert abs(served[name, "a"] - served[name, "b"]) <= 2, served


@case
def classes_take_turns_at_a_rate_of_the_whole_queue(h: Harness) -> None:
    for batch in (1, 3):
        _flooded(h, Rate(1, h.brief, burst=1))
        served = _served(h, 20, batch, passing=True)
        assert served == Counter(a=15, b=5), (batch, served)
        h.store.cancel([job.id for job in h.jobs() if not job.state.terminal])


@case
def classes_take_turns_where_a_cap_and_a_rate_hold_them(h: Harness) -> None:
    """Claims want more than the cap has: whoever finds it full must not lose its turn at the rate."""
    _flooded(h, AtMost(2) & Rate(4, h.brief))
    served = _served(h, 20, 5, passing=True)
    assert served == Counter(a=30, b=10), served


@case
def what_starts_at_once_is_divided_among_the_classes(h: Harness) -> None:
    _flooded(h, Rate(8, h.brief), weight=1)
    assert Counter(lease.job.tenant for lease in h.claim(20)) == Counter(a=4, b=4)


@case
def within_their_own_rates_classes_take_turns(h: Harness) -> None:
    for batch in (1, 4):
        _flooded(h, Rate(40, h.brief, per="tenant"), count=40)
        served = _served(h, 20 // batch, batch)
        assert served == Counter(a=15, b=5), (batch, served)
        h.store.cancel([job.id for job in h.jobs() if not job.state.terminal])
        h.advance(h.short)


@case
def who_is_ready_and_who_starts_take_turns(h: Harness) -> None:
    """Jobs without a subject are not held by a rate per subject: they must not keep the others from starting."""
    h.spec(share=Fair(), eligibility=Rate(40, h.brief, per="subject"))
    h.enqueue(30, tenant="a")
    h.enqueue(30, tenant="b", subject="s")
    served = _served(h, 10, 2)
    assert abs(served["a"] - 10) <= 1, served


@case
def a_condition_with_slots_lets_classes_in_by_turns(h: Harness) -> None:
    _flooded(h, Until("go"), weight=1)
    h.store.set_gate("until/go", 2)
    served = _served(h, 20)
    assert abs(served["a"] - 10) <= 1, served


@case_if(Need.EXACT_ORDER)
def within_a_class_who_is_first_in_rank_passes_first(h: Harness) -> None:
    h.spec(share=Fair(), selection=Priority(), eligibility=AtMost(1))
    first = h.one(tenant="a", priority=9)
    low, high = h.one(tenant="a", priority=1), h.one(tenant="a", priority=5)
    others = [h.one(tenant="b", priority=priority) for priority in (0, 7)]
    ran = h.drain()
    assert ran[0] == first
    assert [job_id for job_id in ran[1:] if job_id in (low, high)] == [high, low]
    assert [job_id for job_id in ran if job_id in others] == others[::-1]


@case
def who_is_parked_where_classes_take_turns_knows_his_place_in_his_own(h: Harness) -> None:
    h.spec(share=Fair(), eligibility=AtMost(1))
    a = h.enqueue(5, tenant="a")
    b = h.enqueue(2, tenant="b")
    holds = [h.store.hold(job_id) for job_id in (a[1], a[4], b[1])]
    assert [hold and hold.before for hold in holds] == [0, 3, 1]
    assert [hold and (hold.parked, hold.by_class) for hold in holds] == [(6, True)] * 3


@case_if(Need.DURABLE)
def turns_at_gates_go_on_after_a_reopening(h: Harness) -> None:
    _flooded(h, AtMost(2), weight=1)
    _served(h, 4)
    h.reopen()
    _served(h, 2)
    served = _served(h, 20)
    assert abs(served["a"] - 10) <= 1, served


@case
def who_was_parked_in_turns_is_found_when_the_queue_has_none_any_more(h: Harness) -> None:
    """Jobs keep the class that they were stamped with; what a claim starts, it hands out."""
    rate = Rate(4, h.brief)
    h.spec(share=Fair(), eligibility=rate)
    h.one(tenant="a")
    h.spec(share=Fair())
    h.enqueue(3, tenant="b")
    h.spec(eligibility=rate)
    h.one()
    for _ in range(3):
        assert [lease.job.tenant for lease in h.claim(1)] == ["b"]
    assert {lease.job.tenant for lease in h.claim(5)} == {"a", None}


@case
def a_rate_that_closes_holds_up_nobody_at_a_cap_before_it(h: Harness) -> None:
    """A cap that queues share: who is behind a rate waits there, not in front of the others."""
    rate = Rate(2, h.brief * 100, shared="api")
    h.store.put_spec(QueueSpec(name="paced", eligibility=AtMost(4, shared="gpu") & rate))
    h.store.put_spec(QueueSpec(name="free", eligibility=rate))
    h.spec(eligibility=AtMost(4, shared="gpu"))
    h.enqueue(4)
    leases = h.claim(4)
    h.store.enqueue([Draft("k", queue="paced") for _ in range(5)])
    h.enqueue(3)
    for lease in leases:
        h.ack(lease)
    h.store.enqueue([Draft("k", queue="free") for _ in range(2)])
    assert len(h.store.claim([Want("free", 2)], "worker", LONG)) == 2
    assert len(h.claim(5)) == 3


@case
def a_claim_starts_all_that_a_cap_and_a_rate_allow(h: Harness) -> None:
    """Who waits at the cap comes to the rate one after the other, in one claim."""
    h.spec(eligibility=AtMost(3) & Rate(10, h.brief * 100))
    h.enqueue(12)
    for _ in range(3):
        leases = h.claim(8)
        assert len(leases) == 3
        for lease in leases:
            h.ack(lease)
    assert len(h.claim(8)) == 1
    assert h.claim(8) == []
