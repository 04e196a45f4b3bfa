"""Jobs that cost more than one: they take as many slots as they cost, and nothing passes one that waits for room."""

from forebay.core.errors import Invalid
from forebay.core.gate import condition_gate
from forebay.core.job import State
from forebay.core.lease import Lease
from forebay.core.outcome import Ack, Cancel, DeadLetter, Release, Retry, Verdict
from forebay.core.policy import AtMost, KeepFor, Priority, Until
from forebay_proof.conformance.case import case, refused
from forebay_proof.conformance.harness import ERROR, LONG, SECOND, Harness
from forebay_proof.conformance.racing import answers, race


@case
def a_job_shows_its_cost_in_every_state(h: Harness) -> None:
    h.spec(retention=KeepFor(LONG))
    costly, cheap = h.one(cost=7), h.one()
    assert (h.get(costly).cost, h.get(cheap).cost) == (7, 1)
    lease = h.take()
    assert lease.job.cost == 7
    assert [each.job.cost for each in h.store.extend([lease], LONG)] == [7]
    h.fail(lease)
    h.ack(next(lease for lease in h.claim(2) if lease.job.id == costly))
    assert (h.get(costly).state, h.get(costly).cost) == (State.DONE, 7)
    late = h.one(cost=3, delay=h.short)
    assert h.get(late).cost == 3
    assert [job.cost for job in h.jobs()] == [7, 1, 3]


@case
def neighbours_of_other_costs_keep_their_own(h: Harness) -> None:
    ids = [receipt.id for receipt in h.send(*[h.draft(cost=cost) for cost in (1, 5, 5, 1, 2)])]
    assert [lease.job.cost for lease in h.claim(5)] == [1, 5, 5, 1, 2]
    assert [h.get(job_id).cost for job_id in ids] == [1, 5, 5, 1, 2]


@case
def a_costly_job_takes_as_many_slots_as_it_costs(h: Harness) -> None:
    h.spec(eligibility=AtMost(4))
    costly, first, second = h.one(cost=3), h.one(), h.one()
    assert [lease.job.id for lease in h.claim(3)] == [costly, first]
    assert h.state(second) is State.READY


@case
def every_verdict_gives_all_of_its_slots_back(h: Harness) -> None:
    verdicts: list[Verdict] = [Ack(), Retry(h.short, ERROR), DeadLetter(ERROR), Release(h.short), Cancel()]
    for number, verdict in enumerate(verdicts):
        queue = f"q{number}"
        h.spec(queue, eligibility=AtMost(3))
        h.one(queue=queue, cost=3)
        second = h.one(queue=queue, cost=3)
        h.settle(h.take(queue), verdict)
        assert h.take(queue).job.id == second, verdict
        assert h.claim(3, queue) == []


@case
def a_cheap_job_does_not_pass_a_costly_one_that_waits_for_room(h: Harness) -> None:
    h.spec(eligibility=AtMost(4))
    h.one(cost=2)
    holder = h.take()
    costly, small = h.one(cost=3), h.one()
    assert h.claim(4) == []
    assert (h.state(costly), h.state(small)) == (State.READY, State.READY)
    h.ack(holder)
    assert [lease.job.id for lease in h.claim(4)] == [costly, small]


@case
def a_cheap_job_does_not_pass_a_costly_one_of_the_same_batch(h: Harness) -> None:
    h.spec(eligibility=AtMost(4))
    h.one(cost=2)
    holder = h.take()
    costly, small = (receipt.id for receipt in h.send(h.draft(cost=4), h.draft(cost=2)))
    assert h.claim(4) == []
    h.ack(holder)
    assert [lease.job.id for lease in h.claim(4)] == [costly]
    assert h.state(small) is State.READY


@case
def a_job_with_a_lower_rank_takes_the_room_there_is(h: Harness) -> None:
    h.spec(eligibility=AtMost(4), selection=Priority())
    h.one(cost=3)
    h.take()
    costly = h.one(cost=2)
    urgent = h.one(priority=5)
    assert [lease.job.id for lease in h.claim(4)] == [urgent]
    assert h.state(costly) is State.READY


@case
def jobs_behind_a_costly_one_start_when_it_is_cancelled(h: Harness) -> None:
    h.spec(eligibility=AtMost(4))
    h.one(cost=2)
    h.take()
    costly, small, other = h.one(cost=4), h.one(), h.one()
    assert h.claim(4) == []
    h.store.cancel([costly])
    assert [lease.job.id for lease in h.claim(4)] == [small, other]


@case
def jobs_behind_a_costly_one_start_when_it_expires(h: Harness) -> None:
    h.spec(eligibility=AtMost(4))
    h.one(cost=2)
    h.take()
    costly, small = h.one(cost=4, expires_at=h.now() + h.short), h.one()
    h.advance(h.short + SECOND)
    assert [lease.job.id for lease in h.claim(4)] == [small]
    assert h.state(costly) is State.DEAD


