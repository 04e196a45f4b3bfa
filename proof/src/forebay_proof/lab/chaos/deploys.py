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
        for span in entry.record.spans:
            for job in range(span.first, span.first + span.n):
                if span.change == Change.RELEASED and span.until <= entry.record.at:
                    released[job] = entry.record.at
                elif span.change == Change.CLAIMED and job in released:
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
        if owner is not None and any(span.change == Change.CLAIMED for span in entry.record.spans):
            at = signalled.get(owner.split(":")[-2])
            if at is not None and (late := (entry.record.at - at) / _SECOND) > grace:
                found.append((owner, late))
    return found


def miscounted(entries: Sequence[LedgerEntry], starts: Iterable[HandlerRecord]) -> list[tuple[int, int, int]]:
    """Ended jobs whose attempts are not the starts of their handlers: job, attempts, starts.

    A delivery that was handed back does not count: its attempt was given back, too.
    """
    given_back = {
        (job, span.delivery)
        for entry in entries
        for span in entry.record.spans
        if span.change == Change.RELEASED
        for job in range(span.first, span.first + span.n)
    }
    began = Counter(job for job, delivery in {(line.job, line.delivery) for line in starts} - given_back)
    return [
        (job, span.attempt, began[job])
        for entry in entries
        for span in entry.record.spans
        if span.change in _ENDS
        for job in range(span.first, span.first + span.n)
        if began[job] != span.attempt
    ]
