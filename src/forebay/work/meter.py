"""What a process counts, as values: families of samples, histograms with fixed buckets, and their text.

A `Family` is what Prometheus calls a metric with all its labels. Whoever collects builds families anew at each look;
`text_of` writes them in Prometheus' own text format, so that a worker needs no library to be scraped. The server hands
the same families to prometheus-client, which speaks more dialects.

Lengths are counted in whole microseconds: sums are exact, however many there are.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Final, Literal

from msgspec import Struct

from forebay.core.instant import Span

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
"""Seconds. Steps of about 2.5 from what a claim takes to what people wait for, so that a percentile is off by no more
than that; minutes and hours beyond, where only the size of a backlog matters. The same for all, to be compared."""

_EDGES: Final = [round(bound * 1_000_000) for bound in BUCKETS]

Labels = tuple[tuple[str, str], ...]
Sample = tuple[Labels, float]


class Histogram:
    """How many lengths fell into which bucket, and their sum. Safe from any thread."""

    __slots__ = ("_counts", "_guard", "_micros")

    def __init__(self) -> None:
        self._counts = [0] * (len(_EDGES) + 1)
        self._micros = 0
        self._guard = Lock()

    def add(self, length: Span, times: int = 1) -> None:
        """A length in microseconds; clocks of two machines may disagree, so one below 0 counts as 0."""
        length = max(0, length)
        with self._guard:
            self._counts[bisect_left(_EDGES, length)] += times
            self._micros += length * times

    def look(self) -> "Distribution":
        with self._guard:
            counts, micros = list(self._counts), self._micros
        heights, seen = [], 0
        for count in counts:
            seen += count
            heights.append(seen)
        return Distribution(tuple(heights), micros)


class Distribution(Struct, frozen=True):
    """A histogram at one moment: `heights` are cumulative, one a bucket and the last for all."""

    heights: tuple[int, ...]
    micros: Span

    @property
    def count(self) -> int:
        return self.heights[-1]

    @property
    def seconds(self) -> float:
        return self.micros / 1_000_000

    def bars(self) -> list[tuple[str, float]]:
        """The upper bounds as they are written, and the heights."""
        return [(f"{bound:g}", float(height)) for bound, height in zip(BUCKETS, self.heights, strict=False)] + [
            ("+Inf", float(self.count))
        ]


class Family(Struct, frozen=True):
    """One metric. Counters end in `_total`, lengths of time in `_seconds`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[Sample] = ()
    distributions: Sequence[tuple[Labels, Distribution]] = ()


def counter(name: str, told: str, samples: Iterable[Sample]) -> Family:
    return Family(name, "counter", told, list(samples))


def gauge(name: str, told: str, samples: Iterable[Sample]) -> Family:
    return Family(name, "gauge", told, list(samples))


def histogram(name: str, told: str, distributions: Iterable[tuple[Labels, Distribution]]) -> Family:
    return Family(name, "histogram", told, distributions=list(distributions))


def text_of(families: Iterable[Family]) -> str:
    """In the text format 0.0.4."""
    lines: list[str] = []
    for family in families:
        told = family.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines += [f"# HELP {family.name} {told}", f"# TYPE {family.name} {family.kind}"]
        lines += [f"{family.name}{_braced(labels)} {_number(value)}" for labels, value in family.samples]
        for labels, seen in family.distributions:
            lines += [
                f"{family.name}_bucket{_braced((*labels, ('le', bound)))} {_number(height)}"
                for bound, height in seen.bars()
            ]
            lines.append(f"{family.name}_count{_braced(labels)} {_number(seen.count)}")
            lines.append(f"{family.name}_sum{_braced(labels)} {_number(seen.seconds)}")
    return "\n".join(lines) + "\n"


def _braced(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) and abs(value) < 2**53 else repr(float(value))
