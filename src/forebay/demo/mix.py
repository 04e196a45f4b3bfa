"""The job mix of a busy day: 70 % fast, 20 % slow, 5 % that flap, 5 % that never work.

Every handler logs what it starts, and applies its effect as an idempotent consumer does: keyed by what the job is
about, so that a second run of the same job changes nothing. Both go where `MIX_EVIDENCE` says.
"""

import asyncio
import os
import random
import sqlite3
import time
from functools import lru_cache

from forebay import Context, Forebay, QueueSpec
from forebay.core.instant import ms
from forebay.core.policy import FullJitter, Routing

fb = Forebay()
fb.queue(QueueSpec(name="mix", routing=Routing(max_attempts=6, backoff=FullJitter(base=ms(50), cap=ms(800)))))


@fb.job(queue="mix")
async def fast(seq: int, ctx: Context | None = None) -> None:
    started(seq, ctx)
    await asyncio.sleep(random.uniform(0.001, 0.005))
    effect(seq, ctx)


@fb.job(queue="mix")
async def slow(seq: int, ctx: Context | None = None) -> None:
    started(seq, ctx)
    await asyncio.sleep(random.uniform(0.1, 0.4))
    effect(seq, ctx)


@fb.job(queue="mix")
async def flapping(seq: int, ctx: Context | None = None) -> None:
    started(seq, ctx)
    if ctx is not None and ctx.attempt <= 3 and random.random() < 0.5:
        raise ConnectionError("the dependency is down again")
    effect(seq, ctx)


@fb.job(queue="mix", max_attempts=3)
async def poison(seq: int, ctx: Context | None = None) -> None:
    started(seq, ctx)
    raise ValueError("this payload can never work")


@lru_cache
def evidence() -> sqlite3.Connection:
    """The dependency that handlers write to; deliberately not the queue's own store."""
    connection = sqlite3.connect(os.environ["MIX_EVIDENCE"], timeout=30, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("CREATE TABLE IF NOT EXISTS started(seq, job, delivery, attempt)")
    connection.execute("CREATE TABLE IF NOT EXISTS effect(seq PRIMARY KEY, job, delivery, at)")
    return connection


def started(seq: int, ctx: Context | None) -> None:
    if ctx is not None:
        evidence().execute(
            "INSERT INTO started (seq, job, delivery, attempt) VALUES (?, ?, ?, ?)", (seq, *ctx.fence, ctx.attempt)
        )


def effect(seq: int, ctx: Context | None) -> None:
    if ctx is not None:
        insert = "INSERT OR IGNORE INTO effect (seq, job, delivery, at) VALUES (?, ?, ?, ?)"
        evidence().execute(insert, (seq, *ctx.fence, time.time()))
