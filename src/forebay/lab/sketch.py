"""A histogram in a file that is mapped into memory: others read it while it grows, and `kill -9` takes nothing of it.

One writer a file, no lock: readers see numbers that are a moment old. The buckets are those of `histogram`.

Layout, little endian, eight bytes each: a number of things counted, then the buckets.
"""

import mmap
from collections.abc import Iterable, MutableSequence
from pathlib import Path
from typing import Final

from forebay.lab.histogram import Histogram, place_of

BUCKETS: Final = 1_100
"""Up to some 48 minutes; what is longer counts as that."""

_SIZE: Final = 8 * (1 + BUCKETS)


class Sketch:
    """Lengths of time, and how many things came with them: jobs of claims, say."""

    def __init__(self, places: MutableSequence[int] | memoryview | None = None) -> None:
        self._places = [0] * (1 + BUCKETS) if places is None else places

    @classmethod
    def written_to(cls, path: Path) -> "Sketch":
        with path.open("w+b") as file:
            file.truncate(_SIZE)
            return cls(memoryview(mmap.mmap(file.fileno(), _SIZE)).cast("Q"))

    @classmethod
    def read_from(cls, path: Path) -> "Sketch":
        """As it is now; one that is just being made is empty."""
        data = path.read_bytes()
        return cls(list(memoryview(data).cast("Q")) if len(data) == _SIZE else None)

    @property
    def counted(self) -> int:
        return self._places[0]

    def add(self, seconds: float, things: int = 1) -> None:
        self._places[1 + min(BUCKETS - 1, place_of(seconds))] += 1
        self._places[0] += things

    def plus(self, others: Iterable["Sketch"], sign: int = 1) -> "Sketch":
        """Added up, or taken away with a sign of -1."""
        total = list(self._places)
        for other in others:
            total = [mine + sign * theirs for mine, theirs in zip(total, other._places, strict=True)]
        return Sketch(total)

    def histogram(self) -> Histogram:
        return Histogram({place: count for place, count in enumerate(self._places[1:]) if count})
