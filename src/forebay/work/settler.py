"""The settler writes verdicts to the store in batches, and keeps each one until the store has answered.

A failed write is retried; the handler is not run again. Settles are fenced, so a repeated one has no effect. A STALE
answer means that the job has another lease by now: the verdict is counted and dropped.

Where the store can settle and claim in one round trip, `PipelinedClaimer` sends pending verdicts with the next claim.
"""

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Event, Lock
from typing import Final, Protocol

from forebay.core.errors import Invalid, PartlyDone
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.limits import BATCH_BYTES, MAX_BATCH
from forebay.core.outcome import Ack
from forebay.store.protocol import Pipelining, Store, Want

_BATCH: Final = MAX_BATCH
_BATCH_BYTES: Final = BATCH_BYTES // 2
_IDLE: Final = 1.0
_PARTLY_DONE_REST: Final = 0.05
GATHER: Final = 0.002
"""Seconds for which the first verdict waits for others: one write each would cost more than everything else."""


class Settler:
    """Holds verdicts until they are written. `put` may be called from any thread.

    pause    waits for the next verdict, up to the given seconds
    gather   seconds for which the first verdict waits for others
    between  seconds between two batches

    A verdict is in one of three places: `_queued`; `_in_flight`, the batch that `step` is writing, which stays there
    after a failure and is retried first; or with the pipeline (`lend`), counted by `_lent`.
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
        self._queued: deque[Settlement] = deque()
        self._in_flight: list[Settlement] = []
        self._on_settled = on_settled
        self.wakeup = Event()
        self._pause = self.wakeup.wait if pause is None else pause
        self.applied = 0
        self.stale = 0

    @property
    def empty(self) -> bool:
        return self.pending == 0

    @property
    def pending(self) -> int:
        """Verdicts that are not known to be written."""
        with self._guard:
            return len(self._queued) + len(self._in_flight) + self._lent

    def put(self, verdicts: Sequence[Settlement]) -> None:
        self._queued.extend(verdicts)
        if verdicts and not self.wakeup.is_set():
            self.wakeup.set()

    def lend(self) -> list[Settlement]:
        """A batch for the caller to write; it must call `written` or `give_back` afterwards."""
        batch = self._next_batch()
        with self._guard:
            self._lent += len(batch)
        return batch

    def give_back(self, batch: Sequence[Settlement]) -> None:
        """A lent batch was not written, or its result is unknown: write it again."""
        self._queued.extendleft(reversed(batch))
        with self._guard:
            self._lent -= len(batch)
        self.wakeup.set()

    def written(self, batch: Sequence[Settlement], answers: Sequence[Settled]) -> None:
        """A lent batch was written, with these answers."""
        self._count(batch, answers)
        with self._guard:
            self._lent -= len(batch)

    def step(self) -> float:
        """Write one batch, or wait for a verdict."""
        if not self._in_flight:
            self._in_flight = self._next_batch()
        if not self._in_flight:
            self._pause(_IDLE)
            self.wakeup.clear()
            return self._gather
        try:
            answers = self._store.settle(self._in_flight)
        except Invalid:
            self._split()
            raise
        except PartlyDone as error:
            self._count_part(error.answers)
            return _PARTLY_DONE_REST
        settled, self._in_flight = self._in_flight, []
        self._count(settled, answers)
        return self._between

    def _count_part(self, answers: Sequence[object]) -> None:
        """Some cells answered. The verdicts of the others go behind those that came since, so they hold up none."""
        pairs = list(zip(self._in_flight, answers, strict=True))
        answered = [(each, answer) for each, answer in pairs if isinstance(answer, Settled)]
        self._queued.extend(each for each, answer in pairs if not isinstance(answer, Settled))
        self._in_flight = []
        self._count([each for each, _ in answered], [answer for _, answer in answered])

    def _count(self, settled: Sequence[Settlement], answers: Sequence[Settled]) -> None:
        applied = sum(answer is Settled.APPLIED for answer in answers)
        with self._guard:
            self.applied += applied
            self.stale += len(answers) - applied
        if self._on_settled is not None:
            for (lease, _), answer in zip(settled, answers, strict=True):
                self._on_settled(lease, answer)

    def _next_batch(self) -> list[Settlement]:
        """Bounded in number and in bytes, as the store requires."""
        batch: list[Settlement] = []
        size = 0
        with self._guard:
            while self._queued and len(batch) < _BATCH and size < _BATCH_BYTES:
                settlement = self._queued.popleft()
                batch.append(settlement)
                if type(settlement[1]) is Ack and settlement[1].result is not None:
                    size += len(settlement[1].result)
        return batch

    def _split(self) -> None:
        """Halve a batch that the store refused, to isolate the invalid verdict; a single refused verdict is dropped."""
        half = len(self._in_flight) // 2
        self._queued.extendleft(reversed(self._in_flight[half:] if half else []))
        self._in_flight = self._in_flight[:half]


class PipelinedStore(Pipelining, Protocol):
    """A store that can settle and claim in one round trip."""

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]: ...


class PipelinedClaimer:
    """Claims for the claimer, and settles the pending verdicts in the same round trip.

    After a failure the verdicts return to the settler; writing one twice has no effect.
    """

    def __init__(self, store: PipelinedStore, settler: Settler) -> None:
        self._store = store
        self._settler = settler

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        verdicts = self._settler.lend()
        if not verdicts:
            return self._store.claim(wants, owner, lease_for)
        try:
            answers, leases = self._store.settle_and_claim(verdicts, wants, owner, lease_for)
        except BaseException:
            self._settler.give_back(verdicts)
            raise
        self._settler.written(verdicts, answers)
        return leases
