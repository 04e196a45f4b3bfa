"""The five axes as short texts, for the command line: "keep:7d", "aging:1m + fair:tenant", "bounded:10000:block:5s"."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import timedelta
from functools import reduce
from operator import and_
from typing import Any, Final, NamedTuple

from forebay.cli.argtypes import duration
from forebay.core.errors import Invalid
from forebay.core.job import State
from forebay.core.policy import (
    Aging,
    AtMost,
    Block,
    Bounded,
    DeadLetters,
    Deadline,
    Exponential,
    Fair,
    FanOut,
    Fifo,
    Fixed,
    FullJitter,
    Immediate,
    InOrder,
    KeepFor,
    LatestWins,
    Priority,
    Rate,
    Reject,
    RemoveOnAck,
    Retained,
    Route,
    Routing,
    Shed,
    Term,
    Unbounded,
    Until,
    While,
)

Fields = dict[str, Any]


class Axis(NamedTuple):
    """One axis: its flag, its question, the possible answers, the default, and how an answer becomes spec fields."""

    flag: str
    question: str
    answers: str
    usual: str
    parse: Callable[[str], Fields]


def _time(text: str) -> timedelta:
    try:
        return duration(text)
    except ArgumentTypeError as error:
        raise Invalid("length", str(error), "for example 7d") from None


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise Invalid("number", f"{text[:40]!r} is not a number", "write it in digits")
    return int(text)


def _parts(text: str) -> list[list[str]]:
    """ "a:b + c" as [["a", "b"], ["c"]]."""
    return [term.strip().split(":") for term in text.split("+")]


def _pairs(text: str) -> list[tuple[str, str]]:
    """ "a=b,c=d" as [("a", "b"), ("c", "d")]."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(name and mark and value for name, mark, value in pairs):
        raise Invalid("pairs", f"{text[:60]!r} is not a list of pairs", "write a=b,c=d")
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _shared(text: str) -> tuple[int, str | None]:
    """ "8@gpu" as (8, "gpu")."""
    limit, mark, name = text.partition("@")
    return _number(limit), name if mark else None


def _state(text: str) -> State:
    try:
        return State(text.strip())
    except ValueError:
        raise Invalid("state", f"{text[:40]!r} is not a state", f"use {', '.join(State)}") from None


def _retention(text: str) -> Fields:
    match _parts(text):
        case [["remove"]]:
            return {"retention": RemoveOnAck()}
        case [["keep", duration]]:
            return {"retention": KeepFor(_time(duration))}
        case [["log"]]:
            return {"retention": Retained()}
        case [["log", partitions]]:
            return {"retention": Retained(_number(partitions))}
        case [["log", partitions, window]]:
            return {"retention": Retained(_number(partitions), _time(window))}
        case [["log", partitions, window, ("count" | "block") as lagging]]:
            return {"retention": Retained(_number(partitions), _time(window), lagging)}
        case _:
            raise _unknown("retention", text)


def _selection(text: str) -> Fields:
    fields: Fields = {}
    for term in _parts(text):
        match term:
            case ["fifo"]:
                found: Fields = {"selection": Fifo()}
            case ["priority"]:
                found = {"selection": Priority()}
            case ["aging"]:
                found = {"selection": Aging()}
            case ["aging", step]:
                found = {"selection": Aging(_time(step))}
            case ["deadline"]:
                found = {"selection": Deadline()}
            case ["fair", ("tenant" | "kind") as by]:
                found = {"share": Fair(by)}
            case ["fair", ("tenant" | "kind") as by, weights]:
                found = {"share": Fair(by, {name: _number(weight) for name, weight in _pairs(weights)})}
            case ["latest-wins"]:
                found = {"merge": LatestWins()}
            case ["latest-wins", quiet]:
                found = {"merge": LatestWins(quiet=_time(quiet))}
            case ["latest-wins", quiet, at_most]:
                found = {"merge": LatestWins(quiet=_time(quiet), at_most=_time(at_most))}
            case ["unique"]:
                found = {"unique": While()}
            case ["unique", states]:
                found = {"unique": While(tuple(_state(state) for state in states.split(",")))}
            case _:
                raise _unknown("selection", text)
        if fields.keys() & found.keys():
            raise Invalid("selection", f"{text[:60]!r} sets one thing twice", "choose one of the two")
        fields |= found
    return fields


