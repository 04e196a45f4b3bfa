"""The app of the lab under a profiler: `forebay worker forebay.lab.lived:fb`, with LAB_PROFILE naming a file.

The threads that carry jobs are profiled by the CPU time that they spend, not by the time that they wait: the one that
claims, the one that settles and the one that runs handlers, each from its first call on. Without LAB_PROFILE none
is.
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
from forebay.lab import mix
from forebay.lab.probe import Probed, ProbedExchanging
from forebay.store.protocol import Exchanging, Store, Want

PROFILE: Final = "LAB_PROFILE"


class Profiles:
    """One a thread, made by the thread itself."""

    def __init__(self) -> None:
        self._path = os.environ.get(PROFILE)
        self._of: dict[int, cProfile.Profile] = {}

    def here(self) -> None:
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


class Lived(Probed):
    """A store; whoever calls it is profiled from then on."""

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        profiles.here()
        return super().claim(wants, owner, lease_for)

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        profiles.here()
        return self._store.settle(settlements)


class LivedExchanging(Lived, ProbedExchanging):
    """One whose verdicts ride on the next claim."""


class LivedForebay(Forebay):
    _lived: Store | None = None

    @property
    def store(self) -> Store:
        store = super().store
        if self._lived is None:
            made = LivedExchanging if isinstance(store, Exchanging) else Lived
            self._lived = cast(Store, made(store, None, renewing=True))
        return self._lived

    def close(self) -> None:
        profiles.save()
        super().close()


fb = LivedForebay()
fb.queue(mix.SPEC)


@fb.job(queue=mix.QUEUE)
async def idle(seq: int, ms: float, ctx: Context) -> None:  # noqa: ARG001
    profiles.here()
    mix.effect(seq, ctx)
