"""A job id carries its cell: the number of the cell in the high bits, the id in that cell's own store in the low ones.

Ids stay below 2^53, which JavaScript and JSON readers keep exactly. The ids of cell 0 are those of its store, so a
store that becomes the first cell of several keeps every id that its users have written down.
"""

from typing import Final

from msgspec.structs import replace

from forebay.core.errors import StoreFailed
from forebay.core.job import Job
from forebay.core.lease import Lease
from forebay.core.ledger import LedgerEntry
from forebay.store.protocol import Receipt

LOCAL_BITS: Final = 43
MAX_LOCAL: Final = 2**LOCAL_BITS - 1
MAX_CELL: Final = 2 ** (53 - LOCAL_BITS) - 1


def cell_of(job_id: int) -> int:
    """The number of the cell that an id belongs to; ids that never existed give numbers that no cell has."""
    return job_id >> LOCAL_BITS if job_id > 0 else -1


class CellIds:
    """Values of one cell's store as the callers of all cells see them, and back."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._base: Final = number << LOCAL_BITS

    def local(self, job_id: int) -> int:
        """The id in the cell's own store; 0, which no job has, for ids of other cells."""
        return job_id & MAX_LOCAL if cell_of(job_id) == self._number else 0

    def outside(self, job_id: int) -> int:
        """0 stays 0: no job."""
        if job_id > MAX_LOCAL:
            raise StoreFailed("cells", f"job id {job_id} of a cell exceeds {MAX_LOCAL}", "open that store by itself")
        return job_id + self._base if job_id else 0

    def job(self, job: Job) -> Job:
        return replace(job, id=self.outside(job.id)) if self._base else job

    def lease(self, lease: Lease) -> Lease:
        return replace(lease, job=self.job(lease.job)) if self._base else lease

    def inside(self, lease: Lease) -> Lease:
        local = self.local(lease.job.id)
        return lease if local == lease.job.id else replace(lease, job=replace(lease.job, id=local))

    def receipt(self, receipt: Receipt) -> Receipt:
        copies = tuple(self.outside(each) for each in receipt.copies)
        return replace(receipt, id=self.outside(receipt.id), copies=copies) if self._base else receipt

    def entry(self, entry: LedgerEntry) -> LedgerEntry:
        if not self._base:
            return entry
        ranges = [replace(job_range, first=self.outside(job_range.first)) for job_range in entry.record.ranges]
        return replace(entry, record=replace(entry.record, ranges=ranges))
