"""The lab's app, with handlers for all that a process can suffer: `forebay worker forebay_proof.lab.chaos.app:fb`.

LAB_CLOCK, `OFFSET/STROBE`, makes the wall clock of this process wrong before anything reads it: by so many seconds, and
with a strobe only every other so many seconds. Monotonic time stays what it is, as it does when a machine's clock is
set. LAB_TICKS adds a schedule that fires every second.
"""

import ctypes
import os
import resource
import signal
import time
from threading import Event, Thread
from typing import Final

import psutil

_CLOCK: Final = os.environ.get("LAB_CLOCK")


def _skew(offset: float, strobe: float) -> None:
    real = time.time_ns
    by = int(offset * 1_000_000_000)

    def wrong_ns() -> int:
        at = real()
        return at + by if not strobe or time.monotonic() // strobe % 2 else at

    time.time_ns = wrong_ns
    time.time = lambda: wrong_ns() / 1_000_000_000


if _CLOCK:
    _skew(*map(float, _CLOCK.split("/")))

from forebay import Context  # noqa: E402
from forebay_proof.load.app import QUEUE, effect, fb, started  # noqa: E402

_LONG: Final = 60.0
_LEASE: Final = float(os.environ.get("LAB_LEASE", "2"))
_MORE_BYTES: Final = 64 * 2**20

__all__ = ["fb"]


@fb.job(queue=QUEUE)
def dies_after_effect(seq: int, ctx: Context) -> None:
    """The first run has its effect and is killed before it is acknowledged."""
    started(seq, ctx)
    effect(seq, ctx)
    if ctx.fence[1] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(_LONG)


@fb.job(queue=QUEUE)
def exits(seq: int, ctx: Context) -> None:
    started(seq, ctx)
    os._exit(13)


@fb.job(queue=QUEUE)
def crashes(seq: int, ctx: Context) -> None:
    started(seq, ctx)
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(_LONG)


@fb.job(queue=QUEUE)
def hungers(seq: int, ctx: Context) -> None:
    """More memory than there is."""
    started(seq, ctx)
    used = psutil.Process().memory_info().vms
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MORE_BYTES, before[1]))
    try:
        bytearray(2**30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@fb.job(queue=QUEUE)
def holds_the_interpreter(seq: int, ctx: Context) -> None:
    """For three leases no other thread of this process runs."""
    started(seq, ctx)
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(3 * _LEASE * 1_000_000)))
    effect(seq, ctx)


@fb.job(queue=QUEUE)
def leaks_threads(seq: int, ctx: Context) -> None:
    started(seq, ctx)
    for _ in range(50):
        Thread(target=Event().wait, args=(_LONG,), daemon=True).start()
    effect(seq, ctx)


@fb.job(queue=QUEUE)
def eats_descriptors(seq: int, ctx: Context) -> None:
    """All that this process may have, for a moment; it cannot even write down its effect meanwhile."""
    started(seq, ctx)
    held: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        time.sleep(0.3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for handle in held:
            os.close(handle)
    effect(seq, ctx)


@fb.job(queue=QUEUE)
def forks(seq: int, ctx: Context) -> None:
    """The copy comes back from the handler, too, in a process of its own."""
    started(seq, ctx)
    if child := os.fork():
        os.waitpid(child, 0)
        effect(seq, ctx)


if os.environ.get("LAB_TICKS"):

    @fb.cron("* * * * * *", name="lab-tick", catch_up="all(60)")
    @fb.job(queue="lab-ticks")
    async def tick() -> None:
        """The ledger records each slot."""
