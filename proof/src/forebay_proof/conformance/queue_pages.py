"""The names of queues page by page, and all queues together: bounded answers, however many names there are."""

from functools import partial

from forebay.core.errors import Invalid
from forebay.core.instant import hours
from forebay.core.limits import MAX_BATCH
from forebay.core.outcome import DeadLetter, Failure
from forebay.core.policy import KeepFor, Retained
from forebay_proof.conformance.case import case, refused
from forebay_proof.conformance.harness import Harness


def listed(h: Harness, limit: int, prefix: str = "") -> list[str]:
    """Put together from pages."""
    names = page = h.store.queues("", limit, prefix)
    while page:
        assert len(page) <= limit
        page = h.store.queues(names[-1], limit, prefix)
        names = [*names, *page]
    return names


@case
def the_pages_of_names_hold_the_queues_of_the_backlog(h: Harness) -> None:
    before = listed(h, 7)
    assert before == [each.queue for each in h.store.backlog()]
    for name in ("b", "a", "B", "a.b", "a-b", "a:b", "a_b", "z9"):
        h.one(queue=name)
    h.spec("configured")
    h.store.pause("paused")
    h.spec("log", retention=Retained(1, hours(1)))
    whole = sorted({*before, "b", "a", "B", "a.b", "a-b", "a:b", "a_b", "z9", "configured", "paused", "log"})
    for limit in (1, 3, 50):
        assert listed(h, limit) == whole
    assert sorted(each.queue for each in h.store.backlog()) == whole


@case
def a_prefix_chooses_names_by_how_they_begin(h: Harness) -> None:
    for name in ("mail", "mail.a", "mail.b", "mailbox", "media", "m"):
        h.one(queue=name)
    for prefix in ("m", "mail", "mail.", "mailb", "media", "n"):
        begun = [name for name in listed(h, 100) if name.startswith(prefix)]
        assert listed(h, 1, prefix) == listed(h, 100, prefix) == begun, prefix
    assert h.store.queues("mail.a", 10, "mail.") == ["mail.b"]
    assert h.store.queues("zzz", 10, "mail.") == []
    assert h.store.queues("a", 1, "mail") == ["mail"]


@case
def a_name_is_gone_when_nothing_of_its_queue_is_left(h: Harness) -> None:
    h.one(queue="brief")
    h.ack(h.take("brief"))
    assert "brief" not in listed(h, 10)
    h.spec("kept", retention=KeepFor(hours(1)))
    h.one(queue="kept")
    h.ack(h.take("kept"))
    assert "kept" in listed(h, 10)


@case
def totals_are_the_sum_of_all_queues(h: Harness) -> None:
    h.spec("kept", retention=KeepFor(hours(1)))
    h.enqueue(5, queue="a")
    h.enqueue(3, queue="kept")
    h.one(queue="later", delay=3_600_000_000)
    h.ack(h.take("kept"))
    h.take("a")
    h.settle(h.take("a"), DeadLetter(Failure("E")))
    h.store.cancel([h.one(queue="kept")])
    totals, each = h.store.totals(MAX_BATCH), h.store.backlog()
    assert totals.queues == len(each)
    for state in ("waiting", "ready", "running", "done", "dead", "cancelled"):
        assert getattr(totals, state) == sum(getattr(one, state) for one in each), state
    assert (totals.running, totals.dead, totals.waiting) == (1, 1, 1)
    assert sorted(one.queue for one in totals.deepest) == sorted(one.queue for one in each)


@case
def the_deepest_queues_come_first(h: Harness) -> None:
    for count, name in ((1, "b"), (4, "deep"), (1, "a"), (2, "dead"), (2, "alive")):
        h.enqueue(count, queue=name)
    h.enqueue(1, queue="dead")
    h.settle(h.take("dead"), DeadLetter(Failure("E")))
    names = [each.queue for each in h.store.totals(5).deepest]
    assert names == ["deep", "dead", "alive", "a", "b"]
    for limit in (1, 2, 3):
        totals = h.store.totals(limit)
        assert [each.queue for each in totals.deepest] == names[:limit]
        assert totals.deepest == h.store.backlog(names[:limit])
        assert totals.ready == 10


@case
def a_store_without_queues_has_no_totals(h: Harness) -> None:
    totals = h.store.totals(10)
    assert (totals.queues, totals.ready, totals.dead) == (len(totals.deepest), 0, 0)


@case
def pages_of_names_begin_behind_a_name(h: Harness) -> None:
    for name in ("a b", "é", "*", "x" * 200):
        refused(Invalid, partial(h.store.queues, name, 1))
        refused(Invalid, partial(h.store.queues, "", 1, name))
