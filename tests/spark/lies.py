"""More lies than `planted` has: each changes one thing in the receipts, the effects or the ledger, by as little
as one millisecond, one delivery or one attempt, at the edges of what a number can be, or by another's fence.

Like the plants, each takes jobs of its own, so hundreds of them fit into one history and cost one audit.
"""

from collections.abc import Callable

from forebay.core.ledger import Trait
from forebay.core.outcome import ABANDONED
from tests.spark import planted
from tests.spark.planted import DROPPED, PlantedStory
from tests.spark.story import LEASE, SECOND, START, Life

MS = 1_000
MINUTE = 60 * SECOND
MAX_INT = 2**31 - 1


def _receipts_swapped(g: PlantedStory) -> None:
    one, other = g.pair()
    for life, named in ((one, other), (other, one)):
        g.story.receipt(life.seqs[0], named.first)
        life.claim().ack()
        g.found |= {("duplicated", life.seqs[0], other.first), ("foreign_effect", life.seqs[0], life.first)}


def _given_again_a_millisecond_later(g: PlantedStory) -> None:
    life = g.life().accept().claim().ack()
    g.story.receipt(g.story.seq(), life.first, at=life.accepted_at + MS)
    g.expect(life, "lost")


def _given_again_at_once(g: PlantedStory) -> None:
    life = g.life().accept().claim().ack()
    g.story.receipt(g.story.seq(), life.first, at=life.accepted_at)
    g.expect(life, "lost")


def _receipt_of_nothing(answer: str) -> Callable[[PlantedStory], None]:
    def plant(g: PlantedStory) -> None:
        seq, job = g.story.seq(), g.story.ids(1)
        g.story.receipt(seq, job, answer)
        g.found.add(("lost", seq, job))

    plant.__name__ = f"_{answer}_of_nothing"
    return plant


def _lost_at_the_edge(g: PlantedStory) -> None:
    seq, job = next(g.edges), g.story.ids(1)
    g.story.receipt(seq, job)
    g.found.add(("lost", seq, job))


def _copies_lost(g: PlantedStory) -> None:
    """What a broker made of one draft: of neither copy is known in which queue it was."""
    seq, jobs = g.story.seq(), [g.story.ids(1), g.story.ids(1)]
    for job in jobs:
        g.story.receipt(seq, job)
        g.found.add(("lost", seq, job))


def _sent_again_after_no_reply(g: PlantedStory) -> None:
    """The first try was in, and the second became another job."""
    one, other = g.pair()
    other.seqs = one.seqs
    g.story.receipt(one.seqs[0], None, "unknown")
    g.story.receipt(one.seqs[0], other.first)
    for life in (one, other):
        life.claim().ack()
    g.expect(other, "duplicated")


def _effect_a_millisecond_later(g: PlantedStory) -> None:
    life = g.life().accept().claim().after(SECOND)
    g.expect(life.effect(1, life.at + MS).ack(), "repeated_effect")


def _effect_of_delivery(number: int) -> Callable[[PlantedStory], None]:
    def plant(g: PlantedStory) -> None:
        g.expect(g.life().accept().claim().after(1).effect(number).ack(effect=False), "unfenced_effect")

    plant.__name__ = f"_effect_of_delivery_{number}"
    return plant


def _effect_beside(g: PlantedStory) -> None:
    life = g.life().accept().claim().effect(1).after(1).retry().claim().effect(3).after(1).ack(effect=False)
    g.expect(life, "redelivered", "unfenced_effect")


def _foreign_effect(g: PlantedStory) -> None:
    """One more effect by another job of another queue, whose own effect is there as well."""
    one, other = g.pair(queue="other")
    for life in (one, other):
        g.story.receipt(life.seqs[0], life.first)
        life.claim().ack()
    g.story.effect(one.seqs[0], other.first, 1, other.at)
    g.found.add(("foreign_effect", one.seqs[0], other.first))


def _effects_swapped(g: PlantedStory) -> None:
    pair = g.pair(queue="other")
    for life, other in (pair, pair[::-1]):
        g.story.receipt(life.seqs[0], life.first)
        life.claim().ack(effect=False)
        g.story.effect(life.seqs[0], other.first, 1, life.at)
        g.found.add(("foreign_effect", life.seqs[0], other.first))


def _effect_of_a_cancelled_job(g: PlantedStory) -> None:
    g.expect(g.life().accept().after(1).cancel().effect(1), "unfenced_effect")


def _effect_of_an_expired_job(g: PlantedStory) -> None:
    g.expect(g.life().accept().after(1).expire().effect(1), "unfenced_effect")


