"""Shares: classes take turns as their weights say, a flood starves no class, and an idle class saves no turns."""

from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice

from forebay.core.lease import Lease
from forebay.core.outcome import Ack
from forebay.core.policy import AtMost, Fair, Priority, Rate
from forebay.store.protocol import Store, Want
from forebay_proof.conformance.case import Need, case, case_if
from forebay_proof.conformance.harness import LONG, QUEUE, Harness


def _served(h: Harness, count: int, batch: int = 1) -> Counter[str | None]:
    """Whose jobs came, over so many of them."""
    served: Counter[str | None] = Counter()
    while served.total() < count:
        leases = h.claim(min(batch, count - served.total()))
        assert leases, f"nothing more after {served}"
        served.update(lease.job.tenant for lease in leases)
        for lease in leases:
            h.ack(lease)
    return served


def _by_turns(handles: list[Store], batch: int) -> Iterator[Lease]:
    """Claimers with handles of their own take turns, each claiming as many; every job is done before the next claim."""
    for number, store in cycle(enumerate(handles)):
        leases = store.claim([Want(QUEUE, batch)], f"claimer-{number}", LONG)
        assert leases, f"nothing more came to claimer {number}"
        store.settle([(lease, Ack()) for lease in leases])
        yield from leases


def _served_by_turns(handles: list[Store], claims: int, batch: int) -> Counter[str | None]:
    """Whose jobs came when each claimer has claimed so often."""
    count = len(handles) * claims * batch
    return Counter(lease.job.tenant for lease in islice(_by_turns(handles, batch), count))


@case
def equal_classes_get_equal_shares(h: Harness) -> None:
    h.spec(share=Fair())
    for tenant in "abcd":
        h.enqueue(60, tenant=tenant)
    assert _served(h, 200) == Counter(dict.fromkeys("abcd", 50))


@case
def shares_follow_the_weights_exactly(h: Harness) -> None:
    h.spec(share=Fair(weights={"gold": 5, "silver": 3}, default=2))
    for tenant in ("gold", "silver", "plain"):
        h.enqueue(300, tenant=tenant)
    assert _served(h, 400) == Counter(gold=200, silver=120, plain=80)


@case
def shares_hold_whatever_the_size_of_a_claim(h: Harness) -> None:
    for batch in (2, 7, 64):
        h.spec(share=Fair(weights={"a": 3, "b": 1}))
        h.enqueue(400, tenant="a")
        h.enqueue(400, tenant="b")
        served = _served(h, 400, batch)
        assert abs(served["a"] - 300) <= 1, (batch, served)
        h.drain(batch=100)


@case
def shares_hold_for_jobs_that_came_one_by_one(h: Harness) -> None:
    for batch in (1, 2):
        h.spec(share=Fair(weights={"a": 3}))
        for number in range(80):
            h.one(tenant="ab"[number % 2])
        served = _served(h, 40, batch)
        assert abs(served["a"] - 30) <= 1, (batch, served)
        h.drain(batch=100)


@case
def eight_claimers_share_by_weight(h: Harness) -> None:
    """One after the other, each with a store of its own: they share one turn a class."""
    weights = {"a": 5, "b": 3, "c": 2}
    h.spec(share=Fair(weights=weights))
    for tenant, weight in weights.items():
        h.enqueue(90 * weight, tenant=tenant)
    with h.handles(8) as handles:
        served = _served_by_turns(handles, claims=10, batch=8)
    assert served == Counter(a=320, b=192, c=128)


@case
def a_hundred_tenants_are_served_evenly(h: Harness) -> None:
    """By eight claimers that take turns, none of which ends a round."""
    h.spec(share=Fair())
    tenants = [f"t{number}" for number in range(100)]
    for _ in range(2):
        h.send(*[h.draft(tenant=tenant) for tenant in tenants * 9])
    with h.handles(8) as handles:
        served = _served_by_turns(handles, claims=8, batch=14)
    assert {served[tenant] for tenant in tenants} == {8, 9}, served


