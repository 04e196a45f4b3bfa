"""What this process knows of the queues' specs, by version.

Every put and claim carries the versions that it relies on; the server refuses it when one has changed, and the caller
reads the specs anew. So all processes follow a new spec at once, without asking for it in every call.
"""

from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any

from forebay.core.job import Draft
from forebay.core.policy import Bounded, Fair, Fifo
from forebay.core.rank import BY_TIME, rank_rule
from forebay.core.share import Share, start_of
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from forebay.store.postgres.connect import Rows, Server
from forebay.store.postgres.runs import Stamp

Fetch = Callable[[str, Iterable[Any]], Rows]

_READ = "SELECT name, version, spec FROM forebay.queue WHERE name = ANY (%s)"


class Known:
    """What follows from one version of a spec. `direct`: its jobs need nothing but their stamps."""

    def __init__(self, name: str, version: int, text: str | None) -> None:
        spec = QueueSpec(name=name) if text is None else QueueSpec.from_json(text)
        self.version = version
        self.spec = spec
        self.stamper = Stamper(spec)
        self.bounded = isinstance(spec.capacity, Bounded)
        self.direct = not (self.bounded or self.stamper.gated or spec.is_log or spec.is_broker)
        self.shared = spec.share is not None
        self.turn_most = 1 if spec.share is None else max([spec.share.default, *spec.share.weights.values()])
        self._share: Share | None = None
        self._guard = Lock()
        self.by_time = isinstance(spec.selection, Fifo)
        alike = self.by_time and spec.share is None
        self._only = Stamp(BY_TIME, spec.routing.max_attempts, "") if alike else None

    def deal(self, number: int, count: int, ready: Mapping[str, int]) -> list[tuple[str, int]]:
        """Which classes give how many, of those that have so many. Processes differ in `number`, so in who is first."""
        with self._guard:
            if self._share is None:
                fair = self.spec.share or Fair()
                self._share = Share(fair.weights, fair.default, start_of(number))
            for name in ready:
                self._share.join(name)
            return self._share.deal(count, lambda name: ready.get(name, 0))

    def stamp(self, draft: Draft) -> Stamp:
        """For a draft without gates."""
        if self._only is not None and draft.max_attempts is None:
            return self._only
        lives = draft.max_attempts or self.spec.routing.max_attempts
        return Stamp(rank_rule(self.spec.selection, draft), lives, self.stamper.cls(draft))


class Specs:
    """Specs by the name of their queue. `walked`: how far the keys that are taken by state were looked through."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._known: dict[str, Known] = {}
        self.walked = ("", "")

    def of(self, name: str, fetch: Fetch | None = None) -> Known:
        known = self._known.get(name)
        if known is None:
            self.reload([name], fetch)
            known = self._known[name]
        return known

    def reload(self, names: Iterable[str], fetch: Fetch | None = None) -> None:
        """Read these specs again; what has not changed keeps its turns. A turn reads them by its own connection:
        many who each had one, and waited for one more, would wait for each other."""
        names = list(names)
        found = {name: (version, text) for name, version, text in (fetch or self._server.query)(_READ, (names,))}
        for name in names:
            version, text = found.get(name, (0, None))
            known = self._known.get(name)
            if known is None or known.version != version:
                self._known[name] = Known(name, version, text)


def is_plain(spec: QueueSpec) -> bool:
    """Whether a job of this queue needs nothing but the time: no rank, class, gate, bound, merge or route."""
    known = Known(spec.name, 0, spec.to_json().decode())
    return known.direct and isinstance(spec.selection, Fifo) and spec.share is None
