"""What a store lacks is refused in words when it is asked for, and only then."""

import pytest

from forebay.core.errors import Invalid, Unsupported
from forebay.core.features import Feature, features_of
from forebay.core.instant import days, seconds
from forebay.core.named import NAMED
from forebay.core.policy import (
    AtMost,
    Bounded,
    DeadLetters,
    FanOut,
    InOrder,
    LatestWins,
    Rate,
    Retained,
    Route,
    Routing,
    Shed,
    While,
)
from forebay.core.spec import QueueSpec
from forebay.store.checks import check_purge, check_spec, checked_condition, checked_member
from forebay.store.protocol import Capabilities

ASKS = {
    Feature.RATE: QueueSpec(name="q", eligibility=Rate(1) & InOrder()),
    Feature.SHARED: QueueSpec(name="q", eligibility=AtMost(1, shared="gpu")),
    Feature.QUIET: QueueSpec(name="q", merge=LatestWins(quiet=seconds(1))),
    Feature.UNIQUE: QueueSpec(name="q", unique=While()),
    Feature.SHED: QueueSpec(name="q", capacity=Bounded(1, Shed())),
    Feature.FAN_OUT: QueueSpec(name="q", fan_out=FanOut((Route("a", "x"),))),
    Feature.LAGGING: QueueSpec(name="q", retention=Retained(1, days(1), "block")),
    Feature.DEAD_LETTERS: QueueSpec(name="q", routing=Routing(dead=DeadLetters("dead"))),
}


@pytest.mark.parametrize("feature", ASKS)
def test_a_store_refuses_what_it_lacks_and_takes_the_rest(feature: Feature) -> None:
    with pytest.raises(Unsupported, match=f"tin cannot do {feature.value}; leave it out"):
        check_spec(Capabilities("tin", durable=False, lacks=frozenset({feature})), ASKS[feature])
    check_spec(Capabilities("tin", durable=False, lacks=frozenset(Feature) - {feature}), ASKS[feature])


def test_plain_queues_ask_for_nothing() -> None:
    for spec in (QueueSpec(name="q"), *(NAMED[name]("q") for name in ("work", "fifo", "priority", "retry"))):
        assert not list(features_of(spec))


@pytest.mark.parametrize(
    "bad",
    [
        lambda: check_spec(Capabilities("tin", durable=False), "q"),  # type: ignore[arg-type]
        lambda: checked_condition("a b", 1, None),
        lambda: checked_condition("paid", 0, None),
        lambda: checked_condition("paid", 1, ""),
        lambda: check_purge("dead", 0, 1, "a b"),  # type: ignore[arg-type]
        lambda: checked_member("log", "group", "", seconds(1)),
        lambda: checked_member("log", "group", "me", seconds(0)),
    ],
)
def test_bad_calls_are_refused(bad: object) -> None:
    with pytest.raises(Invalid):
        bad()  # type: ignore[operator]


def test_the_gate_of_a_condition() -> None:
    assert checked_condition("paid", 1, None) == "until/paid"
    assert checked_condition("paid", 1, "order 42") == "until/paid/order 42"
    assert checked_member("log", "group", "me", seconds(1)) == ("log", "group", "me", 1_000_000)
