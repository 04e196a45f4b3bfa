"""A tally: a file in which a process counts its jobs and keeps the times of its calls, while others read it.

Standard library only, since peers run in an environment of their own. One writer, no lock: readers see numbers that are
a moment old. A channel keeps its last `KEPT` samples.

Layout, little endian, eight bytes each: jobs done, samples ever taken of each channel, then the channels as rings of
doubles (seconds).
"""

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CHANNELS: Final = ("claim", "enqueue", "late", "whole", "cpu")
"""Times of claims and enqueues, how late jobs started; the time and the CPU time of one whole piece of work."""

KEPT: Final = 1 << 17
_HEAD: Final = 1 + len(CHANNELS)
_SIZE: Final = 8 * (_HEAD + KEPT * len(CHANNELS))
VARIABLE: Final = "FOREBAY_BENCH_TALLY"
"""Names the folder in which a process makes its own."""


class Tally:
    def __init__(self, path: Path, *, new: bool) -> None:
        with path.open("w+b" if new else "rb") as file:
            if new:
                file.truncate(_SIZE)
            access = mmap.ACCESS_WRITE if new else mmap.ACCESS_READ
            self._map = mmap.mmap(file.fileno(), _SIZE, access=access)
        self._counts = memoryview(self._map)[: 8 * _HEAD].cast("Q")
        self._samples = memoryview(self._map)[8 * _HEAD :].cast("d")

    @classmethod
    def of_this_process(cls, folder: Path | None = None) -> "Tally":
        folder = folder or Path(os.environ[VARIABLE])
        folder.mkdir(exist_ok=True)
        return cls(folder / f"{os.getpid()}.tally", new=True)

    @property
    def jobs(self) -> int:
        return self._counts[0]

    def count(self, jobs: int = 1) -> None:
        self._counts[0] += jobs

    def add(self, channel: int, seconds: float) -> None:
        taken = self._counts[1 + channel]
        self._samples[channel * KEPT + taken % KEPT] = seconds
        self._counts[1 + channel] = taken + 1

    @contextmanager
    def whole(self, jobs: int) -> Iterator[None]:
        """One piece of work of so many jobs, without the start of its process."""
        began, spent = time.perf_counter(), time.process_time()
        yield
        self.add(WHOLE, time.perf_counter() - began)
        self.add(SPENT, time.process_time() - spent)
        self.count(jobs)

    def taken(self, channel: str) -> int:
        return self._counts[1 + CHANNELS.index(channel)]

    def samples(self, channel: str, since: int) -> list[float]:
        """Those after the first `since`, as far as they are still there."""
        start = CHANNELS.index(channel) * KEPT
        taken = self.taken(channel)
        return [self._samples[start + place % KEPT] for place in range(max(since, taken - KEPT), taken)]


CLAIM, ENQUEUE, LATE, WHOLE, SPENT = range(len(CHANNELS))


class Tallies:
    """All tallies of a folder, seen from outside; processes may join at any time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._found: dict[str, Tally] = {}

    def all(self) -> list[Tally]:
        for path in self._folder.glob("*.tally"):
            if path.name not in self._found and path.stat().st_size == _SIZE:
                self._found[path.name] = Tally(path, new=False)
        return list(self._found.values())

    def jobs(self) -> int:
        return sum(tally.jobs for tally in self.all())

    def marks(self) -> dict[int, int]:
        """How many samples there are by now, by tally and channel."""
        return {
            place * len(CHANNELS) + number: tally.taken(channel)
            for place, tally in enumerate(self.all())
            for number, channel in enumerate(CHANNELS)
        }

    def since(self, marks: dict[int, int], channel: str) -> list[float]:
        number = CHANNELS.index(channel)
        return [
            seconds
            for place, tally in enumerate(self.all())
            for seconds in tally.samples(channel, marks.get(place * len(CHANNELS) + number, 0))
        ]
