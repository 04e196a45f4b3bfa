"""A queue as one value: it prints its vector, travels as JSON and back, and refuses what contradicts itself."""

import subprocess
import sys
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given

from forebay.core.errors import Invalid
from forebay.core.instant import days, hours, minutes, ms, seconds
from forebay.core.limits import MAX_DEPTH, MAX_DURATION, MAX_PARTITIONS, MAX_SLOTS, MAX_WEIGHT
from forebay.core.policy import (
    Aging,
    All,
    AtMost,
    Block,
    Bounded,
    Deadline,
    Exponential,
    Fair,
    Fifo,
    Fixed,
    Immediate,
    InOrder,
    KeepFor,
    LatestWins,
    Priority,
    Reject,
    Retained,
    Routing,
    Until,
    terms_of,
)
from forebay.core.spec import QueueSpec
from tests.unit.values import SPECS

PLAIN = "q = {remove-on-ack, fifo, immediate, main → retry × 25 (full jitter 500 ms … 1 min) → dead, unbounded}"


@pytest.mark.parametrize(
    ("change", "shows"),
    [
        ({}, PLAIN),
        ({"retention": KeepFor(days(7))}, "{keep 7 days, fifo,"),
        ({"retention": KeepFor(seconds(90))}, "{keep 90 s, fifo,"),
        ({"retention": Retained()}, "{retained log × 1, window unlimited, fifo, immediate, main, unbounded}"),
        ({"retention": Retained(4, days(7))}, "{retained log × 4, window 7 days, "),
        ({"selection": Fifo()}, ", fifo, "),
        ({"selection": Priority()}, ", priority, "),
        ({"selection": Aging(minutes(1))}, ", aging, "),
        ({"selection": Deadline()}, ", deadline, "),
        ({"share": Fair()}, ", fifo + fair by tenant, "),
        ({"share": Fair(by="kind")}, ", fifo + fair by kind, "),
        ({"merge": LatestWins()}, ", fifo + latest wins by subject, "),
        (
            {"selection": Priority(), "share": Fair(), "merge": LatestWins()},
            ", priority + fair by tenant + latest wins",
        ),
        ({"eligibility": Immediate()}, ", immediate, "),
        ({"eligibility": AtMost(3)}, ", at most 3, "),
        ({"eligibility": AtMost(3, per="tenant")}, ", at most 3 per tenant, "),
        ({"eligibility": InOrder()}, ", in order per subject (dead head: skip), "),
        ({"eligibility": InOrder("kind", "block")}, ", in order per kind (dead head: block), "),
        ({"eligibility": Until("capacity")}, ", until capacity, "),
        ({"eligibility": Until("paid", per="tenant")}, ", until paid per tenant, "),
        ({"eligibility": AtMost(9) & InOrder()}, ", at most 9 + in order per subject (dead head: skip), "),
        ({"routing": Routing(8, Exponential())}, "main → retry × 8 (exponential 500 ms … 1 min) → dead"),
        ({"routing": Routing(1, Fixed(seconds(3)))}, "main → retry × 1 (fixed 3 s) → dead"),
        ({"capacity": Bounded(10)}, ", bounded 10, reject}"),
        ({"capacity": Bounded(10, Reject())}, ", bounded 10, reject}"),
        ({"capacity": Bounded(10, Block(seconds(1)))}, ", bounded 10, block}"),
    ],
)
def test_the_vector_shows_every_value_of_every_axis(change: dict[str, Any], shows: str) -> None:
    assert shows in QueueSpec(name="q", **change).vector()


@given(SPECS)
def test_every_spec_travels_as_json_and_prints(spec: QueueSpec) -> None:
    again = QueueSpec.from_json(spec.to_json())
    assert again == spec
    assert again.to_json() == spec.to_json()
    assert again.vector() == spec.vector()
    assert spec.vector().startswith(f"{spec.name} = {{")
    assert "\n" not in spec.vector()


