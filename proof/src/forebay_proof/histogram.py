"""Latencies: a histogram in bounded memory, and the exact percentile of a few samples. Standard library only.

The buckets of a histogram grow by 2 %, from a microsecond on. Its percentile is never less than the truth and at most
2 % more. Histograms of several processes add up.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

_GROWTH: Final = math.log(1.02)
_MIN_SECONDS: Final = 1e-6


def bucket_of(seconds: float) -> int:
    """The bucket of a duration; bucket n ends at 1.02ⁿ microseconds."""
    return math.ceil(math.log(seconds / _MIN_SECONDS) / _GROWTH) if seconds > _MIN_SECONDS else 0


def percentile(samples: Iterable[float], percent: float) -> float:
    """The least sample that `percent` of them do not exceed; 0 without samples."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


@dataclass
class LatencyHistogram:
    """Counts by bucket."""

    counts: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float, times: int = 1) -> None:
        bucket = bucket_of(seconds)
        self.counts[bucket] = self.counts.get(bucket, 0) + times

    def plus(self, other: "LatencyHistogram") -> "LatencyHistogram":
        buckets = self.counts.keys() | other.counts.keys()
        return LatencyHistogram(
            {bucket: self.counts.get(bucket, 0) + other.counts.get(bucket, 0) for bucket in buckets}
        )

    def minus(self, earlier: "LatencyHistogram") -> "LatencyHistogram":
        """What was added since an earlier reading of the same histogram."""
        left = {bucket: count - earlier.counts.get(bucket, 0) for bucket, count in self.counts.items()}
        return LatencyHistogram({bucket: count for bucket, count in left.items() if count})

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def percentile(self, percent: float) -> float:
        """In seconds; 0 if nothing was added."""
        wanted = percent * self.total / 100 * (1 - 1e-12)
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return _MIN_SECONDS * math.exp(bucket * _GROWTH)
        return 0.0
