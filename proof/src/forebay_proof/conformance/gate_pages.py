"""The gates that are in use, page by page and by how their names begin; listing them changes nothing."""

from forebay.core.errors import Invalid
from forebay.core.limits import MAX_PARKED
from forebay.core.policy import AtMost, InOrder, Rate, Until
from forebay_proof.conformance.case import Need, case, case_if, refused
from forebay_proof.conformance.harness import Harness


def listed(h: Harness, limit: int = 100, prefix: str = "") -> dict[str, tuple[int, int]]:
    """By name: slots and used; put together from pages."""
    found = h.store.gates("", limit, prefix)
    last = found
    while last:
        assert len(last) <= limit
        last = h.store.gates(found[-1].name, limit, prefix)
        found = [*found, *last]
    assert [each.name for each in found] == sorted({each.name for each in found})
    return {each.name: (each.slots, each.used) for each in found}


@case
def gates_are_listed_while_jobs_use_them(h: Harness) -> None:
    h.spec("capped", eligibility=AtMost(2))
    h.spec("keyed", eligibility=AtMost(3, per="tenant"))
    h.spec("lined", eligibility=InOrder(per="subject"))
    h.spec("shut", eligibility=Until("go"))
    h.enqueue(5, queue="capped")
    for number in range(4):
        h.one(queue="keyed", tenant=f"t{number % 2}", cost=1 + number % 2)
        h.one(queue="lined", subject=f"s{number % 2}")
    h.one(queue="shut")
    assert listed(h) == {}, "nothing runs"
    leases = h.claim(5, "capped")
    for queue in ("keyed", "lined", "shut"):
        h.claim(9, queue)
    keyed = {"cap/keyed/tenant/t0": (3, 2), "cap/keyed/tenant/t1": (3, 2)}
    assert listed(h) == listed(h, limit=1) == {"cap/capped": (2, 2), **keyed}
    h.ack(leases[0])
    assert listed(h)["cap/capped"] == (2, 1)
    h.ack(leases[1])
    assert listed(h) == keyed


@case
def a_rate_is_listed_while_starts_are_owed_to_it(h: Harness) -> None:
    h.spec(eligibility=Rate(1, h.short_delta, burst=2) & Rate(1, h.short_delta, burst=3, per="tenant"))
    h.one(tenant="t")
    assert listed(h) == {}
    h.ack(h.take())
    assert listed(h) == {"rate/q": (2, 0), "rate/q/tenant/t": (3, 0)}
    h.advance(h.short + 1)
    assert listed(h) == {}


@case
def a_prefix_chooses_gates_by_how_their_names_begin(h: Harness) -> None:
    h.spec("a", eligibility=AtMost(1))
    h.spec("ab", eligibility=AtMost(1, per="subject"))
    h.spec("rated", eligibility=Rate(1, 1_000 * h.short_delta))
    for queue in ("a", "rated"):
        h.one(queue=queue)
        h.take(queue)
    for subject in ("x", "é", "\U0001f600"):
        h.one(queue="ab", subject=subject)
    assert len(h.claim(9, "ab")) == 3
    whole = listed(h)
    assert len(whole) == 5
    for prefix in ("cap/a", "cap/ab", "cap/", "cap/ab/subject/é", "rate/rated", "rate/unknown", "r", "z"):
        begun = {name: use for name, use in whole.items() if name.startswith(prefix)}
        assert listed(h, 1, prefix) == listed(h, 9, prefix) == begun, prefix
    assert [each.name for each in h.store.gates("rate/rated", 9, "cap/")] == []
    assert [each.name for each in h.store.gates("a", 1, prefix="cap/a")] == ["cap/a"]


@case
def the_number_that_an_operator_gave_a_gate_is_listed(h: Harness) -> None:
    h.spec("capped", eligibility=AtMost(2))
    h.spec("shut", eligibility=Until("go", per="tenant"))
    h.enqueue(5, queue="capped")
    h.store.set_gate("cap/capped", 4)
    h.store.set_gate("until/go/t", 0)
    assert listed(h) == {"cap/capped": (4, 0), "until/go/t": (0, 0)}
    assert [each.given for each in h.store.gates("", 9)] == [4, 0]
    leases = h.claim(9, "capped")
    assert listed(h)["cap/capped"] == (4, 4)
    h.store.set_gate("cap/capped", None)
    assert listed(h)["cap/capped"] == (2, 4)
    assert [each.given for each in h.store.gates("", 9)] == [None, 0]
    for lease in leases:
        h.ack(lease)
    h.store.set_gate("until/go/t", None)
    assert listed(h) == {}


