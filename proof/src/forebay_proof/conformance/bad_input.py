"""Bad input of drafts and specs: refused with a typed error before anything is written, alike on every store.

A draft or spec that exists is good, so nearly all refusals happen while it is made; each case also asks the store that
nothing came of it. What verbs refuse is in `bad_calls.py`.
"""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any

from forebay.core.errors import ForebayError, Invalid, PayloadInvalid
from forebay.core.instant import hours, ms
from forebay.core.job import State
from forebay.core.limits import (
    MAX_ATTEMPTS,
    MAX_INSTANT,
    MAX_PRIORITY,
    MAX_WEIGHT,
    META_BYTES,
    META_ENTRIES,
    PAYLOAD_BYTES,
)
from forebay.core.outcome import Ack, Release, Retry
from forebay.core.policy import (
    Aging,
    AtMost,
    Block,
    Bounded,
    Exponential,
    Fair,
    Fixed,
    FullJitter,
    InOrder,
    KeepFor,
    LatestWins,
    Priority,
    Retained,
    Routing,
    Until,
)
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay_proof.conformance.case import case, refused
from forebay_proof.conformance.harness import ERROR, Harness

BAD_NAMES: list[Any] = [
    "",
    "a b",
    "a/b",
    "ä",
    "a\n",
    "a\0",
    "x" * 129,
    "a;b",
    "'",
    "%",
    "a\ud800",
    "🙂",
    7,
    b"a",
    ["a"],
]
BAD_TEXTS: list[Any] = ["", "a\0b", "\ud800", "x" * 257, 7, b"a"]
BAD_INSTANTS: list[Any] = [-1, MAX_INSTANT + 1, 1.5, "now", True, timedelta(1)]
NOT_COUNTS: list[Any] = [0, -1, 1.0, "1", True, 2**31]


class TextKind(str):
    """What an enum of strings is made of."""

    __slots__ = ()


def _all_refused(h: Harness, field: str, values: list[Any], kind: type[Invalid] = Invalid) -> None:
    with h.unchanged():
        for value in values:
            error = refused(kind, lambda value=value: h.one(**{field: value}))  # type: ignore[misc]
            assert isinstance(error, ForebayError)
            assert error.field
            assert error.remedy


def _nested(depth: int) -> Any:
    value: Any = 1
    for number in range(depth):
        value = [value] if number % 2 else {"k": value}
    return value


@case
def a_bad_kind_is_refused(h: Harness) -> None:
    _all_refused(h, "kind", [*BAD_NAMES, None])


@case
def a_bad_queue_name_is_refused(h: Harness) -> None:
    _all_refused(h, "queue", [*BAD_NAMES, None])


@case
def a_bad_tenant_is_refused(h: Harness) -> None:
    _all_refused(h, "tenant", BAD_NAMES)


@case
def a_bad_key_or_subject_is_refused(h: Harness) -> None:
    _all_refused(h, "key", BAD_TEXTS)
    _all_refused(h, "subject", BAD_TEXTS)


@case
def the_longest_and_strangest_valid_names_are_accepted(h: Harness) -> None:
    name, text = "aZ09_.:-" * 16, "ä🙂 '\";%\\\n" * 25
    job_id = h.one(kind=name, queue=name, tenant=name, key=text, subject=text, meta={name: text})
    job = h.take(name).job
    assert (job.id, job.kind, job.tenant, job.key, job.subject) == (job_id, name, name, text, text)
    assert job.meta == {name: text}


@case
def a_type_that_json_does_not_have_is_refused(h: Harness) -> None:
    values = [(1, 2), {1, 2}, b"bytes", object(), 1j, timedelta(1), {"a": {"b": (1,)}}, [[b""]]]
    _all_refused(h, "payload", values, PayloadInvalid)


@case
def a_subclass_of_a_json_type_is_refused(h: Harness) -> None:
    """It would come back as something else, or encode on one store and not on another."""
    values = [
        TextKind("x"),
        [TextKind("x")],
        {"a": TextKind("x")},
        {TextKind("k"): 1},
        State.DEAD,
        Counter(a=1),
        [HTTPStatus.OK],
    ]
    _all_refused(h, "payload", values, PayloadInvalid)


@case
def a_subclass_of_str_is_accepted_as_a_name(h: Harness) -> None:
    """Names often come from enums; what the store shows is a plain string again."""
    name = TextKind("dead")
    h.spec(name, capacity=Bounded(5))
    job_id = h.one(kind=name, queue=name, tenant=name, key=name, subject=name, meta={name: name})
    job = h.take(name, owner=name).job
    shown = (job.id, job.kind, job.queue, job.tenant, job.key, job.subject, job.owner, job.meta)
    assert shown == (job_id, "dead", "dead", "dead", "dead", "dead", "dead", {"dead": "dead"})
    assert {type(text) for text in shown[1:7]} == {str}
    h.store.pause(name)
    h.store.resume(name)
    h.store.put_schedule(Schedule(name, name, h.now(), h.draft(), zone=name))
    h.spec("log", retention=Retained())
    h.store.append("log", [b"1"], [name])
    assert h.store.commit("log", name, 0, 0) == 0
    assert h.store.position("log", "dead", 0) == 0
    assert h.store.backlog([name])[0].running == 1


