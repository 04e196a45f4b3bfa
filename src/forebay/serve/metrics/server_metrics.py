"""`Metrics`: all metrics of one server, the part that a caller may see, and the format that a scraper accepts.

prometheus-client writes them from a private registry. The global one is not used, so an application that uses
prometheus-client itself is not affected.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from forebay.ledger_reader import ledgers
from forebay.serve.actor import Actor
from forebay.serve.metrics import families, gates
from forebay.serve.metrics.follower import LedgerFollower
from forebay.serve.metrics.history import RateHistory
from forebay.serve.metrics.meters import Meters
from forebay.serve.metrics.poller import StorePoller
from forebay.serve.metrics.readiness import Readiness
from forebay.serve.metrics.tally import OTHER, EventTally, LabelNames
from forebay.store.protocol import Store
from forebay.work.metrics import Family, Labels
from forebay.work.role import WorkerRole


class Metrics:
    """All metrics of one server. The server runs `roles`. `whole`: count the ledger from its first record."""

    def __init__(self, store: Store, *, names: LabelNames | None = None, whole: bool = False) -> None:
        self._store = store
        self._names = names or LabelNames()
        self.meters = Meters(self._names)
        self.tally = EventTally(self._names)
        self.history = RateHistory(store)
        self.followers = {
            name: LedgerFollower(ledger, self.tally, whole=whole, also=partial(self.history.take, name), cell=name)
            for name, ledger in ledgers(store).items()
        }
        self.history.followed = self.followers
        self.poller = StorePoller(store, self.tally)
        self.readiness = Readiness(store, self.poller)

    @property
    def roles(self) -> list[WorkerRole]:
        return [*self.followers.values(), self.poller, self.history]

    def families(self) -> Iterator[Family]:
        """All families, without a store call."""
        written = any(follower.written for follower in self.followers.values())
        counted = families.fleet(self.tally) if written or self.tally.records else ()
        return chain(
            counted,
            families.ledger_position(self.followers.values()),
            families.queues(self.poller, self._names.queue),
            families.logs(self.poller, self._names.queue),
            families.cells(self.poller),
            gates.families(self.poller.gates, self._names.queue),
            families.server(self.poller.vitals, self._store.capabilities),
            families.own(self.meters, self._store.capabilities),
        )


def visible_families(actor: Actor, all_families: Iterable[Family]) -> Iterator[Family]:
    """The families that an actor may see: only the series of its queues, and none with a tenant."""
    if actor.tenant is None and actor.queues == ("*",):
        yield from all_families
        return
    for family in all_families if actor.tenant is None else ():
        kept = replace(
            family,
            samples=[each for each in family.samples if _reached(actor, each[0])],
            distributions=[each for each in family.distributions if _reached(actor, each[0])],
        )
        if kept.samples or kept.distributions:
            yield kept


def _reached(actor: Actor, labels: Labels) -> bool:
    queue = dict(labels).get("queue")
    return queue is not None and queue != OTHER and actor.reaches(queue)


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
