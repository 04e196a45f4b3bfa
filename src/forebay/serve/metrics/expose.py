"""The families in the dialect that a scraper asks for: prometheus-client writes them, from a registry of our own.

Nothing global is touched: an application that uses prometheus-client itself keeps its own registry to itself.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from forebay.work.meter import Family


class Families(Collector):
    """A custom collector: families are built anew at every scrape."""

    def __init__(self, told: Callable[[], Iterable[Family]]) -> None:
        self._told = told

    def collect(self) -> Iterator[Metric]:
        for family in self._told():
            yield _metric(family)


def exposition(accept: str, told: Iterable[Family], *, process: bool) -> tuple[bytes, str]:
    """The text and its content type. `process`: with the memory, the processor time and the files of this process."""
    registry = CollectorRegistry()
    registry.register(Families(lambda: told))
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
                spread.add_metric([text for _, text in labels], seen.bars(), seen.seconds)
            return spread


def _names(family: Family) -> list[str]:
    for labels, _ in family.samples or family.distributions:
        return [name for name, _ in labels]
    return []
