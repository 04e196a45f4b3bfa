"""What is counted from the ledger equals a plain count of its records, on every store that keeps one (I15)."""

from collections import Counter
from pathlib import Path

import pytest

from forebay.core.errors import StoreFailed
from forebay.core.job import Draft
from forebay.core.ledger import Change, JobRange, LedgerEntry, LedgerRule, Record, Trait
from forebay.core.limits import MAX_BATCH
from forebay.core.outcome import ABANDONED
from forebay.serve.metrics.families import ledger_position
from forebay.serve.metrics.follower import LedgerFollower
from forebay.serve.metrics.tally import COUNTED, LEASED, OTHER, RECLAIMED, EventTally, LabelNames
from forebay.store.open import open_store
from forebay.store.protocol import Store
from forebay.testing.clock import ManualClock
from forebay.work.metrics import BUCKETS, Distribution
from forebay_proof.conformance.ledger import job_changes
from forebay_proof.servers.postgres import PostgresServer
from forebay_proof.servers.proxy import Proxy
from tests.serve.job_histories import live

ENDS = (Change.ACKED, Change.DIED, Change.EXPIRED, Change.SHED, Change.DISCARDED, Change.CANCELLED)
Counts = dict[tuple[str, str], dict[str, int]]


def read(store: Store) -> list[LedgerEntry]:
    entries: list[LedgerEntry] = []
    while page := store.ledger(len(entries) - 1, MAX_BATCH):
        entries += page
    return entries


