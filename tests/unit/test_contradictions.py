"""Each contradiction is found where it is written down, with its reason; what comes near to it is not one."""

from typing import Any

import pytest

from forebay.core.contradictions import CONTRADICTIONS
from forebay.core.errors import Invalid
from forebay.core.instant import days
from forebay.core.job import State
from forebay.core.policy import (
    Bounded,
    DeadLetters,
    FanOut,
    InOrder,
    KeepFor,
    LatestWins,
    Priority,
    Rate,
    Retained,
    Route,
    Routing,
    Shed,
    While,
)
from forebay.core.spec import QueueSpec

ROUTES = FanOut((Route("a", "x"),))
BLOCK, SKIP = InOrder(dead_head="block"), InOrder()
KEEP = Routing(dead=DeadLetters(keep=days(1)))

PAIRS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("a retained log has no", {"retention": Retained(), "unique": While()}, {"retention": Retained()}),
    ("a retained log has no", {"retention": Retained(), "fan_out": ROUTES}, {"fan_out": ROUTES}),
    (
        "without a window",
        {"retention": Retained(lagging="block")},
        {"retention": Retained(window=days(1), lagging="block")},
    ),
    ("a broker holds no jobs", {"fan_out": ROUTES, "capacity": Bounded(1)}, {"capacity": Bounded(1)}),
    ("a broker holds no jobs", {"fan_out": ROUTES, "retention": KeepFor(days(1))}, {"fan_out": ROUTES}),
    ("names the queue itself", {"fan_out": FanOut((Route("a", "q"),))}, {"fan_out": ROUTES}),
    (
        "names the queue itself",
        {"routing": Routing(dead=DeadLetters("q"))},
        {"routing": Routing(dead=DeadLetters("dead"))},
    ),
    (
        "LatestWins replaces work",
        {"merge": LatestWins(), "eligibility": Rate(1) & SKIP},
        {"merge": LatestWins(), "eligibility": Rate(1)},
    ),
    ("would delete it before", {"eligibility": BLOCK, "routing": KEEP}, {"eligibility": SKIP, "routing": KEEP}),
    (
        "would delete it before",
        {"eligibility": BLOCK, "routing": Routing(dead=DeadLetters(limit=9))},
        {"eligibility": BLOCK, "routing": Routing(dead=DeadLetters("dead"))},
    ),
    (
        "each of them would block it",
        {"eligibility": BLOCK, "capacity": Bounded(9, Shed())},
        {"eligibility": SKIP, "capacity": Bounded(9, Shed())},
    ),
    (
        "the new job always has the lowest rank",
        {"capacity": Bounded(9, Shed("lowest"))},
        {"capacity": Bounded(9, Shed("lowest")), "selection": Priority()},
    ),
    (
        "RemoveOnAck does not keep",
        {"unique": While((State.DONE,))},
        {"unique": While((State.DONE, State.DEAD)), "retention": KeepFor(days(1))},
    ),
]


@pytest.mark.parametrize(("reason", "wrong", "near"), PAIRS)
def test_a_contradiction_is_refused_with_its_reason(reason: str, wrong: dict[str, Any], near: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=reason) as refused:
        QueueSpec(name="q", **wrong)
    assert refused.value.field == "q"
    assert refused.value.remedy
    QueueSpec(name="q", **near)


def test_every_contradiction_is_shown_here() -> None:
    for each in CONTRADICTIONS:
        assert any(reason in each.reason for reason, _, _ in PAIRS), each.reason


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: LatestWins(at_most=days(1)), "no effect without quiet"),
        (lambda: LatestWins(quiet=days(2), at_most=days(1)), "1 day is not in 2 days … "),
        (lambda: DeadLetters("dead", keep=days(1)), "has its own rule"),
        (lambda: DeadLetters("dead", limit=1), "has its own rule"),
        (lambda: While(()), "unknown or repeated"),
        (lambda: While((State.DEAD, State.DEAD)), "unknown or repeated"),
        (lambda: While(("lost",)), "unknown or repeated"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_makes_no_sense_alone_is_refused(make: Any, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        make()
