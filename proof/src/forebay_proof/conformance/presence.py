"""Presence: workers that announce themselves are listed, also those that hold nothing, and none is listed for ever."""

from datetime import timedelta

from forebay.core.errors import Invalid
from forebay.core.instant import minutes
from forebay.core.presence import MAX_KINDS, MAX_UNHANDLED, Presence, unhandled_kinds
from forebay_proof.conformance.case import Need, case, case_if, refused
from forebay_proof.conformance.harness import LONG, Harness


def _worker(owner: str, **fields: object) -> Presence:
    return Presence(**{"owner": owner, "host": "host", "pid": 7, "queues": ("q",), **fields})  # type: ignore[arg-type]


@case
def a_worker_that_holds_nothing_is_known_by_what_it_announced(h: Harness) -> None:
    assert h.store.workers("", 10) == []
    before = h.now()
    output = _worker("a", queues=("q", "r"), kinds=("mail", "pay"), concurrency=8, running=3)
    h.store.announce(output, LONG)
    (known,) = h.store.workers("", 10)
    assert (known.owner, known.host, known.pid, known.queues) == ("a", "host", 7, ("q", "r"))
    assert (known.kinds, known.concurrency, known.running) == (("mail", "pay"), 8, 3)
    assert before <= known.since == known.seen_at <= h.now()


@case
def what_a_worker_cannot_run_is_known_until_another_one_can(h: Harness) -> None:
    h.store.announce(_worker("old", kinds=("mail",), unhandled=(("q", "pay"), ("r", "pay"))), LONG)
    assert unhandled_kinds(h.store.workers("", 10)) == [("q", "pay"), ("r", "pay")]
    h.store.announce(_worker("new", kinds=("mail", "pay")), LONG)
    assert unhandled_kinds(h.store.workers("", 10)) == [("r", "pay")], "it serves q alone"
    h.store.announce(_worker("old", kinds=("mail",)), LONG)
    assert unhandled_kinds(h.store.workers("", 10)) == []


@case
def a_worker_that_announces_itself_again_replaces_its_announcement(h: Harness) -> None:
    h.store.announce(_worker("a", running=1), LONG)
    (first,) = h.store.workers("", 10)
    h.advance(h.short)
    h.store.announce(_worker("a", running=2, since=1, seen_at=2), LONG)
    (known,) = h.store.workers("", 10)
    assert (known.running, known.since) == (2, first.since)
    assert known.seen_at >= first.seen_at + h.short


@case
def a_worker_that_stops_announcing_is_dropped_when_its_time_is_up(h: Harness) -> None:
    h.store.announce(_worker("silent"), h.short_delta)
    h.store.announce(_worker("alive"), LONG)
    h.advance(h.short + 1)
    assert [known.owner for known in h.store.workers("", 10)] == ["alive"]
    assert not h.store.withdraw("silent")
    h.store.announce(_worker("silent"), LONG)
    (_, back) = h.store.workers("", 10)
    assert back.since == back.seen_at


@case
def a_worker_that_withdraws_is_gone_at_once(h: Harness) -> None:
    h.store.announce(_worker("a"), LONG)
    assert h.store.withdraw("a")
    assert not h.store.withdraw("a")
    assert not h.store.withdraw("unknown")
    assert h.store.workers("", 10) == []


@case
def workers_are_listed_by_name_page_by_page(h: Harness) -> None:
    names = ["Zoe", "a", "a:1", "b", "z", "é"]
    for name in reversed(names):
        h.store.announce(_worker(name), LONG)
    for limit in (1, 2, 6, 50):
        found: list[str] = []
        while page := h.store.workers(found[-1] if found else "", limit):
            assert len(page) <= limit
            found += [known.owner for known in page]
        assert found == names


@case
def announcing_changes_nothing_but_the_list_of_workers(h: Harness) -> None:
    h.enqueue(3)
    with h.unchanged():
        h.store.announce(_worker("a"), LONG)
        h.store.workers("", 1)
        h.store.withdraw("a")


@case_if(Need.DURABLE)
def the_ledger_does_not_record_presence(h: Harness) -> None:
    h.enqueue(1)
    before = h.store.ledger_extent()
    h.store.announce(_worker("a"), LONG)
    h.store.withdraw("a")
    assert h.store.ledger_extent() == before


@case
def every_process_sees_the_workers_of_the_others(h: Harness) -> None:
    with h.handles(2) as (one, other):
        one.announce(_worker("a"), LONG)
        assert [known.owner for known in other.workers("", 10)] == ["a"]
        assert other.withdraw("a")
        assert one.workers("", 10) == []


@case
def a_presence_has_bounds(h: Harness) -> None:
    refused(Invalid, lambda: h.store.announce("a", LONG))  # type: ignore[arg-type]
    refused(Invalid, lambda: h.store.announce(_worker("a"), timedelta(0)))
    refused(Invalid, lambda: h.store.announce(_worker("a"), minutes(61)))
    refused(Invalid, lambda: h.store.workers("", 0))
    refused(Invalid, lambda: h.store.workers("", 1_001))
    refused(Invalid, lambda: h.store.workers(7, 1))  # type: ignore[arg-type]
    refused(Invalid, lambda: h.store.withdraw(""))
    refused(Invalid, lambda: _worker("a", kinds=("k",) * (MAX_KINDS + 1)))
    refused(Invalid, lambda: _worker("a", queues="q"))
    refused(Invalid, lambda: _worker("a", unhandled=(("q", "k"),) * (MAX_UNHANDLED + 1)))
    refused(Invalid, lambda: _worker("a", unhandled=(("q", "not a name"),)))
    refused(Invalid, lambda: _worker("a", running=-1))
    refused(Invalid, lambda: _worker(""))
    assert h.store.workers("", 10) == []
