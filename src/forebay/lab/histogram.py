"""`Histogram`: how long things took, in bounded memory: buckets that grow by two hundredths, from a microsecond on.

A percentile is exact to a bucket: it is never less than the truth and at most 2 % more. Histograms of several
processes add up.
"""

import math
from typing import Final

from msgspec import Struct

_GROWTH: Final = math.log(1.02)
_LEAST: Final = 1e-6


class Histogram(Struct):
    """Counts by bucket; bucket n ends at 1.02ⁿ microseconds."""

    counts: dict[int, int] = {}

    def add(self, seconds: float, times: int = 1) -> None:
        place = math.ceil(math.log(seconds / _LEAST) / _GROWTH) if seconds > _LEAST else 0
        self.counts[place] = self.counts.get(place, 0) + times

    def plus(self, other: "Histogram") -> "Histogram":
        places = self.counts.keys() | other.counts.keys()
        return Histogram({place: self.counts.get(place, 0) + other.counts.get(place, 0) for place in places})

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def percentile(self, percent: float) -> float:
        """In seconds; 0 if nothing was added."""
        wanted = percent * self.total / 100 * (1 - 1e-12)
        seen = 0
        for place in sorted(self.counts):
            seen += self.counts[place]
            if seen >= wanted:
                return _LEAST * math.exp(place * _GROWTH)
        return 0.0

    @property
    def most(self) -> float:
        return self.percentile(100)
