"""What core writes on a draft and on a merge: quiet times, what the newest brings, taken keys, graves, costs."""

from hypothesis import given
from hypothesis import strategies as st

from forebay.core.entries import DeadLetterRule, Replaced
from forebay.core.instant import days, micros, minutes, seconds
from forebay.core.job import Draft, State
from forebay.core.limits import MAX_INSTANT
from forebay.core.policy import (
    Aging,
    AtMost,
    DeadLetters,
    Fair,
    InOrder,
    LatestWins,
    Priority,
    Rate,
    Routing,
    Until,
    While,
)
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from tests.unit.values import NOW, SECOND

QUIET = LatestWins(quiet=seconds(5), at_most=seconds(12))


def stamper(**axes: object) -> Stamper:
    return Stamper(QueueSpec(name="q", **axes))  # type: ignore[arg-type]


def test_a_draft_waits_for_quiet_and_no_other_one_does() -> None:
    one = stamper(merge=QUIET)
    entry = one.entry(Draft("a", queue="q", subject="s"), 1, NOW)
    assert (entry.due_at, entry.ready) == (NOW + 5 * SECOND, False)
    assert one.entry(Draft("a", queue="q", subject="s", delay=9 * SECOND), 1, NOW).due_at == NOW + 9 * SECOND
    assert one.entry(Draft("a", queue="q"), 1, NOW).due_at == NOW
    assert stamper(merge=LatestWins()).entry(Draft("a", queue="q", subject="s"), 1, NOW).due_at == NOW


def test_what_comes_moves_the_time_but_not_beyond_the_end() -> None:
    one, draft, due, seen = stamper(merge=QUIET), Draft("a", queue="q", subject="s"), NOW + 5 * SECOND, []
    for after in (1, 5, 8, 11):
        moved = one.newer(draft, NOW, due, NOW + after * SECOND).due_at
        assert moved is not None
        due = moved
        seen.append((due - NOW) // SECOND)
    assert seen == [6, 10, 12, 12]
    assert one.newer(draft, NOW, due, due).due_at is None, "it is due: its time stays"


@given(st.lists(st.integers(0, 4 * SECOND), max_size=12), st.integers(5, 60))
def test_it_is_due_when_it_has_been_quiet_or_at_the_end(gaps: list[int], at_most: int) -> None:
    """Against the rule as one says it: the last of those that came before it was due, and the quiet after it."""
    one, now = stamper(merge=LatestWins(quiet=seconds(5), at_most=seconds(at_most))), NOW
    due = one.entry(Draft("a", queue="q", subject="s"), 1, NOW).due_at
    last = NOW
    for gap in gaps:
        now += gap
        newer = one.newer(Draft("a", queue="q", subject="s"), NOW, due, now)
        if now < due:
            last = now
        due = due if newer.due_at is None else newer.due_at
    assert due == min(last + 5 * SECOND, NOW + at_most * SECOND)


def test_the_newest_says_how_urgent_it_is_and_what_travels_along() -> None:
    draft = Draft("b", queue="q", subject="s", priority=7, deadline=NOW + 1, expires_at=NOW + 2, meta={"trace": "t"})
    newer = stamper(selection=Priority(), merge=LatestWins()).newer(draft, NOW, NOW, NOW)
    assert newer == Replaced(7, -7, NOW + 1, NOW + 2, {"trace": "t"}, None)
    assert (
        stamper(selection=Aging(minutes(1)), merge=LatestWins()).newer(draft, NOW, NOW, NOW).rank_base
        == -7 * 60 * SECOND
    )
    assert stamper(merge=LatestWins()).newer(draft, NOW, NOW, NOW).rank_base == 0


def test_a_key_that_goes_by_states_has_no_window() -> None:
    draft = Draft("a", queue="q", key="k")
    assert stamper().key(draft, NOW)[1] == NOW + micros(minutes(5))
    assert stamper(unique=While()).key(draft, NOW)[1] == MAX_INSTANT
    assert stamper(unique=While()).key(draft, NOW)[0] == stamper().key(draft, NOW)[0]


@given(st.sets(st.sampled_from(State), min_size=1))
def test_a_set_of_states_is_the_same_in_any_order_and_as_bits(states: set[State]) -> None:
    unique = While(tuple(sorted(states)))
    assert unique == While(tuple(reversed(unique.states)))
    for place, state in enumerate(State):
        assert unique.holds(state) == (state in states) == bool(unique.mask >> place & 1)
    assert not unique.holds(None)


def test_where_the_dead_letters_are_says_how_long() -> None:
    month = Stamper(QueueSpec(name="letters", routing=Routing(dead=DeadLetters(keep=days(30)))))
    plain, others = stamper(), {"letters": month, "plain": Stamper(QueueSpec(name="plain"))}
    end = NOW + micros(days(30))
    assert plain.dead_letter(NOW, others.__getitem__) is None
    assert month.dead_letter(NOW, others.__getitem__) == DeadLetterRule(None, end)
    for queue, kept_until in (("letters", end), ("plain", 0)):
        edge = stamper(routing=Routing(dead=DeadLetters(queue)))
        assert edge.dead_letter(NOW, others.__getitem__) == DeadLetterRule(queue, kept_until)
    assert stamper(routing=Routing(dead=DeadLetters(limit=9))).dead_letter(NOW, others.__getitem__) is None


def test_an_entry_has_its_class_its_gates_and_its_line() -> None:
    one = stamper(
        share=Fair(), eligibility=AtMost(3) & AtMost(2, per="kind") & InOrder(dead_head="block") & Until("go")
    )
    entry = one.entry(Draft("a", queue="q", tenant="t", subject="s"), 1, NOW)
    assert (entry.cls, entry.gates, entry.line, entry.blocks) == (
        "t",
        ("cap/q/kind/a", "until/go"),
        "order/q/subject/s",
        True,
    )
    assert not entry.ready, "in a line only the store can decide"
    free = one.entry(Draft("a", queue="q"), 2, NOW)
    assert (free.cls, free.line, free.blocks, free.ready) == ("", None, False, True)
    assert [gate.name for gate in one.whole] == ["cap/q"]


def test_a_queue_with_whole_gates_only_stamps_nothing() -> None:
    entry = stamper(eligibility=AtMost(3) & Rate(2)).entry(Draft("a", queue="q", tenant="t", subject="s"), 1, NOW)
    assert (entry.gates, entry.line, entry.ready) == ((), None, True)


def test_a_class_has_the_weight_of_the_spec() -> None:
    one = stamper(share=Fair(weights={"a": 3}, default=2))
    assert [one.weight(cls) for cls in ("a", "b", "")] == [3, 2, 2]
    assert stamper().weight("a") == 0


def test_an_entry_knows_its_cost() -> None:
    assert stamper().entry(Draft("a", queue="q", cost=3), 1, NOW).cost == 3
    assert stamper().entry(Draft("a", queue="q"), 1, NOW).cost == 1
