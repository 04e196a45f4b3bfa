"""Turns at gates: beside a cap, a rate or a condition the starts of the classes are as their weights say, exactly."""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

from forebay.core.job import Draft
from forebay.core.lease import Lease
from forebay.core.outcome import Ack, Release, Retry, Verdict
from forebay.core.policy import AtMost, Eligibility, Fair, Priority, Rate, Until
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Want
from forebay_proof.conformance.case import Need, case, case_if
from forebay_proof.conformance.harness import ERROR, LONG, QUEUE, Harness


def _flooded(h: Harness, eligibility: Eligibility, weight: int = 3, count: int = 60) -> None:
    """First all that one has, then all that the other has."""
    h.spec(share=Fair(weights={"a": weight}), eligibility=eligibility)
    h.enqueue(count, tenant="a")
    h.enqueue(count, tenant="b")


def _starts(h: Harness, rounds: int, batch: int = 1, *, passing: bool = False) -> list[str | None]:
    """The tenants in the order of their starts; every job is done before the next claim. `passing`: time passes."""
    starts: list[str | None] = []
    for _ in range(rounds):
        leases = h.claim(batch)
        starts += [lease.job.tenant for lease in leases]
        for lease in leases:
            h.ack(lease)
        if passing:
            h.advance(h.short)
    return starts


def _served(h: Harness, rounds: int, batch: int = 1, *, passing: bool = False) -> Counter[str | None]:
    return Counter(_starts(h, rounds, batch, passing=passing))


def within_a_quantum(starts: Iterable[str | None], weights: dict[str, int]) -> None:
    """In any stretch two classes differ by at most one start each, measured by their weights."""
    served: Counter[str | None] = Counter()
    lead = {pair: [0, 0] for pair in combinations(weights, 2)}
    for count, tenant in enumerate(starts, 1):
        served[tenant] += 1
        for (one, other), (least, most) in lead.items():
            ahead = served[one] * weights[other] - served[other] * weights[one]
            lead[one, other] = [min(least, ahead), max(most, ahead)]
            spread = lead[one, other][1] - lead[one, other][0]
            assert spread <= weights[one] + weights[other], f"{one} and {other} after {count} starts: {served}"


@case
def classes_take_turns_at_a_cap_of_the_whole_queue(h: Harness) -> None:
    _flooded(h, AtMost(2))
    assert _served(h, 40) == Counter(a=30, b=10)


