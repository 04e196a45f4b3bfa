"""Idempotency keys: within its window the same key is the same job, whatever became of it; other work is refused."""

from datetime import timedelta

from forebay.core.errors import KeyConflict, QueueFull
from forebay.core.policy import Bounded
from forebay_proof.conformance.case import Need, case, case_if, refused
from forebay_proof.conformance.harness import SECOND, Harness

_WINDOW = timedelta(seconds=1)


@case
def the_same_key_is_the_same_job(h: Harness) -> None:
    first, second = h.send(h.draft(key="k", payload=1))[0], h.send(h.draft(key="k", payload=1))[0]
    assert (first.duplicate, second.duplicate, second.id) == (False, True, first.id)
    assert h.drain() == [first.id]
    h.nothing_left()


@case
def the_order_of_fields_in_a_payload_does_not_matter(h: Harness) -> None:
    first = h.one(key="k", payload={"a": 1, "b": {"c": 2, "d": 3}})
    (again,) = h.send(h.draft(key="k", body=b'{"b": {"d": 3, "c": 2}, "a": 1}'))
    assert (again.id, again.duplicate) == (first, True)


@case
def a_key_with_another_payload_is_refused_by_name(h: Harness) -> None:
    first = h.one(key="k", payload=1)
    with h.unchanged():
        error = refused(KeyConflict, lambda: h.one(key="k", payload=2))
    assert (error.queue, error.key, error.job_id) == ("q", "k", first)


@case
def a_key_with_another_kind_is_refused(h: Harness) -> None:
    h.one(key="k", kind="a")
    with h.unchanged():
        refused(KeyConflict, lambda: h.one(key="k", kind="b"))


@case
def other_fields_than_kind_and_payload_do_not_conflict(h: Harness) -> None:
    first = h.one(key="k", priority=1)
    (again,) = h.send(h.draft(key="k", priority=2, tenant="t", meta={"trace": "2"}))
    assert (again.id, again.duplicate) == (first, True)
    assert h.get(first).priority == 1


@case
def a_key_belongs_to_its_queue(h: Harness) -> None:
    here, there = h.send(h.draft(key="k", payload=1), h.draft(key="k", payload=2, queue="other"))
    assert here.id != there.id
    assert not there.duplicate


@case
def keys_are_compared_exactly(h: Harness) -> None:
    names = ["k", "K", "k ", " k", "ä", "a\u0308", "k\n", "'", '"', "%", "k:1", "0"]
    receipts = h.send(*[h.draft(key=name) for name in names])
    assert len({receipt.id for receipt in receipts}) == len(names)


@case
def jobs_without_a_key_are_never_duplicates(h: Harness) -> None:
    assert len(set(h.enqueue(5))) == 5


@case
def a_key_twice_in_one_batch_is_one_job(h: Harness) -> None:
    first, second, third = h.send(h.draft(key="k"), h.draft(key="k"), h.draft(key="other"))
    assert (first.duplicate, second.duplicate, third.duplicate) == (False, True, False)
    assert first.id == second.id != third.id
    assert h.backlog().depth == 2


@case
def a_conflict_inside_one_batch_refuses_the_batch(h: Harness) -> None:
    with h.unchanged():
        refused(KeyConflict, lambda: h.send(h.draft(key="k", payload=1), h.draft(key="k", payload=2)))
    assert not h.send(h.draft(key="k", payload=2))[0].duplicate


@case
def a_key_is_remembered_until_the_end_of_its_window(h: Harness) -> None:
    h.spec(key_window=timedelta(seconds=2))
    first = h.one(key="k")
    h.advance(SECOND)
    assert h.one(key="k") == first


@case
def after_its_window_a_key_makes_a_new_job(h: Harness) -> None:
    h.spec(key_window=_WINDOW)
    first = h.one(key="k", payload=1)
    h.advance(SECOND + 1)
    (later,) = h.send(h.draft(key="k", payload=2))
    assert later.id != first
    assert not later.duplicate
    assert h.one(key="k", payload=2) == later.id


@case
def a_duplicate_does_not_prolong_the_window(h: Harness) -> None:
    h.spec(key_window=_WINDOW)
    first = h.one(key="k")
    h.advance(SECOND // 2)
    assert h.one(key="k") == first
    h.advance(SECOND // 2 + 1)
    assert h.one(key="k") != first


@case
def a_key_keeps_the_window_it_was_accepted_with(h: Harness) -> None:
    h.spec(key_window=timedelta(hours=1))
    first = h.one(key="k")
    h.spec(key_window=_WINDOW)
    h.advance(SECOND + 1)
    assert h.one(key="k") == first


@case
def a_key_outlives_the_acknowledgement_of_its_job(h: Harness) -> None:
    first = h.one(key="k")
    assert h.drain() == [first]
    (again,) = h.send(h.draft(key="k"))
    assert (again.id, again.duplicate) == (first, True)
    h.nothing_left()


@case
def a_key_outlives_the_death_of_its_job(h: Harness) -> None:
    first = h.dead(key="k")
    assert h.one(key="k") == first
    assert h.backlog().depth == 0


@case
def a_key_outlives_the_cancellation_of_its_job(h: Harness) -> None:
    first = h.one(key="k")
    h.store.cancel([first])
    assert h.one(key="k") == first
    assert h.backlog().depth == 0


@case
def a_refused_draft_leaves_no_key(h: Harness) -> None:
    h.spec(capacity=Bounded(1))
    blocker = h.one()
    refused(QueueFull, lambda: h.one(key="k", payload=1))
    assert h.backlog().keys == 0
    assert h.drain() == [blocker]
    assert not h.send(h.draft(key="k", payload=2))[0].duplicate


@case
def the_backlog_counts_live_keys_and_forgets_the_others(h: Harness) -> None:
    h.spec(key_window=_WINDOW)
    h.send(*[h.draft(key=f"k{number}") for number in range(5)])
    assert h.backlog().keys == 5
    h.advance(2 * SECOND + 1)
    assert h.backlog().keys == 0


@case
def many_keys_are_forgotten_with_little_traffic(h: Harness) -> None:
    """A window that passed must not leave its keys in memory for ever."""
    h.spec(key_window=_WINDOW)
    h.send(*[h.draft(key=f"k{number}") for number in range(300)])
    h.advance(2 * SECOND + 1)
    for number in range(300):
        h.one(key=f"new{number}")
    assert h.store.backlog(["q"])[0].keys <= 300


@case_if(Need.DURABLE)
def a_key_outlives_a_reopening(h: Harness) -> None:
    first = h.one(key="k", payload=1)
    h.drain()
    h.reopen()
    assert h.one(key="k", payload=1) == first
    refused(KeyConflict, lambda: h.one(key="k", payload=2))
