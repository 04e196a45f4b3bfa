"""Uniqueness by state (`While`): a key is taken as long as its job is in one of the states, and no longer."""

from datetime import timedelta

from forebay.core.errors import KeyConflict
from forebay.core.instant import hours
from forebay.core.job import State
from forebay.core.policy import KeepFor, LatestWins, While
from forebay_proof.conformance.case import case, refused
from forebay_proof.conformance.harness import SECOND, Harness
from forebay_proof.conformance.racing import answers, race


def _unique(h: Harness, *states: State) -> None:
    h.spec(unique=While(states) if states else While(), key_window=timedelta(seconds=1))


@case
def a_key_is_taken_until_its_job_is_done_however_long_that_takes(h: Harness) -> None:
    _unique(h)
    first = h.one(key="k")
    h.advance(3 * SECOND)
    assert h.one(key="k") == first
    lease = h.take()
    (again,) = h.send(h.draft(key="k"))
    assert (again.id, again.duplicate) == (first, True)
    h.ack(lease)
    (later,) = h.send(h.draft(key="k"))
    assert (later.id == first, later.duplicate) == (False, False)
    assert h.one(key="k") == later.id


@case
def other_work_under_a_taken_key_is_refused_and_under_a_free_one_is_not(h: Harness) -> None:
    _unique(h)
    first = h.one(key="k", payload=1)
    with h.unchanged():
        assert refused(KeyConflict, lambda: h.one(key="k", payload=2)).job_id == first
    h.ack(h.take())
    assert h.one(key="k", payload=2) != first


@case
def a_retry_keeps_the_key(h: Harness) -> None:
    _unique(h)
    first = h.one(key="k")
    h.fail(h.take(), after=h.short)
    assert h.one(key="k") == first
    h.advance(h.short)
    h.fail(h.take())
    assert h.one(key="k") == first


@case
def a_dead_or_cancelled_job_gives_its_key_back(h: Harness) -> None:
    _unique(h)
    dead = h.dead(key="k")
    second = h.one(key="k")
    assert second != dead
    h.store.cancel([second])
    assert h.one(key="k") not in (dead, second)


@case
def a_key_may_be_taken_while_its_job_waits_and_no_longer(h: Harness) -> None:
    _unique(h, State.WAITING, State.READY)
    first = h.one(key="k")
    assert h.one(key="k") == first
    h.take()
    second = h.one(key="k")
    assert second != first
    assert h.one(key="k") == second


@case
def a_key_may_be_taken_while_its_job_is_kept(h: Harness) -> None:
    states = (State.WAITING, State.READY, State.RUNNING, State.DONE)
    h.spec(unique=While(states), retention=KeepFor(h.short_delta))
    first = h.one(key="k")
    h.ack(h.take())
    assert h.one(key="k") == first
    h.advance(h.short + SECOND)
    h.store.promote(10)
    assert h.one(key="k") != first


@case
def a_key_may_be_taken_while_its_job_is_dead(h: Harness) -> None:
    _unique(h, State.WAITING, State.READY, State.RUNNING, State.DEAD)
    first = h.dead(key="k")
    assert h.one(key="k") == first
    h.store.redrive([first])
    assert h.one(key="k") == first
    h.ack(h.take())
    assert h.one(key="k") != first


@case
def drafts_of_one_batch_are_one_job(h: Harness) -> None:
    _unique(h, State.RUNNING)
    first, second = h.send(h.draft(key="k"), h.draft(key="k"))
    assert (second.id, second.duplicate) == (first.id, True)


@case
def a_key_of_a_merged_draft_is_taken_as_long_as_the_job_it_merged_into(h: Harness) -> None:
    h.spec(unique=While(), merge=LatestWins())
    first = h.one(subject="s", key="1", payload=1)
    assert h.one(subject="s", key="2", payload=2) == first
    (again,) = h.send(h.draft(subject="s", key="2", payload=2))
    assert (again.id, again.duplicate) == (first, True)
    h.ack(h.take())
    assert h.one(subject="s", key="2", payload=2) != first


@case
def a_queue_keeps_its_keys_to_itself(h: Harness) -> None:
    _unique(h)
    h.spec("other", unique=While())
    assert h.one(key="k") != h.one(key="k", queue="other")


@case
def earlier_keys_keep_the_window_they_were_accepted_with(h: Harness) -> None:
    h.spec(key_window=hours(1))
    first = h.one(key="k")
    _unique(h)
    h.ack(h.take())
    assert h.one(key="k") == first
    second = h.one(key="new")
    h.spec(key_window=hours(1))
    assert h.one(key="new") == second
    h.drain()
    assert h.one(key="new") != second


@case
def only_keys_that_are_taken_count_and_none_is_left_behind(h: Harness) -> None:
    _unique(h)
    h.send(*[h.draft(key=f"k{number}") for number in range(20)])
    assert h.backlog().keys == 20
    h.ack(h.take())
    assert h.backlog().keys == 19
    h.drain(batch=20)
    assert h.backlog().keys == 0
    for number in range(40):
        h.one(key=f"n{number}")
        h.ack(h.take())
    assert h.backlog().keys == 0
    h.nothing_left()


@case
def sixty_four_racing_drafts_of_one_key_are_one_job(h: Harness) -> None:
    _unique(h)
    for _ in range(2):
        receipts = answers(race(64, lambda _: h.send(h.draft(key="k"))[0]))
        assert len({receipt.id for receipt in receipts}) == 1
        assert [receipt.duplicate for receipt in receipts].count(False) == 1
        assert len(h.drain()) == 1
