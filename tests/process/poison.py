"""The app of `test_poison.py`: innocents, and a dozen kinds of handlers that harm the process they run in.

The first thing a handler does is to count its start in a file that is mapped into memory: that needs no call of the
kernel, so no neighbour that ends the process can come between, and what began is known from outside, whatever the
worker believes. Then it says `start` in the file of effects, and an innocent `effect` when it is through. Each killer
is harmful at every run.
"""

import asyncio
import ctypes
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from forebay.client import Forebay
from forebay.work.context import Context
from tests.process.apps import say

fb = Forebay()

LONG = 120.0
STARTS = ".starts"
"""Beside the file of effects: a byte for each seq."""

_MORE_BYTES = 64 * 2**20
_RESULT_BYTES = 300_000_000
_DEEP = 1_000_000


with open(os.environ["FOREBAY_EFFECTS"] + STARTS, "r+b") as _file:
    _starts = mmap.mmap(_file.fileno(), 0)


def begin(seq: int, context: Context) -> None:
    _starts[seq] += 1
    say("start", seq, context)


class NotAnException(BaseException):
    """What `except Exception` does not catch."""


@fb.job
async def quick(seq: int, ctx: Context, pause: float) -> None:
    begin(seq, ctx)
    await asyncio.sleep(pause)
    say("effect", seq, ctx)


@fb.job
def plain(seq: int, ctx: Context, pause: float) -> None:
    begin(seq, ctx)
    time.sleep(pause)
    say("effect", seq, ctx)


@fb.job
def exits(seq: int, ctx: Context) -> None:
    begin(seq, ctx)
    os._exit(13)


@fb.job
def segfaults(seq: int, ctx: Context) -> None:
    begin(seq, ctx)
    ctypes.string_at(0)


@fb.job
def starves(seq: int, ctx: Context) -> None:
    """More memory than RLIMIT_AS leaves."""
    begin(seq, ctx)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MORE_BYTES, before[1]))
    try:
        bytearray(2**30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@fb.job
def stalls(seq: int, ctx: Context) -> None:
    """A call into C that keeps the interpreter's lock, far beyond the lease: no other thread of the process runs."""
    begin(seq, ctx)
    ctypes.PyDLL(None).sleep(ctypes.c_uint(int(LONG)))


@fb.job
def raises_exit(seq: int, ctx: Context) -> None:
    begin(seq, ctx)
    sys.exit(15)


@fb.job
def raises_base(seq: int, ctx: Context) -> None:
    begin(seq, ctx)
    raise NotAnException("on purpose")


@fb.job(isolate=True)
def closes_files(seq: int, ctx: Context) -> None:
    """In a process of its own: numbers of closed files are given to others, and a store's file could be harmed so."""
    begin(seq, ctx)
    os.closerange(3, 1_024)
    raise OSError("closed what was not mine")


@fb.job
def kills_parent(seq: int, ctx: Context) -> None:
    """The supervisor, or the worker that has put it into a process of its own."""
    begin(seq, ctx)
    os.kill(os.getppid(), signal.SIGKILL)
    raise ChildProcessError("killed the parent")


@fb.job(isolate=True, timeout=3)
def ignores_sigterm(seq: int, ctx: Context) -> None:
    begin(seq, ctx)
    ctypes.CDLL(None).signal(signal.SIGTERM, 1)
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        time.sleep(0.1)


@fb.job
def overflows(seq: int, ctx: Context) -> None:
    """The stack of C, which no check of recursion guards any more."""
    begin(seq, ctx)
    sys.setrecursionlimit(10**9)
    deep: list[object] = []
    for _ in range(_DEEP):
        deep = [deep]
    repr(deep)


@fb.job(keep_result=True)
def returns_too_much(seq: int, ctx: Context) -> str:
    begin(seq, ctx)
    return "x" * _RESULT_BYTES


@fb.job
def leaves_a_child(seq: int, ctx: Context) -> None:
    """A grandchild keeps stdout, and every other file of this process, when it is gone."""
    begin(seq, ctx)
    child = subprocess.Popen(["sleep", f"{LONG:g}"], close_fds=False)
    Path(f"{os.environ['FOREBAY_EFFECTS']}.child-{child.pid}").touch()
    os._exit(16)