def _kinds(h: Harness) -> tuple[Lease, int, int]:
    """Two lanes at one gate of four: two slots taken, then a job that needs three, then one that needs one."""
    h.spec(eligibility=AtMost(4, per="kind") & AtMost(9, per="tenant"))
    h.one(tenant="a", cost=2)
    holder = h.take()
    return holder, h.one(tenant="b", cost=3), h.one(tenant="c")


@case
def a_cheap_job_does_not_pass_a_costly_one_of_another_lane_at_the_same_gate(h: Harness) -> None:
    holder, costly, small = _kinds(h)
    other = h.one(tenant="c", kind="other")
    assert [lease.job.id for lease in h.claim(9)] == [other]
    assert h.claim(9) == []
    h.ack(holder)
    assert [lease.job.id for lease in h.claim(9)] == [costly, small]


@case
def lanes_behind_a_costly_head_start_when_it_is_cancelled_or_expires(h: Harness) -> None:
    _, costly, small = _kinds(h)
    assert h.claim(9) == []
    h.store.cancel([costly])
    lease = h.take()
    assert lease.job.id == small
    late = h.one(tenant="b", cost=3, expires_at=h.now() + h.short)
    after = h.one(tenant="c")
    assert h.claim(9) == []
    h.advance(h.short + SECOND)
    assert h.state(late) is State.DEAD
    assert [lease.job.id for lease in h.claim(9)] == [after]


@case
def lanes_behind_a_costly_head_start_when_a_cheaper_one_takes_its_place(h: Harness) -> None:
    h.spec(eligibility=AtMost(4, per="kind") & AtMost(9, per="tenant"), selection=Priority())
    h.one(tenant="a", cost=3)
    h.take()
    costly, small = h.one(tenant="b", cost=3), h.one(tenant="c")
    assert h.claim(9) == []
    cheap = h.one(tenant="b", priority=5)
    assert [lease.job.id for lease in h.claim(9)] == [cheap]
    assert (h.state(costly), h.state(small)) == (State.READY, State.READY)


@case
def costly_heads_at_a_gate_of_many_lanes_all_run(h: Harness) -> None:
    h.spec(eligibility=AtMost(5, per="kind") & AtMost(6, per="tenant"))
    ids = [h.one(tenant=f"t{number % 7}", cost=1 + number % 5) for number in range(70)]
    done: list[int] = []
    while leases := h.claim(3):
        assert sum(job.cost for job in h.jobs(state=State.RUNNING)) <= 5
        for lease in reversed(leases):
            h.ack(lease)
        done += [lease.job.id for lease in leases]
    assert sorted(done) == ids
    h.nothing_left()


@case
def a_job_that_costs_more_than_its_gate_has_is_refused(h: Harness) -> None:
    h.spec(eligibility=AtMost(4))
    with h.unchanged():
        refused(Invalid, lambda: h.send(h.draft(), h.draft(cost=5)))


@case
def a_job_that_costs_more_than_a_lowered_limit_runs_alone(h: Harness) -> None:
    h.spec(eligibility=AtMost(4))
    h.store.set_gate("cap/q", 2)
    small, costly, last = h.one(), h.one(cost=4), h.one()
    lease = h.take()
    assert (lease.job.id, h.claim(3)) == (small, [])
    h.ack(lease)
    lease = h.take()
    assert (lease.job.id, h.claim(3)) == (costly, [])
    h.ack(lease)
    assert h.take().job.id == last


@case
def a_condition_admits_as_much_cost_as_it_has_slots(h: Harness) -> None:
    h.spec(eligibility=Until("stock"))
    first, second = h.one(cost=3), h.one(cost=3)
    h.store.set_gate(condition_gate("stock"), 5)
    assert [lease.job.id for lease in h.claim(4)] == [first]
    h.store.set_gate(condition_gate("stock"), 6)
    assert [lease.job.id for lease in h.claim(4)] == [second]


@case
def a_redriven_job_costs_what_it_did(h: Harness) -> None:
    h.spec(eligibility=AtMost(3))
    dead = h.dead(cost=3)
    h.one()
    lease = h.take()
    assert h.store.redrive([dead]) == [dead]
    assert h.claim(3) == []
    h.ack(lease)
    assert h.take().job.cost == 3
    assert h.claim(3) == []


@case
def under_racing_workers_no_more_slots_are_used_than_there_are(h: Harness) -> None:
    h.spec(eligibility=AtMost(10))
    costs = {h.one(cost=1 + number % 4): 1 + number % 4 for number in range(48)}

    def work(number: int) -> list[int]:
        done = []
        for _ in range(200):
            leases = h.claim(2, owner=f"w{number}")
            held = sum(job.cost for job in h.jobs(state=State.RUNNING))
            assert held <= 10, held
            h.store.settle([(lease, Ack()) for lease in leases])
            done += [lease.job.id for lease in leases]
            if not leases and not h.jobs():
                break
        return done

    came = [job_id for ids in answers(race(6, work)) for job_id in ids]
    assert sorted(came) == sorted(costs)
    h.nothing_left()
