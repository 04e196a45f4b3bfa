"""A store whose claims are timed, or whose leases are never renewed.

Without renewal the worker is answered that its leases were extended, but the store is not called: so a queue without
lease renewal behaves, on the same code. LAB_UNRENEWED selects it in the app of the load.
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, cast

from forebay.core.lease import Lease, Settled, Settlement
from forebay.store.protocol import Pipelining, Store, Want
from forebay_proof.tally import CLAIM, TallyFile

UNRENEWED: Final = "LAB_UNRENEWED"
OnClaim = Callable[[float, int], None]
_BEAT: Final = "beat"
"""What a store may have instead of `extend`: a heartbeat for all leases at once."""


class ProbedStore:
    """A store; claims that brought jobs are reported to `on_claim`: seconds, jobs. Not `renewing`: leases run out."""

    def __init__(self, store: Store, on_claim: OnClaim, renewing: bool = True) -> None:
        self._store = store
        self._on_claim = on_claim
        self._renewing = renewing
        if renewing and hasattr(store, _BEAT):
            setattr(self, _BEAT, getattr(store, _BEAT))

    def __getattr__(self, name: str) -> Any:
        if name == _BEAT:
            raise AttributeError(name)
        return getattr(self._store, name)

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        began = time.perf_counter()
        leases = self._store.claim(wants, owner, lease_for)
        if leases:
            self._on_claim(time.perf_counter() - began, len(leases))
        return leases

    def extend(self, leases: Sequence[Lease], lease_for: timedelta) -> list[Lease]:
        return self._store.extend(leases, lease_for) if self._renewing else list(leases)


class ProbedPipeliningStore(ProbedStore):
    """One whose verdicts ride on the next claim."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, lease_for: timedelta
    ) -> tuple[list[Settled], list[Lease]]:
        began = time.perf_counter()
        answers, leases = cast(Pipelining, self._store).settle_and_claim(settlements, wants, owner, lease_for)
        if leases:
            self._on_claim(time.perf_counter() - began, len(leases))
        return answers, leases


def probed(store: Store, on_claim: OnClaim, renewing: bool = True) -> Store:
    made = ProbedPipeliningStore if isinstance(store, Pipelining) else ProbedStore
    return cast(Store, made(store, on_claim, renewing))


def ignore_claim(_: float, __: int) -> None:
    """For a store whose claims are not timed."""


def count_claims(tally: TallyFile) -> OnClaim:
    """Adds each claim and its jobs to a tally."""

    def on_claim(seconds: float, jobs: int) -> None:
        tally.add(CLAIM, seconds)
        tally.count_claimed(jobs)

    return on_claim
