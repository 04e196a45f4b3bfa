"""Our side as users run it: `forebay worker bench.crew.app:fb`. Handlers only count; claims are timed."""

import time
from typing import Final

from forebay import Context, Forebay, QueueSpec, Store
from forebay.core.instant import ms
from forebay.core.policy import Fixed, Routing
from forebay_proof.lab.probed_app import probed
from forebay_proof.tally import CLAIM, LATE, Tally

ONE_IN: Final = 20
"""One job in so many fails on its first attempt."""

_tally: Final = Tally.of_this_process()


class TimedForebay(Forebay):
    @property
    def store(self) -> Store:
        return probed(super().store, lambda seconds, _: _tally.add(CLAIM, seconds))


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
