"""The app of the lab: `forebay worker forebay_proof.lab.app:fb`. Handlers wait as their payload says, and log.

An effect is one line, written by one write(2) to a file of its process below the folder that LAB_EFFECTS
names: seq, job and delivery (the fence), and when. A kill -9 leaves whole lines, at most a torn last one. LAB_STARTS
names a folder for a line at each start, too. Without them nothing is written.

LAB_DEPENDENCY names a file: while it exists, the dependency of the `dependent` is down. `flapping` fails as often as
its payload says and then succeeds, `poison` always fails.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Final

from forebay import Context, Forebay, QueueSpec
from forebay.core.instant import ms as milliseconds
from forebay.core.instant import seconds
from forebay.core.policy import FullJitter, Routing
from forebay_proof.lab.mix import MAX_ATTEMPTS

QUEUE: Final = "lab"
EFFECTS, STARTS, DEPENDENCY = "LAB_EFFECTS", "LAB_STARTS", "LAB_DEPENDENCY"
SPEC: Final = QueueSpec(
    name=QUEUE, routing=Routing(max_attempts=25, backoff=FullJitter(base=milliseconds(200), cap=seconds(20)))
)

fb = Forebay()
fb.queue(SPEC)


class HandlerLog:
    """A log of handler runs, made at its first line. A line is written whole or not at all, even on a full disk."""

    def __init__(self, variable: str, word: bytes) -> None:
        self._folder = os.environ.get(variable)
        self._form = b'{"seq":%d,"job_id":%d,"delivery":%d,"' + word + b'":"%s%06dZ"}\n'
        self._handle = -1
        self._stamp = (0, b"")  # replaced as one value: handlers are threads, too
        self.write = self._write if self._folder else self._skip

    def _skip(self, seq: int, ctx: Context) -> None:
        pass

    def _write(self, seq: int, ctx: Context) -> None:
        second, nanos = divmod(time.time_ns(), 1_000_000_000)
        known, stamp = self._stamp
        if second != known:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second)).encode()
            self._stamp = (second, stamp)
        job_id, delivery = ctx.fence
        line = self._form % (seq, job_id, delivery, stamp, nanos // 1_000)
        if self._handle < 0:
            self._open()
        if (written := os.write(self._handle, line)) != len(line):
            os.ftruncate(self._handle, os.lseek(self._handle, 0, os.SEEK_END) - written)
            raise OSError(f"only {written} bytes of a line could be written")

    def _open(self) -> None:
        folder = Path(self._folder or "")
        folder.mkdir(parents=True, exist_ok=True)
        name = folder / f"{os.getpid()}-{time.time_ns()}.ndjson"
        self._handle = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)


started: Final = HandlerLog(STARTS, b"started_at").write
effect: Final = HandlerLog(EFFECTS, b"effect_at").write


def is_down() -> bool:
    """Whether the dependency of `dependent` jobs is down."""
    return os.path.exists(os.environ.get(DEPENDENCY, ""))


async def work(seq: int, length: float, ctx: Context) -> None:
    started(seq, ctx)
    if length:
        await asyncio.sleep(length / 1000)
    effect(seq, ctx)


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
