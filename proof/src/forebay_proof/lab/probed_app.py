"""The app of the lab with its claims timed, or without lease renewal: `forebay worker forebay_proof.lab.probed_app:fb`.

LAB_CLAIMS names a folder in which each process keeps a tally of its claims: how long those took that brought
something, and how many jobs they brought. LAB_UNRENEWED disables heartbeats: the worker believes that its
leases were extended, but the store was not called. So a queue without lease renewal behaves, on the same code.
"""

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

from forebay.client import Forebay
from forebay.core.lease import Lease, Settled, Settlement
from forebay.store.protocol import Pipelining, Store, Want
from forebay_proof.lab import app
from forebay_proof.tally import CLAIM, Tally

CLAIMS: Final = "LAB_CLAIMS"
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


def ignored(_: float, __: int) -> None:
    """For a store whose claims are not timed."""


def counted_in(tally: Tally) -> OnClaim:
    """Adds each claim and its jobs to a tally."""

    def on_claim(seconds: float, jobs: int) -> None:
        tally.add(CLAIM, seconds)
        tally.count(jobs)

    return on_claim


class ProbedForebay(Forebay):
    """Each process has a tally of its own, made when its store is first used."""

    _probed: Store | None = None

    @property
    def store(self) -> Store:
        store = super().store
        if self._probed is None:
            folder = os.environ.get(CLAIMS)
            on_claim = counted_in(Tally.of_this_process(Path(folder))) if folder else ignored
            self._probed = probed(store, on_claim, UNRENEWED not in os.environ)
        return self._probed


fb = ProbedForebay()
fb.queue(app.SPEC)
fb.registry.update(app.fb.registry)
