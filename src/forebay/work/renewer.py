"""The renewer: a heartbeat from a thread of its own, so that a handler that holds the loop does not lose its lease.

What does not survive is lost: the pool is told, the handler may notice (`ctx.lost`), and its result is thrown away.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from forebay.core.lease import Fence, Lease
from forebay.core.limits import BATCH_MOST
from forebay.store.protocol import Beating, Store
from forebay.work.options import Options
from forebay.work.run import lease_clock


class Held(Protocol):
    """What the renewer needs of a pool."""

    def held(self) -> list[Lease]: ...

    def renewed(self, fences: Iterable[Fence], lease_ends: float) -> None: ...

    def lose(self, fences: Sequence[Fence]) -> None: ...

    def ask_to_end(self, fences: Sequence[Fence]) -> None: ...


class Renewer:
    """Extends everything that is held, three times a lease; in one step, where the store can."""

    name = "renewer"

    def __init__(self, store: Store, held: Held, options: Options, clock: Callable[[], float] = lease_clock) -> None:
        self._store = store
        self._held = held
        self._lease_for = options.lease_for
        self._clock = clock
        self.renewed = 0
        self.lost = 0

    def step(self) -> float:
        leases = self._held.held()
        ends = self._clock() + self._lease_for.total_seconds()
        if isinstance(self._store, Beating) and leases:
            told = self._store.beat(leases, self._lease_for)
            # What has ended meanwhile is neither lost nor unknown.
            now = {lease.fence for lease in self._held.held()}
            unknown = now.intersection(told.unknown)
            self._held.renewed({lease.fence for lease in leases}.difference(told.unknown, told.lost), ends)
            self._heed([fence for fence in told.lost if fence in now], told.asked)
            self.renewed += len(now) - len(unknown)
            leases = [lease for lease in leases if lease.fence in unknown]
        for start in range(0, len(leases), BATCH_MOST):
            batch = leases[start : start + BATCH_MOST]
            ends = self._clock() + self._lease_for.total_seconds()
            survivors = self._store.extend(batch, self._lease_for)
            alive = {lease.fence for lease in survivors}
            self._held.renewed(alive, ends)
            gone = [lease.fence for lease in batch if lease.fence not in alive]
            self._heed(gone, [lease.fence for lease in survivors if lease.job.cancel_requested])
            self.renewed += len(batch)
        return self._lease_for.total_seconds() / 3

    def _heed(self, lost: Sequence[Fence], asked: Sequence[Fence]) -> None:
        self._held.lose(lost)
        self._held.ask_to_end(asked)
        self.renewed -= len(lost)
        self.lost += len(lost)