@case
def light_tenants_wait_no_longer_under_a_flood(h: Harness) -> None:
    """However much one tenant has sent: of its jobs one is handed out, then it is the others' turn."""
    h.spec(share=Fair())
    h.enqueue(1_000, tenant="flood")
    with h.handles(8) as handles:
        coming = _by_turns(handles, 1)
        for number in range(10):
            h.one(tenant=f"light-{number % 3}")
            before = sum(1 for _ in iter(lambda: next(coming).job.tenant, f"light-{number % 3}"))
            assert before <= 1, (number, before)


@case
def a_new_light_tenant_is_not_starved_by_a_flood(h: Harness) -> None:
    h.spec(share=Fair())
    h.enqueue(500, tenant="flood")
    _served(h, 50)
    h.one(tenant="light")
    assert _served(h, 2)["light"] == 1


@case
def many_tenants_each_get_one_before_any_gets_two(h: Harness) -> None:
    h.spec(share=Fair())
    tenants = [f"t{number}" for number in range(20)]
    for tenant in tenants:
        h.enqueue(3, tenant=tenant)
    assert _served(h, 20, 5) == Counter(tenants)


@case
def an_idle_class_saves_no_turns(h: Harness) -> None:
    h.spec(share=Fair())
    h.one(tenant="idle")
    h.enqueue(200, tenant="busy")
    _served(h, 101)
    h.enqueue(50, tenant="idle")
    served = _served(h, 20)
    assert abs(served["idle"] - 10) <= 1, served


@case
def a_class_that_was_alone_has_had_its_turns(h: Harness) -> None:
    """Also jobs without a tenant, which a store may serve in a quicker way as long as there are no others."""
    for number, (first, second) in enumerate(((None, "b"), ("a", "b"), ("b", None))):
        queue = f"q{number}"
        h.spec(queue, share=Fair())
        h.enqueue(10, queue=queue, tenant=first)
        h.ack(h.take(queue))
        h.ack(h.take(queue))
        h.enqueue(10, queue=queue, tenant=second)
        assert h.take(queue).job.tenant == second


@case
def a_class_alone_gets_everything(h: Harness) -> None:
    h.spec(share=Fair(weights={"a": 1, "b": 100}))
    h.enqueue(30, tenant="a")
    assert len(h.claim(30)) == 30


@case_if(Need.EXACT_ORDER)
def within_a_class_the_order_is_kept(h: Harness) -> None:
    h.spec(share=Fair(), selection=Priority())
    low, high = h.one(tenant="a", priority=1), h.one(tenant="a", priority=2)
    others = h.enqueue(2, tenant="b")
    ran = h.drain()
    assert [job_id for job_id in ran if job_id in (low, high)] == [high, low]
    assert [job_id for job_id in ran if job_id in others] == others


@case
def jobs_without_a_tenant_are_one_class_of_their_own(h: Harness) -> None:
    h.spec(share=Fair())
    h.enqueue(50)
    h.enqueue(50, tenant="a")
    served = _served(h, 40)
    assert abs(served[None] - 20) <= 1, served


@case
def classes_may_be_kinds(h: Harness) -> None:
    h.spec(share=Fair(by="kind", weights={"heavy": 3}))
    h.enqueue(100, kind="heavy")
    h.enqueue(100, kind="light")
    served = Counter(lease.job.kind for lease in h.claim(80))
    assert abs(served["heavy"] - 60) <= 3, served


@case
def a_claim_of_one_class_gets_that_class_only(h: Harness) -> None:
    h.spec(share=Fair())
    h.enqueue(3, tenant="a")
    b = h.enqueue(2, tenant="b")
    assert [lease.job.id for lease in h.claim(5, cls="b")] == b
    assert h.claim(5, cls="b") == []
    assert h.claim(5, cls="unknown") == []
    assert len(h.claim(5, cls="a")) == 3


@case
def shares_lose_and_double_no_job(h: Harness) -> None:
    h.spec(share=Fair(weights={"a": 7, "b": 2}))
    ids = [h.one(tenant="abc"[number % 3]) for number in range(90)]
    ran: list[int] = []
    for number in range(90):
        ran += [lease.job.id for lease in h.claim(1 + number % 4)]
    assert sorted(ran) == ids


