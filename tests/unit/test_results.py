"""Results come back as they were returned, or are refused with the path of what is wrong; nothing in between."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import IntEnum, StrEnum
from threading import Thread
from typing import Any
from uuid import UUID

import msgspec
import pytest

from forebay import Forebay, Invalid, JobCancelled, JobFailed, JobGone, ResultPending, State, Want
from forebay.core.instant import hours, micros, seconds
from forebay.core.limits import MAX_DURATION
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Verdict
from forebay.work.results import ResultInvalid, ResultType


@dataclass
class Point:
    x: int
    tags: set[str]


class Node(msgspec.Struct):
    name: str
    children: list["Node"] = []


class Opaque:
    pass


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 1


def returning(hint: object) -> ResultType:
    def function() -> Any: ...

    function.__annotations__ = {} if hint is None else {"return": hint}
    return ResultType("k", function)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (None, {"a": [1, 2.5, None, True, "x"]}),
        (Any, [1]),
        (object, "x"),
        (type(None), {"said": "inside"}),
        (set[int], {1, 2}),
        (tuple[int, str], (1, "a")),
        (bytes, b"\x00\xff"),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 678, UTC)),
        (date, date(2026, 1, 2)),
        (timedelta, timedelta(seconds=90)),
        (UUID, UUID(int=7)),
        (dict[int, str], {1: "a"}),
        (Point, Point(1, {"a"})),
        (list[Point], [Point(1, set()), Point(2, {"b"})]),
        (Node, Node("a", [Node("b")])),
        (Colour, Colour.RED),
        (float, 1),
        (dict[str, Any], {"a": [1, {"b": None}]}),
    ],
)
def test_a_result_comes_back_as_it_was(hint: object, value: object) -> None:
    kept = returning(hint)
    back = kept.decode(kept.encode(value))
    assert back == value
    assert type(back) is (float if hint is float else type(value))


@pytest.mark.parametrize(
    ("hint", "value", "path", "name"),
    [
        (None, {"a": [1, {2}]}, "$.a[1]", "set is not a JSON type"),
        (None, (1, 2), "$", "tuple is not a JSON type"),
        (None, {"at": datetime(2026, 1, 1, tzinfo=UTC)}, "$.at", "datetime is not a JSON type"),
        (None, [b"x"], "$[0]", "bytes is not a JSON type"),
        (None, {"a": Opaque()}, "$.a", "Opaque is not a JSON type"),
        (None, {1: 2}, "$", "a key is int"),
        (None, Level.HIGH, "$", "Level is not a JSON type"),
        (None, float("nan"), "$", "NaN"),
        (None, "x" * 300_000, "$", "the limit is"),
        (dict[str, Any], {"a": {1, 2}}, "$.a", "set would not decode"),
        (dict[str, Any], {"a": [(1, 2)]}, "$.a[0]", "tuple would not decode"),
        (dict[str, Any], {"a": Colour.RED}, "$.a", "Colour would not decode"),
        (dict[str, Any], {"a": {1: 2}}, "$.a", "dict would not decode"),
        (dict[str, int], Counter(a=1), "$", "Counter would not decode"),
        (dict[str, Any], {"a": Opaque()}, "$", "Opaque"),
        (int, "7", "$", "it does not match the annotation: Expected `int`, got `str`"),
        (Point, {"x": "7", "tags": []}, "$.x", "it does not match the annotation"),
        (Point, {"x": 7, "tags": []}, "$", "dict would not decode"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused(hint: object, value: object, path: str, name: str) -> None:
    with pytest.raises(ResultInvalid) as refused:
        returning(hint).encode(value)
    assert refused.value.path == path
    assert name in str(refused.value)
    assert f"result of k at {path}" in str(refused.value)


@pytest.mark.parametrize(
    "hint", [Opaque, list[Opaque], dict[str, tuple[int, Opaque]], complex, "Missing", int | set[Opaque]]
)
def test_a_type_that_cannot_be_kept_is_refused_where_it_is_decorated(hint: object) -> None:
    with pytest.raises(Invalid, match="k: "):
        returning(hint)


@pytest.fixture
def fb() -> Forebay:
    return Forebay("memory://")


def settled(fb: Forebay, verdict: Verdict) -> None:
    (lease,) = fb.store.claim([Want("default", 1)], "worker", seconds(60))
    fb.store.settle([(lease, verdict)])


def test_only_what_is_kept_has_to_be_json(fb: Forebay) -> None:
    def opaque() -> Opaque:
        return Opaque()

    with pytest.raises(Invalid, match="Opaque has no JSON encoding"):
        fb.job(keep_result=True)(opaque)
    assert fb.job(opaque).enqueue().id


def test_results_are_kept_for_an_hour_or_for_as_long_as_is_said(fb: Forebay) -> None:
    @fb.job(keep_result=True)
    def usual() -> int:
        return 1

    @fb.job(result_ttl=0.25)
    def brief() -> int:
        return 1

    @fb.job(result_ttl=timedelta(days=3))
    def long() -> int:
        return 1

    @fb.job
    def none() -> int:
        return 1

    kept = [fb.registry[kind].keep_for for kind in ("usual", "brief", "long", "none")]
    assert kept == [micros(hours(1)), 250_000, micros(timedelta(days=3)), 0]
    assert [handler.keep_result for handler in fb.registry.values()] == [True, True, True, False]
    for wrong in (0, -1, MAX_DURATION * 2):
        with pytest.raises(Invalid, match="result_ttl"):
            fb.job(kind="wrong", result_ttl=wrong)(lambda: None)


def test_a_result_is_waited_for_and_comes_by_its_annotation(fb: Forebay) -> None:
    @fb.job(keep_result=True)
    def spread(x: int) -> set[int]:
        return {x}

    receipt = spread.enqueue(1)
    answers: list[object] = []
    waiter = Thread(target=lambda: answers.append(receipt.result(60)), daemon=True)
    waiter.start()
    settled(fb, Ack(b"[1,2]", micros(hours(1))))
    waiter.join(30)
    assert answers == [{1, 2}]
    assert fb.result(receipt.id) == {1, 2}
    job = fb.get(receipt.id)
    assert job is not None
    assert (job.state, job.result) == (State.DONE, [1, 2])


def test_a_receipt_can_be_awaited(fb: Forebay) -> None:
    @fb.job(keep_result=True)
    async def answer() -> int:
        return 1

    async def both() -> tuple[object, object]:
        first = await answer.aenqueue()
        second = await fb.aenqueue("answer")
        waiting = asyncio.gather(first, second.aresult(30))
        for result in (b"1", b"2"):
            await asyncio.to_thread(settled, fb, Ack(result, micros(hours(1))))
        one, two = await waiting
        return one, two

    assert asyncio.run(both()) == (1, 2)
    fb.close()


@pytest.mark.parametrize(
    "wait", [lambda fb, job: fb.result(job, 0.01), lambda fb, job: asyncio.run(fb.aresult(job, 0.01))]
)
def test_what_has_no_result_says_so(fb: Forebay, wait: Callable[[Forebay, int], object]) -> None:
    job_id = fb.enqueue("k").id
    with pytest.raises(ResultPending, match=f"job {job_id} is still ready after 0.01 s") as late:
        wait(fb, job_id)
    assert isinstance(late.value, TimeoutError)
    settled(fb, DeadLetter(Failure("ValueError", "no such user")))
    with pytest.raises(JobFailed, match="after attempt 1: ValueError: no such user"):
        wait(fb, job_id)
    gone = fb.enqueue("k").id
    fb.cancel(gone)
    with pytest.raises(JobGone, match=f"job {gone} is gone"):
        wait(fb, gone)
    fb.close()


def test_a_job_that_was_cancelled_while_it_ran_says_so(fb: Forebay) -> None:
    job_id = fb.enqueue("k").id
    settled(fb, Cancel(micros(hours(1))))
    with pytest.raises(JobCancelled, match=f"job {job_id} was cancelled"):
        fb.result(job_id)


def test_a_result_of_what_keeps_none_is_a_mistake(fb: Forebay) -> None:
    @fb.job
    def none() -> int:
        return 1

    with pytest.raises(Invalid, match=r"its results are not kept; write @fb.job\(keep_result=True\)"):
        none.enqueue().result()