def _effect_of_an_unknown_job(g: PlantedStory) -> None:
    seq, job = g.story.seq(), g.story.ids(1)
    g.story.effect(seq, job, 1, g.moment())
    g.found.add(("unexpected", seq, job))


def _undone_at_the_edge(g: PlantedStory) -> None:
    g.expect(g.at_edge().claim().ack(effect=False), "undone")


def _repeated_at_the_edge(g: PlantedStory) -> None:
    life = g.at_edge().claim().after(SECOND)
    g.expect(life.effect(1, life.at - MS).ack(), "repeated_effect")


def _redelivered_at_the_edge(g: PlantedStory) -> None:
    g.expect(g.at_edge().claim().effect(1).after(1).retry().claim().ack(), "redelivered")


def _unfinished_at_the_edge(g: PlantedStory) -> None:
    g.expect(g.at_edge(), "unfinished")


def _acked_unclaimed(g: PlantedStory) -> None:
    g.expect(g.life().accept().after(1).ack(delivery=1, attempt=1), "stale_settle", "unfenced_effect")


def _claimed_twice(g: PlantedStory) -> None:
    """Two workers have one delivery."""
    life = g.life().accept().claim().after(MS).claim(delivery=1, attempt=1).after(1).ack()
    g.expect(life, "delivery_step", "lease_overlap", "miscounted_attempts")


def _extended_by_another(g: PlantedStory) -> None:
    life = g.life().accept().claim().after(1).extend(delivery=2).after(1).effect(1).ack(effect=False, delivery=2)
    g.expect(life, "stale_settle")


def _retried_by_another(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().after(1).retry(delivery=2).claim(delivery=3).after(1).ack(), "stale_settle")


def _released_by_another(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().after(1).release(delivery=2).claim(delivery=3).after(1).ack(), "stale_settle")


def _died_by_another(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().after(1).die(DROPPED, delivery=2), "stale_settle")


def _discarded_by_another(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().after(1).discard(delivery=2), "stale_settle")


def _acked_by_the_next(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().effect(1).after(1).ack(effect=False, delivery=2), "stale_settle")


def _extended_when_done(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().ack().after(MS).extend(), "stale_settle")


def _retried_when_done(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().ack().after(MS).retry(), "stale_settle")


def _released_when_done(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().ack().after(MS).release(), "stale_settle")


def _ended_when_purged(g: PlantedStory) -> None:
    g.expect(g.life().accept().after(1).cancel().after(1).purge().after(1).cancel(), "ended_twice")


def _claimed_when_purged(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().ack().after(1).purge().after(MS).claim(), "resurrected")


def _born_when_purged(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().ack().after(1).purge().after(1).accept(receipt=False), "born_twice")


def _purged_twice(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().ack().after(1).purge().after(1).purge(), "illegal")


def _purged_running(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().after(1).purge(), "illegal")


def _redriven_running(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().after(1).redrive().after(1).claim().after(1).ack(), "illegal")


def _redriven_open(g: PlantedStory) -> None:
    g.expect(g.life().accept().after(1).redrive().after(1).claim().after(1).ack(), "illegal")


def _redriven_when_done(g: PlantedStory) -> None:
    life = g.life().accept().claim().ack().after(1).redrive().after(1).claim().after(1).ack(effect=False)
    g.expect(life, "illegal")


def _redriven_twice(g: PlantedStory) -> None:
    life = g.life(max_attempts=1).accept().claim().after(1).die().after(1).redrive().after(1).redrive()
    g.expect(life.after(1).claim().after(1).ack(), "illegal")


def _expired_running(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().after(1).expire(), "illegal")


def _expired_when_done(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().ack().after(1).expire(), "ended_twice")


def _discarded_when_dead(g: PlantedStory) -> None:
    g.expect(g.life(max_attempts=1).accept().claim().after(1).die().after(1).discard(), "ended_twice")


def _died_twice(g: PlantedStory) -> None:
    g.expect(g.life(max_attempts=1).accept().claim().after(1).die().after(MS).die(), "ended_twice")


def _claimed_when_expired(g: PlantedStory) -> None:
    g.expect(g.life().accept().after(1).expire().after(MS).claim(), "resurrected")


def _claimed_when_cancelled(g: PlantedStory) -> None:
    g.expect(g.life().accept().after(1).cancel().after(MS).claim(), "resurrected")


def _a_millisecond_early(g: PlantedStory) -> None:
    life = g.life(delay=SECOND).accept()
    g.expect(life.claim(at=life.due - MS).after(1).ack(), "early_claim")


def _early_after_a_release(g: PlantedStory) -> None:
    life = g.life().accept().claim().after(1).release(SECOND)
    g.expect(life.claim(at=life.due - MS).after(1).ack(), "early_claim")


