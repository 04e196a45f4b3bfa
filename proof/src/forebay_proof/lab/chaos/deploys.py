"""What a deploy must keep, by the ledger and the handlers' records: claims after a signal, released jobs, attempts."""

from collections import Counter
from collections.abc import Iterable, Sequence

from forebay.core.ledger import Change, LedgerEntry
from forebay_proof.load.handler_log import HandlerRecord

_SECOND = 1_000_000
_ENDS = (Change.ACKED, Change.DIED)


def release_waits(entries: Iterable[LedgerEntry]) -> list[float]:
    """For each job that was handed back to start again at once: seconds until it was claimed, smallest first."""
    released: dict[int, int] = {}
    waits: list[float] = []
    for entry in entries:
        for job_range in entry.record.ranges:
            for job in range(job_range.first, job_range.first + job_range.n):
                if job_range.change == Change.RELEASED and job_range.until <= entry.record.at:
                    released[job] = entry.record.at
                elif job_range.change == Change.CLAIMED and job in released:
                    waits.append((entry.record.at - released.pop(job)) / _SECOND)
    return sorted(waits)


def late_claims(
    entries: Iterable[LedgerEntry], signals: Sequence[tuple[int, int]], grace: float
) -> list[tuple[str, float]]:
    """Claims of processes later than `grace` seconds after their signal (pid, instant). An owner's name has its pid."""
    signalled = {str(pid): at for pid, at in signals}
    found: list[tuple[str, float]] = []
    for entry in entries:
        owner = entry.record.owner
        if owner is not None and any(job_range.change == Change.CLAIMED for job_range in entry.record.ranges):
            at = signalled.get(owner.split(":")[-2])
            if at is not None and (late := (entry.record.at - at) / _SECOND) > grace:
                found.append((owner, late))
    return found


def miscounted(entries: Sequence[LedgerEntry], starts: Iterable[HandlerRecord]) -> list[tuple[int, int, int]]:
    """Ended jobs whose attempts are not the starts of their handlers: job, attempts, starts.

    A delivery that was handed back does not count: its attempt was given back, too.
    """
    given_back = {
        (job, job_range.delivery)
        for entry in entries
        for job_range in entry.record.ranges
        if job_range.change == Change.RELEASED
        for job in range(job_range.first, job_range.first + job_range.n)
    }
    began = Counter(job for job, delivery in {(line.job, line.delivery) for line in starts} - given_back)
    return [
        (job, job_range.attempt, began[job])
        for entry in entries
        for job_range in entry.record.ranges
        if job_range.change in _ENDS
        for job in range(job_range.first, job_range.first + job_range.n)
        if began[job] != job_range.attempt
    ]
