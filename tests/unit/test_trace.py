"""The trace of a failure reads as Python's own does, whatever was raised, and is bounded."""

import re
import traceback
from collections.abc import Callable

import pytest

from forebay.work.trace import MAX_CHAIN, MAX_FRAMES, format_trace


def plainly() -> None:
    raise ValueError("what\nwent wrong")


def with_a_note() -> None:
    error = KeyError("k")
    error.add_note("look at the ledger")
    raise error


def by_a_cause() -> None:
    try:
        plainly()
    except ValueError as error:
        raise RuntimeError("on top") from error


def in_a_handler() -> None:
    try:
        by_a_cause()
    except RuntimeError:
        raise LookupError  # noqa: B904


def from_nothing() -> None:
    try:
        plainly()
    except ValueError:
        raise RuntimeError("alone") from None


def of_no_file() -> None:
    exec(compile("1 / 0", "<made up>", "exec"))  # noqa: S102


def of_bad_syntax() -> None:
    compile("a b", "<made up>", "exec")


class FailingStr(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def without_words() -> None:
    raise FailingStr


def of_a_wrong_name() -> None:
    [].apend(1)  # type: ignore[attr-defined]


def a_group() -> None:
    raise ExceptionGroup("several", [ValueError("one"), OSError("two")])


def of_a_group() -> None:
    try:
        a_group()
    except ExceptionGroup as group:
        raise RuntimeError("after a group") from group


def caught(act: Callable[[], None]) -> BaseException:
    try:
        act()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def unmarked(text: str) -> str:
    """Without the lines that only point at the line above."""
    return re.sub(r"(?m)^[ |]*[~^]+\n", "", text)


@pytest.mark.parametrize(
    "act",
    [
        *(plainly, with_a_note, by_a_cause, in_a_handler, from_nothing, of_no_file, of_bad_syntax, a_group, of_a_group),
        *(without_words, of_a_wrong_name),
    ],
)
def test_it_reads_as_python_s_own(act: Callable[[], None]) -> None:
    error = caught(act)
    assert unmarked(format_trace(error)) == unmarked("".join(traceback.format_exception(error)))


def test_an_exception_that_was_never_raised_has_no_calls() -> None:
    assert format_trace(ValueError("x")) == "ValueError: x\n"


def test_a_deep_one_shows_its_last_calls() -> None:
    def down(left: int) -> None:
        if left:
            down(left - 1)
        raise ValueError("the bottom")

    reported = format_trace(caught(lambda: down(500)))
    assert reported.count("in down") == MAX_FRAMES
    assert re.search(r"\[\d+ earlier calls\]", reported)
    assert reported.endswith("ValueError: the bottom\n")


def test_a_long_chain_and_a_ring_end() -> None:
    first = last = ValueError(0)
    for number in range(1, 100):
        error = ValueError(number)
        error.__cause__, last = last, error
    assert format_trace(last).count("ValueError") == MAX_CHAIN
    assert format_trace(last).endswith("ValueError: 99\n")
    first.__cause__ = last
    assert format_trace(first).count("direct cause") == MAX_CHAIN - 1
