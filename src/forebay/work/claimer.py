"""The claimer asks for no more than can start now, so whatever it holds is really running.

A job takes as many of the pool's slots as it costs, which is known once it is claimed. One that does not fit goes back
unharmed, and what came behind it; the pool makes room before the next claim, so that light jobs do not pass a heavy one
for ever. Where long jobs keep it from that, the claimer goes on with others after some seconds. It asks for as many as
fit if they cost what the last ones did.

A suspect (`Job.needs_quarantine`) takes no room of the pool: it runs in quarantine, and the pool goes on. Suspects for
which there is no place there go back unharmed for a moment.
"""

import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from math import ceil
from threading import Event
from time import perf_counter
from typing import Final, Protocol

from forebay.core.instant import seconds
from forebay.core.lease import Lease, Settlement
from forebay.core.outcome import Release
from forebay.store.protocol import Store, Want
from forebay.work.meter import Histogram
from forebay.work.options import Options
from forebay.work.room import weight
from forebay.work.rotation import QueueRotation
from forebay.work.run import lease_clock

_IDLE: Final = seconds(1)
_STARTING_MOST: Final = 0.05
_SUSPECT_AGAIN: Final = 1_000_000
_TOO_HEAVY: Final = 3_000_000
_OWED_MOST: Final = 200
_BUSY_CLAIMS: Final = 50
_HINTS_TRIED: Final = 2
_FRUITLESS_REST: Final = 0.01
_FRUITLESS_MOST: Final = 0.08
_CLOSED_REST: Final = 1.0


class Slots(Protocol):
    """What the claimer needs of a pool."""

    @property
    def free(self) -> int: ...

    def fits(self, leases: Sequence[Lease]) -> int: ...

    def take(self, leases: Sequence[Lease], lease_ends: float) -> None: ...

    def quarantine(self, leases: Sequence[Lease], lease_ends: float) -> int: ...

    def wait_for_room(self, timeout: float, least: int = 0) -> None: ...


class Claimer:
    """Fills the pool. Claims rotate over the queues, or follow their weights, so that none starves the others."""

    name = "claimer"

    def __init__(
        self,
        store: Store,
        slots: Slots,
        options: Options,
        owner: str,
        hand_back: Callable[[Sequence[Settlement]], None],
        draw: Callable[[], float] = random.random,
        claim: Callable[[Sequence[Want], str, timedelta], list[Lease]] | None = None,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self._store = store
        self._claim = claim
        self._slots = slots
        self._options = options
        self._owner = owner
        self._hand_back = hand_back
        self._draw = draw
        self._clock = clock
        self._lease_ends = 0.0
        self._busy_for = 0
        self._owed = 0
        self._owed_for = 0
        self._cost = 1
        self._closing = Event()
        self._rotation = QueueRotation(options.queues, options.weights)
        self._hinted = False
        self._fruitless = 0
        self.claims = 0
        self.claimed = 0
        self.took = Histogram()

    def step(self) -> float:
        """One claim, or one rest until there may be something to claim."""
        if self._closing.is_set():
            return _CLOSED_REST
        if self._owed > self._slots.free and self._owed_for < _OWED_MOST:
            self._slots.wait_for_room(_STARTING_MOST, self._owed)
            self._owed_for += 1
            return 0.0
        if self._owed > self._slots.free:
            self._busy_for = _BUSY_CLAIMS
        self._owed, self._owed_for = 0, 0
        self._busy_for = max(0, self._busy_for - 1)
        room = self._room()
        if room <= 0:
            self._slots.wait_for_room(_STARTING_MOST)
            return 0.0
        wants = self._rotation.wants(room)
        # From before the claim: the process may be stopped while the answer is on its way.
        self._lease_ends = self._clock() + self._options.lease_for.total_seconds()
        leases = self._ask(wants)
        if more := self._rotation.more(room, wants, leases):
            leases += self._ask(more)
        if not leases:
            return self._idle()
        self._hinted, self._fruitless = False, 0
        self.claimed += len(leases)
        if self._closing.is_set():
            self._hand_back([(lease, Release()) for lease in leases])
            return 0.0
        self._sort_out(leases)
        return 0.0

    def close(self) -> None:
        """Nothing is claimed any more; what a claim under way still brings is handed back."""
        self._closing.set()

    def _sort_out(self, leases: list[Lease]) -> None:
        suspects = [lease for lease in leases if lease.job.errors and lease.job.needs_quarantine]
        if suspects:
            left = suspects[self._slots.quarantine(suspects, self._lease_ends) :]
            self._hand_back([(lease, Release(int(_SUSPECT_AGAIN * (0.5 + self._draw())))) for lease in left])
            leases = [lease for lease in leases if lease not in suspects]
        if leases:
            self._begin(leases)

    def _room(self) -> int:
        """How many jobs to ask for."""
        free = self._slots.free
        return min(free if self._cost == 1 else max(min(free, 1), free // self._cost), self._options.claim_batch)

    def _begin(self, leases: list[Lease]) -> None:
        """Start what fits. The others go back, at once or, where room will not come soon, for later."""
        size = self._options.concurrency
        self._cost = ceil(sum(weight(lease.job, size) for lease in leases) / len(leases)) if leases else 1
        count = self._slots.fits(leases)
        self._slots.take(leases[:count], self._lease_ends)
        if count == len(leases):
            return
        if self._busy_for == 0:
            self._owed = weight(leases[count].job, size)
        later = 0 if self._owed else _TOO_HEAVY
        waits = [0 if lease.job.cost == 1 else int(later * (0.5 + self._draw())) for lease in leases[count:]]
        self._hand_back([(lease, Release(wait)) for lease, wait in zip(leases[count:], waits, strict=True)])

    def _idle(self) -> float:
        """Sleep until there may be something. Hints that prove empty again and again (a lease to reap) cost a rest."""
        if self._hinted:
            self._hinted = False
            self._fruitless += 1
            beyond = self._fruitless - _HINTS_TRIED - len(self._options.queues)
            if beyond > 0:
                return min(_FRUITLESS_REST * 2.0**beyond, _FRUITLESS_MOST) * (0.5 + self._draw())
        self._hinted = self._store.wait(self._options.queues, _IDLE)
        if not self._hinted:
            self._fruitless = 0
        return 0.0

    def _ask(self, wants: Sequence[Want]) -> list[Lease]:
        claim = self._claim or self._store.claim
        started = perf_counter()
        leases = claim(wants, self._owner, self._options.lease_for)
        self.took.add(int((perf_counter() - started) * 1_000_000))
        self.claims += 1
        return leases
