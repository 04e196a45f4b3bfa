"""A tally: a file in which a process counts its jobs and the latencies of its calls, while other processes read it.

The file is mapped into memory: `kill -9` of the writer loses nothing. One writer, no lock: readers see numbers that are
a moment old. Standard library only, since the peers of a benchmark run in an environment of their own.

Layout, little endian, eight bytes each: jobs done; jobs claimed; then for each channel the sum of its latencies in
nanoseconds and the counts of its buckets, which are those of `histogram`.
"""

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Final

from forebay_proof.histogram import LatencyHistogram, bucket_of

CHANNELS: Final = ("claim", "enqueue", "late", "whole", "cpu")
"""Latencies of claims and enqueues, how late jobs started; the time and the CPU time of one whole piece of work."""

CLAIM, ENQUEUE, LATE, WHOLE, CPU = CHANNELS
BUCKETS: Final = 1_100
"""Up to some 48 minutes; a longer latency counts in the last one."""

FOLDER: Final = "FOREBAY_TALLY"
"""The environment variable that names the folder in which a process makes its tally."""

_COUNTERS: Final = 2
_CHANNEL: Final = 1 + BUCKETS
_SIZE: Final = 8 * (_COUNTERS + _CHANNEL * len(CHANNELS))
_FIRST: Final = {channel: _COUNTERS + number * _CHANNEL for number, channel in enumerate(CHANNELS)}


class TallyFile:
    """The tally in a file; `new` makes it, for its one writer."""

    def __init__(self, path: Path, *, new: bool) -> None:
        with path.open("w+b" if new else "rb") as file:
            if new:
                file.truncate(_SIZE)
            access = mmap.ACCESS_WRITE if new else mmap.ACCESS_READ
            self._numbers = memoryview(mmap.mmap(file.fileno(), _SIZE, access=access)).cast("Q")

    @classmethod
    def of_this_process(cls, folder: Path | None = None) -> "TallyFile":
        folder = folder or Path(os.environ[FOLDER])
        folder.mkdir(exist_ok=True)
        return cls(folder / f"{os.getpid()}.tally", new=True)

    @property
    def jobs(self) -> int:
        return self._numbers[0]

    @property
    def claimed(self) -> int:
        return self._numbers[1]

    def count(self, jobs: int = 1) -> None:
        self._numbers[0] += jobs

    def count_claimed(self, jobs: int) -> None:
        self._numbers[1] += jobs

    def add(self, channel: str, seconds: float) -> None:
        first = _FIRST[channel]
        self._numbers[first] += max(0, int(1e9 * seconds))
        self._numbers[first + 1 + min(BUCKETS - 1, bucket_of(seconds))] += 1

    @contextmanager
    def whole(self, jobs: int) -> Iterator[None]:
        """One piece of work of so many jobs, without the start of its process."""
        began, spent = time.perf_counter(), time.process_time()
        yield
        self.add(WHOLE, time.perf_counter() - began)
        self.add(CPU, time.process_time() - spent)
        self.count(jobs)

    def seconds(self, channel: str) -> float:
        """The sum of its latencies, exact to a nanosecond each."""
        return self._numbers[_FIRST[channel]] / 1e9

    def histogram(self, channel: str) -> LatencyHistogram:
        first = _FIRST[channel] + 1
        return LatencyHistogram(
            {bucket: count for bucket, count in enumerate(self._numbers[first : first + BUCKETS]) if count}
        )


class Tallies:
    """All tallies of a folder, read from outside; processes may join at any time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._found: dict[str, TallyFile] = {}

    def all(self) -> dict[str, TallyFile]:
        """By the name of the process."""
        for path in self._folder.glob("*.tally"):
            if path.stem not in self._found and path.stat().st_size == _SIZE:
                self._found[path.stem] = TallyFile(path, new=False)
        return dict(self._found)

    def jobs(self) -> int:
        return sum(tally.jobs for tally in self.all().values())

    def claimed(self) -> int:
        return sum(tally.claimed for tally in self.all().values())

    def busy(self) -> int:
        """How many processes have done a job."""
        return sum(tally.jobs > 0 for tally in self.all().values())

    def seconds(self, channel: str) -> float:
        return sum(tally.seconds(channel) for tally in self.all().values())

    def histogram(self, channel: str) -> LatencyHistogram:
        return reduce(
            LatencyHistogram.plus, (tally.histogram(channel) for tally in self.all().values()), LatencyHistogram()
        )
