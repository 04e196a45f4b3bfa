"""How long recovery from a fault took, by the records of handlers alone.

Where a fault stopped processes, recovery is the time from it until the last of the jobs that they were running started
again somewhere; it bit if they ran any. Else it is the time from the end of the fault until the next effect.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from forebay.core.lease import Fence
from forebay.core.ledger import Change, LedgerEntry
from forebay_proof.lab.chaos.scene import Strike
from forebay_proof.load.handler_log import HandlerRecord


def recovered(
    strikes: Iterable[Strike], starts: list[HandlerRecord], effects: list[HandlerRecord], steady: Callable[[int], bool]
) -> list[float]:
    """Fill in `recovery`, and for faults that stopped processes `held` and whether they bit.

    Returns for each job that such a fault interrupted the seconds until it started again, smallest first. Only `steady`
    jobs count, which do not fail by themselves: those that fail start again for that reason, too.
    """
    done = {(line.job, line.delivery): line.at for line in effects}
    by_pid: dict[int, list[HandlerRecord]] = {}
    again: dict[int, list[HandlerRecord]] = {}
    for line in starts:
        if steady(line.seq):
            by_pid.setdefault(line.pid, []).append(line)
        again.setdefault(line.job, []).append(line)
    moments = sorted(line.at for line in effects)
    restarts: list[float] = []
    for strike in strikes:
        if strike.pids:
            restarts += _of_jobs(strike, [line for pid in strike.pids for line in by_pid.get(pid, [])], done, again)
        elif strike.bit and strike.recovery is None:
            after = next((at for at in moments if at > strike.over_at), None)
            strike.recovery = None if after is None else (after - strike.over_at) / 1_000_000
    return sorted(restarts)


def unstarted(entries: Iterable[LedgerEntry], starts: Iterable[HandlerRecord]) -> Counter[int]:
    """By job, how often the ledger says that it was handed out while no handler says that it began."""
    begun = {(line.job, line.delivery) for line in starts}
    return Counter(
        job
        for entry in entries
        for job_range in entry.record.ranges
        if job_range.change == Change.CLAIMED
        for job in range(job_range.first, job_range.first + job_range.n)
        if (job, job_range.delivery) not in begun
    )


def unfinished(entries: Iterable[LedgerEntry], effects: Iterable[HandlerRecord]) -> list[Fence]:
    """Of jobs with effects: what the ledger says was acknowledged while no handler says that it returned.

    A store that lets a late verdict count acknowledges the delivery that runs now.
    """
    done: dict[int, set[int]] = {}
    for line in effects:
        done.setdefault(line.job, set()).add(line.delivery)
    return [
        (job, job_range.delivery)
        for entry in entries
        for job_range in entry.record.ranges
        if job_range.change == Change.ACKED
        for job in range(job_range.first, job_range.first + job_range.n)
        if job_range.delivery not in done.get(job, {job_range.delivery})
    ]


def _of_jobs(
    strike: Strike, starts: list[HandlerRecord], done: dict[tuple[int, int], int], again: dict[int, list[HandlerRecord]]
) -> list[float]:
    took: list[float] = []
    for line in starts:
        ended_at = done.get((line.job, line.delivery))
        if line.at > strike.at or (ended_at is not None and ended_at <= strike.at):
            continue
        later = [other.at for other in again[line.job] if other.delivery > line.delivery]
        if later and min(later) > strike.at:
            took.append((min(later) - strike.at) / 1_000_000)
    strike.held = len(took)
    strike.bit = strike.bit and strike.held > 0
    strike.recovery = max(took, default=None)
    return took
