"""What the tests of core share: a job with any number of lives used, and every queue one can write down, at random."""

from datetime import timedelta
from typing import Literal

from hypothesis import strategies as st

from forebay.core.job import Job, State
from forebay.core.limits import (
    AGING_STEP_MOST,
    ATTEMPTS_MOST,
    DEPTH_MOST,
    PARTITIONS_MOST,
    SLOTS_MOST,
    SPAN_MOST,
    WEIGHT_MOST,
)
from forebay.core.policy import (
    Aging,
    All,
    AtMost,
    Block,
    Bounded,
    Capacity,
    Deadline,
    Eligibility,
    Exponential,
    Fair,
    Field,
    Fifo,
    Fixed,
    FullJitter,
    Immediate,
    InOrder,
    KeepFor,
    LatestWins,
    Priority,
    Reject,
    RemoveOnAck,
    Retained,
    Routing,
    Selection,
    Unbounded,
    Until,
)
from forebay.core.spec import QueueSpec

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
TICK = timedelta(milliseconds=1)


def a_job(attempt: int = 1, max_attempts: int = 3) -> Job:
    """A running job that has used so many of its lives."""
    return Job(
        id=1,
        queue="default",
        kind="email",
        body=b"{}",
        state=State.RUNNING,
        priority=0,
        enqueued_at=NOW,
        due_at=NOW,
        attempt=attempt,
        max_attempts=max_attempts,
        delivery=attempt,
        key=None,
        tenant=None,
        subject=None,
        deadline=None,
        expires_at=None,
        meta=None,
        owner="ada",
        claimed_at=NOW,
        lease_until=NOW + SECOND,
        finished_at=None,
        cancel_requested=False,
        errors=(),
        result_body=None,
    )


def spans(least: timedelta = TICK, most: timedelta = SPAN_MOST) -> st.SearchStrategy[timedelta]:
    return st.timedeltas(min_value=least, max_value=most)


NAMES = st.text("ABCxyz019_.:-", min_size=1, max_size=128)
FIELDS: st.SearchStrategy[Field] = st.sampled_from(["subject", "tenant", "kind"])
DEAD_HEADS: st.SearchStrategy[Literal["skip", "block"]] = st.sampled_from(["skip", "block"])
CLASSES: st.SearchStrategy[Literal["tenant", "kind"]] = st.sampled_from(["tenant", "kind"])

SELECTIONS: st.SearchStrategy[Selection] = st.one_of(
    st.builds(Fifo), st.builds(Priority), st.builds(Aging, spans(TICK, AGING_STEP_MOST)), st.builds(Deadline)
)
FAIR = st.builds(
    Fair, CLASSES, st.dictionaries(NAMES, st.integers(1, WEIGHT_MOST), max_size=5), st.integers(1, WEIGHT_MOST)
)
TERMS: st.SearchStrategy[AtMost | InOrder | Until] = st.one_of(
    st.builds(AtMost, st.integers(1, SLOTS_MOST), st.none() | FIELDS),
    st.builds(InOrder, FIELDS, DEAD_HEADS),
    st.builds(Until, NAMES, st.none() | FIELDS),
)


def _limits(term: AtMost | InOrder | Until) -> object:
    return type(term), term.per, getattr(term, "condition", "")


ELIGIBILITIES: st.SearchStrategy[Eligibility] = st.one_of(
    st.builds(Immediate),
    TERMS,
    st.builds(All, st.lists(TERMS, max_size=4, unique_by=_limits).map(tuple)),
)


@st.composite
def jitters(draw: st.DrawFn) -> FullJitter | Exponential:
    base = draw(spans())
    cap = draw(spans(base))
    spread = draw(st.none() | st.floats(0, 1))
    return FullJitter(base, cap) if spread is None else Exponential(base, cap, spread)


ROUTINGS = st.builds(Routing, st.integers(1, ATTEMPTS_MOST), jitters() | st.builds(Fixed, spans(timedelta(0))))
CAPACITIES: st.SearchStrategy[Capacity] = st.one_of(
    st.builds(Unbounded),
    st.builds(
        Bounded,
        st.integers(1, DEPTH_MOST),
        st.builds(Reject) | st.builds(Block, spans(TICK, timedelta(hours=1))),
    ),
)
KEY_WINDOWS = spans(timedelta(seconds=1))


@st.composite
def queue_specs(draw: st.DrawFn) -> QueueSpec:
    """A queue with every axis at random, but for the one contradiction."""
    eligibility = draw(ELIGIBILITIES)
    in_order = "InOrder" in repr(eligibility)
    return QueueSpec(
        name=draw(NAMES),
        retention=draw(st.builds(RemoveOnAck) | st.builds(KeepFor, spans())),
        selection=draw(SELECTIONS),
        share=draw(st.none() | FAIR),
        merge=None if in_order else draw(st.none() | st.builds(LatestWins)),
        eligibility=eligibility,
        routing=draw(ROUTINGS),
        capacity=draw(CAPACITIES),
        key_window=draw(KEY_WINDOWS),
    )


LOG_SPECS = st.builds(
    QueueSpec,
    name=NAMES,
    retention=st.builds(Retained, st.integers(1, PARTITIONS_MOST), st.none() | spans()),
    key_window=KEY_WINDOWS,
)
SPECS = queue_specs() | LOG_SPECS
