"""What blocks a queue, as its backlog shows it: ready jobs behind closed gates, and lines that a dead head blocks."""

from forebay.core.gate import condition_gate
from forebay.core.instant import hours
from forebay.core.job import State
from forebay.core.limits import MAX_BATCH
from forebay.core.policy import AtMost, DeadLetters, InOrder, Priority, Rate, Routing, Until
from forebay_proof.conformance.case import Need, case, case_if
from forebay_proof.conformance.harness import SECOND, Harness

_BLOCK = InOrder(dead_head="block")


@case
def the_oldest_ready_job_is_the_one_that_has_been_due_longest_held_or_not(h: Harness) -> None:
    h.spec(eligibility=AtMost(1), selection=Priority())
    h.one()
    h.take()
    h.one(priority=1, delay=h.short)
    h.one(priority=9, delay=2 * h.short)
    h.advance(4 * h.short)
    assert 3 * h.short <= h.backlog().oldest_age < 4 * h.short
    assert h.backlog("other").oldest_age == 0


@case
def all_ready_jobs_are_held_while_a_gate_of_the_whole_queue_is_closed(h: Harness) -> None:
    h.spec(eligibility=AtMost(2))
    h.spec("rated", eligibility=Rate(1, hours(1)))
    h.enqueue(5)
    h.enqueue(3, queue="rated")
    assert (h.backlog().held, h.backlog("rated").held) == (0, 0)
    lease = h.claim(2)[0]
    h.take("rated")
    assert (h.backlog().held, h.backlog("rated").held) == (3, 2)
    h.ack(lease)
    assert h.backlog().held == 0
    h.store.set_gate("cap/q", 0)
    assert h.backlog().held == 3
    h.spec()
    assert h.backlog().held == 0


@case
def the_jobs_of_lanes_that_a_claim_found_closed_are_held(h: Harness) -> None:
    h.spec(eligibility=AtMost(1, per="tenant") & Until("open", per="subject"))
    h.enqueue(3, tenant="a")
    h.enqueue(2, tenant="b", subject="s")
    free = h.enqueue(4)
    assert len(h.claim(9)) == 1 + len(free)
    assert (h.backlog().ready, h.backlog().held) == (4, 4)
    h.one(tenant="a")
    assert h.backlog().held == 5, "it came into a lane that is closed"
    h.store.set_gate(condition_gate("open", "s"), 1)
    assert h.backlog().held == 3
    h.spec()
    assert h.backlog().held == 0


@case
def a_cancelled_or_expired_job_is_held_no_longer(h: Harness) -> None:
    h.spec(eligibility=Until("open"), routing=Routing(dead=DeadLetters("dead-letters")))
    first, _, _ = h.enqueue(3)
    late = h.one(expires_at=h.now() + h.short)
    assert (h.claim(9), h.backlog().held) == ([], 4)
    h.store.cancel([first])
    assert h.backlog().held == 3
    h.advance(h.short + SECOND)
    assert h.state(late) is State.DEAD
    assert (h.backlog().held, h.backlog("dead-letters").held) == (2, 0)


@case
def a_line_is_blocked_while_its_head_is_dead(h: Harness) -> None:
    h.spec(eligibility=_BLOCK)
    head = h.dead(subject="a")
    assert h.backlog().blocked == 1
    h.one(subject="a")
    h.dead(subject="c")
    assert (h.backlog().blocked, h.backlog("other").blocked) == (2, 0)
    assert h.store.redrive([head]) == [head]
    assert h.backlog().blocked == 1
    h.dead_letter(h.take())
    assert h.backlog().blocked == 2
    h.store.purge(State.DEAD, h.now() + 1, MAX_BATCH)
    assert h.backlog().blocked == 0


@case
def a_dead_head_that_is_skipped_blocks_nothing(h: Harness) -> None:
    h.spec(eligibility=InOrder(dead_head="skip"))
    h.dead(subject="a")
    h.one(subject="a")
    assert h.backlog().blocked == 0


@case
def a_job_that_dies_behind_a_living_head_blocks_when_it_is_the_head(h: Harness) -> None:
    h.spec(eligibility=_BLOCK)
    h.one(subject="s")
    lease = h.take()
    late = h.one(subject="s", expires_at=h.now() + h.short)
    h.advance(2 * h.short)
    assert h.state(late) is State.DEAD
    assert h.backlog().blocked == 0, "the head runs"
    h.ack(lease)
    assert h.backlog().blocked == 1
    h.store.redrive([late])
    assert h.backlog().blocked == 0
    assert h.drain() == [late]


@case
def lines_of_a_queue_with_the_same_prefix_are_not_counted(h: Harness) -> None:
    for queue in ("q", "q0", "q.a", "q-b"):
        h.spec(queue, eligibility=_BLOCK)
    for number, queue in enumerate(("q0", "q.a", "q-b")):
        for subject in range(number + 1):
            h.dead(queue=queue, subject=f"{subject}/x")
    assert [h.backlog(queue).blocked for queue in ("q", "q0", "q.a", "q-b")] == [0, 1, 2, 3]


@case
def a_line_is_blocked_by_a_dead_head_that_is_kept_elsewhere(h: Harness) -> None:
    h.spec(eligibility=_BLOCK, routing=Routing(dead=DeadLetters("dead-letters")))
    head = h.dead(subject="s")
    assert (h.backlog().blocked, h.backlog("dead-letters").blocked) == (1, 0)
    h.store.redrive([head])
    assert h.backlog().blocked == 0


@case_if(Need.DURABLE)
def what_holds_a_queue_up_outlives_a_reopening(h: Harness) -> None:
    h.spec(eligibility=_BLOCK)
    h.dead(subject="s")
    h.one(subject="s")
    h.spec("capped", eligibility=AtMost(1))
    h.enqueue(3, queue="capped")
    h.take("capped")
    h.reopen()
    assert (h.backlog().blocked, h.backlog("capped").held) == (1, 2)
