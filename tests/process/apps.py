"""The app that the process tests run: handlers that work, and handlers that do every bad thing a process can suffer.

Every process that loads this file says `boot`, every handler says `start` first and `effect` when its effect is there:
one line each, with its fence, appended to the file that FOREBAY_EFFECTS names, which is opened anew for every line, for
some handlers close what they do not own. Started as a program, it is a supervisor of workers of this app.
"""

import asyncio
import ctypes
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from forebay.client import Forebay
from forebay.work.context import Context
from forebay.work.options import Options
from forebay.work.supervisor import Supervisor

EFFECTS = os.environ.get("FOREBAY_EFFECTS", os.devnull)
LONG = 60.0

fb = Forebay()


def say(word: str, seq: int, context: Context | None = None) -> None:
    """word seq job delivery attempt pid microseconds."""
    job, delivery, attempt = (*context.fence, context.attempt) if context is not None else (0, 0, 0)
    line = f"{word} {seq} {job} {delivery} {attempt} {os.getpid()} {time.monotonic_ns() // 1_000}\n"
    file = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def wait_for(name: str) -> None:
    """Until the test has made the file, or for a long time."""
    deadline = time.monotonic() + LONG
    while not Path(f"{EFFECTS}.{name}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)


say("boot", 0)


@fb.job
async def quick(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    await asyncio.sleep(0.01)
    say("effect", seq, ctx)


@fb.job
def plain(seq: int, ctx: Context, pause: float = 0.01) -> None:
    say("start", seq, ctx)
    time.sleep(pause)
    say("effect", seq, ctx)


@fb.job(keep_result=True)
async def counted(seq: int, ctx: Context) -> int:
    """The result is the delivery: whose acknowledgement was taken."""
    say("start", seq, ctx)
    await asyncio.sleep(0.01)
    say("effect", seq, ctx)
    return ctx.fence[1]


@fb.job(keep_result=True)
def counted_plain(seq: int, ctx: Context) -> int:
    say("start", seq, ctx)
    time.sleep(0.01)
    say("effect", seq, ctx)
    return ctx.fence[1]


@fb.job
def stuck_once(seq: int, ctx: Context) -> None:
    """The first delivery never ends by itself."""
    say("start", seq, ctx)
    if ctx.fence[1] == 1:
        time.sleep(LONG)
    say("effect", seq, ctx)


@fb.job
def stuck(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    time.sleep(LONG)


@fb.job
def effect_then_stuck(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    say("effect", seq, ctx)
    if ctx.fence[1] == 1:
        time.sleep(LONG)


@fb.job(keep_result=True)
def reported_when(seq: int, ctx: Context, word: str = "go") -> int:
    """Ends when the file `go-<delivery>` is made; the result is the delivery."""
    say("start", seq, ctx)
    wait_for(f"{word}-{ctx.fence[1]}")
    say("effect", seq, ctx)
    return ctx.fence[1]


# Poison


@fb.job
def exits(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    os._exit(13)


@fb.job
async def exits_on_the_loop(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    os._exit(14)


@fb.job
def crashes(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(LONG)


@fb.job
def kills_itself(seq: int, ctx: Context) -> None:
    """As the kernel does it when memory runs out."""
    say("start", seq, ctx)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(LONG)


@fb.job
def kills_its_parent(seq: int, ctx: Context) -> None:
    """In quarantine only: elsewhere the parent may be any process."""
    say("start", seq, ctx)
    if "FOREBAY_CHILD_PIPES" in os.environ:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(LONG)


@fb.job
def exits_late(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    time.sleep(0.2)
    os._exit(13)


@fb.job
def raises_exit(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    sys.exit(15)


@fb.job
def holds_the_interpreter(seq: int, ctx: Context) -> None:
    """A call that does not let go of the interpreter's lock: no other thread of this process runs meanwhile."""
    say("start", seq, ctx)
    ctypes.PyDLL(None).usleep(ctypes.c_uint(8_000_000))
    say("effect", seq, ctx)


@fb.job
async def holds_the_loop_and_the_interpreter(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    await asyncio.sleep(0.05)
    ctypes.PyDLL(None).usleep(ctypes.c_uint(8_000_000))
    say("effect", seq, ctx)


@fb.job
async def called_on_the_loop(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    await asyncio.to_thread(wait_for, f"go-{ctx.fence[1]}")
    say("effect", seq, ctx)


@fb.job
def closes_files(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    os.closerange(3, 1_024)
    raise OSError("closed what was not mine")


@fb.job
def forks(seq: int, ctx: Context) -> None:
    """The copy comes back from the handler too, in a process of its own."""
    say("start", seq, ctx)
    if child := os.fork():
        os.waitpid(child, 0)
        say("effect", seq, ctx)


@fb.job(timeout=0.3)
def hangs(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    time.sleep(LONG)


@fb.job
def hungry(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 64 * 2**20, before[1]))
    try:
        bytearray(2**30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# In processes of their own


@fb.job(isolate=True)
def alone(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    say("effect", seq, ctx)


@fb.job(isolate=True)
async def alone_and_asynchronous(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    await asyncio.sleep(0.01)
    say("effect", seq, ctx)


@fb.job(isolate=True)
def alone_exits(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    os._exit(13)


@fb.job(isolate=True)
def alone_killed(seq: int, ctx: Context) -> None:
    """As the kernel does it when memory runs out."""
    say("start", seq, ctx)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(LONG)


@fb.job(isolate=True)
def alone_raises(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    raise SystemExit(3)


@fb.job(isolate=True, timeout=2.5)
def alone_hangs(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    with suppress(BaseException):
        time.sleep(LONG)
    time.sleep(LONG)


@fb.job(isolate=True)
def alone_stuck_once(seq: int, ctx: Context) -> None:
    say("start", seq, ctx)
    if ctx.fence[1] == 1:
        time.sleep(LONG)
    say("effect", seq, ctx)


if __name__ == "__main__":
    processes, options = int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Options)
    code = Supervisor("tests.process.apps:fb", fb, options, processes).run()
    fb.close()
    sys.exit(code)
