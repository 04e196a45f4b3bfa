"""The progress reporter: what handlers say of their progress reaches the store, once a second, many jobs in one call.

A handler that reports only sets a value, and never waits; of all that it said in a second the last is written. What was
said in the last moment of a run may not be written any more, and what cannot be written is not tried again.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from forebay.core.job import Progress
from forebay.core.lease import Fence
from forebay.core.limits import BATCH_MOST
from forebay.store.protocol import ProgressReport, Store

_EVERY: Final = 1.0


class Reporting(Protocol):
    """What the reporter needs of a pool."""

    def progress(self) -> Sequence[ProgressReport]: ...


class ProgressReporter:
    """Writes what is new."""

    name = "progress reporter"

    def __init__(self, store: Store, pool: Reporting) -> None:
        self._store = store
        self._pool = pool
        self._written: dict[Fence, Progress] = {}

    def step(self) -> float:
        said = self._pool.progress()
        fresh = [report for report in said if self._written.get(report[0]) is not report[1]]
        self._written = dict(said)
        for start in range(0, len(fresh), BATCH_MOST):
            self._store.report_progress(fresh[start : start + BATCH_MOST])
        return _EVERY
