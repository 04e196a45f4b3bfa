"""The app of the exactly-once test: handlers that write their effect in the transaction that ends their job.

Each dawdles before, inside and after its block, so that a kill meets it anywhere. Its row says which job and delivery
it was; nothing in the table forbids a second one.
"""

import asyncio
import random
import time

from forebay.client import Forebay
from forebay.work.context import Context
from tests.process.apps import say

INSERT = "INSERT INTO effects VALUES (%s, %s)"

fb = Forebay()


def pause() -> float:
    return random.uniform(0, 0.02)


@fb.job
def plain(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    time.sleep(pause())
    with ctx.transaction() as connection:
        connection.execute(INSERT, ctx.fence)
        time.sleep(pause())
    time.sleep(pause())


@fb.job
async def awaited(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    await asyncio.sleep(pause())
    async with ctx.transaction() as connection:
        await connection.execute(INSERT, ctx.fence)
        await asyncio.sleep(pause())
    await asyncio.sleep(pause())


@fb.job(isolate=True)
def alone(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    with ctx.transaction() as connection:
        connection.execute(INSERT, ctx.fence)
        time.sleep(pause())


@fb.job
def fails(seq: int, ctx: Context) -> None:
    """Every other attempt, after its effect and before the commit."""
    say("start", seq, ctx)
    with ctx.transaction() as connection:
        connection.execute(INSERT, ctx.fence)
        if ctx.attempt % 2:
            raise RuntimeError("not this time")
