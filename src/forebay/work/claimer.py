"""The claimer asks for no more than can start now, so whatever it holds is really running.

A job whose last holder died is a suspect: it runs alone in its process, so that a killer is found without innocents
dying beside it. Nothing is held while a suspect runs or waits: it would be charged too if the process died or stood
still past the lease. Others that came with it go back then, but not twice in a row: they take turns with suspects, or
many suspects would send them round and round. A suspect that meets a busy pool goes back unharmed, and the pool empties
before the next claim; where a long job keeps it from emptying, the claimer goes on with others after some seconds, and
suspects come by later.
"""

import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Event
from time import perf_counter
from typing import Final, Protocol

from forebay.core.instant import seconds
from forebay.core.lease import Lease, Settlement
from forebay.core.outcome import Release
from forebay.store.protocol import Store, Want
from forebay.work.meter import Histogram
from forebay.work.options import Options
from forebay.work.turns import Turns

_IDLE: Final = seconds(1)
_STARTING_MOST: Final = 0.05
_SUSPECT_AGAIN: Final = 60_000
_SUSPECT_MUCH_LATER: Final = 3_000_000
_EMPTYING_MOST: Final = 200
_BUSY_CLAIMS: Final = 50
_FRUITLESS_REST: Final = 0.01
_FRUITLESS_MOST: Final = 0.08
_CLOSED_REST: Final = 1.0


class Slots(Protocol):
    """What the claimer needs of a pool."""

    @property
    def free(self) -> int: ...

    @property
    def idle(self) -> bool: ...

    def take(self, leases: Sequence[Lease]) -> None: ...

    def wait_for_room(self, timeout: float) -> None: ...

    def wait_until_idle(self, timeout: float) -> bool: ...


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
    ) -> None:
        self._store = store
        self._claim = claim
        self._slots = slots
        self._options = options
        self._owner = owner
        self._hand_back = hand_back
        self._draw = draw
        self._emptying = False
        self._emptied_for = 0
        self._busy_for = 0
        self._sent_back = False
        self._closing = Event()
        self._turns = Turns(options.queues, options.weights)
        self._fruitless = 0
        self.claims = 0
        self.claimed = 0
        self.took = Histogram()

    def step(self) -> float:
        """One claim, or one rest until there may be something to claim."""
        if self._closing.is_set():
            return _CLOSED_REST
        if self._emptying and not self._slots.idle and self._emptied_for < _EMPTYING_MOST:
            self._slots.wait_until_idle(_STARTING_MOST)
            self._emptied_for += 1
            return 0.0
        room = 1 if self._emptying and self._slots.idle else min(self._slots.free, self._options.claim_batch)
        if self._emptying and not self._slots.idle:
            self._busy_for = _BUSY_CLAIMS
        self._emptying, self._emptied_for, self._busy_for = False, 0, max(0, self._busy_for - 1)
        if room <= 0:
            self._slots.wait_for_room(_STARTING_MOST)
            return 0.0
        wants = self._turns.wants(room)
        leases = self._ask(wants)
        if more := self._turns.more(room, wants, leases):
            leases += self._ask(more)
        if not leases:
            return self._idle()
        self._fruitless = 0
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
        suspects = [lease for lease in leases if lease.job.suspect]
        if not suspects:
            self._slots.take(leases)
            return
        self._emptying = self._busy_for == 0
        others = [lease for lease in leases if not lease.job.suspect]
        alone = suspects[:1] if self._slots.idle and not (others and self._sent_back) else []
        again = _SUSPECT_AGAIN if self._emptying else _SUSPECT_MUCH_LATER
        waiting = suspects[len(alone) :]
        self._hand_back([(lease, Release(int(again * (0.5 + self._draw())))) for lease in waiting])
        if others:
            self._sent_back = bool(alone)
        if alone:
            self._hand_back([(lease, Release()) for lease in others])
        self._slots.take(alone or others)

    def _idle(self) -> float:
        """Sleep until there may be something. A hint that is wrong again and again (a lease to reap) is not chased."""
        if not self._store.wait(self._options.queues, _IDLE):
            self._fruitless = 0
            return 0.0
        self._fruitless += 1
        beyond = self._fruitless - len(self._options.queues)
        return 0.0 if beyond <= 0 else min(_FRUITLESS_REST * 2.0**beyond, _FRUITLESS_MOST) * (0.5 + self._draw())

    def _ask(self, wants: Sequence[Want]) -> list[Lease]:
        claim = self._claim or self._store.claim
        started = perf_counter()
        leases = claim(wants, self._owner, self._options.lease_for)
        self.took.add(int((perf_counter() - started) * 1_000_000))
        self.claims += 1
        return leases