@case
def shares_are_exact_from_the_first_start_on_beside_a_cap_and_a_rate(h: Harness) -> None:
    weights = {"a": 5, "b": 3, "c": 2}
    for number, batch in enumerate((1, 2, 3, 7)):
        queue = f"q{number}"
        h.spec(queue, share=Fair(weights=weights), eligibility=AtMost(4) & Rate(6, h.short_delta))
        for tenant in weights:
            h.enqueue(60, queue=queue, tenant=tenant)
        starts: list[str | None] = []
        running: list[Lease] = []
        while len(starts) < 90:
            leases = h.claim(batch, queue)
            starts += [lease.job.tenant for lease in leases]
            running += leases
            for lease in running[: 1 + len(starts) % 4]:
                h.ack(lease)
            del running[: 1 + len(starts) % 4]
            h.advance(h.short // 3)
        within_a_quantum(starts, weights)
        assert Counter(starts[:90]) == Counter(a=45, b=27, c=18), batch


@case
def classes_that_end_as_they_may_keep_their_shares(h: Harness) -> None:
    """A retry or a release is a start again, and its class pays for it again."""
    weights = {"a": 3, "b": 1}
    h.spec(share=Fair(weights=weights), eligibility=AtMost(3))
    h.enqueue(60, tenant="a")
    h.enqueue(60, tenant="b")
    starts: list[str | None] = []
    while len(starts) < 60:
        for number, lease in enumerate(h.claim(3)):
            starts.append(lease.job.tenant)
            verdicts: list[Verdict] = [Ack(), Retry(0, ERROR), Release()]
            h.settle(lease, verdicts[(len(starts) + number) % 3])
    within_a_quantum(starts, weights)


@case
def a_class_that_was_idle_does_not_save_up_beside_a_cap(h: Harness) -> None:
    for number, cap in enumerate((AtMost(2), AtMost(2, per="kind"))):
        queue = f"q{number}"
        h.spec(queue, share=Fair(weights={"a": 2}), eligibility=cap)
        h.one(queue=queue, tenant="b")
        h.enqueue(60, queue=queue, tenant="a")
        for _ in range(31):
            h.ack(h.take(queue))
        h.enqueue(30, queue=queue, tenant="b")
        starts = []
        for _ in range(24):
            lease = h.take(queue)
            starts.append(lease.job.tenant)
            h.ack(lease)
        within_a_quantum(starts, {"a": 2, "b": 1})
        assert abs(starts.count("b") - 8) <= 1, starts


@case
def a_flood_at_a_cap_lets_a_light_tenant_through(h: Harness) -> None:
    h.spec(share=Fair(), eligibility=AtMost(2))
    h.enqueue(100, tenant="flood")
    _served(h, 10)
    h.one(tenant="light")
    assert _served(h, 2)["light"] == 1


@case
def classes_take_turns_at_a_cap_per_something_else(h: Harness) -> None:
    _flooded(h, AtMost(2, per="kind"), weight=1)
    served = _served(h, 20, 2)
    assert served == Counter(a=20, b=20)


@case
def classes_take_turns_where_several_lanes_park_at_one_gate(h: Harness) -> None:
    """Each claim wants more than the gate has, so that all lanes are found closed and opened again."""
    weights = {"a": 3, "b": 1}
    h.spec(share=Fair(weights=weights), eligibility=AtMost(2, per="kind") & AtMost(9, per="subject"))
    for tenant in weights:
        for number in range(60):
            h.one(tenant=tenant, subject=f"s{number % 4}")
    starts = _starts(h, 20, 9)
    assert Counter(starts) == Counter(a=30, b=10), starts
    within_a_quantum(starts, weights)


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
    assert served.total() == 84, served
    for name in (QUEUE, "other"):
        assert abs(served[name, "a"] - served[name, "b"]) <= 1, served


@case
def classes_take_turns_at_a_rate_of_the_whole_queue(h: Harness) -> None:
    for batch in (1, 3):
        _flooded(h, Rate(1, h.short_delta, burst=1))
        served = _served(h, 20, batch, passing=True)
        assert served == Counter(a=15, b=5), (batch, served)
        h.store.cancel([job.id for job in h.jobs() if not job.state.terminal])


@case
def classes_take_turns_where_a_cap_and_a_rate_hold_them(h: Harness) -> None:
    """Claims want more than the cap has: a class that finds it full does not lose its turn at the rate."""
    _flooded(h, AtMost(2) & Rate(4, h.short_delta))
    served = _served(h, 20, 5, passing=True)
    assert served == Counter(a=30, b=10), served


@case
def what_starts_at_once_is_divided_among_the_classes(h: Harness) -> None:
    _flooded(h, Rate(8, h.short_delta), weight=1)
    assert Counter(lease.job.tenant for lease in h.claim(20)) == Counter(a=4, b=4)


@case
def within_their_own_rates_classes_take_turns(h: Harness) -> None:
    for batch in (1, 4):
        _flooded(h, Rate(40, h.short_delta, per="tenant"), count=40)
        served = _served(h, 20 // batch, batch)
        assert served == Counter(a=15, b=5), (batch, served)
        h.store.cancel([job.id for job in h.jobs() if not job.state.terminal])
        h.advance(h.short)


@case
def classes_with_and_without_gates_take_turns(h: Harness) -> None:
    """Jobs without a subject are not held by a rate per subject: they must not keep the others from starting."""
    h.spec(share=Fair(), eligibility=Rate(40, h.short_delta, per="subject"))
    h.enqueue(30, tenant="a")
    h.enqueue(30, tenant="b", subject="s")
    served = _served(h, 10, 2)
    assert abs(served["a"] - 10) <= 1, served


@case
def a_condition_with_slots_is_passed_by_turns(h: Harness) -> None:
    _flooded(h, Until("go"), weight=1)
    h.store.set_gate("until/go", 2)
    served = _served(h, 20)
    assert abs(served["a"] - 10) <= 1, served


@case_if(Need.EXACT_ORDER)
def within_a_class_the_first_in_rank_passes_first(h: Harness) -> None:
    h.spec(share=Fair(), selection=Priority(), eligibility=AtMost(1))
    first = h.one(tenant="a", priority=9)
    low, high = h.one(tenant="a", priority=1), h.one(tenant="a", priority=5)
    others = [h.one(tenant="b", priority=priority) for priority in (0, 7)]
    ran = h.drain()
    assert [job_id for job_id in ran if job_id in (first, low, high)] == [first, high, low]
    assert [job_id for job_id in ran if job_id in others] == others[::-1]


@case
def a_held_job_shows_its_position_in_its_own_class(h: Harness) -> None:
    h.spec(share=Fair(), eligibility=AtMost(1))
    a = h.enqueue(5, tenant="a")
    b = h.enqueue(2, tenant="b")
    h.take(cls="a")
    holds = [h.store.hold(job_id) for job_id in (a[1], a[4], b[1])]
    assert [hold and hold.before for hold in holds] == [0, 3, 1]
    assert [hold and (hold.gate, hold.slots, hold.used) for hold in holds] == [("cap/q", 1, 1)] * 3


@case_if(Need.EXACT_ORDER)
def within_a_class_a_lane_that_has_room_again_goes_by_its_head(h: Harness) -> None:
    h.spec(share=Fair(by="kind"), selection=Priority(), eligibility=AtMost(4, per="tenant"))
    first, _, costly = (h.one(tenant="a", cost=cost) for cost in (1, 1, 3))
    leases = {lease.job.id: lease for lease in h.claim(3)}
    assert costly not in leases
    later = h.one(tenant="b")
    h.settle(leases[first], Release())
    assert [lease.job.id for lease in h.claim(1)] == [first]
    assert [lease.job.id for lease in h.claim(9)] == [later]


@case_if(Need.DURABLE)
def turns_at_gates_go_on_after_a_reopening(h: Harness) -> None:
    _flooded(h, AtMost(2), weight=1)
    _served(h, 4)
    h.reopen()
    _served(h, 2)
    served = _served(h, 20)
    assert abs(served["a"] - 10) <= 1, served


@case
def jobs_with_classes_go_by_rank_when_the_queue_stops_sharing(h: Harness) -> None:
    h.spec(share=Fair(), eligibility=Rate(4, h.short_delta))
    first = h.one(tenant="a")
    h.spec(share=Fair())
    others = h.enqueue(3, tenant="b")
    h.spec(eligibility=Rate(4, h.short_delta))
    last = h.one()
    assert [h.take().job.id for _ in range(4)] == [first, *others]
    assert h.claim(5) == []
    h.advance(h.short)
    assert h.take().job.id == last


@case
def a_queue_that_begins_to_share_lets_its_classes_take_turns(h: Harness) -> None:
    h.spec(eligibility=AtMost(2))
    before = h.enqueue(2, tenant="b")
    h.spec(share=Fair(), eligibility=AtMost(2))
    h.enqueue(10, tenant="a")
    h.enqueue(10, tenant="b")
    starts = _starts(h, 22)
    assert Counter(starts) == Counter(a=10, b=12)
    assert h.store.get(before) == [None, None]


@case
def a_rate_that_closes_takes_no_slot_of_a_cap_that_queues_share(h: Harness) -> None:
    rate = Rate(2, h.short_delta * 100, shared="api")
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
    h.spec(eligibility=AtMost(3) & Rate(10, h.short_delta * 100))
    h.enqueue(12)
    for _ in range(3):
        leases = h.claim(8)
        assert len(leases) == 3
        for lease in leases:
            h.ack(lease)
    assert len(h.claim(8)) == 1
    assert h.claim(8) == []
