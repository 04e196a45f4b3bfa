"""The breaker opens after failures in a row, rests, lets probes through and closes again; the budget bounds retries."""

import pytest

from forebay.core.breaker import Breaker, Budget, Circuit
from forebay.core.errors import Invalid
from forebay.core.instant import days, ms, seconds

SECOND = 1_000_000
NOW = 1_700_000_000_000_000
POLICY = Breaker(failures=3, cooldown=seconds(10), probes=2)


def opened(policy: Breaker = POLICY, at: int = NOW) -> Circuit:
    circuit = Circuit(policy)
    for _ in range(policy.failures):
        assert circuit.admit(at) == 0
        circuit.failed(at)
    assert circuit.state(at) == "open"
    return circuit


def test_a_new_circuit_is_closed_and_lets_everything_run() -> None:
    circuit = Circuit(POLICY)
    assert circuit.state(NOW) == "closed"
    assert [circuit.admit(NOW) for _ in range(100)] == [0] * 100


def test_it_opens_at_the_last_failure_in_a_row_and_not_before() -> None:
    circuit = Circuit(POLICY)
    circuit.failed(NOW)
    circuit.failed(NOW)
    assert circuit.state(NOW) == "closed"
    circuit.failed(NOW)
    assert circuit.state(NOW) == "open"


def test_a_success_in_between_starts_the_count_anew() -> None:
    circuit = Circuit(POLICY)
    for _ in range(5):
        circuit.failed(NOW)
        circuit.failed(NOW)
        circuit.succeeded()
    assert circuit.state(NOW) == "closed"


def test_while_it_is_open_nothing_runs_and_every_caller_waits_for_its_rest() -> None:
    circuit = opened()
    assert circuit.admit(NOW) == 10 * SECOND
    assert circuit.admit(NOW + 4 * SECOND) == 6 * SECOND


def test_the_wait_is_never_shorter_than_a_tenth_of_the_rest() -> None:
    """Otherwise everything would come back in the last microsecond, again and again."""
    circuit = opened()
    assert circuit.admit(NOW + 10 * SECOND - 1) == SECOND


def test_after_its_rest_it_lets_so_many_probes_through_and_no_more() -> None:
    circuit = opened()
    later = NOW + 10 * SECOND
    assert circuit.state(later - 1) == "open"
    assert circuit.state(later) == "half-open"
    assert [circuit.admit(later) for _ in range(2)] == [0, 0]
    assert circuit.admit(later) > 0
    assert circuit.state(later) == "half-open"


def test_a_probe_that_succeeds_closes_it_for_all() -> None:
    circuit = opened()
    later = NOW + 10 * SECOND
    assert circuit.admit(later) == 0
    circuit.succeeded()
    assert circuit.state(later) == "closed"
    assert [circuit.admit(later) for _ in range(10)] == [0] * 10


def test_a_probe_that_fails_opens_it_for_another_rest() -> None:
    circuit = opened()
    later = NOW + 10 * SECOND
    assert circuit.admit(later) == 0
    circuit.failed(later)
    assert circuit.state(later) == "open"
    assert circuit.state(later + 10 * SECOND - 1) == "open"
    assert circuit.state(later + 10 * SECOND) == "half-open"
    assert circuit.admit(later + 10 * SECOND) == 0


def test_a_failure_of_a_run_that_began_before_it_opened_does_no_harm() -> None:
    circuit = opened()
    circuit.failed(NOW + SECOND)
    assert circuit.state(NOW + 2 * SECOND) == "open"
    assert circuit.admit(NOW + 11 * SECOND) == 0


def test_a_probe_without_an_answer_makes_room_for_the_next() -> None:
    circuit = opened(Breaker(failures=1, cooldown=seconds(10)))
    later = NOW + 10 * SECOND
    for _ in range(3):
        assert circuit.admit(later) == 0
        assert circuit.admit(later) > 0
        circuit.abandoned()
    assert circuit.state(later) == "half-open"
    assert circuit.admit(later) == 0


def test_an_outcome_without_information_changes_nothing_while_it_is_closed() -> None:
    circuit = Circuit(POLICY)
    circuit.failed(NOW)
    circuit.failed(NOW)
    circuit.abandoned()
    assert circuit.state(NOW) == "closed"
    circuit.failed(NOW)
    assert circuit.state(NOW) == "open"


def test_every_run_that_was_not_wasted_is_counted() -> None:
    circuit = opened()
    for _ in range(7):
        assert circuit.admit(NOW + SECOND) > 0
    later = NOW + 10 * SECOND
    assert [circuit.admit(later) > 0 for _ in range(5)] == [False, False, True, True, True]
    circuit.succeeded()
    circuit.admit(later)


def test_one_failure_and_one_probe_are_enough() -> None:
    circuit = opened(Breaker(failures=1, cooldown=ms(1), probes=1))
    assert circuit.admit(NOW + 999) > 0
    assert circuit.admit(NOW + 1_000) == 0
    assert circuit.admit(NOW + 1_000) > 0


@pytest.mark.parametrize(
    ("failures", "rest", "probes"),
    [(0, 1, 1), (-1, 1, 1), (1_000_001, 1, 1), (1, 0, 1), (1, 0.0001, 1), (1, 1, 0), (1, 1, 1_001), (True, 1, 1)],
)
def test_a_breaker_that_makes_no_sense_is_refused(failures: int, rest: float, probes: int) -> None:
    with pytest.raises(Invalid, match="Breaker"):
        Breaker(failures, seconds(rest), probes)
    with pytest.raises(Invalid):
        Breaker(1, days(4_000))


# Budget


def test_a_budget_begins_with_a_burst_of_ten_retries() -> None:
    budget = Budget(0.5)
    assert [budget.may_retry() for _ in range(12)] == [True] * 10 + [False] * 2


def test_first_runs_earn_retries_by_the_share() -> None:
    budget = Budget(0.25)
    while budget.may_retry():
        pass
    for _ in range(8):
        budget.first_run()
    assert [budget.may_retry() for _ in range(3)] == [True, True, False]


def test_what_is_earned_is_kept_only_up_to_the_burst() -> None:
    budget = Budget(1)
    for _ in range(1_000):
        budget.first_run()
    assert sum(budget.may_retry() for _ in range(1_000)) == 10


def test_retries_are_at_most_their_share_of_all_runs_in_the_long_run() -> None:
    budget = Budget(0.2)
    retries = 0
    for _ in range(10_000):
        budget.first_run()
        retries += budget.may_retry()
    assert 1_900 <= retries <= 2_010


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan"), float("inf")])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(Invalid, match="retry budget"):
        Budget(share)