def plainly(entries: list[LedgerEntry]) -> Counts:
    """Job by job, as slowly as can be."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for entry in entries:
        for job in job_changes(entry.record):
            counts[job.job_range.queue, job.kind, job.change] += 1
            if job.trait.error_kind == ABANDONED and job.change in (Change.RETRIED, Change.DIED):
                counts[job.job_range.queue, job.kind, RECLAIMED] += 1
    found: Counts = {}
    for (queue, kind, change), count in counts.items():
        found.setdefault((queue, kind), dict.fromkeys(COUNTED, 0))[change] = count
    return found


def lengths(entries: list[LedgerEntry]) -> dict[str, list[int]]:
    """Every length that is to be measured, job by job."""
    found: dict[str, list[int]] = {"wait": [], "run": [], "total": [], "lateness": []}
    for entry in entries:
        at = entry.record.at
        for job in job_changes(entry.record):
            job_range = job.job_range
            if job.change == Change.CLAIMED:
                found["wait"].append(at - job_range.due_at)
                if job_range.delivery == 1 and job_range.due_at > job_range.enqueued_at:
                    found["lateness"].append(at - job_range.due_at)
            if job.change in LEASED:
                found["run"].append(at - job_range.claimed_at)
            if job.change in ENDS and job_range.enqueued_at:
                found["total"].append(at - job_range.enqueued_at)
    return found


def followed(store: Store, tally: EventTally, *, whole: bool = True) -> LedgerFollower:
    follower = LedgerFollower(store, tally, whole=whole)
    while follower.step() < 1.0:
        pass
    return follower


@pytest.fixture(params=["sqlite", "journal", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/jobs.db"
        case "journal":
            return f"memory:///{tmp_path}/journal"
        case _:
            url: str = request.getfixturevalue("postgres_url")
            return url


def test_a_story_of_every_change_is_counted_as_a_plain_count_does(url: str) -> None:
    clock = ManualClock()
    store = open_store(url, clock=clock)
    live(store, clock)
    entries = read(store)
    tally = EventTally(LabelNames())
    followed(store, tally)
    counts = tally.counts()
    assert counts == plainly(entries)
    seen = {change for row in counts.values() for change, count in row.items() if count}
    heartbeats = {Change.EXTENDED.value} if tally.heartbeats else set()
    assert seen | heartbeats == set(COUNTED), "the story leaves something out"
    assert tally.records == len(entries)
    for measure, expected in lengths(entries).items():
        measured = [each for _, each in tally.durations()[measure]]
        assert sum(each.count for each in measured) == len(expected) > 0, measure
        assert sum(each.micros for each in measured) == sum(expected), measure
        for place, bound in enumerate(BUCKETS):
            cumulative = sum(each.cumulative[place] for each in measured)
            assert cumulative == sum(length <= bound * 1e6 for length in expected), (measure, bound)
    store.close()


def test_what_came_before_is_not_counted_unless_asked_for(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock)
    live(store, clock)
    before = len(read(store))
    tally = EventTally(LabelNames())
    follower = followed(store, tally, whole=False)
    assert (tally.records, follower.offset) == (0, before)
    live(store, clock)
    while follower.step() < 1.0:
        pass
    assert tally.records == follower.offset - before > 0
    assert tally.counts() == plainly(read(store)[before:])
    store.close()


def test_what_was_trimmed_before_it_was_counted_is_a_gap(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock)
    book = store
    tally = EventTally(LabelNames())
    live(store, clock)
    follower = followed(book, tally)
    seen = follower.offset
    live(store, clock)
    live(store, clock)
    book.put_ledger_rule(LedgerRule(keep=0))
    clock.advance(1)
    book.trim_ledger(MAX_BATCH)
    book.put_ledger_rule(LedgerRule())
    live(store, clock)
    first, following = book.ledger_extent()
    assert first > seen
    while follower.step() < 1.0:
        pass
    assert follower.gap == first - seen
    assert follower.offset == following
    assert tally.records == following - follower.gap
    store.close()


def test_a_ledger_that_is_off_says_so(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    store.put_ledger_rule(LedgerRule(on=False))
    follower = followed(store, EventTally(LabelNames()))
    assert follower.written is False
    first, *_ = ledger_position([follower])
    assert [value for _, value in first.samples] == [0.0]
    store.close()


def test_a_server_that_goes_away_costs_no_record(postgres: PostgresServer, postgres_url: str) -> None:
    """It goes between two pages; what is counted in the end is each record once."""
    clock = ManualClock()
    store = open_store(postgres_url, clock=clock)
    store.enqueue([Draft("send")])
    with Proxy(postgres.host, postgres.port) as proxy:
        through = open_store(proxy.url(postgres_url))
        tally = EventTally(LabelNames())
        follower = LedgerFollower(through, tally, whole=True)
        follower.step()
        live(store, clock)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(StoreFailed):
            follower.step()
        proxy.admit()
        while follower.step() < 1.0:
            pass
        assert tally.counts() == plainly(read(store))
        through.close()
    store.close()


def one(queue: str, kind: str, n: int = 1, change: Change = Change.ACCEPTED) -> LedgerEntry:
    return LedgerEntry(0, Record(1, "enqueue", [JobRange(change, 1, n, queue, kind)]))


def test_names_beyond_the_cap_are_counted_together() -> None:
    tally = EventTally(LabelNames(queues=3, pairs=5))
    tally.take([one(f"q{n % 10}", f"k{n % 4}") for n in range(400)])
    counts = tally.counts()
    assert len(counts) <= 5 + 3 + 1
    assert sum(row[Change.ACCEPTED] for row in counts.values()) == 400
    assert {queue for queue, _ in counts} == {"q0", "q1", "q2", OTHER}
    for queue in ("q0", "q1", "q2"):
        assert sum(row[Change.ACCEPTED] for (own, _), row in counts.items() if own == queue) == 40


def test_kinds_that_share_a_range_are_counted_apart() -> None:
    traits = [None, Trait(kind="b"), Trait(kind="b", error_kind=ABANDONED), Trait(error_kind="Oops")]
    job_range = JobRange(Change.RETRIED, 1, 4, "q", "a", 1, 1, 0, 1, 1, 1, 5, traits)
    tally = EventTally(LabelNames())
    tally.take([LedgerEntry(0, Record(3_000_001, "settle", [job_range]))])
    counts = tally.counts()
    assert {pair: (row[Change.RETRIED], row[RECLAIMED]) for pair, row in counts.items()} == {
        ("q", "a"): (2, 0),
        ("q", "b"): (2, 1),
    }


def test_a_change_that_this_version_does_not_know_is_left_out() -> None:
    tally = EventTally(LabelNames())
    tally.take([LedgerEntry(0, Record(1, "novel", [JobRange("invented", 1, 3, "q", "a")]))])
    assert all(not any(row.values()) for row in tally.counts().values())


def test_a_length_below_zero_counts_as_none() -> None:
    tally = EventTally(LabelNames())
    tally.take([LedgerEntry(0, Record(5, "claim", [JobRange(Change.CLAIMED, 1, 1, "q", "a", due_at=9)]))])
    assert tally.durations()["wait"][0][1] == Distribution((1,) * (len(BUCKETS) + 1), 0)
