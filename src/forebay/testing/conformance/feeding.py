"""Sources that repeat themselves, and dead jobs that give way to new ones, where a store has these verbs."""

from forebay.core.errors import QueueFull
from forebay.core.features import Feature
from forebay.core.job import State
from forebay.core.policy import Bounded, DeadLetters, InOrder, Reject, Routing
from forebay.store.feeding import Feeding, Mending, Place, successor
from forebay.testing.conformance.case import case, case_if, refused
from forebay.testing.conformance.harness import QUEUE, Harness
from forebay.testing.conformance.racing import answers, race


def _feeds(h: Harness) -> Feeding | None:
    return h.store if isinstance(h.store, Feeding) else None


def _mends(h: Harness) -> Mending | None:
    return h.store if isinstance(h.store, Mending) else None


@case
def what_a_source_repeats_is_taken_once(h: Harness) -> None:
    if (store := _feeds(h)) is None:
        return
    assert store.fed("lake/1") is None
    first, second = Place(1, 2, b"a"), Place(1, 3, b"b")
    drafts = [h.draft(payload=number) for number in range(2)]
    told = store.feed("lake/1", None, first, drafts)
    assert told is not None
    assert told.taken == 2
    assert store.feed("lake/1", None, first, drafts) is None
    assert store.fed("lake/1") == first
    assert store.feed("lake/1", first, second, [h.draft(payload=2)]) is not None
    assert store.feed("lake/2", None, first, drafts[:1]) is not None
    assert [job.payload for job in h.jobs()] == [0, 1, 2, 0]


@case
def a_source_whose_drafts_are_refused_stays_where_it_was(h: Harness) -> None:
    if (store := _feeds(h)) is None:
        return
    h.spec(capacity=Bounded(1, Reject()))
    with h.unchanged():
        refused(QueueFull, lambda: store.feed("lake", None, Place(1, 2, b"a"), [h.draft(), h.draft()]))
        assert store.fed("lake") is None


@case
def racing_feeds_of_one_source_move_it_once(h: Harness) -> None:
    if (store := _feeds(h)) is None:
        return
    told = answers(race(8, lambda _: store.feed("lake", None, Place(1, 1, b"a"), [h.draft()])))
    assert len([each for each in told if each is not None]) == 1
    assert len(h.drain()) == 1


@case
def the_place_of_a_source_outlives_a_reopening(h: Harness) -> None:
    if (store := _feeds(h)) is None or not h.store.capabilities.durable:
        return
    place = Place(7, 1, b"seven")
    store.feed("lake", None, place, [h.draft()])
    h.reopen()
    again = _feeds(h)
    assert again is not None
    assert again.fed("lake") == place
    assert again.feed("lake", None, place, [h.draft()]) is None
    assert len(h.jobs()) == 1


@case
def a_mended_job_gives_way_to_a_new_one(h: Harness) -> None:
    if (store := _mends(h)) is None:
        return
    dead = h.dead(payload={"to": "nobody"}, tenant="t", priority=2, meta={"trace": "1"})
    (receipt,) = store.mend([(dead, successor(h.get(dead), b'{"to":"ada"}'))])
    assert receipt is not None
    job = h.get(receipt.id)
    assert (job.payload, job.tenant, job.priority, job.state) == ({"to": "ada"}, "t", 2, State.READY)
    assert job.meta == {"trace": "1", "redriven_from": str(dead)}
    assert h.state(dead) is None
    assert h.backlog().dead == 0
    assert h.drain() == [receipt.id]
    h.nothing_left()


@case
def only_dead_jobs_are_mended_and_each_once(h: Harness) -> None:
    if (store := _mends(h)) is None:
        return
    dead, waiting = h.dead(), h.one()
    draft = h.draft(payload=1)
    first, unknown, alive, again = store.mend([(dead, draft), (10**12, draft), (waiting, draft), (dead, draft)])
    assert first is not None
    assert (unknown, alive, again) == (None, None, None)
    assert store.mend([(dead, draft)]) == [None]
    assert sorted(h.drain()) == [waiting, first.id]


@case
def a_mended_head_frees_its_line(h: Harness) -> None:
    if (store := _mends(h)) is None:
        return
    h.spec(eligibility=InOrder(dead_head="block"))
    head = h.dead(subject="s")
    following = h.one(subject="s")
    assert h.claim() == []
    (receipt,) = store.mend([(head, successor(h.get(head), b"1"))])
    assert receipt is not None
    assert h.drain() == [following, receipt.id]
    h.nothing_left()


@case_if(Feature.DEAD_LETTERS)
def a_dead_letter_that_lies_elsewhere_is_mended_at_home(h: Harness) -> None:
    if (store := _mends(h)) is None:
        return
    h.spec(routing=Routing(dead=DeadLetters("graves")))
    dead = h.dead()
    (receipt,) = store.mend([(dead, successor(h.get(dead), b"1"))])
    assert receipt is not None
    assert h.get(receipt.id).queue == QUEUE
    assert h.backlog("graves").dead == 0


@case
def a_mend_that_is_refused_changes_nothing(h: Harness) -> None:
    if (store := _mends(h)) is None:
        return
    h.spec(capacity=Bounded(1, Reject()))
    dead = h.dead()
    h.one()
    with h.unchanged():
        refused(QueueFull, lambda: store.mend([(dead, h.draft())]))