@case
def a_tenant_at_its_cap_does_not_take_the_turns_of_others(h: Harness) -> None:
    h.spec(share=Fair(), eligibility=AtMost(1, per="tenant"))
    h.enqueue(20, tenant="a")
    h.enqueue(20, tenant="b")
    assert len(h.claim(1, cls="a")) == 1
    served = _served(h, 20)
    assert served == Counter(b=20)


@case
def a_class_that_a_closed_gate_held_saved_no_turns(h: Harness) -> None:
    h.spec(share=Fair(), eligibility=AtMost(1, per="tenant"))
    h.enqueue(60, tenant="a")
    h.enqueue(60, tenant="b")
    (held,) = h.claim(1, cls="a")
    assert _served(h, 20) == Counter(b=20)
    h.ack(held)
    served = _served(h, 20)
    assert abs(served["a"] - served["b"]) <= 2, served


@case
def shares_hold_among_tenants_with_caps_of_their_own(h: Harness) -> None:
    h.spec(share=Fair(weights={"a": 3}), eligibility=AtMost(4, per="tenant"))
    h.enqueue(60, tenant="a")
    h.enqueue(60, tenant="b")
    served = _served(h, 40, 4)
    assert abs(served["a"] - 30) <= 1.5, served


@case
def a_flood_at_the_end_of_its_own_rate_leaves_the_turns_to_others(h: Harness) -> None:
    h.spec(share=Fair(weights={"flood": 9}), eligibility=Rate(2, h.short_delta, per="tenant"))
    h.enqueue(40, tenant="flood")
    h.enqueue(6, tenant="light")
    for _ in range(3):
        assert _served(h, 4, 4) == Counter(flood=2, light=2)
        assert h.claim(4) == []
        h.advance(h.short)


@case
def a_start_that_was_wanted_of_one_class_counts_among_its_turns(h: Harness) -> None:
    h.spec(share=Fair())
    for tenant in "abc":
        h.enqueue(40, tenant=tenant)
    served: Counter[str | None] = Counter()
    for _ in range(10):
        assert [lease.job.tenant for lease in h.claim(1, cls="b")] == ["b"]
        served += Counter(b=1) + _served(h, 3, 3)
        assert max(served.values()) - min(served.values()) <= 1, served


@case
def one_call_may_want_a_class_and_then_any(h: Harness) -> None:
    h.spec(share=Fair())
    for tenant in "abc":
        h.enqueue(40, tenant=tenant)
    served: Counter[str | None] = Counter()
    for _ in range(12):
        leases = h.store.claim([Want(QUEUE, 1, "a"), Want(QUEUE, 2)], "worker", LONG)
        assert [lease.job.tenant for lease in leases[:1]] == ["a"]
        served.update(lease.job.tenant for lease in leases[1:])
    assert served == Counter(b=12, c=12), "those of a were wanted by name, and count"


@case
def a_cancelled_job_takes_no_turn(h: Harness) -> None:
    h.spec(share=Fair())
    gone = h.enqueue(5, tenant="a")
    kept = h.enqueue(5, tenant="b")
    h.store.cancel(gone)
    assert [lease.job.id for lease in h.claim(5)] == kept
    h.enqueue(5, tenant="a")
    h.enqueue(5, tenant="b")
    assert len(h.claim(10)) == 10


@case
def new_weights_hold_from_the_next_claim_on(h: Harness) -> None:
    h.spec(share=Fair())
    h.enqueue(200, tenant="a")
    h.enqueue(200, tenant="b")
    _served(h, 20)
    h.spec(share=Fair(weights={"a": 4}))
    served = _served(h, 100)
    assert abs(served["a"] - 80) <= 4, served


@case_if(Need.DURABLE)
def classes_outlive_a_reopening(h: Harness) -> None:
    h.spec(share=Fair(weights={"a": 3}))
    h.enqueue(100, tenant="a")
    h.enqueue(100, tenant="b")
    h.reopen()
    served = _served(h, 80)
    assert abs(served["a"] - 60) <= 3, served
