"""The app that does the jobs of every load: `forebay worker forebay_proof.load.app:fb`.

Handlers wait as long as their payload says. What they write depends on the environment:

LAB_EFFECTS     a folder: each handler that succeeds writes a line there (`handler_log`)
LAB_STARTS      a folder for a line at each start
FOREBAY_TALLY   a folder in which the process counts runs that succeeded, claimed jobs and the latency of claims
LAB_UNRENEWED   disables heartbeats (`probed_store`)
LAB_DEPENDENCY  a file: while it exists, `dependent` jobs fail

Without them nothing is written and the store is used as it is.
"""

import asyncio
import os
import time
from typing import Final

from forebay import Context, Forebay, QueueSpec, Store
from forebay.core.instant import ms as milliseconds
from forebay.core.instant import seconds
from forebay.core.policy import FullJitter, Routing
from forebay_proof.load.handler_log import HandlerLog
from forebay_proof.load.mix import MAX_ATTEMPTS
from forebay_proof.load.probed_store import UNRENEWED, count_claims, ignore_claim, probed
from forebay_proof.tally import FOLDER, LATE, TallyFile

QUEUE: Final = "lab"
EFFECTS, STARTS, DEPENDENCY = "LAB_EFFECTS", "LAB_STARTS", "LAB_DEPENDENCY"
SPEC: Final = QueueSpec(
    name=QUEUE, routing=Routing(max_attempts=25, backoff=FullJitter(base=milliseconds(200), cap=seconds(20)))
)

_FLAKY_PERIOD: Final = 20

started: Final = HandlerLog(STARTS, b"started_at").write
effect: Final = HandlerLog(EFFECTS, b"effect_at").write
tally: Final = TallyFile.of_this_process() if os.environ.get(FOLDER) else None


class LoadForebay(Forebay):
    """One whose store is probed where the environment says so."""

    _probed: Store | None = None

    @property
    def store(self) -> Store:
        store = super().store
        if tally is None and UNRENEWED not in os.environ:
            return store
        if self._probed is None:
            on_claim = ignore_claim if tally is None else count_claims(tally)
            self._probed = probed(store, on_claim, UNRENEWED not in os.environ)
        return self._probed


fb = LoadForebay()
fb.queue(SPEC)


def is_down() -> bool:
    """Whether the dependency of `dependent` jobs is down."""
    return os.path.exists(os.environ.get(DEPENDENCY, ""))


async def work(seq: int, length: float, ctx: Context) -> None:
    started(seq, ctx)
    if length:
        await asyncio.sleep(length / 1000)
    effect(seq, ctx)
    if tally is not None:
        tally.count()


async def record_lateness(seq: int, due: float, ctx: Context) -> None:
    if tally is not None:
        tally.add(LATE, time.time() - due)
    await work(seq, 0, ctx)


@fb.job(queue=QUEUE)
async def fast(seq: int, ms: float, ctx: Context) -> None:
    await work(seq, ms, ctx)


@fb.job(queue=QUEUE)
async def slow(seq: int, ms: float, ctx: Context) -> None:
    await work(seq, ms, ctx)


@fb.job(queue=QUEUE)
async def long(seq: int, ms: float, ctx: Context) -> None:
    await work(seq, ms, ctx)


@fb.job(queue=QUEUE)
async def idle(seq: int, ms: float, ctx: Context) -> None:
    await work(seq, ms, ctx)


@fb.job
async def email(seq: int, to: str, data: str, ctx: Context) -> None:  # noqa: ARG001
    await work(seq, 0, ctx)


@fb.job(queue=QUEUE)
async def flaky(seq: int, to: str, data: str, ctx: Context) -> None:  # noqa: ARG001
    if ctx.attempt == 1 and seq % _FLAKY_PERIOD == 0:
        started(seq, ctx)
        raise ConnectionError("the first attempt fails")
    await work(seq, 0, ctx)


@fb.job
async def timed(seq: int, due: float, ctx: Context) -> None:
    await record_lateness(seq, due, ctx)


@fb.job
async def delayed(seq: int, due: float, ctx: Context) -> None:
    await record_lateness(seq, due, ctx)


@fb.job(queue=QUEUE)
async def flapping(seq: int, ms: float, fails: int, ctx: Context) -> None:
    if ctx.attempt <= fails:
        started(seq, ctx)
        await asyncio.sleep(ms / 1000)
        raise ConnectionError(f"failure {ctx.attempt} of {fails}")
    await work(seq, ms, ctx)


@fb.job(queue=QUEUE, max_attempts=MAX_ATTEMPTS["poison"])
async def poison(seq: int, ms: float, ctx: Context) -> None:
    started(seq, ctx)
    await asyncio.sleep(ms / 1000)
    raise ValueError("this payload can never work")


@fb.job(queue=QUEUE)
async def dependent(seq: int, ms: float, ctx: Context) -> None:
    if is_down():
        started(seq, ctx)
        raise ConnectionError("the dependency is down")
    await work(seq, ms, ctx)
