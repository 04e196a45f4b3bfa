"""The app of the lab under a profiler: `forebay worker forebay_proof.lab.profiled_app:fb`.

LAB_PROFILE names the file of the profile; without it nothing is profiled. The threads that claim, settle and run
handlers are profiled, each from its first call on, by the CPU time that they use rather than the time that they wait.
"""

import cProfile
import os
import pstats
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from threading import get_ident
from typing import Final, cast

from forebay import Context
from forebay.client import Forebay
from forebay.core.lease import Lease, Settled, Settlement
from forebay.store.protocol import Pipelining, Store, Want
from forebay_proof.load import app
from forebay_proof.load.probed_store import ProbedPipeliningStore, ProbedStore, ignore_claim

PROFILE: Final = "LAB_PROFILE"


class Profiles:
    """A profile for each thread, made by the thread itself."""

    def __init__(self) -> None:
        self._path = os.environ.get(PROFILE)
        self._of: dict[int, cProfile.Profile] = {}

    def start(self) -> None:
        """Profile the current thread from now on."""
        if self._path and get_ident() not in self._of:
            made = self._of[get_ident()] = cProfile.Profile(time.thread_time)
            # From Python 3.12 on there is one for all threads.
            with suppress(ValueError):
                made.enable()

    def save(self) -> None:
        if self._path and self._of:
            first, *others = self._of.values()
            pstats.Stats(first).add(*others).dump_stats(self._path)


profiles: Final = Profiles()


class ProfiledStore(ProbedStore):
    """A store; a thread that calls it is profiled from then on."""

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        profiles.start()
        return super().claim(wants, owner, lease_for)

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        profiles.start()
        return self._store.settle(settlements)


class ProfiledPipeliningStore(ProfiledStore, ProbedPipeliningStore):
    """One whose verdicts ride on the next claim."""


class ProfiledForebay(Forebay):
    _profiled: Store | None = None

    @property
    def store(self) -> Store:
        store = super().store
        if self._profiled is None:
            made = ProfiledPipeliningStore if isinstance(store, Pipelining) else ProfiledStore
            self._profiled = cast(Store, made(store, ignore_claim))
        return self._profiled

    def close(self) -> None:
        profiles.save()
        super().close()


fb = ProfiledForebay()
fb.queue(app.SPEC)


@fb.job(queue=app.QUEUE)
async def idle(seq: int, ms: float, ctx: Context) -> None:  # noqa: ARG001
    profiles.start()
    app.effect(seq, ctx)