def _early_after_a_redrive(g: PlantedStory) -> None:
    life = g.life(max_attempts=1).accept().claim().after(1).die().after(1).redrive(SECOND)
    g.expect(life.claim(at=life.due - MS).after(1).ack(), "early_claim")


def _overlap_by_a_millisecond(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().after(LEASE - MS).claim().after(1).ack(), "lease_overlap")


def _overlap_of_an_extension_by_a_millisecond(g: PlantedStory) -> None:
    life = g.life().accept().claim().after(LEASE - 1).extend().after(LEASE - MS).claim().after(1).ack()
    g.expect(life, "lease_overlap")


def _taken_back_a_millisecond_early(g: PlantedStory) -> None:
    life = g.life().accept().claim().after(LEASE - MS).retry(0, kind=ABANDONED).claim().after(1).ack()
    g.expect(life, "early_take_back")


def _delivery_of(number: int) -> Callable[[PlantedStory], None]:
    """The first claim is by this delivery, and a second one follows."""

    def plant(g: PlantedStory) -> None:
        life = g.life().accept().claim(delivery=number).after(1).retry().claim(delivery=max(0, number) + 1)
        g.expect(life.after(1).ack(), "delivery_step")

    plant.__name__ = f"_delivery_of_{number}"
    return plant


def _delivery_at_its_end(g: PlantedStory) -> None:
    """There is no delivery after the largest one."""
    life = g.life().accept().claim(delivery=MAX_INT).after(1).retry().claim(delivery=2).after(1).ack()
    g.expect(life, "delivery_step")


def _delivery_falls_back(g: PlantedStory) -> None:
    life = g.life().accept().claim().after(1).retry().claim().after(1).retry().claim(delivery=1).after(1).ack()
    g.expect(life, "delivery_step")


def _attempt_of_none(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim(attempt=0).after(1).ack(), "miscounted_attempts")


def _attempt_at_its_end(g: PlantedStory) -> None:
    life = g.life().accept().claim(attempt=MAX_INT).after(1).retry().claim(attempt=2).after(1).ack()
    g.expect(life, "miscounted_attempts", "too_many_attempts")


def _died_beyond(g: PlantedStory) -> None:
    g.expect(g.life(max_attempts=2).accept().claim().after(1).die(attempt=3), "too_many_attempts")


def _miscounted_after_a_release(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().after(1).release().claim(attempt=2).after(1).ack(), "miscounted_attempts")


def _miscounted_after_a_redrive(g: PlantedStory) -> None:
    life = g.life().accept().claim().after(1).die(DROPPED).after(1).redrive().claim(attempt=2).after(1).ack()
    g.expect(life, "miscounted_attempts")


def _claimed_before_its_birth(g: PlantedStory) -> None:
    life = g.life().claim(delivery=1, attempt=1).after(MS).accept().after(1).ack()
    g.expect(life, "unborn", "born_twice", "stale_settle")


def _altered(column: str, change: str) -> Callable[[PlantedStory], None]:
    """The same place of the ledger was read twice, with another value in this column."""

    def plant(g: PlantedStory) -> None:
        life = g.life().accept().claim().after(SECOND).ack()
        g.altered.append((life.first, change, column))
        g.expect(life, "conflict")

    plant.__name__ = f"_altered_{column}"
    return plant


def _torn_at(place: int) -> Callable[[PlantedStory], None]:
    """A record of three jobs without one of them."""

    def plant(g: PlantedStory) -> None:
        life = g.life(n=3).accept().claim().after(SECOND).extend().after(SECOND).ack()
        g.torn.append((life.first + place, "extended"))

    plant.__name__ = f"_torn_at_{place}"
    return plant


def _schedule(g: PlantedStory, missing: int, *ticks: int) -> str:
    name = f"every{len(g.schedules)}"
    g.schedules[name] = missing
    for tick in ticks:
        fired = Life(g.story, START + tick + 5, queue="cron").accept(name=name, tick=START + tick)
        fired.after(MS).claim().after(MS).ack()
    return name


def _slot_left_out(g: PlantedStory) -> None:
    _schedule(g, 1, 0, MINUTE, 3 * MINUTE)


def _slot_late_by_a_millisecond(g: PlantedStory) -> None:
    _schedule(g, 2, 0, MINUTE + MS, 2 * MINUTE)


def _slot_never(g: PlantedStory) -> None:
    _schedule(g, 1)


def _slot_given_up_and_taken(g: PlantedStory) -> None:
    name = _schedule(g, 0, 0, MINUTE)
    g.story.record(START + 2 * MINUTE, "fire", name, START + 2 * MINUTE)
    late = Life(g.story, START + 2 * MINUTE + MS, queue="cron").accept(name=name, tick=START + 2 * MINUTE)
    g.expect(late.after(MS).claim().ack(), "slot_twice")


