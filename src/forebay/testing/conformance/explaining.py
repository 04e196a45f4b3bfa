"""What holds a job, and who goes before it: told without changing anything."""

from forebay.core.gate import condition_gate
from forebay.core.policy import AtMost, Fair, InOrder, Priority, Rate, Until
from forebay.store.protocol import Hold
from forebay.testing.conformance.case import case
from forebay.testing.conformance.harness import Harness


def hold(h: Harness, job_id: int) -> Hold:
    found = h.store.hold(job_id)
    assert found is not None, f"nothing holds job {job_id}"
    return found


@case
def a_cap_tells_who_holds_its_slots_and_who_is_before(h: Harness) -> None:
    h.spec(eligibility=AtMost(2))
    ids = h.enqueue(5)
    assert [h.store.hold(job_id) for job_id in ids[:2]] == [None, None]
    assert hold(h, ids[2]) == Hold("cap/q", 2, 2, 3, 0)
    assert hold(h, ids[4]) == Hold("cap/q", 2, 2, 3, 2)


@case
def costs_count_among_what_is_held(h: Harness) -> None:
    h.spec(eligibility=AtMost(4))
    h.one(cost=3)
    dear = h.one(cost=2)
    assert hold(h, dear) == Hold("cap/q", 4, 3, 1, 0)


@case
def a_condition_tells_the_operators_number(h: Harness) -> None:
    h.spec(eligibility=Until("stock"))
    first, second = h.enqueue(2)
    gate = condition_gate("stock")
    assert hold(h, first) == Hold(gate, 0, 0, 2, 0)
    h.store.set_gate(gate, 1)
    assert h.store.hold(first) is None
    assert hold(h, second) == Hold(gate, 1, 1, 1, 0)


@case
def a_line_tells_its_head(h: Harness) -> None:
    h.spec(eligibility=InOrder(per="subject"))
    ids = h.enqueue(3, subject="s")
    held = hold(h, ids[2])
    assert (held.slots, held.held, held.parked, held.before, held.head) == (1, 1, 2, 1, ids[0])


@case
def a_dead_head_that_blocks_its_line_is_told(h: Harness) -> None:
    h.spec(eligibility=InOrder(per="subject", dead_head="block"))
    ids = h.enqueue(2, subject="s")
    h.bury(h.take())
    assert hold(h, ids[1]).head == ids[0]


@case
def a_rate_tells_when_it_opens(h: Harness) -> None:
    h.spec(eligibility=Rate(1, h.brief, burst=1))
    ids = h.enqueue(3)
    began = h.now()
    h.take()
    held = hold(h, ids[2])
    assert (held.gate, held.slots, held.held, held.parked, held.before, held.head) == ("rate/q", 1, 0, 2, 1, None)
    assert held.opens_at is not None
    assert began + h.short <= held.opens_at <= h.now() + h.short
    h.store.set_gate("rate/q", 0)
    assert hold(h, ids[2]).opens_at is None


@case
def nothing_holds_who_is_unknown_not_due_ready_running_or_done(h: Harness) -> None:
    late, ready = h.one(delay=h.short), h.one()
    assert [h.store.hold(job_id) for job_id in (late, ready, ready + 100_000)] == [None, None, None]
    h.ack(h.take())
    assert h.store.hold(ready) is None


@case
def who_is_ready_knows_how_many_go_before_it(h: Harness) -> None:
    ids = h.enqueue(5)
    assert [h.store.ahead(job_id) for job_id in ids] == [0, 1, 2, 3, 4]
    h.take()
    assert [h.store.ahead(job_id) for job_id in ids] == [None, 0, 1, 2, 3]
    assert h.store.ahead(h.one(delay=h.short)) is None
    assert h.store.ahead(ids[-1] + 100_000) is None


@case
def only_those_of_the_same_class_count_by_their_ranks(h: Harness) -> None:
    h.spec(selection=Priority(), share=Fair("tenant"))
    ada = [h.one(tenant="ada", priority=priority) for priority in (1, 9, 5)]
    bob = h.one(tenant="bob")
    assert [h.store.ahead(job_id) for job_id in (*ada, bob)] == [2, 0, 1, 0]


@case
def to_look_changes_nothing(h: Harness) -> None:
    h.spec(eligibility=AtMost(1))
    ids = h.enqueue(3)
    with h.unchanged():
        for job_id in ids:
            h.store.hold(job_id)
            h.store.ahead(job_id)
