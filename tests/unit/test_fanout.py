"""A broker's drafts go where its routes lead, once to each queue; and no edge leads to what holds no jobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import Invalid
from forebay.core.fanout import check_edges, copies, matches
from forebay.core.job import Draft
from forebay.core.policy import DeadLetters, FanOut, Retained, Route, Routing
from forebay.core.spec import QueueSpec

WORDS = st.lists(st.sampled_from(["orders", "paid", "eu"]), min_size=1, max_size=4)


def broker(*routes: tuple[str, str], name: str = "events", **more: str) -> QueueSpec:
    return QueueSpec(name=name, fan_out=FanOut(tuple(Route(*route) for route in routes), **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "kind", "fits"),
    [
        ("orders.paid", "orders.paid", True),
        ("orders.paid", "orders.paid.eu", False),
        ("orders.paid", "orders", False),
        ("orders.*", "orders.paid", True),
        ("orders.*", "orders", False),
        ("orders.*", "orders.paid.eu", False),
        ("*.paid", "orders.paid", True),
        ("*.paid", "orders.sent", False),
        ("*", "orders", True),
        ("*", "orders.paid", False),
        ("orders.**", "orders", True),
        ("orders.**", "orders.paid.eu", True),
        ("orders.**", "ordersx", False),
        ("*.paid.**", "orders.paid.eu", True),
        ("*.paid.**", "orders", False),
        ("**", "anything.at.all", True),
    ],
)
def test_a_pattern_goes_word_by_word(pattern: str, kind: str, fits: bool) -> None:
    assert matches(pattern, kind) is fits


@given(WORDS, st.data())
def test_a_kind_fits_itself_with_any_word_left_open(words: list[str], data: st.DataObject) -> None:
    opened = [data.draw(st.sampled_from([word, "*"])) for word in words]
    cut = data.draw(st.integers(0, len(words)))
    assert matches(".".join(opened), ".".join(words))
    assert matches(".".join([*opened[:cut], "**"]), ".".join(words))
    assert not matches(".".join([*opened, "*"]), ".".join(words))


@pytest.mark.parametrize("pattern", ["", ".", "a.", "a..b", "a.**.b", "a*", "**.a", "a b", "x" * 129, None, 7])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(Invalid, match="not a pattern"):
        Route(pattern, "q")


def test_each_queue_gets_one_copy_with_all_that_the_draft_has() -> None:
    spec = broker(("orders.*", "billing"), ("**", "audit"), ("orders.paid", "billing"), ("users.*", "crm"))
    draft = Draft("orders.paid", {"n": 1}, "events", priority=3, key="k", subject="s", meta={"trace": "t"}, cost=2)
    found = copies(spec, draft)
    assert [copy.queue for copy in found] == ["billing", "audit"]
    for copy in found:
        assert (copy.kind, copy.body, copy.priority, copy.key) == ("orders.paid", draft.body, 3, "k")
        assert (copy.subject, copy.meta, copy.cost) == ("s", {"trace": "t"}, 2)


def test_a_queue_that_is_no_broker_keeps_its_drafts() -> None:
    draft = Draft("a")
    assert copies(QueueSpec(name="default"), draft) == [draft]


def test_a_draft_without_a_route_is_refused_or_dropped() -> None:
    with pytest.raises(Invalid, match=r"no route of events matches b; add one, or set unmatched=.drop."):
        copies(broker(("a", "q")), Draft("b", queue="events"))
    assert copies(broker(("a", "q"), unmatched="drop"), Draft("b", queue="events")) == []


def test_routes_are_bounded_and_differ() -> None:
    with pytest.raises(Invalid, match="not an integer in 1"):
        broker()
    with pytest.raises(Invalid, match="not an integer in 1 … 64"):
        broker(*((f"k{number}", "q") for number in range(65)))
    with pytest.raises(Invalid, match="repeated"):
        broker(("a", "q"), ("a", "q"))


def test_no_edge_leads_to_what_holds_no_jobs() -> None:
    queue, log = QueueSpec(name="q"), QueueSpec(name="q", retention=Retained())
    one, two = broker(("a", "q")), broker(("a", "events"), name="two")
    letters = QueueSpec(name="mail", routing=Routing(dead=DeadLetters("q")))
    for spec, others in ((one, []), (one, [queue]), (one, [one, queue]), (letters, [queue, one]), (queue, [one])):
        check_edges(spec, others)
    for spec, others in ((one, [log]), (log, [one]), (two, [one]), (one, [two]), (letters, [log]), (log, [letters])):
        with pytest.raises(Invalid, match=r"targets .*, which holds no jobs"):
            check_edges(spec, others)


def test_an_edge_between_others_is_not_this_specs_fault() -> None:
    check_edges(QueueSpec(name="new"), [broker(("a", "q")), QueueSpec(name="q", retention=Retained())])