def _out_of_turn_by_a_millisecond(g: PlantedStory) -> None:
    at, tenant = g.moment(), Trait(tenant=f"tenant{len(g.found)}")
    first, second = (Life(g.story, at, queue="tenants").accept(traits=[tenant]) for _ in range(2))
    first.claim(at=at + MS).after(SECOND).ack()
    second.claim(at=first.at - MS).after(SECOND).ack()
    g.expect(second, "out_of_turn")


def _ran_beside(g: PlantedStory) -> None:
    """It came back from the dead while the next one of its line ran."""
    at, subject = g.moment(), Trait(subject=f"beside{len(g.found)}")
    first, second = (Life(g.story, at, queue="lines", max_attempts=1).accept(traits=[subject]) for _ in range(2))
    first.claim(at=at + MS).after(MS).die()
    second.claim(at=first.at + MS).after(SECOND).ack()
    first.after(2 * MS).redrive().claim().after(MS).ack()
    g.expect(first, "out_of_turn")


NEW: list[Callable[[PlantedStory], None]] = [
    *(_receipts_swapped, _given_again_a_millisecond_later, _given_again_at_once, _lost_at_the_edge, _copies_lost),
    *(
        _receipt_of_nothing("duplicate"),
        _receipt_of_nothing("merged"),
        _sent_again_after_no_reply,
        _effect_of_an_unknown_job,
    ),
    *(_effect_a_millisecond_later, _effect_beside, _foreign_effect, _effects_swapped, _effect_of_a_cancelled_job),
    *(_effect_of_delivery(number) for number in (0, -1, 2, MAX_INT)),
    *(_effect_of_an_expired_job, _undone_at_the_edge, _repeated_at_the_edge, _redelivered_at_the_edge),
    *(_unfinished_at_the_edge, _acked_unclaimed, _claimed_twice, _extended_by_another, _retried_by_another),
    *(_released_by_another, _died_by_another, _discarded_by_another, _acked_by_the_next, _extended_when_done),
    *(_retried_when_done, _released_when_done, _ended_when_purged, _claimed_when_purged, _born_when_purged),
    *(_purged_twice, _purged_running, _redriven_running, _redriven_open, _redriven_when_done, _redriven_twice),
    *(_expired_running, _expired_when_done, _discarded_when_dead, _died_twice, _claimed_when_expired),
    *(_claimed_when_cancelled, _a_millisecond_early, _early_after_a_release, _early_after_a_redrive),
    *(_overlap_by_a_millisecond, _overlap_of_an_extension_by_a_millisecond, _taken_back_a_millisecond_early),
    *(_delivery_of(number) for number in (0, -1, 3)),
    *(_delivery_at_its_end, _delivery_falls_back, _attempt_of_none, _attempt_at_its_end, _died_beyond),
    *(_miscounted_after_a_release, _miscounted_after_a_redrive, _claimed_before_its_birth),
    *(_altered("event_at", "claimed"), _altered("delivery", "acked"), _altered("job_id", "acked")),
    *(_torn_at(place) for place in range(3)),
    *(_slot_left_out, _slot_late_by_a_millisecond, _slot_never, _slot_given_up_and_taken),
    *(_out_of_turn_by_a_millisecond, _ran_beside),
]
KINDS: list[Callable[[PlantedStory], None]] = [*planted.KINDS, *NEW]


def lawful(g: PlantedStory) -> None:
    """What resembles one of them and is none: at the very moment, and the same line twice."""
    edge = g.at_edge().claim().after(SECOND).ack()
    g.story.effects.append(g.story.effects[-1])
    g.story.receipts.append(g.story.receipts[-1])
    g.story.receipt(edge.seqs[0], edge.first, "duplicate", edge.at)
    due = g.life(delay=SECOND).accept()
    due.claim(at=due.due).after(LEASE).claim().after(LEASE).retry(0, kind=ABANDONED).claim().after(1).ack()
    extended = g.life().accept().claim().after(MS).extend().after(LEASE).claim().after(1).ack()
    g.story.receipt(g.story.seq(), extended.first, "merged")
    again = g.life(max_attempts=1).accept().claim().after(1).die().after(1).redrive(SECOND)
    again.claim(at=again.due).after(1).ack()
    g.story.receipt(extended.seqs[0], None, "refused")
    g.story.receipt(g.story.seq(), None, "unknown")
    keyed = g.life().accept(receipt=False)
    keyed.seqs = [g.story.seq()]
    g.story.receipt(keyed.seqs[0], None, "unknown")
    g.story.receipt(g.story.seq(), keyed.first, "duplicate")
    keyed.claim().ack()
    g.expect(keyed, "recovered")
