"""What each job of `bench.recovery` does: a line at its start, three seconds, a line at its end.

Only the standard library: it runs in the environment of the peers.
"""

import asyncio
import os
import time

FILE = "FOREBAY_BENCH_NOTES"
URL = "FOREBAY_URL"
SECONDS = 3.0


def note(what: str, number: int) -> None:
    """A line that another process sees at once, whole."""
    with open(os.environ[FILE], "a") as notes:
        notes.write(f"{what} {number} {time.time():.3f}\n")


def nap(number: int) -> None:
    note("start", number)
    time.sleep(SECONDS)
    note("end", number)


async def anap(number: int) -> None:
    note("start", number)
    await asyncio.sleep(SECONDS)
    note("end", number)
