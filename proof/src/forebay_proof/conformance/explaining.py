"""What holds a job, and what goes before it: computed from the state, without changing anything."""

from forebay.core.gate import condition_gate
from forebay.core.policy import AtMost, Fair, InOrder, LatestWins, Priority, Rate, Until
from forebay.store.protocol import Hold
from forebay_proof.conformance.case import case
from forebay_proof.conformance.harness import Harness


def hold(h: Harness, job_id: int) -> Hold:
    found = h.store.hold(job_id)
    assert found is not None, f"nothing holds job {job_id}"
    return found


@case
def a_cap_shows_what_runs_and_how_many_jobs_are_ahead(h: Harness) -> None:
    h.spec(eligibility=AtMost(2))
    ids = h.enqueue(5)
    assert [h.store.hold(job_id) for job_id in ids] == [None] * 5, "nothing runs"
    h.claim(5)
    assert h.store.hold(ids[0]) is None
    assert hold(h, ids[2]) == Hold("cap/q", 2, 2, 0)
    assert hold(h, ids[4]) == Hold("cap/q", 2, 2, 2)


@case
def costs_count_among_what_is_used(h: Harness) -> None:
    h.spec(eligibility=AtMost(4))
    h.one(cost=3)
    h.take()
    costly, behind = h.one(cost=2), h.one()
    assert hold(h, costly) == Hold("cap/q", 4, 3, 0)
    assert hold(h, behind) == Hold("cap/q", 4, 3, 1), "it waits with the head of its lane"


@case
def a_condition_shows_the_operators_limit(h: Harness) -> None:
    h.spec(eligibility=Until("stock"))
    first, second = h.enqueue(2)
    gate = condition_gate("stock")
    assert hold(h, first) == Hold(gate, 0, 0, 0)
    h.store.set_gate(gate, 1)
    assert h.store.hold(first) is None
    assert h.take().job.id == first
    assert hold(h, second) == Hold(gate, 1, 1, 0)


@case
def a_job_of_a_lane_is_held_by_its_first_closed_gate(h: Harness) -> None:
    """First those of the whole queue, then those of the lane by their names; whatever claims have met."""
    h.spec(eligibility=Until("open", per="kind") & AtMost(3) & AtMost(1, per="tenant"))
    h.store.set_gate(condition_gate("open", "work"), 9)
    first, second, third = h.enqueue(3, tenant="t")
    other = h.one(tenant="u")
    assert h.take().job.id == first
    assert hold(h, third) == Hold("cap/q/tenant/t", 1, 1, 1)
    assert h.store.hold(other) is None
    h.store.set_gate(condition_gate("open", "work"), 1)
    assert hold(h, second).gate == "cap/q/tenant/t"
    assert hold(h, other) == Hold("until/open/work", 1, 1, 0)
    h.store.set_gate("cap/q", 0)
    assert hold(h, third) == Hold("cap/q", 0, 1, 1)
    h.spec()
    assert [h.store.hold(job_id) for job_id in (second, third, other)] == [None] * 3


@case
def a_line_shows_its_head(h: Harness) -> None:
    h.spec(eligibility=InOrder(per="subject"))
    ids = h.enqueue(4, subject="s")
    line = "order/q/subject/s"
    assert h.store.hold(ids[0]) is None
    assert hold(h, ids[1]) == Hold(line, 1, 0, 0, ids[0])
    h.take()
    assert hold(h, ids[3]) == Hold(line, 1, 1, 2, ids[0])
    h.store.cancel([ids[1]])
    assert hold(h, ids[3]) == Hold(line, 1, 1, 1, ids[0])


@case
def newer_work_is_held_by_the_run_of_older_work(h: Harness) -> None:
    h.spec(merge=LatestWins())
    first = h.one(subject="s")
    h.take()
    newer = h.one(subject="s")
    assert hold(h, newer) == Hold("merge/q/s", 1, 1, 0, first)


@case
def a_dead_head_that_blocks_its_line_is_shown(h: Harness) -> None:
    h.spec(eligibility=InOrder(per="subject", dead_head="block"))
    ids = h.enqueue(2, subject="s")
    h.dead_letter(h.take())
    assert hold(h, ids[1]) == Hold("order/q/subject/s", 1, 0, 0, ids[0])


@case
def a_retrying_head_is_shown_and_is_itself_held_by_nothing(h: Harness) -> None:
    h.spec(eligibility=InOrder())
    first, second = h.enqueue(2, subject="s")
    h.fail(h.take(), after=h.short)
    assert hold(h, second) == Hold("order/q/subject/s", 1, 0, 0, first)
    assert h.store.hold(first) is None, "it is not due"


@case
def a_rate_shows_when_it_opens(h: Harness) -> None:
    for number, per in enumerate((None, "tenant")):
        queue = f"q{number}"
        h.spec(queue, eligibility=Rate(1, h.short_delta, burst=1, per=per))  # type: ignore[arg-type]
        gate = f"rate/{queue}" if per is None else f"rate/{queue}/tenant/t"
        ids = h.enqueue(3, queue=queue, tenant="t")
        began = h.now()
        h.take(queue)
        held = hold(h, ids[2])
        assert (held.gate, held.slots, held.used, held.before, held.head) == (gate, 1, 0, 1, None)
        assert held.opens_at is not None
        assert began + h.short <= held.opens_at <= h.now() + h.short
        h.store.set_gate(gate, 0)
        assert hold(h, ids[2]).opens_at is None
        h.store.set_gate(gate, None)
        h.advance(2 * h.short)
        assert h.store.hold(ids[2]) is None


@case
def nothing_holds_a_job_that_is_unknown_not_due_ready_running_or_done(h: Harness) -> None:
    late, ready = h.one(delay=h.short), h.one()
    assert [h.store.hold(job_id) for job_id in (late, ready, ready + 100_000)] == [None, None, None]
    h.ack(h.take())
    assert h.store.hold(ready) is None


@case
def a_ready_job_shows_how_many_are_ahead_of_it(h: Harness) -> None:
    ids = h.enqueue(5)
    assert [h.store.ahead(job_id) for job_id in ids] == [0, 1, 2, 3, 4]
    h.take()
    assert [h.store.ahead(job_id) for job_id in ids] == [None, 0, 1, 2, 3]
    assert h.store.ahead(h.one(delay=h.short)) is None
    assert h.store.ahead(ids[-1] + 100_000) is None


@case
def a_held_job_is_ready_and_shows_how_many_are_ahead_of_it(h: Harness) -> None:
    h.spec(eligibility=AtMost(1, per="tenant"))
    ada, bob = h.enqueue(3, tenant="ada"), h.enqueue(2, tenant="bob")
    h.claim(9)
    assert [h.store.ahead(job_id) for job_id in (*ada, *bob)] == [None, 0, 1, None, 0]


@case
def only_jobs_of_the_same_class_count_as_ahead(h: Harness) -> None:
    h.spec(selection=Priority(), share=Fair("tenant"))
    ada = [h.one(tenant="ada", priority=priority) for priority in (1, 9, 5)]
    bob = h.one(tenant="bob")
    assert [h.store.ahead(job_id) for job_id in (*ada, bob)] == [2, 0, 1, 0]


@case
def explaining_changes_nothing(h: Harness) -> None:
    h.spec(eligibility=AtMost(1) & AtMost(1, per="tenant"))
    ids = h.enqueue(3, tenant="t")
    lease = h.take()
    with h.unchanged():
        for job_id in ids:
            h.store.hold(job_id)
            h.store.ahead(job_id)
            h.store.gates("", 9)
    h.ack(lease)
    assert h.drain() == ids[1:]
