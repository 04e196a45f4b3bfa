"""The app of the lab with an eye on its store, or with one hand tied: `forebay worker forebay.lab.probe:fb`.

LAB_CLAIMS names a folder in which each process keeps a sketch of its claims: how long those took that brought
something, and how many jobs they brought. LAB_UNRENEWED makes heartbeats empty words: the worker believes that its
leases were extended, and nobody told the store. That is what a queue without renewal does, on otherwise the same code.
"""

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

from forebay.client import Forebay
from forebay.core.lease import Lease, Settled, Settlement
from forebay.lab import mix
from forebay.lab.sketch import Sketch
from forebay.store.protocol import Exchanging, Store, Want

CLAIMS: Final = "LAB_CLAIMS"
UNRENEWED: Final = "LAB_UNRENEWED"
_BEAT: Final = "beat"
"""What a store may have instead of `extend`: a heartbeat for all leases at once."""


class Probed:
    """A store; what it is asked goes through, but for what this is about."""

    def __init__(self, store: Store, claims: Sketch | None, renewing: bool) -> None:
        self._store = store
        self._claims = claims
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
        self._took(began, leases)
        return leases

    def extend(self, leases: Sequence[Lease], lease_for: timedelta) -> list[Lease]:
        return self._store.extend(leases, lease_for) if self._renewing else list(leases)

    def _took(self, began: float, leases: Sequence[Lease]) -> None:
        if leases and self._claims is not None:
            self._claims.add(time.perf_counter() - began, len(leases))


class ProbedExchanging(Probed):
    """One whose verdicts ride on the next claim."""

    def exchange(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, lease_for: timedelta
    ) -> tuple[list[Settled], list[Lease]]:
        began = time.perf_counter()
        answers, leases = cast(Exchanging, self._store).exchange(settlements, wants, owner, lease_for)
        self._took(began, leases)
        return answers, leases


class ProbedForebay(Forebay):
    """Each process has a sketch of its own, made when its store is first used."""

    _probed: Store | None = None

    @property
    def store(self) -> Store:
        store = super().store
        if self._probed is None:
            folder = os.environ.get(CLAIMS)
            claims = Sketch.written_to(Path(folder, f"{os.getpid()}.claims")) if folder else None
            made = ProbedExchanging if isinstance(store, Exchanging) else Probed
            self._probed = cast(Store, made(store, claims, UNRENEWED not in os.environ))
        return self._probed


fb = ProbedForebay()
fb.queue(mix.SPEC)
fb.registry.update(mix.fb.registry)