@case
def a_key_that_is_not_a_string_is_refused(h: Harness) -> None:
    _all_refused(h, "payload", [{1: 2}, {None: 1}, {"a": {b"b": 1}}, {(): 1}], PayloadInvalid)


@case
def nan_and_infinity_are_refused(h: Harness) -> None:
    values = [float("nan"), float("inf"), [float("-inf")], {"a": [{"b": float("nan")}]}]
    _all_refused(h, "payload", values, PayloadInvalid)
    _all_refused(h, "body", [b"NaN", b"[Infinity]", b"-Infinity", b"[1e999]"], PayloadInvalid)


@case
def nul_and_lone_surrogates_are_refused(h: Harness) -> None:
    values = ["a\0b", "\ud800", "\udfff", ["ok", "\0"], {"\0": 1}, {"a": {"b\ud800": 1}}]
    _all_refused(h, "payload", values, PayloadInvalid)
    _all_refused(h, "body", [b'"\\u0000"', b'{"\\u0000": 1}', b'"\\ud800"', b'["\xed\xa0\x80"]'], PayloadInvalid)


@case
def an_integer_beyond_64_bits_is_refused(h: Harness) -> None:
    _all_refused(h, "payload", [2**64, -(2**63) - 1, [10**30], {"a": -(10**40)}], PayloadInvalid)


@case
def a_payload_deeper_than_64_is_refused(h: Harness) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    _all_refused(h, "payload", [_nested(65), _nested(500), cycle], PayloadInvalid)
    _all_refused(h, "body", [b"[" * 65 + b"]" * 65, b"[" * 100_000 + b"]" * 100_000], PayloadInvalid)
    assert h.get(h.one(payload=_nested(64))).payload == _nested(64)


