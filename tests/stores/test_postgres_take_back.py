"""Claims at the same time pass each other's runs; what they took out of order does not wait when it is back."""

from collections.abc import Iterator

import psycopg
import pytest

from forebay import Draft, Want
from forebay.core.decide import decide
from forebay.core.instant import minutes
from forebay.core.outcome import Abandoned, Interrupted, Outcome
from forebay.core.policy import Routing
from forebay.store.postgres.store import PostgresStore

WANT = [Want("default", 1)]


@pytest.fixture
def store(cleared_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(cleared_url)
    yield store
    store.close()


@pytest.mark.parametrize("outcome", [Abandoned(), Interrupted()], ids=["charged", "uncharged"])
def test_a_job_that_was_claimed_past_a_locked_run_goes_first_when_it_is_taken_back(
    store: PostgresStore, cleared_url: str, outcome: Outcome
) -> None:
    store.enqueue([Draft("k")] * 500)
    (victim,) = store.enqueue([Draft("k")])
    store.enqueue([Draft("k")] * 500)
    with psycopg.connect(cleared_url) as other:
        other.execute("SELECT FROM forebay.run WHERE state = 1 ORDER BY rank, last_id LIMIT 1 FOR UPDATE")
        (lease,) = store.claim(WANT, "ada", minutes(1))
    assert lease.job.id == victim.id, "the first run is locked by a claim that is under way"
    store.settle([(lease, decide(lease.job, outcome, Routing(), 0.0))])
    (again,) = store.claim(WANT, "bob", minutes(1))
    assert again.fence == (victim.id, 2)
