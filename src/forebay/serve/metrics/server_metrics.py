"""`Metrics`: all metrics of one server, and the part that a caller may see."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

from msgspec.structs import replace

from forebay.ledger_reader import ledgers
from forebay.serve.actor import Actor
from forebay.serve.metrics import families, gates
from forebay.serve.metrics.follower import LedgerFollower
from forebay.serve.metrics.history import RateHistory
from forebay.serve.metrics.labels import OTHER, LabelNames
from forebay.serve.metrics.meters import Meters
from forebay.serve.metrics.poller import StorePoller
from forebay.serve.metrics.readiness import Readiness
from forebay.serve.metrics.tally import EventTally
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
