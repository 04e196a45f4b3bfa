"""The ledger on Postgres: no record is skipped, however late a commit is; a held transaction delays readers alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest

from forebay import Draft, Want
from forebay.core.ledger import Change, LedgerEntry, LedgerRule
from forebay.core.outcome import Ack, Failure, Retry
from forebay.store.postgres.store import PostgresStore
from forebay.testing.clock import ManualClock
from forebay.transactions import enqueue_in
from forebay_proof.checkers import ledger
from tests.stores.tables import Tables
from tests.waiting import eventually

TIME = timedelta(seconds=30)


@pytest.fixture
def store(cleared_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(cleared_url)
    yield store
    store.close()


def verbs(entries: list[LedgerEntry]) -> list[tuple[int, str, int]]:
    return [(entry.offset, entry.record.verb, entry.record.jobs) for entry in entries]


def test_a_record_that_commits_late_is_never_behind_one_that_was_read(store: PostgresStore, cleared_url: str) -> None:
    store.enqueue([Draft("early")])
    with psycopg.connect(cleared_url) as held:
        enqueue_in(held, [Draft("late", n) for n in range(3)])
        store.enqueue([Draft("k")] * 5)
        store.enqueue([Draft("k")] * 7)
        assert verbs(store.ledger(-1, 100)) == [(0, "enqueue", 1)], "what comes after the open transaction waits"
        assert store.ledger_extent() == (0, 1)
        assert store.claim([Want("default", 100)], "me", TIME), "and nothing else does"
    seen = store.ledger(0, 100)
    assert [entry.offset for entry in seen] == list(range(1, len(seen) + 1))
    kinds = [
        job_range.kind for entry in seen for job_range in entry.record.ranges if job_range.change == Change.ACCEPTED
    ]
    assert sorted(kinds) == ["k", "k", "late", "late", "late"]


def test_what_others_made_ready_while_a_claim_was_under_way_is_claimed_when_it_is_due(cleared_url: str) -> None:
    """The claim read its clock before the job was due, and the tables after another process had made it ready."""
    began, later = ManualClock(), ManualClock()
    later.advance(2_000)
    claimer, other = PostgresStore(cleared_url, clock=began), PostgresStore(cleared_url, clock=later)
    claimer.enqueue([Draft("k", n, delay=1_000) for n in range(3)] + [Draft("k", delay=1_500)])
    other.promote(100)
    claimer.enqueue([Draft("now")])
    few, rest = (claimer.claim([Want("default", count)], "me", TIME) for count in (2, 10))
    assert len(few + rest) == 5
    assert all((lease.job.claimed_at or 0) >= lease.job.due_at for lease in few + rest)
    began.advance(2_000)
    claimer.settle([(lease, Ack()) for lease in few + rest])
    assert ledger(claimer.ledger(-1, 100), drained=True) == []
    claimer.close()
    other.close()


def test_a_transaction_that_is_rolled_back_leaves_no_gap(store: PostgresStore, cleared_url: str) -> None:
    with psycopg.connect(cleared_url) as held:
        enqueue_in(held, [Draft("never")])
        store.enqueue([Draft("k")])
        held.rollback()
    assert verbs(store.ledger(-1, 100)) == [(0, "enqueue", 1)]


def test_a_claim_comes_after_what_it_claimed_though_its_transaction_is_older(store: PostgresStore) -> None:
    """An exchange settles first: its transaction has its number before that of the job which it then claims."""
    store.enqueue([Draft("first")])
    _, leases = store.settle_and_claim([], [Want("default", 10)], "me", TIME)
    for _ in range(20):
        store.enqueue([Draft("k")] * 3)
        _, leases = store.settle_and_claim([(lease, Ack()) for lease in leases], [Want("default", 10)], "me", TIME)
    born: set[int] = set()
    for entry in store.ledger(-1, 1_000):
        for job_range in entry.record.ranges:
            ids = set(range(job_range.first, job_range.first + job_range.n))
            if job_range.change == Change.ACCEPTED:
                born |= ids
            assert ids <= born


def test_a_claim_comes_after_what_it_claimed_though_an_open_transaction_is_between_them(
    store: PostgresStore, cleared_url: str
) -> None:
    """By their numbers: the claim, a transaction that stays open, the enqueue whose job is claimed."""
    store.enqueue([Draft("held")])
    (lease,) = store.claim([Want("default", 1)], "me", TIME)
    pool, producer = ThreadPoolExecutor(1), PostgresStore(cleared_url)
    with pool, closing(producer), psycopg.connect(cleared_url) as locker, psycopg.connect(cleared_url) as held:
        locker.execute("SELECT FROM forebay.pack FOR UPDATE")
        call = pool.submit(store.settle_and_claim, [(lease, Ack())], [Want("default", 1)], "me", TIME)
        with psycopg.connect(cleared_url, autocommit=True) as watch:
            eventually(lambda: watch.execute("SELECT FROM pg_locks WHERE NOT granted").fetchone() is not None)
        held.execute("SELECT pg_current_xact_id()")
        producer.enqueue([Draft("late")])
        locker.rollback()
        assert [claimed.job.kind for claimed in call.result()[1]] == ["late"]
        early = [(0, "enqueue", 1), (1, "claim", 1)]
        assert verbs(store.ledger(-1, 100)) == early, "what the open transaction could precede waits"
        held.rollback()
    assert verbs(store.ledger(-1, 100)) == [*early, (2, "enqueue", 1), (3, "settle", 1), (4, "claim", 1)]
    assert ledger(store.ledger(-1, 100)) == []


def test_what_is_due_later_is_reported_as_an_instant(store: PostgresStore) -> None:
    store.enqueue([Draft("k")])
    (lease,) = store.claim([Want("default", 1)], "me", TIME)
    store.settle([(lease, Retry(5_000_000, Failure("Boom", "it broke")))])
    record = store.ledger(-1, 10)[-1].record
    (job_range,) = record.ranges
    assert (job_range.change, job_range.until) == (Change.RETRIED, record.at + 5_000_000)
    (job,) = store.get([lease.job.id])
    assert job is not None
    assert job.due_at == job_range.until


def test_a_restored_dump_goes_on_where_it_was(store: PostgresStore, tables: Tables) -> None:
    """Another server counts transactions anew: what it writes has smaller numbers than what came with the dump."""
    for _ in range(3):
        store.enqueue([Draft("k")])
    assert store.ledger_extent() == (0, 3)
    store.enqueue([Draft("unnumbered")])
    far = 1_000_000_000
    tables.execute(f"UPDATE forebay.ledger SET xid = (xid::text::bigint + {far})::text::xid8")
    tables.execute(
        f"UPDATE forebay.ledger_page SET xid_from = (xid_from::text::bigint + {far})::text::xid8, "
        f"xid_upto = (xid_upto::text::bigint + {far})::text::xid8"
    )
    tables.execute(f"UPDATE forebay.ledger_mark SET upto = (upto::text::bigint + {far})::text::xid8")
    store.enqueue([Draft("restored")])
    assert store.ledger_extent()[1] >= 4
    assert [entry.record.ranges[0].kind for entry in store.ledger(-1, 10)] == [
        *["k"] * 3,
        "unnumbered",
        "restored",
    ]


def test_reading_walks_pages_of_every_size_without_a_gap(store: PostgresStore) -> None:
    store.put_ledger_rule(LedgerRule())
    for size in (1, 3, 2_100, 1):
        for _ in range(size):
            store.pause("q")
            store.resume("q")
        store.ledger_extent()
    whole: list[int] = []
    while page := store.ledger(whole[-1] if whole else -1, 777):
        whole += [entry.offset for entry in page]
    assert whole == list(range(2 * 2_105))
