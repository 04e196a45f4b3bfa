"""What every store refuses of a call, before it reads its state."""

import pytest

from forebay.core.errors import Invalid
from forebay.core.instant import seconds
from forebay.store.checks import check_purge, check_spec, checked_condition, checked_member


@pytest.mark.parametrize(
    "bad",
    [
        lambda: check_spec("q"),  # type: ignore[arg-type]
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
