"""Every hazard is brought by the value that it is about, a plain queue has none, and what is to be watched exists."""

import re
from pathlib import Path
from typing import Any

import pytest

from forebay.core.hazards import HAZARDS, hazards
from forebay.core.instant import days, seconds
from forebay.core.policy import (
    Aging,
    AtMost,
    Block,
    Bounded,
    DeadLetters,
    Fair,
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
    Until,
    While,
)
from forebay.core.spec import QueueSpec

ROUTES = (Route("a", "x"),)
FULL = Bounded(9)

BROUGHT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("strict priority", {"selection": Priority()}, {"selection": Aging()}),
    (
        "a flood is released first",
        {"share": Fair(), "eligibility": Until("x")},
        {"share": Fair(), "eligibility": AtMost(2) & Rate(2) & Until("x", per="tenant")},
    ),
    (
        "a subject that never pauses",
        {"merge": LatestWins(quiet=seconds(1))},
        {"merge": LatestWins(quiet=seconds(1), at_most=seconds(9))},
    ),
    ("a key arrives again", {"unique": While()}, {}),
    ("more arrives than may start", {"eligibility": Rate(1), "capacity": FULL}, {"eligibility": AtMost(1)}),
    ("takes all slots that it shares", {"eligibility": AtMost(1, shared="gpu")}, {"eligibility": AtMost(1)}),
    ("a dead head blocks its line", {"eligibility": InOrder(dead_head="block")}, {"eligibility": InOrder()}),
    ("run without it", {"eligibility": InOrder()}, {"eligibility": InOrder(dead_head="block")}),
    ("the gate is never opened", {"eligibility": Until("x"), "capacity": FULL}, {"capacity": FULL}),
    ("nothing bounds", {"eligibility": Until("x")}, {"eligibility": Until("x"), "capacity": FULL}),
    ("waits for itself", {"capacity": Bounded(9, Block())}, {"capacity": FULL}),
    ("without a run", {"capacity": Bounded(9, Shed())}, {"capacity": FULL}),
    ("that is not monitored", {"routing": Routing(dead=DeadLetters("graves"))}, {"routing": Routing(3)}),
    ("deleted before", {"routing": Routing(dead=DeadLetters(limit=9))}, {"routing": Routing(3)}),
    ("one full subscriber", {"fan_out": FanOut(ROUTES)}, {"fan_out": FanOut(ROUTES, "drop")}),
    ("without a route is dropped", {"fan_out": FanOut(ROUTES, "drop")}, {"fan_out": FanOut(ROUTES)}),
    ("loses entries", {"retention": Retained(window=days(1))}, {"retention": Retained()}),
    ("keeps all later entries", {"retention": Retained(1, days(1), "block")}, {"retention": KeepFor(days(1))}),
]


def reported(axes: dict[str, Any]) -> str:
    return " | ".join(each.fails_by for each in hazards(QueueSpec(name="q", **axes)))


@pytest.mark.parametrize(("words", "axes", "near"), BROUGHT, ids=[words for words, _, _ in BROUGHT])
def test_a_hazard_is_shown_for_what_brings_it_and_for_nothing_near(
    words: str, axes: dict[str, Any], near: dict[str, Any]
) -> None:
    assert words in reported(axes)
    assert words not in reported(near)


def test_a_plain_queue_has_none_and_every_hazard_is_brought_by_something() -> None:
    assert hazards(QueueSpec(name="q")) == []
    brought = {each.fails_by for _, axes, _ in BROUGHT for each in hazards(QueueSpec(name="q", **axes))}
    assert brought == {each.fails_by for each in HAZARDS}


def test_the_metrics_to_watch_exist() -> None:
    metrics = Path(__file__).parents[2] / "src" / "forebay" / "serve" / "metrics"
    known = "".join(file.read_text() for file in metrics.glob("*.py"))
    named = {name for each in HAZARDS for name in re.findall(r"forebay_\w+", each.watch)}
    assert named
    assert {name for name in named if f'"{name}"' not in known} == set()