@case
def a_payload_over_256_kib_is_refused(h: Harness) -> None:
    _all_refused(h, "payload", ["x" * (PAYLOAD_BYTES - 1), ["ä" * (PAYLOAD_BYTES // 2)]], PayloadInvalid)
    _all_refused(h, "body", [b'"' + b"x" * PAYLOAD_BYTES + b'"'], PayloadInvalid)


@case
def bytes_that_are_not_one_json_value_are_refused(h: Harness) -> None:
    values = [b"{", b"[1,]", b"nope", b"1 2", b'{"a":1}}', b"\xff", b"'a'", b"\xef\xbb\xbf1", b"{a: 1}"]
    _all_refused(h, "body", values, PayloadInvalid)


@case
def a_refusal_names_the_place_and_never_the_content(h: Harness) -> None:
    error = refused(PayloadInvalid, lambda: h.one(payload={"user": [1, {"token": "secret\0"}]}))
    assert error.path == "$.user[1].token"
    assert "secret" not in str(error)


@case
def a_bad_priority_is_refused(h: Harness) -> None:
    _all_refused(h, "priority", [MAX_PRIORITY + 1, -MAX_PRIORITY - 1, 0.0, 1.5, "1", True, False, None])


@case
def a_bad_delay_is_refused(h: Harness) -> None:
    _all_refused(h, "delay", [-1, 10**18, 0.0, 1.5, "1", True, False, timedelta(1), None])


@case
def a_bad_instant_is_refused(h: Harness) -> None:
    for field in ("run_at", "deadline", "expires_at"):
        _all_refused(h, field, BAD_INSTANTS)


@case
def a_delay_and_a_run_time_exclude_each_other(h: Harness) -> None:
    with h.unchanged():
        refused(Invalid, lambda: h.one(delay=1, run_at=h.now()))


@case
def bad_max_attempts_are_refused(h: Harness) -> None:
    _all_refused(h, "max_attempts", [0, -1, 1.0, "1", True, MAX_ATTEMPTS + 1])


@case
def bad_meta_is_refused(h: Harness) -> None:
    many = {f"k{number}": "" for number in range(META_ENTRIES + 1)}
    large = {f"k{number}": "x" * 256 for number in range(META_ENTRIES)}
    assert sum(map(len, large.values())) >= META_BYTES
    _all_refused(h, "meta", [{"bad name": "x"}, {"k": "a\0"}, {"k": 1}, {"k": None}, {1: "x"}, many, large, "text", []])


@case
def a_good_draft_beside_a_bad_one_is_not_stored(h: Harness) -> None:
    with h.unchanged():
        refused(Invalid, lambda: h.store.enqueue([h.draft(), {"kind": "work"}]))  # type: ignore[list-item]
        refused(Invalid, lambda: h.store.enqueue([h.draft(), None]))  # type: ignore[list-item]


@case
def bad_limits_of_a_queue_are_refused(h: Harness) -> None:
    makers: list[Any] = [AtMost, Bounded, Retained, partial(Fair, "tenant", {}), lambda n: Routing(max_attempts=n)]
    with h.unchanged():
        for make in makers:
            for value in NOT_COUNTS:
                refused(Invalid, partial(make, value))
        refused(Invalid, lambda: Fair(weights={"a": 0}))
        refused(Invalid, lambda: Fair(weights={"a": MAX_WEIGHT + 1}))


@case
def bad_lengths_of_time_of_a_queue_are_refused(h: Harness) -> None:
    makers: list[Any] = [
        KeepFor,
        Aging,
        Block,
        lambda duration: Retained(1, duration),
        lambda duration: FullJitter(base=duration),
        lambda duration: Exponential(base=duration),
        lambda duration: QueueSpec(name="q", key_window=duration),
    ]
    values: list[Any] = [timedelta(0), -ms(1), timedelta(days=40_000), 5, 1.5, "1s"]
    with h.unchanged():
        for make in makers:
            for value in values:
                refused(Invalid, partial(make, value))
        refused(Invalid, lambda: FullJitter(base=hours(2), cap=hours(1)))
        refused(Invalid, lambda: Fixed(-ms(1)))


@case
def bad_names_of_queues_and_conditions_are_refused(h: Harness) -> None:
    with h.unchanged():
        for name in BAD_NAMES:
            refused(Invalid, partial(QueueSpec, name=name))
            refused(Invalid, partial(Until, name))


@case
def combinations_that_make_no_sense_are_refused(h: Harness) -> None:
    makers: list[Any] = [
        lambda: QueueSpec(name="q", merge=LatestWins(), eligibility=InOrder()),
        lambda: QueueSpec(name="q", retention=Retained(), selection=Priority()),
        lambda: QueueSpec(name="q", retention=Retained(), capacity=Bounded(1)),
        lambda: AtMost(1) & AtMost(2),
        lambda: InOrder(dead_head="skip") & InOrder(dead_head="block"),
        lambda: InOrder(per="subject") & InOrder(per="tenant"),
    ]
    with h.unchanged():
        for make in makers:
            refused(Invalid, make)


@case
def a_queue_of_values_of_the_wrong_type_is_refused(h: Harness) -> None:
    """A store that wrote one down could not read it back."""
    values: list[tuple[str, list[Any]]] = [
        ("retention", ["keep", None, KeepFor]),
        ("selection", ["fifo", None, Priority]),
        ("share", ["tenant", Fair, {"by": "tenant"}]),
        ("merge", ["subject", LatestWins, True]),
        ("eligibility", ["immediate", None, 5]),
        ("routing", [3, None, Fixed()]),
        ("capacity", [100, None, "unbounded"]),
    ]
    makers: list[Callable[[], object]] = [
        lambda: QueueSpec(name="q", eligibility=InOrder(per="user")),  # type: ignore[arg-type]
        lambda: QueueSpec(name="q", eligibility=InOrder(dead_head="blok")),  # type: ignore[arg-type]
        lambda: QueueSpec(name="q", eligibility=AtMost(1, per="user")),  # type: ignore[arg-type]
        lambda: QueueSpec(name="q", share=Fair(by="user")),  # type: ignore[arg-type]
        lambda: QueueSpec(name="q", share=Fair(weights={5: 1})),  # type: ignore[dict-item]
        lambda: QueueSpec(name="q", merge=LatestWins(by="user")),  # type: ignore[arg-type]
        lambda: QueueSpec(name="q", capacity=Bounded(1, "reject")),  # type: ignore[arg-type]
        lambda: QueueSpec(name="q", routing=Routing(backoff=5)),  # type: ignore[arg-type]
    ]
    with h.unchanged():
        for axis, wrong in values:
            for value in wrong:
                refused(Invalid, partial(h.spec, **{axis: value}))
        for make in makers:
            refused(Invalid, make)


@case
def bad_schedules_are_refused(h: Harness) -> None:
    good: dict[str, Any] = {"name": "s", "rule": "* * * * *", "next_at": h.now(), "draft": h.draft()}
    bad: list[tuple[str, list[Any]]] = [
        ("name", BAD_NAMES),
        ("next_at", [*BAD_INSTANTS, None]),
        ("last_at", BAD_INSTANTS),
        ("rule", [*BAD_TEXTS, None]),
        ("zone", [*BAD_TEXTS, None]),
        ("draft", [None, "work", {"kind": "work"}]),
        ("paused", [None, 0, "no"]),
    ]
    with h.unchanged():
        for field, values in bad:
            for value in values:
                refused(Invalid, partial(Schedule, **{**good, field: value}))


@case
def bad_verdicts_are_refused(h: Harness) -> None:
    durations: list[Any] = [-1, 10**18, 1.5, True, timedelta(1)]
    with h.unchanged():
        for duration in durations:
            refused(Invalid, partial(Release, duration))
            refused(Invalid, partial(Retry, duration, ERROR))
        for result in (b"{", b"NaN", b'"' + b"x" * PAYLOAD_BYTES + b'"'):
            refused(PayloadInvalid, partial(Ack, result))
