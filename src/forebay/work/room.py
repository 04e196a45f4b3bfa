"""How much of a worker's slots a job takes: as many as it costs, all of them at most, so that every job fits alone."""

from collections.abc import Sequence

from forebay.core.job import Job
from forebay.core.lease import Lease


def weight(job: Job, size: int) -> int:
    """Of so many slots."""
    return min(job.cost, size)


def fitting(leases: Sequence[Lease], room: int, size: int) -> int:
    """How many of these, from the first on, there is room for; nobody passes one that has to wait."""
    for number, lease in enumerate(leases):
        room -= weight(lease.job, size)
        if room < 0:
            return number
    return len(leases)
