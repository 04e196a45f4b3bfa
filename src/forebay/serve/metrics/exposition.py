"""Metric families in the format that a scraper accepts, written by prometheus-client from a private registry.

The global registry is not used, so an application that uses prometheus-client itself is not affected.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from forebay.work.metrics import Family


class Families(Collector):
    """A custom collector: families are built at every scrape."""

    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families():
            yield _metric(family)


def exposition(accept: str, families: Iterable[Family], *, process: bool) -> tuple[bytes, str]:
    """The text and its content type. `process`: include memory, CPU time and open files of this process."""
    registry = CollectorRegistry()
    registry.register(Families(lambda: families))
    if process:
        ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _metric(family: Family) -> Metric:
    match family.kind:
        case "counter":
            counted = CounterMetricFamily(family.name, family.help, labels=_names(family))
            for labels, value in family.samples:
                counted.add_metric([text for _, text in labels], value)
            return counted
        case "gauge":
            measured = GaugeMetricFamily(family.name, family.help, labels=_names(family))
            for labels, value in family.samples:
                measured.add_metric([text for _, text in labels], value)
            return measured
        case "histogram":
            spread = HistogramMetricFamily(family.name, family.help, labels=_names(family))
            for labels, seen in family.distributions:
                spread.add_metric([text for _, text in labels], seen.buckets(), seen.seconds)
            return spread


def _names(family: Family) -> list[str]:
    for labels, _ in family.samples or family.distributions:
        return [name for name, _ in labels]
    return []
