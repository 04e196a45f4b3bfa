"""The desk of one server's dashboard: what all its pages share, so that many readers cost a store what one does.

Numbers of all queues are asked for at most once a second. On a store where that takes long, a reader gets the last ones
and the next ones are fetched meanwhile, so that no page waits for a count of everything. What the server's metrics have
just counted is not counted again; a first page that comes before anything was counted says so instead of waiting.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from threading import Lock, Thread
from time import monotonic
from typing import Final, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.limits import BATCH_MOST
from forebay.core.presence import Presence, unhandled_kinds
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Actor
from forebay.serve.dashboard.moves import Moves
from forebay.serve.dashboard.views.census import Survey
from forebay.serve.dashboard.views.finding import NewestId
from forebay.serve.dashboard.views.pulse import Pulse
from forebay.serve.figures import Figures, exists, figures_of, of_totals
from forebay.serve.ground import Ground
from forebay.serve.security.reach import sees_all
from forebay.store.protocol import Backlog, Totals

T = TypeVar("T")

_log = logging.getLogger("forebay.serve")

STREAMS_MOST: Final = 100
"""Live pages at once; further ones stay as they are until they are loaded again."""

_SURVEYS_MOST: Final = 16
_FRESH_SECONDS: Final = 1.0
_STALE_SECONDS: Final = 60.0
_SLOW_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 0.05


class Heard(Struct, Generic[T], frozen=True):
    """An answer that somebody else got: when they had it, and how long it took them."""

    answer: T
    at: float
    took: float


class Lately(Generic[T]):
    """An answer that may be a second old; a slow one may be older, and is renewed while it is read.

    `overhear`: what others were told, if they asked the same; it counts as an answer to us.
    """

    def __init__(self, ask: Callable[[], T], overhear: Callable[[], Heard[T] | None] = lambda: None) -> None:
        self._ask = ask
        self._overhear = overhear
        self._guard = Lock()
        self._answer: T | None = None
        self._asked_at = float("-inf")
        self._spoilt_at = float("-inf")
        self._took = 0.0

    def get(self) -> T:
        self._listen()
        age = monotonic() - self._asked_at
        known = self._answer
        if known is not None and age < _FRESH_SECONDS:
            return known
        if known is None or self._took < _SLOW_SECONDS or age > _STALE_SECONDS:
            with self._guard:
                return self._renewed()
        if self._guard.acquire(blocking=False):
            Thread(target=self._renew_aside, name="forebay-desk", daemon=True).start()
        return known

    def soon(self, seconds: float) -> T | None:
        """As `get`; None when there was never an answer and none comes in this time. It is fetched meanwhile."""
        self._listen()
        if self._answer is None:
            if self._guard.acquire(blocking=False):
                Thread(target=self._renew_aside, name="forebay-desk", daemon=True).start()
            if not self._guard.acquire(timeout=seconds):
                return None
            self._guard.release()
        return self.get()

    def spoil(self) -> None:
        """Something was changed by this server: the next reader asks anew."""
        self._spoilt_at = monotonic()
        self._asked_at = float("-inf")

    def _listen(self) -> None:
        heard = self._overhear()
        if heard is not None and heard.at > self._asked_at and heard.at - heard.took > self._spoilt_at:
            self._answer, self._asked_at, self._took = heard.answer, heard.at, heard.took

    def _renew_aside(self) -> None:
        try:
            self._renewed()
        except Exception as error:
            _log.warning("the dashboard's numbers are old: %s: %s", type(error).__name__, error)
        finally:
            self._guard.release()

    def _renewed(self) -> T:
        if self._answer is not None and monotonic() - self._asked_at < _FRESH_SECONDS:
            return self._answer
        began = monotonic()
        answer = self._ask()
        self._took = monotonic() - began
        self._answer, self._asked_at = answer, monotonic() if began >= self._spoilt_at else float("-inf")
        return answer


class Desk:
    """Kept at `app.state.desk`."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.store = ground.store
        self.pulse = Pulse(ground.store)
        self.moves = Moves(ground)
        self.newest = NewestId(ground.store)
        self.streams = 0
        self._totals: Lately[Totals] = Lately(partial(self.store.totals, BATCH_MOST), self._counted)
        self._parts: OrderedDict[tuple[str, ...], Lately[Figures]] = OrderedDict()
        self._specs: Lately[list[QueueSpec]] = Lately(self.store.specs)
        self._workers: Lately[list[Presence]] = Lately(partial(self.store.workers, "", BATCH_MOST))
        self._surveys: OrderedDict[str | None, Survey] = OrderedDict()

    def figures(self, actor: Actor) -> Figures:
        """The queues that the actor reaches, logs and the server's own aside."""
        if not sees_all(actor):
            return self._part(actor).get()
        return of_totals(self._totals.get(), self._logs())

    def figures_soon(self, actor: Actor) -> Figures | None:
        """None: this server has just started, and the first count takes a while."""
        if not sees_all(actor):
            return self._part(actor).soon(_PATIENCE_SECONDS)
        counted = self._totals.soon(_PATIENCE_SECONDS)
        return None if counted is None else of_totals(counted, self._logs())

    def backlog(self, actor: Actor, name: str) -> Backlog | None:
        """One queue, as it is now; None: there is none for this actor."""
        if not actor.reaches(name) or name in self._logs() or not exists(self.store, name):
            return None
        return self.store.backlog([name])[0]

    def specs(self, actor: Actor) -> dict[str, QueueSpec]:
        return {spec.name: spec for spec in self._specs.get() if actor.reaches(spec.name)}

    def workers(self) -> list[Presence]:
        """Those that announced themselves, whichever queues they serve."""
        return self._workers.get()

    def unhandled(self, actor: Actor) -> dict[str, list[str]]:
        """By queue: the kinds that no worker handles."""
        found: dict[str, list[str]] = {}
        for queue, kind in unhandled_kinds(self.workers()):
            if actor.reaches(queue):
                found.setdefault(queue, []).append(kind)
        return found

    def survey(self, actor: Actor) -> Survey:
        """The dead letters that the actor's tenant has; queues are told apart by whoever shows them."""
        survey = self._surveys.pop(actor.tenant, None) or Survey(self.store, actor.tenant)
        self._surveys[actor.tenant] = survey
        if len(self._surveys) > _SURVEYS_MOST:
            self._surveys.popitem(last=False)
        return survey

    def _logs(self) -> set[str]:
        return {spec.name for spec in self._specs.get() if spec.is_log}

    def _part(self, actor: Actor) -> Lately[Figures]:
        """For an actor of some queues; actors with the same ones share it."""
        whole = replace(actor, tenant=None)
        part = self._parts.pop(actor.queues, None) or Lately(partial(figures_of, self.store, whole))
        self._parts[actor.queues] = part
        if len(self._parts) > _SURVEYS_MOST:
            self._parts.popitem(last=False)
        return part

    def _counted(self) -> Heard[Totals] | None:
        seen = self.ground.metrics.watch.seen
        return None if seen is None else Heard(seen.totals, seen.at, seen.took)

    def spoil(self) -> None:
        """After a change by this server: what is shown next is new."""
        self._totals.spoil()
        for part in self._parts.values():
            part.spoil()
        self._specs.spoil()
        for survey in self._surveys.values():
            survey.spoil()
