"""Our side as users run it: `forebay worker bench.crew.app:fb`. Handlers only count; claims are timed."""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, cast

from bench.crew.tally import CLAIM, LATE, Tally
from forebay import Context, Forebay, QueueSpec, Store, Want
from forebay.core.instant import ms
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.policy import Fixed, Routing
from forebay.store.protocol import Exchanging

ONE_IN: Final = 20
"""One job in so many fails on its first attempt."""

_tally: Final = Tally.of_this_process()


class TimedStore:
    """A store; claims that brought something are timed."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        began = time.perf_counter()
        leases = self._store.claim(wants, owner, lease_for)
        if leases:
            _tally.add(CLAIM, time.perf_counter() - began)
        return leases


class TimedExchange(TimedStore):
    """One that takes verdicts along: those claims are timed as well, verdicts and all."""

    def exchange(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, lease_for: timedelta
    ) -> tuple[list[Settled], list[Lease]]:
        began = time.perf_counter()
        answers, leases = self._store.exchange(settlements, wants, owner, lease_for)  # type: ignore[attr-defined]
        if leases:
            _tally.add(CLAIM, time.perf_counter() - began)
        return answers, leases


class TimedForebay(Forebay):
    @property
    def store(self) -> Store:
        store = super().store
        return cast(Store, TimedExchange(store) if isinstance(store, Exchanging) else TimedStore(store))


fb = TimedForebay()
fb.queue(QueueSpec(name="flaky", routing=Routing(backoff=Fixed(ms(100)))))


@fb.job
async def email(seq: int, to: str, data: str) -> None:  # noqa: ARG001
    _tally.count()


@fb.job(queue="flaky")
async def flaky(seq: int, to: str, data: str, ctx: Context | None = None) -> None:  # noqa: ARG001
    assert ctx is not None
    if ctx.attempt == 1 and seq % ONE_IN == 0:
        raise ValueError("this one fails first")
    _tally.count()


@fb.job
async def scheduled(due: float) -> None:
    _tally.add(LATE, time.time() - due)
