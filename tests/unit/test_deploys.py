"""The judges of a deploy storm find what they are for: a late claim, a release that waits, an attempt too many."""

from forebay.core.ledger import Change, JobRange, LedgerEntry, Record
from forebay_proof.lab.chaos.deploys import late_claims, miscounted, release_waits
from forebay_proof.load.handler_log import HandlerRecord

SECOND = 1_000_000
OWNER = "host:77:abcd"


def entry(at: float, change: Change, first: int = 1, n: int = 1, delivery: int = 1, attempt: int = 1) -> LedgerEntry:
    job_range = JobRange(change.value, first, n, "lab", "fast", delivery=delivery, attempt=attempt)
    return LedgerEntry(0, Record(round(at * SECOND), "verb", [job_range], owner=OWNER))


def start(job: int, delivery: int = 1) -> HandlerRecord:
    return HandlerRecord(seq=job, job=job, delivery=delivery, at=0, pid=77)


def test_a_claim_after_the_signal_is_found() -> None:
    entries = [entry(1.0, Change.CLAIMED), entry(1.2, Change.CLAIMED, 2), entry(1.6, Change.CLAIMED, 3)]
    assert late_claims(entries, [(77, SECOND)], grace=0.3) == [(OWNER, 0.6)]
    assert late_claims(entries, [(78, SECOND)], grace=0.3) == []


def test_a_released_job_waits_until_its_next_claim() -> None:
    entries = [
        entry(1.0, Change.RELEASED, 1, 3),
        entry(1.5, Change.CLAIMED, 2),
        entry(3.0, Change.CLAIMED, 1),
        entry(9.0, Change.CLAIMED, 1),
    ]
    assert release_waits(entries) == [0.5, 2.0]


def test_attempts_are_starts_that_were_not_given_back() -> None:
    entries = [
        entry(1.0, Change.RELEASED, 1, delivery=1),
        entry(2.0, Change.ACKED, 1, delivery=2, attempt=1),
        entry(3.0, Change.ACKED, 2, delivery=2, attempt=2),
        entry(4.0, Change.DIED, 3, attempt=1),
    ]
    assert miscounted(entries, [start(1, 1), start(1, 2), start(2, 2), start(3)]) == [(2, 2, 1)]
