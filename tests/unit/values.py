"""What the tests of core share: jobs with any number of used attempts, and every kind of queue, at random."""

from datetime import timedelta
from typing import Literal

from hypothesis import reject
from hypothesis import strategies as st

from forebay.core.contradictions import CONTRADICTIONS
from forebay.core.errors import Invalid
from forebay.core.job import Job, State
from forebay.core.limits import (
    MAX_AGING_STEP,
    MAX_ATTEMPTS,
    MAX_DEPTH,
    MAX_DURATION,
    MAX_PARTITIONS,
    MAX_SLOTS,
    MAX_WEIGHT,
)
from forebay.core.policy import (
    Aging,
    All,
    AtMost,
    Block,
    Bounded,
    Capacity,
    DeadLetters,
    Deadline,
    Eligibility,
    Exponential,
    Fair,
    FanOut,
    Field,
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
    Selection,
    Shed,
    Term,
    Unbounded,
    Until,
    While,
)
from forebay.core.spec import QueueSpec

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
TICK = timedelta(milliseconds=1)


def a_job(attempt: int = 1, max_attempts: int = 3) -> Job:
    """A running job that has used so many of its attempts."""
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


def durations(least: timedelta = TICK, most: timedelta = MAX_DURATION) -> st.SearchStrategy[timedelta]:
    return st.timedeltas(min_value=least, max_value=most)


NAMES = st.text("ABCxyz019_.:-", min_size=1, max_size=128)
FIELDS: st.SearchStrategy[Field] = st.sampled_from(["subject", "tenant", "kind"])
DEAD_HEADS: st.SearchStrategy[Literal["skip", "block"]] = st.sampled_from(["skip", "block"])
CLASSES: st.SearchStrategy[Literal["tenant", "kind"]] = st.sampled_from(["tenant", "kind"])

SELECTIONS: st.SearchStrategy[Selection] = st.one_of(
    st.builds(Fifo), st.builds(Priority), st.builds(Aging, durations(TICK, MAX_AGING_STEP)), st.builds(Deadline)
)
FAIR = st.builds(
    Fair, CLASSES, st.dictionaries(NAMES, st.integers(1, MAX_WEIGHT), max_size=5), st.integers(1, MAX_WEIGHT)
)
RATES = st.builds(
    Rate,
    st.integers(1, 10_000),
    durations(timedelta(seconds=1), timedelta(days=1)),
    st.none() | FIELDS,
    st.none() | st.integers(1, 1_000),
    st.none() | NAMES,
)
TERMS: st.SearchStrategy[Term] = st.one_of(
    st.builds(AtMost, st.integers(1, MAX_SLOTS), st.none() | FIELDS, st.none() | NAMES),
    RATES,
    st.builds(InOrder, FIELDS, DEAD_HEADS),
    st.builds(Until, NAMES, st.none() | FIELDS),
)


def _limits(term: Term) -> object:
    """What no two terms of a spec may have in common; a spec has one order."""
    if isinstance(term, InOrder):
        return InOrder
    return type(term), term.per, getattr(term, "condition", None), getattr(term, "shared", None)


ELIGIBILITIES: st.SearchStrategy[Eligibility] = st.one_of(
    st.builds(Immediate),
    TERMS,
    st.builds(All, st.lists(TERMS, max_size=4, unique_by=_limits).map(tuple)),
)


@st.composite
def jitters(draw: st.DrawFn) -> FullJitter | Exponential:
    base = draw(durations())
    cap = draw(durations(base))
    spread = draw(st.none() | st.floats(0, 1))
    return FullJitter(base, cap) if spread is None else Exponential(base, cap, spread)


DEAD_LETTERS = st.builds(DeadLetters, NAMES) | st.builds(
    DeadLetters, st.none(), st.none() | durations(), st.none() | st.integers(1, MAX_DEPTH)
)
ROUTINGS = st.builds(
    Routing,
    st.integers(1, MAX_ATTEMPTS),
    jitters() | st.builds(Fixed, durations(timedelta(0))),
    st.none() | DEAD_LETTERS,
)
CAPACITIES: st.SearchStrategy[Capacity] = st.one_of(
    st.builds(Unbounded),
    st.builds(
        Bounded,
        st.integers(1, MAX_DEPTH),
        st.builds(Reject)
        | st.builds(Block, durations(TICK, timedelta(hours=1)))
        | st.builds(Shed, st.sampled_from(["oldest", "lowest"])),
    ),
)
KEY_WINDOWS = durations(timedelta(seconds=1))
OPEN = [State.WAITING, State.READY, State.RUNNING, State.DEAD]


@st.composite
def merges(draw: st.DrawFn) -> LatestWins:
    quiet = draw(st.none() | durations())
    return LatestWins(quiet=quiet, at_most=None if quiet is None else draw(st.none() | durations(quiet)))


@st.composite
def queue_specs(draw: st.DrawFn) -> QueueSpec:
    """A queue with every axis at random, but for contradictions: the few that are left are drawn again."""
    retention = draw(st.builds(RemoveOnAck) | st.builds(KeepFor, durations()))
    eligibility = draw(ELIGIBILITIES)
    states = st.lists(st.sampled_from(OPEN if isinstance(retention, RemoveOnAck) else list(State)), min_size=1)
    try:
        return QueueSpec(
            name=draw(NAMES),
            retention=retention,
            selection=draw(SELECTIONS),
            share=draw(st.none() | FAIR),
            merge=None if "InOrder" in repr(eligibility) else draw(st.none() | merges()),
            eligibility=eligibility,
            routing=draw(ROUTINGS),
            capacity=draw(CAPACITIES),
            key_window=draw(KEY_WINDOWS),
            unique=draw(st.none() | st.builds(While, states.map(lambda some: tuple(set(some))))),
        )
    except Invalid as error:
        if error.reason not in {each.reason for each in CONTRADICTIONS}:
            raise
        reject()


LOG_SPECS = st.builds(
    QueueSpec,
    name=NAMES,
    retention=st.builds(Retained, st.integers(1, MAX_PARTITIONS), st.none() | durations())
    | st.builds(Retained, st.integers(1, MAX_PARTITIONS), durations(), st.just("block")),
    key_window=KEY_WINDOWS,
)
PATTERNS = st.lists(st.sampled_from(["orders", "paid", "*"]), min_size=1, max_size=3).map(".".join) | st.just("a.**")
BROKER_SPECS = st.builds(
    QueueSpec,
    name=st.just("broker"),
    fan_out=st.builds(
        FanOut,
        st.lists(st.builds(Route, PATTERNS, st.sampled_from(["a", "b", "c"])), min_size=1, max_size=4, unique=True).map(
            tuple
        ),
        st.sampled_from(["refuse", "drop"]),
    ),
)
SPECS = queue_specs() | LOG_SPECS | BROKER_SPECS
