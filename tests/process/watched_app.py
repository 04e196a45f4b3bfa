"""An app whose jobs are watched from another process: they return results, run until they are cancelled, say how far
they are."""

import asyncio
import time
from datetime import datetime

from forebay.client import Forebay
from forebay.work.context import Context
from tests.process.apps import say

LONG = 60.0

fb = Forebay()

say("boot", 0)


@fb.job(keep_result=True)
async def moments(seq: int) -> dict[str, datetime]:
    """A result that JSON alone does not carry."""
    return {"at": datetime.fromisoformat(f"2026-01-{seq:02d}T00:00:00+00:00")}


@fb.job(keep_result=True)
def opaque(seq: int):  # type: ignore[no-untyped-def]
    """A result that cannot be kept, and that no annotation declares."""
    return {"found": {seq}}


@fb.job
async def waits(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    try:
        await asyncio.sleep(LONG)
    finally:
        say("stopped", seq, ctx)


@fb.job
def looks(seq: int, ctx: Context) -> None:
    """Asks now and then whether it should end."""
    say("start", seq, ctx)
    deadline = time.monotonic() + LONG
    while not ctx.cancelled and time.monotonic() < deadline:
        time.sleep(0.01)
    say("stopped", seq, ctx)


@fb.job(isolate=True)
def blocks(seq: int, ctx: Context) -> None:
    """Ends only by force."""
    say("start", seq, ctx)
    time.sleep(LONG)


@fb.job
def ignores(seq: int, ctx: Context) -> None:
    """Does not care whether it should end."""
    say("start", seq, ctx)
    time.sleep(LONG)


@fb.job
async def counts(seq: int, ctx: Context) -> None:
    await _count(seq, ctx)


@fb.job(isolate=True)
async def counts_apart(seq: int, ctx: Context) -> None:
    await _count(seq, ctx)


async def _count(seq: int, ctx: Context) -> None:
    """Reports progress much more often than it is written."""
    say("start", seq, ctx)
    for step in range(10_000):
        ctx.progress(min(0.5, step / 2_000), f"step {step} of many")
    say("said", seq, ctx)
    await asyncio.sleep(LONG)