@pytest.mark.parametrize(
    "change",
    [
        {"selection": Priority()},
        {"share": Fair()},
        {"merge": LatestWins()},
        {"eligibility": AtMost(1)},
        {"routing": Routing(3)},
        {"capacity": Bounded(1)},
    ],
)
def test_a_log_has_no_axes_of_a_queue(change: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="a retained log has no selection, gates, routing or capacity"):
        QueueSpec(name="log", retention=Retained(), **change)


@pytest.mark.parametrize("eligibility", [InOrder(), AtMost(5) & InOrder("tenant"), All((InOrder(),))])
def test_latest_wins_and_in_order_contradict_each_other(eligibility: InOrder | All) -> None:
    with pytest.raises(Invalid, match="choose one of the two"):
        QueueSpec(name="q", merge=LatestWins(), eligibility=eligibility)


def test_two_terms_may_not_limit_the_same_thing() -> None:
    with pytest.raises(Invalid, match="keep the tighter one"):
        AtMost(3) & AtMost(5)
    with pytest.raises(Invalid, match="keep the tighter one"):
        InOrder() & InOrder("subject", "block")
    with pytest.raises(Invalid, match="keep the tighter one"):
        Until("a") & Until("a")
    assert len(terms_of(AtMost(3) & AtMost(5, per="tenant") & Until("a") & Until("b") & InOrder())) == 5


