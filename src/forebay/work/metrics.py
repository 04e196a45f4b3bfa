"""Metrics as values: families of samples, histograms with fixed buckets, and the Prometheus text format.

A `Family` is one Prometheus metric with all its label sets; families are built anew for each scrape. `to_text` renders
them, so that a worker needs no metrics library; the HTTP server passes the same families to prometheus-client, which
also supports OpenMetrics. Durations are summed in whole microseconds, so sums are exact.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from threading import Lock
from typing import Final, Literal

from msgspec import Struct

from forebay.core.instant import Duration

BUCKETS: Final = (
    0.002,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1_800.0,
    7_200.0,
)
"""Upper bounds in seconds, the same for all histograms so that they can be compared. Steps of about 2.5 bound the error
of a percentile; beyond 10 s the steps are wider, because only the size of a backlog matters there."""

_EDGES: Final = [round(bound * 1_000_000) for bound in BUCKETS]

Labels = tuple[tuple[str, str], ...]
Sample = tuple[Labels, float]


class Histogram:
    """Counts durations by bucket, and their sum. Thread-safe."""

    __slots__ = ("_counts", "_guard", "_micros")

    def __init__(self) -> None:
        self._counts = [0] * (len(_EDGES) + 1)
        self._micros = 0
        self._guard = Lock()

    def add(self, micros: Duration, times: int = 1) -> None:
        """A negative duration counts as 0: the clocks of two machines may disagree."""
        micros = max(0, micros)
        with self._guard:
            self._counts[bisect_left(_EDGES, micros)] += times
            self._micros += micros * times

    def snapshot(self) -> "Distribution":
        with self._guard:
            counts, micros = list(self._counts), self._micros
        return Distribution(tuple(accumulate(counts)), micros)


class Distribution(Struct, frozen=True):
    """A snapshot of a histogram: cumulative counts, one for each bucket and the last for all values."""

    cumulative: tuple[int, ...]
    micros: Duration

    @property
    def count(self) -> int:
        return self.cumulative[-1]

    @property
    def seconds(self) -> float:
        return self.micros / 1_000_000

    def buckets(self) -> list[tuple[str, float]]:
        """The upper bounds as text, and the cumulative counts."""
        return [(f"{bound:g}", float(count)) for bound, count in zip(BUCKETS, self.cumulative, strict=False)] + [
            ("+Inf", float(self.count))
        ]


class Family(Struct, frozen=True):
    """One metric. Names of counters end in `_total`, of durations in `_seconds`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[Sample] = ()
    distributions: Sequence[tuple[Labels, Distribution]] = ()


def counter(name: str, description: str, samples: Iterable[Sample]) -> Family:
    return Family(name, "counter", description, list(samples))


def gauge(name: str, description: str, samples: Iterable[Sample]) -> Family:
    return Family(name, "gauge", description, list(samples))


def histogram(name: str, description: str, distributions: Iterable[tuple[Labels, Distribution]]) -> Family:
    return Family(name, "histogram", description, distributions=list(distributions))


def to_text(families: Iterable[Family]) -> str:
    """The Prometheus text format, version 0.0.4."""
    lines: list[str] = []
    for family in families:
        description = family.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines += [f"# HELP {family.name} {description}", f"# TYPE {family.name} {family.kind}"]
        lines += [f"{family.name}{_braced(labels)} {_number(value)}" for labels, value in family.samples]
        for labels, distribution in family.distributions:
            lines += [
                f"{family.name}_bucket{_braced((*labels, ('le', bound)))} {_number(count)}"
                for bound, count in distribution.buckets()
            ]
            lines.append(f"{family.name}_count{_braced(labels)} {_number(distribution.count)}")
            lines.append(f"{family.name}_sum{_braced(labels)} {_number(distribution.seconds)}")
    return "\n".join(lines) + "\n"


def _braced(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) and abs(value) < 2**53 else repr(float(value))
