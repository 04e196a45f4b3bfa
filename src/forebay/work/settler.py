"""The settler: verdicts go back to the store, in batches, until the store has them.

A write that fails is tried again, the handler never is: settles are fenced and repeating one is harmless. A verdict
that turns out STALE is counted and dropped: someone else has the job, and what was done here does not count.
"""

from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import Final

from forebay.core.errors import Invalid
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.limits import BATCH_BYTES, BATCH_MOST
from forebay.core.outcome import Ack
from forebay.store.protocol import Store

_BATCH: Final = BATCH_MOST
_BATCH_BYTES: Final = BATCH_BYTES // 2
_IDLE: Final = 1.0
GATHER: Final = 0.002
"""Seconds in which a first verdict waits for company: a write for each would cost more than all else together."""


class Settler:
    """Holds verdicts until they are written. `put` may be called from any thread; `pause` is how it waits for one.

    `gather` and `between`: how long a first verdict waits for others, and a batch after the last one.
    """

    name = "settler"

    def __init__(
        self,
        store: Store,
        on_settled: Callable[[Lease, Settled], None] | None = None,
        pause: Callable[[float], object] | None = None,
        gather: float = GATHER,
        between: float = 0.0,
    ) -> None:
        self._store = store
        self._gather = gather
        self._between = between
        self._guard = Lock()
        self._lent = 0
        self._waiting: deque[Settlement] = deque()
        self._unsure: list[Settlement] = []
        self._on_settled = on_settled
        self.news = Event()
        self._pause = self.news.wait if pause is None else pause
        self.applied = 0
        self.stale = 0

    @property
    def empty(self) -> bool:
        with self._guard:
            return not self._waiting and not self._unsure and not self._lent

    @property
    def waiting(self) -> int:
        """Verdicts that are not known to be written."""
        with self._guard:
            return len(self._waiting) + len(self._unsure) + self._lent

    def put(self, verdicts: Sequence[Settlement]) -> None:
        self._waiting.extend(verdicts)
        if verdicts and not self.news.is_set():
            self.news.set()

    def lend(self) -> list[Settlement]:
        """A batch for somebody else to write, who must say `written` or `give_back` afterwards."""
        batch = self._next_batch()
        with self._guard:
            self._lent += len(batch)
        return batch

    def give_back(self, batch: Sequence[Settlement]) -> None:
        """It could not be written, or nobody knows."""
        self._waiting.extendleft(reversed(batch))
        with self._guard:
            self._lent -= len(batch)
        self.news.set()

    def written(self, batch: Sequence[Settlement], answers: Sequence[Settled]) -> None:
        """A batch that was lent has its answers."""
        self._count(batch, answers)
        with self._guard:
            self._lent -= len(batch)

    def step(self) -> float:
        """Write one batch; what could not be written stays first in line."""
        if not self._unsure:
            self._unsure = self._next_batch()
        if not self._unsure:
            self._pause(_IDLE)
            self.news.clear()
            return self._gather
        try:
            answers = self._store.settle(self._unsure)
        except Invalid:
            self._split()
            raise
        settled, self._unsure = self._unsure, []
        self._count(settled, answers)
        return self._between

    def _count(self, settled: Sequence[Settlement], answers: Sequence[Settled]) -> None:
        applied = sum(answer is Settled.APPLIED for answer in answers)
        with self._guard:
            self.applied += applied
            self.stale += len(answers) - applied
        if self._on_settled is not None:
            for (lease, _), answer in zip(settled, answers, strict=True):
                self._on_settled(lease, answer)

    def _next_batch(self) -> list[Settlement]:
        """Bounded in number and in bytes, as a store's verb is."""
        batch: list[Settlement] = []
        size = 0
        with self._guard:
            while self._waiting and len(batch) < _BATCH and size < _BATCH_BYTES:
                settlement = self._waiting.popleft()
                batch.append(settlement)
                if type(settlement[1]) is Ack and settlement[1].result is not None:
                    size += len(settlement[1].result)
        return batch

    def _split(self) -> None:
        """A batch that the store refuses as such is tried in halves; a single verdict like that is given up."""
        half = len(self._unsure) // 2
        self._waiting.extendleft(reversed(self._unsure[half:] if half else []))
        self._unsure = self._unsure[:half]