def test_immediate_adds_nothing() -> None:
    assert terms_of(Immediate() & AtMost(3)) == terms_of(AtMost(3) & Immediate()) == (AtMost(3),)
    assert terms_of(Immediate() & Immediate()) == ()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"{}",
        b'{"name": 5}',
        b'{"name": "a b"}',
        b'{"name": "q", "retention": {"type": "forever"}}',
        b'{"name": "q", "retention": {"type": "keep-for"}}',
        b'{"name": "q", "retention": {"type": "keep-for", "duration": "-P1D"}}',
        b'{"name": "q", "retention": {"type": "keep-for", "duration": 5}}',
        b'{"name": "q", "selection": "fifo"}',
        b'{"name": "q", "selection": {"type": "random"}}',
        b'{"name": "q", "eligibility": {"type": "at-most", "limit": 0}}',
        b'{"name": "q", "eligibility": {"type": "at-most", "limit": 1, "per": "planet"}}',
        b'{"name": "q", "eligibility": {"type": "all", "terms": [{"type": "immediate"}]}}',
        b'{"name": "q", "routing": {"max_attempts": 0}}',
        b'{"name": "q", "routing": {"backoff": {"type": "hope"}}}',
        b'{"name": "q", "capacity": {"type": "bounded"}}',
        b'{"name": "q", "capacity": {"type": "bounded", "limit": 1, "when_full": {"type": "panic"}}}',
        b'{"name": "q", "key_window": "PT0S"}',
        b'{"name": "q", "merge": {"by": "subject"}, "eligibility": {"type": "in-order"}}',
        b'{"name": "q", "colour": "red"}',
        b'{"name": "q", "eligibility": {"type": "at-most", "limit": 2, "pre": "tenant"}}',
    ],
)
def test_json_that_is_no_queue_is_refused(text: bytes) -> None:
    with pytest.raises(Invalid, match=r"queue spec: .*see QueueSpec.to_json"):
        QueueSpec.from_json(text)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: QueueSpec(name="a b"), "queue"),
        (lambda: QueueSpec(name="q", key_window=timedelta(microseconds=999)), "key_window"),
        (lambda: QueueSpec(name="q", key_window=MAX_DURATION + ms(1)), "key_window"),
        (lambda: KeepFor(timedelta(0)), "KeepFor"),
        (lambda: KeepFor(MAX_DURATION + ms(1)), "KeepFor"),
        (lambda: Retained(0), "Retained partitions"),
        (lambda: Retained(MAX_PARTITIONS + 1), "Retained partitions"),
        (lambda: Retained(1, timedelta(0)), "Retained window"),
        (lambda: Aging(timedelta(0)), "Aging step"),
        (lambda: Aging(hours(1) + ms(1)), "Aging step"),
        (lambda: Fair(weights={"a": 0}), "Fair weight of a"),
        (lambda: Fair(weights={"a": MAX_WEIGHT + 1}), "Fair weight of a"),
        (lambda: Fair(weights={"a": 1.5}), "Fair weight of a"),  # type: ignore[dict-item]
        (lambda: Fair(default=0), "Fair weight of (default)"),
        (lambda: AtMost(0), "AtMost"),
        (lambda: AtMost(-1), "AtMost"),
        (lambda: AtMost(MAX_SLOTS + 1), "AtMost"),
        (lambda: AtMost(True), "AtMost"),
        (lambda: Until("a b"), "condition"),
        (lambda: Routing(0), "max_attempts"),
        (lambda: Routing(2.0), "max_attempts"),  # type: ignore[arg-type]
        (lambda: Bounded(0), "Bounded"),
        (lambda: Bounded(MAX_DEPTH + 1), "Bounded"),
        (lambda: Block(timedelta(0)), "Block timeout"),
        (lambda: Block(hours(1) + ms(1)), "Block timeout"),
        (lambda: Block(10), "Block timeout"),  # type: ignore[arg-type]
    ],
)
def test_one_step_over_a_bound_is_refused(make: Any, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        make()
    assert refused.value.field == field


NOT_A_VALUE: Any = "nonsense"


@pytest.mark.parametrize(
    "make",
    [
        lambda: QueueSpec(name="q", selection=NOT_A_VALUE),
        lambda: QueueSpec(name="q", share=NOT_A_VALUE),
        lambda: QueueSpec(name="q", share=Fair(by=NOT_A_VALUE)),
        lambda: QueueSpec(name="q", merge=LatestWins(by=NOT_A_VALUE)),
        lambda: QueueSpec(name="q", eligibility=AtMost(1, per=NOT_A_VALUE)),
        lambda: QueueSpec(name="q", eligibility=InOrder(per=NOT_A_VALUE)),
        lambda: QueueSpec(name="q", eligibility=InOrder(dead_head=NOT_A_VALUE)),
        lambda: QueueSpec(name="q", routing=Routing(backoff=NOT_A_VALUE)),
        lambda: QueueSpec(name="q", routing=Routing(backoff=Exponential(spread=True))),
        lambda: QueueSpec(name="q", capacity=Bounded(1, NOT_A_VALUE)),
        lambda: QueueSpec(name="q", capacity=NOT_A_VALUE),
    ],
)
def test_a_value_that_json_would_not_bring_back_is_refused_at_once(make: Any) -> None:
    """A spec goes into the journal: what cannot be read back must not be written."""
    with pytest.raises(Invalid):
        make()


def test_the_commit_point_is_stated() -> None:
    assert "at least once" in QueueSpec(name="q").commit_point
    assert "fence" in QueueSpec(name="q").commit_point
    assert "commit of its offset" in QueueSpec(name="q", retention=Retained()).commit_point


def test_a_spec_cannot_be_changed_but_copied() -> None:
    spec = QueueSpec(name="q")
    with pytest.raises(AttributeError):
        spec.name = "r"  # type: ignore[misc]
    with pytest.raises(Invalid):
        msgspec.structs.replace(spec, name="a b")
    assert msgspec.structs.replace(spec, name="r") == QueueSpec(name="r")


def test_threads_may_read_the_first_spec_of_a_process_at_once() -> None:
    """What msgspec derives of a struct must be complete before threads share it: else one process in four crashed."""
    script = """
import sys, threading
sys.setswitchinterval(1e-6)
from forebay.core.spec import QueueSpec
ready = threading.Barrier(16)
def read():
    ready.wait()
    QueueSpec.from_json(sys.argv[1])
threads = [threading.Thread(target=read) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    text = QueueSpec(name="q").to_json().decode()
    for _ in range(16):
        assert subprocess.run([sys.executable, "-c", script, text], check=False, timeout=60).returncode == 0
