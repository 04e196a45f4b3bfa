"""`Metrics`: everything that is counted in one server, put together, and what of it a caller may see."""

from collections.abc import Iterable, Iterator
from itertools import chain

from msgspec.structs import replace

from forebay.serve.actor import Actor
from forebay.serve.metrics import families, gates
from forebay.serve.metrics.follower import Follower
from forebay.serve.metrics.history import History
from forebay.serve.metrics.meters import Meters
from forebay.serve.metrics.names import OTHER, Names
from forebay.serve.metrics.readiness import Readiness
from forebay.serve.metrics.tally import Tally
from forebay.serve.metrics.watch import Watch
from forebay.store.protocol import Store
from forebay.work.meter import Family, Labels
from forebay.work.role import Role


class Metrics:
    """`roles` are to be run (`Ground.add_role`); `meters` are to be told. `whole`: count the ledger from its start."""

    def __init__(self, store: Store, *, names: Names | None = None, whole: bool = False) -> None:
        self._store = store
        self._names = names or Names()
        self.meters = Meters(self._names)
        self.tally = Tally(self._names)
        self.history = History(store)
        self.follower = Follower(store, self.tally, whole=whole, also=self.history.take)
        self.history.followed = self.follower
        self.watch = Watch(store, self.tally)
        self.readiness = Readiness(store, self.watch)

    @property
    def roles(self) -> list[Role]:
        return [self.follower, self.watch, self.history]

    def families(self) -> Iterator[Family]:
        """All of it, without a call of the store."""
        counted = families.fleet(self.tally) if self.follower.written or self.tally.records else ()
        return chain(
            counted,
            families.following(self.follower),
            families.queues(self.watch, self._names.queue),
            families.logs(self.watch, self._names.queue),
            gates.families(self.watch.gates, self._names.queue),
            families.server(self.watch.vitals, self._store.capabilities),
            families.own(self.meters, self._store.capabilities),
        )


def seen_by(actor: Actor, told: Iterable[Family]) -> Iterator[Family]:
    """What an actor may know: one for some queues sees the series of those, one for a tenant sees none."""
    if actor.tenant is None and actor.queues == ("*",):
        yield from told
        return
    for family in told if actor.tenant is None else ():
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
