"""What holds a queue up, told in its backlog: how long somebody has been parked, and lines that a dead head blocks."""

from forebay.core.gate import condition_gate
from forebay.core.instant import hours
from forebay.core.job import State
from forebay.core.limits import BATCH_MOST
from forebay.core.policy import AtMost, DeadLetters, InOrder, Priority, Rate, Routing, Until
from forebay.testing.conformance.case import Need, case, case_if
from forebay.testing.conformance.harness import Harness

_BLOCK = InOrder(dead_head="block")


@case
def the_oldest_parked_is_the_one_that_has_been_due_longest(h: Harness) -> None:
    h.spec(eligibility=AtMost(1), selection=Priority())
    h.one()
    assert h.backlog().oldest_parked == 0, "nobody is parked"
    h.one(priority=1, delay=h.short)
    h.one(priority=9, delay=2 * h.short)
    h.advance(4 * h.short)
    assert 3 * h.short <= h.backlog().oldest_parked < 4 * h.short
    assert h.backlog("other").oldest_parked == 0
    h.ack(h.take())
    assert h.backlog().oldest_parked >= 3 * h.short, "the one of the higher priority was let in"
    h.ack(h.take())
    assert h.backlog().oldest_parked == 0
    assert h.drain() != []


@case
def the_oldest_parked_is_told_of_every_gate(h: Harness) -> None:
    h.spec(eligibility=AtMost(1, per="subject") & Until("open", per="tenant"))
    h.enqueue(2, subject="s")
    h.advance(h.short)
    h.one(tenant="t")
    assert h.short <= h.backlog().oldest_parked < 2 * h.short
    h.drain()
    assert h.backlog().oldest_parked < h.short
    h.store.set_gate(condition_gate("open", "t"), 1)
    assert h.backlog().oldest_parked == 0


@case
def who_was_cancelled_is_parked_no_longer(h: Harness) -> None:
    h.spec(eligibility=Until("open"))
    first = h.one()
    h.advance(h.short)
    h.one()
    assert h.backlog().oldest_parked >= h.short
    h.store.cancel([first])
    assert h.backlog().oldest_parked < h.short


@case
def who_waits_for_a_rate_is_parked(h: Harness) -> None:
    h.spec(eligibility=Rate(1, hours(1)))
    h.enqueue(2)
    h.take()
    h.advance(h.short)
    assert h.short <= h.backlog().oldest_parked < 2 * h.short


@case
def who_dies_at_a_gate_and_lies_elsewhere_is_parked_no_longer(h: Harness) -> None:
    gates = (AtMost(1), Rate(1, hours(1)))
    for number, gate in enumerate(gates):
        queue = f"q{number}"
        h.spec(queue, eligibility=gate, routing=Routing(dead=DeadLetters("graves")))
        h.one(queue=queue)
        h.take(queue)
        late = h.one(queue=queue, expires_at=h.now() + h.short)
        assert h.backlog(queue).waiting == 1
        h.advance(2 * h.short)
        assert h.state(late) is State.DEAD
        assert h.backlog(queue).oldest_parked == 0
        assert h.backlog("graves").oldest_parked == 0


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
    h.bury(h.take())
    assert h.backlog().blocked == 2
    h.store.purge(State.DEAD, h.now() + 1, BATCH_MOST)
    assert h.backlog().blocked == 0


@case
def a_dead_head_that_is_skipped_blocks_nothing(h: Harness) -> None:
    h.spec(eligibility=InOrder(dead_head="skip"))
    h.dead(subject="a")
    h.one(subject="a")
    assert h.backlog().blocked == 0


@case
def who_dies_behind_a_living_head_blocks_when_it_is_its_turn(h: Harness) -> None:
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
def lines_of_a_queue_whose_name_begins_alike_are_not_its_own(h: Harness) -> None:
    for queue in ("q", "q0", "q.a", "q-b"):
        h.spec(queue, eligibility=_BLOCK)
    for number, queue in enumerate(("q0", "q.a", "q-b")):
        for subject in range(number + 1):
            h.dead(queue=queue, subject=f"{subject}/x")
    assert [h.backlog(queue).blocked for queue in ("q", "q0", "q.a", "q-b")] == [0, 1, 2, 3]


@case
def a_line_is_blocked_by_a_dead_head_that_lies_elsewhere(h: Harness) -> None:
    h.spec(eligibility=_BLOCK, routing=Routing(dead=DeadLetters("graves")))
    head = h.dead(subject="s")
    assert (h.backlog().blocked, h.backlog("graves").blocked) == (1, 0)
    h.store.redrive([head])
    assert h.backlog().blocked == 0


@case_if(Need.DURABLE)
def what_holds_a_queue_up_outlives_a_reopening(h: Harness) -> None:
    h.spec(eligibility=_BLOCK)
    h.dead(subject="s")
    h.one(subject="s")
    h.advance(h.short)
    h.reopen()
    backlog = h.backlog()
    assert backlog.blocked == 1
    assert h.short <= backlog.oldest_parked < 2 * h.short