@case
def a_gate_shows_the_slots_that_the_spec_says_now(h: Harness) -> None:
    h.spec(eligibility=AtMost(2) & AtMost(3, per="tenant"))
    h.enqueue(4, tenant="t")
    h.claim(4)
    assert listed(h) == {"cap/q": (2, 2), "cap/q/tenant/t": (3, 2)}
    h.spec(eligibility=AtMost(5) & AtMost(4, per="tenant"))
    assert listed(h) == {"cap/q": (5, 2), "cap/q/tenant/t": (4, 2)}
    h.spec(eligibility=AtMost(5))
    assert listed(h) == {"cap/q": (5, 2)}
    h.spec(eligibility=AtMost(4, per="tenant"))
    assert listed(h) == {"cap/q/tenant/t": (4, 2)}


@case
def a_gate_shows_how_many_jobs_are_parked_there(h: Harness) -> None:
    def parked() -> dict[str, int]:
        return {each.name: each.parked for each in h.store.gates("", 9)}

    h.spec(eligibility=AtMost(9) & AtMost(1, per="tenant") & AtMost(1, per="subject"))
    h.enqueue(4, tenant="a")
    h.enqueue(2, tenant="b")
    h.one(tenant="a", subject="t")
    leases = h.claim(9)
    assert len(leases) == 2
    tenants = {"cap/q": 0, "cap/q/tenant/a": 4, "cap/q/tenant/b": 1}
    assert parked() == tenants, "the gate of the whole queue parks none"
    h.one(tenant="a")
    assert parked() == {**tenants, "cap/q/tenant/a": 5}
    h.ack(next(lease for lease in leases if lease.job.tenant == "a"))
    assert parked() == {"cap/q": 0, "cap/q/tenant/b": 1}
    h.store.set_gate("cap/q/tenant/a", 0)
    assert h.claim(9) == []
    assert parked()["cap/q/tenant/a"] == 5
    h.store.set_gate("cap/q/tenant/a", 1)
    assert parked()["cap/q/tenant/a"] == 0, "it has room"


@case
def jobs_of_several_queues_are_parked_at_a_gate_that_they_share(h: Harness) -> None:
    for queue in ("mail", "media"):
        h.spec(queue, eligibility=AtMost(2, per="tenant", shared="gpu"))
        h.enqueue(3, queue=queue, tenant="t")
    leases = [*h.claim(9, "mail"), *h.claim(9, "media")]
    assert [each.parked for each in h.store.gates("", 9)] == [4]
    for lease in leases:
        h.ack(lease)
    assert h.store.gates("", 9) == []
    assert len([*h.claim(1, "mail"), *h.claim(9, "media")]) == 2
    assert [(each.used, each.parked) for each in h.store.gates("", 9)] == [(2, 2)]


@case
def no_more_parked_jobs_are_counted_than_the_limit(h: Harness) -> None:
    h.spec(eligibility=AtMost(1, per="tenant"))
    for _ in range(3):
        h.enqueue(MAX_PARKED // 2, tenant="t")
    assert len(h.claim(9)) == 1
    assert [each.parked for each in h.store.gates("", 9)] == [MAX_PARKED]


@case_if(Need.DURABLE)
def what_gates_use_outlives_a_reopening(h: Harness) -> None:
    h.spec(eligibility=AtMost(5) & AtMost(3, per="tenant") & Rate(1, 1_000 * h.short_delta, burst=9))
    h.enqueue(4, tenant="t")
    h.store.set_gate("until/go", 7)
    h.ack(h.claim(3)[0])
    before = listed(h)
    assert before == {"cap/q": (5, 2), "cap/q/tenant/t": (3, 2), "rate/q": (9, 0), "until/go": (7, 0)}
    h.reopen()
    assert listed(h) == before


@case
def a_bad_page_of_gates_is_refused(h: Harness) -> None:
    for after, limit in (("", 0), ("", 1_001), (None, 1), ("a\0", 1)):
        refused(Invalid, lambda after=after, limit=limit: h.store.gates(after, limit))  # type: ignore[misc]
    refused(Invalid, lambda: h.store.gates("", 1, "a\0"))


@case
def gates_are_listed_in_the_order_of_their_code_points(h: Harness) -> None:
    subjects = ["a", "B", "a-b", "a b", "é", "z", "_", "\U0001f600", "~"]
    h.spec("keyed", eligibility=AtMost(1, per="subject"))
    for subject in subjects:
        h.one(queue="keyed", subject=subject)
    assert len(h.claim(99, "keyed")) == len(subjects)
    assert len(listed(h, limit=2)) == len(subjects)
