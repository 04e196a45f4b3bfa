"""`decide` is the whole state machine: every outcome, with and without attempts left, has exactly one verdict.

A job has exactly `max_attempts` attempts, counted at the claim: never one more, never one less.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from forebay.core.decide import decide
from forebay.core.errors import Invalid
from forebay.core.instant import micros, ms, seconds
from forebay.core.limits import ERRORS_KEPT, MAX_ATTEMPTS, MAX_DURATION
from forebay.core.outcome import (
    ABANDONED,
    Abandoned,
    Ack,
    Cancel,
    DeadLetter,
    Displaced,
    Dropped,
    Failed,
    Failure,
    Interrupted,
    Outcome,
    Release,
    Retry,
    Snoozed,
    Succeeded,
    Unaccounted,
    Unhandled,
    Verdict,
    Withdrawn,
)
from forebay.core.payload import is_clean
from forebay.core.policy import Exponential, Fixed, FullJitter, Routing
from tests.unit.values import ROUTINGS, a_job

ROUTING = Routing(max_attempts=99, backoff=Fixed(seconds(7)))
BOOM = Failure("Boom", "it broke")
DIED = Failure(ABANDONED, "the process died")
LOST = Failure(ABANDONED, "its lease ran out: the worker died, hung or was cut off")

TABLE: list[tuple[Outcome, Verdict, Verdict]] = [
    # what happened, the verdict with a life left, the verdict without
    (Succeeded(), Ack(), Ack()),
    (Succeeded(b"42"), Ack(b"42"), Ack(b"42")),
    (Failed(BOOM), Retry(7_000_000, BOOM), DeadLetter(BOOM)),
    (Failed(BOOM, after=0), Retry(0, BOOM), DeadLetter(BOOM)),
    (Failed(BOOM, after=5), Retry(5, BOOM), DeadLetter(BOOM)),
    (Dropped(BOOM), DeadLetter(BOOM), DeadLetter(BOOM)),
    (Abandoned(), Retry(0, LOST, keep_rank=True), DeadLetter(LOST)),
    (Snoozed(5), Release(5), Release(5)),
    (Abandoned(expired=True), Retry(0, LOST, keep_rank=True, expired=True), DeadLetter(LOST, expired=True)),
    (Displaced(), Release(0, LOST), Release(0, LOST)),
    (Abandoned("the process died"), Retry(0, DIED, keep_rank=True), DeadLetter(DIED)),
    (Unaccounted(), Release(0, LOST, expired=True), Release(0, LOST, expired=True)),
    (Interrupted(), Release(0), Release(0)),
    (Unhandled(), Release(1_250_000), Release(1_250_000)),
    (Interrupted(expired=True), Release(expired=True), Release(expired=True)),
    (Withdrawn(), Cancel(), Cancel()),
]

FAILURES = st.builds(Failure, st.text(max_size=5), st.text(max_size=20))
AFTERS = st.integers(0, micros(MAX_DURATION))
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Succeeded, st.none() | st.just(b"[1]")),
    st.builds(Failed, FAILURES, st.none() | AFTERS),
    st.builds(Dropped, FAILURES),
    st.builds(Snoozed, AFTERS),
    st.builds(Abandoned),
    st.builds(Unaccounted),
    st.builds(Displaced),
    st.builds(Interrupted),
    st.builds(Unhandled),
    st.builds(Withdrawn),
)
LIVES = st.integers(1, MAX_ATTEMPTS)
DRAWS = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(("outcome", "with_lives", "without"), TABLE)
def test_the_whole_table(outcome: Outcome, with_lives: Verdict, without: Verdict) -> None:
    assert decide(a_job(attempt=1, max_attempts=3), outcome, ROUTING, 0.5) == with_lives
    assert decide(a_job(attempt=2, max_attempts=3), outcome, ROUTING, 0.5) == with_lives
    assert decide(a_job(attempt=3, max_attempts=3), outcome, ROUTING, 0.5) == without


def test_the_table_leaves_no_outcome_out() -> None:
    assert {type(outcome) for outcome, _, _ in TABLE} == set(get_args(Outcome))


@pytest.mark.parametrize("outcome", [Failed(BOOM), Failed(BOOM, after=0), Abandoned()])
@pytest.mark.parametrize("max_attempts", [1, 2, 3, 25])
def test_a_job_has_exactly_its_lives(outcome: Outcome, max_attempts: int) -> None:
    runs = 0
    verdict: Verdict = Retry(0, BOOM)
    while isinstance(verdict, Retry):
        runs += 1
        verdict = decide(a_job(attempt=runs, max_attempts=max_attempts), outcome, ROUTING, 0.0)
    assert isinstance(verdict, DeadLetter)
    assert runs == max_attempts


def test_the_jobs_own_number_of_lives_counts_not_the_queues() -> None:
    tight = Routing(max_attempts=1)
    assert isinstance(decide(a_job(attempt=1, max_attempts=2), Failed(BOOM), tight, 0.0), Retry)
    assert isinstance(decide(a_job(attempt=1, max_attempts=1), Failed(BOOM), ROUTING, 0.0), DeadLetter)


def test_the_backoff_grows_with_the_attempt_and_follows_the_draw() -> None:
    routing = Routing(backoff=FullJitter(base=ms(1), cap=seconds(60)))

    def after(attempt: int, draw: float) -> int:
        verdict = decide(a_job(attempt=attempt, max_attempts=9), Failed(BOOM), routing, draw)
        assert isinstance(verdict, Retry)
        return verdict.after

    assert [after(attempt, 0.5) for attempt in (1, 2, 3)] == [1_000, 2_000, 4_000]
    assert [after(3, draw) for draw in (0.0, 0.25, 0.75)] == [0, 2_000, 6_000]


def test_what_a_worker_cannot_run_comes_back_later_each_time_and_within_a_minute() -> None:
    def after(deliveries: int, elsewhere: bool = False) -> int:
        job = replace(a_job(attempt=1, max_attempts=1), delivery=deliveries)
        verdict = decide(job, Unhandled(elsewhere), ROUTING, 0.0)
        assert isinstance(verdict, Release)
        return verdict.after // 1_000_000

    assert [after(deliveries) for deliveries in (1, 2, 3, 4, 7, 8, 1_000_000)] == [1, 2, 4, 8, 60, 60, 60]
    assert [after(deliveries, elsewhere=True) for deliveries in (1, 2, 3, 4, 1_000)] == [1, 2, 4, 5, 5]


@given(OUTCOMES, LIVES, LIVES, ROUTINGS, DRAWS)
def test_every_outcome_has_a_verdict(
    outcome: Outcome, attempt: int, max_attempts: int, routing: Routing, draw: float
) -> None:
    verdict = decide(a_job(attempt, max_attempts), outcome, routing, draw)
    assert isinstance(verdict, Ack | Retry | DeadLetter | Release | Cancel)
    if isinstance(verdict, Retry):
        assert attempt < max_attempts
        assert verdict.after == _expected_delay(outcome, attempt, routing, draw)
    if isinstance(verdict, Release) and not isinstance(outcome, Unhandled):
        assert verdict.after == (outcome.after if isinstance(outcome, Snoozed) else 0)
    assert isinstance(verdict, DeadLetter) == (
        isinstance(outcome, Dropped)
        or (isinstance(outcome, Failed | Abandoned) and attempt >= max_attempts)
        or (isinstance(outcome, Unaccounted | Displaced) and max_attempts == 1)
    )


def _expected_delay(outcome: Outcome, attempt: int, routing: Routing, draw: float) -> int:
    match outcome:
        case Failed(_, None):
            delay = routing.backoff.delay(attempt, draw)
            assert 0 <= delay <= micros(_cap(routing))
            return delay
        case Failed(_, after):
            assert after is not None
            return after
        case _:
            return 0


def _cap(routing: Routing) -> timedelta:
    match routing.backoff:
        case FullJitter(_, cap) | Exponential(_, cap):
            return cap
        case Fixed(duration):
            return duration


@pytest.mark.parametrize("after", [-1, micros(MAX_DURATION) + 1])
def test_an_absurd_delay_is_refused(after: int) -> None:
    with pytest.raises(Invalid, match="after"):
        decide(a_job(), Failed(BOOM, after), ROUTING, 0.0)
    with pytest.raises(Invalid, match="after"):
        decide(a_job(), Snoozed(after), ROUTING, 0.0)


def test_a_result_that_is_not_json_is_refused() -> None:
    with pytest.raises(Invalid, match="not JSON"):
        decide(a_job(), Succeeded(b"{"), ROUTING, 0.0)


NOT_A_FAILURE: Any = "boom"


@pytest.mark.parametrize("make", [lambda: Retry(0, NOT_A_FAILURE), lambda: DeadLetter(NOT_A_FAILURE)])
def test_an_error_that_is_no_failure_is_refused(make: Callable[[], Verdict]) -> None:
    """A verdict goes into the journal: what cannot be read back must not be written."""
    with pytest.raises(Invalid):
        make()


def test_a_failure_is_bounded_and_safe_to_store() -> None:
    failure = Failure("K\0" * 500, "m\ud800" * 5_000, "t" * 50_000)
    assert [len(text) for text in (failure.kind, failure.message, failure.trace)] == [200, 1_000, 4_000]
    assert all(is_clean(text) for text in (failure.kind, failure.message, failure.trace))
    assert Failure(ABANDONED).abandoned
    assert not failure.abandoned


def test_what_may_have_begun_is_charged_only_after_a_run_in_quarantine() -> None:
    fresh = a_job(attempt=1, max_attempts=3)
    verdict = decide(fresh, Unaccounted("cut off"), ROUTING, 0.5)
    assert verdict == Release(0, Failure(ABANDONED, "cut off"), expired=True)
    suspect = replace(fresh, errors=(Failure(ABANDONED, "cut off", attempt=1),))
    assert suspect.needs_quarantine
    charged = Failure(ABANDONED, "cut off (2 times)")
    assert decide(suspect, Unaccounted("cut off"), ROUTING, 0.5) == Retry(0, charged, keep_rank=True, expired=True)
    assert decide(replace(suspect, attempt=3), Unaccounted("cut off"), ROUTING, 0.5) == DeadLetter(
        charged, expired=True
    )


def test_a_job_with_one_attempt_is_never_started_twice() -> None:
    once = a_job(attempt=1, max_attempts=1)
    assert decide(once, Unaccounted("cut off"), ROUTING, 0.5) == DeadLetter(Failure(ABANDONED, "cut off"), expired=True)
    assert decide(once, Interrupted(), ROUTING, 0.5) == Release(), "but what had not begun is"


def test_the_error_says_how_often_in_a_row_it_was_the_same() -> None:
    crash, other = "the process died with SIGSEGV while running it", Failure("KeyError", "x")
    history = (Failure(ABANDONED, crash), other, Failure(ABANDONED, crash), Failure(ABANDONED, f"{crash} (2 times)"))
    job = replace(a_job(attempt=5, max_attempts=5), errors=history)
    assert decide(job, Abandoned(crash), ROUTING, 0.5) == DeadLetter(Failure(ABANDONED, f"{crash} (3 times)"))
    verdict = decide(job, Abandoned("the process exited with code 1 while running it"), ROUTING, 0.5)
    assert verdict == DeadLetter(Failure(ABANDONED, "the process exited with code 1 while running it"))


def test_a_suspect_whose_worker_ends_is_spared_some_times_in_a_row() -> None:
    """Its own process did not end the worker. One that brings it about all the same ends too."""
    job, spared = a_job(attempt=2, max_attempts=2), 0
    while isinstance(verdict := decide(job, Displaced("gone"), ROUTING, 0.5), Release):
        assert verdict.error is not None
        job = replace(job, errors=(*job.errors, replace(verdict.error, attempt=2))[-ERRORS_KEPT:])
        spared += 1
    assert spared == ERRORS_KEPT - 1
    assert isinstance(verdict, DeadLetter)
