"""The gates that are in use, page by page and by how their names begin; to list them changes nothing."""

from forebay.core.errors import Invalid
from forebay.core.policy import AtMost, InOrder, Until
from forebay.testing.conformance.case import case, refused
from forebay.testing.conformance.harness import Harness


def listed(h: Harness, limit: int = 100, prefix: str = "") -> dict[str, tuple[int, int, int]]:
    """By name: slots, held, parked; put together from pages."""
    found = h.store.gates("", limit, prefix)
    last = found
    while last:
        assert len(last) <= limit
        last = h.store.gates(found[-1].name, limit, prefix)
        found = [*found, *last]
    assert [each.name for each in found] == sorted({each.name for each in found})
    return {each.name: (each.slots, each.held, each.parked) for each in found}


@case
def gates_are_listed_while_jobs_hold_them_or_are_parked(h: Harness) -> None:
    h.spec("capped", eligibility=AtMost(2))
    h.spec("lined", eligibility=InOrder(per="subject"))
    h.spec("shut", eligibility=Until("go"))
    assert listed(h) == {}
    h.enqueue(5, queue="capped")
    for number in range(4):
        h.one(queue="lined", subject=f"s{number % 2}")
    h.one(queue="shut")
    lease = h.take("capped")
    whole = {
        "cap/capped": (2, 2, 3),
        "order/lined/subject/s0": (1, 1, 1),
        "order/lined/subject/s1": (1, 1, 1),
        "until/go": (0, 0, 1),
    }
    assert listed(h) == listed(h, limit=1) == whole
    h.ack(lease)
    assert listed(h)["cap/capped"] == (2, 2, 2)


@case
def a_prefix_chooses_gates_by_how_their_names_begin(h: Harness) -> None:
    h.spec("a", eligibility=AtMost(1))
    h.spec("ab", eligibility=AtMost(1, per="tenant"))
    h.spec("line", eligibility=InOrder(per="subject"))
    h.one(queue="a")
    for tenant in ("x", "é", "\U0001f600"):
        h.one(queue="ab", tenant="x", subject=tenant)
        h.one(queue="line", subject=tenant)
    whole = listed(h)
    assert len(whole) == 5
    for prefix in ("cap/a", "cap/ab", "cap/", "order/line/subject/é", "order/line", "order/nobody", "o", "z"):
        begun = {name: use for name, use in whole.items() if name.startswith(prefix)}
        assert listed(h, 1, prefix) == listed(h, 9, prefix) == begun, prefix
    assert [each.name for each in h.store.gates("order/line/subject/x", 9, "cap/")] == []
    assert [each.name for each in h.store.gates("a", 1, prefix="cap/a")] == ["cap/a"]


@case
def the_number_that_an_operator_gave_a_gate_is_listed(h: Harness) -> None:
    h.spec("capped", eligibility=AtMost(2))
    h.spec("lined", eligibility=InOrder(per="subject"))
    h.enqueue(5, queue="capped")
    h.enqueue(3, queue="lined", subject="s")
    h.store.set_gate("cap/capped", 4)
    h.store.set_gate("order/lined/subject/s", 7)
    assert listed(h) == {"cap/capped": (4, 4, 1), "order/lined/subject/s": (1, 1, 2)}
    assert [each.given for each in h.store.gates("", 9)] == [4, 7]
    h.store.set_gate("cap/capped", None)
    assert [each.given for each in h.store.gates("", 9)] == [None, 7]
    h.store.set_gate("cap/capped", 4)
    h.store.set_gate("order/lined/subject/s", 0)
    assert listed(h)["order/lined/subject/s"] == (0, 1, 2)
    h.drain("capped")
    assert "cap/capped" not in listed(h)


@case
def a_bad_page_of_gates_is_refused(h: Harness) -> None:
    for after, limit in (("", 0), ("", 1_001), (None, 1), ("a\0", 1)):
        refused(Invalid, lambda after=after, limit=limit: h.store.gates(after, limit))  # type: ignore[misc]
    refused(Invalid, lambda: h.store.gates("", 1, "a\0"))


@case
def gates_are_listed_in_the_order_of_their_code_points(h: Harness) -> None:
    subjects = ["a", "B", "a-b", "a b", "é", "z", "_", "\U0001f600", "~"]
    h.spec("lined", eligibility=InOrder(per="subject"))
    for subject in subjects:
        h.one(queue="lined", subject=subject)
    assert len(listed(h, limit=2)) == len(subjects)