def _eligibility(text: str) -> Fields:
    terms: list[Term] = []
    for term in _parts(text):
        *words, last = term
        last, _, per = last.partition("/")
        if per not in ("", "subject", "tenant", "kind"):
            raise Invalid("eligibility", f"jobs are not counted per {per[:40]!r}", "use subject, tenant or kind")
        match [*words, last]:
            case ["immediate"] if not per:
                continue
            case ["at-most", limit]:
                number, shared = _shared(limit)
                terms.append(AtMost(number, per or None, shared))  # type: ignore[arg-type] # checked above
            case ["rate", limit, every, *burst] if len(burst) < 2:
                number, shared = _shared(limit)
                maximum = _number(burst[0]) if burst else None
                terms.append(Rate(number, _time(every), per or None, maximum, shared))  # type: ignore[arg-type] # checked
            case ["in-order"]:
                terms.append(InOrder(per or "subject"))  # type: ignore[arg-type] # checked above
            case ["in-order", ("skip" | "block") as dead_head]:
                terms.append(InOrder(per or "subject", dead_head))  # type: ignore[arg-type] # checked above
            case ["until", condition]:
                terms.append(Until(condition, per or None))  # type: ignore[arg-type] # checked above
            case _:
                raise _unknown("eligibility", text)
    return {"eligibility": reduce(and_, terms) if terms else Immediate()}


def _routing(text: str) -> Fields:
    attempts: int | None = None
    backoff: Any = None
    dead: dict[str, Any] = {}
    routes: dict[str, Any] = {}
    for term in _parts(text):
        match term:
            case ["dead", queue]:
                dead["queue"] = queue
            case ["dead-keep", duration]:
                dead["keep"] = _time(duration)
            case ["dead-max", number]:
                dead["limit"] = _number(number)
            case ["fan-out", pairs]:
                routes["routes"] = tuple(Route(kinds, queue) for kinds, queue in _pairs(pairs))
            case ["unmatched", ("refuse" | "drop") as unmatched]:
                routes["unmatched"] = unmatched
            case [number] if number.isdigit() and attempts is None:
                attempts = _number(number)
            case ["full-jitter"] if backoff is None:
                backoff = FullJitter()
            case ["full-jitter", base, cap] if backoff is None:
                backoff = FullJitter(_time(base), _time(cap))
            case ["exponential"] if backoff is None:
                backoff = Exponential()
            case ["exponential", base, cap] if backoff is None:
                backoff = Exponential(_time(base), _time(cap))
            case ["fixed", duration] if backoff is None:
                backoff = Fixed(_time(duration))
            case _:
                raise _unknown("routing", text)
    if routes and "routes" not in routes:
        raise _unknown("routing", text)
    usual = Routing()
    edge = DeadLetters(**dead) if dead else None
    routing = Routing(usual.max_attempts if attempts is None else attempts, backoff or usual.backoff, edge)
    return {"routing": routing} | ({"fan_out": FanOut(**routes)} if routes else {})


def _capacity(text: str) -> Fields:
    match _parts(text):
        case [["unbounded"]]:
            return {"capacity": Unbounded()}
        case [["bounded", limit]] | [["bounded", limit, "reject"]]:
            return {"capacity": Bounded(_number(limit), Reject())}
        case [["bounded", limit, "shed", ("oldest" | "lowest") as victim]]:
            return {"capacity": Bounded(_number(limit), Shed(victim))}
        case [["bounded", limit, "block"]]:
            return {"capacity": Bounded(_number(limit), Block())}
        case [["bounded", limit, "block", timeout]]:
            return {"capacity": Bounded(_number(limit), Block(_time(timeout)))}
        case _:
            raise _unknown("capacity", text)


def _unknown(flag: str, text: str) -> Invalid:
    axis = next(axis for axis in AXES if axis.flag == flag)
    return Invalid(flag, f"{text[:60]!r} is not a valid answer", f"use {axis.answers}")


AXES: Final = (
    Axis(
        "retention",
        "What happens to a job that is done?",
        "remove, keep:7d, or log:4:7d (4 partitions, a window of 7 days; :block keeps it for lagging groups)",
        "remove",
        _retention,
    ),
    Axis(
        "selection",
        "Which job is next?",
        "fifo, priority, aging:1m or deadline; add + fair:tenant or fair:tenant:gold=5,silver=3, + latest-wins or "
        "latest-wins:5s:1m (after 5 s of quiet, or 1 min), + unique or unique:waiting,ready",
        "fifo",
        _selection,
    ),
    Axis(
        "eligibility",
        "When may a job be claimed?",
        "immediate, at-most:64/tenant, rate:100:1m/tenant (or :10 for the burst), in-order/subject, "
        "in-order:block/subject or until:CONDITION; 8@gpu is shared by queues; join them by +",
        "immediate",
        _eligibility,
    ),
    Axis(
        "routing",
        "How many attempts, and with what backoff?",
        "25 + full-jitter:500ms:1m, 8 + exponential:1s:10m or 3 + fixed:10s; add + dead:QUEUE, or + dead-keep:30d and "
        "+ dead-max:1000; or fan-out:orders.*=billing,**=audit + unmatched:drop",
        "25",
        _routing,
    ),
    Axis(
        "capacity",
        "What happens when the queue is full?",
        "unbounded, bounded:10000:reject, bounded:10000:block:5s or bounded:10000:shed:oldest",
        "unbounded",
        _capacity,
    ),
)
