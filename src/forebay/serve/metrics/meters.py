"""Counters of this process: requests, refusals, conflicts, stale settles, store calls and their failures.

What the whole fleet did is counted from the ledger (`tally`). Labels come from the code (methods, routes, verbs) or are
limited (`labels`), so that no caller can make the number of series grow.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from threading import Lock
from time import perf_counter
from typing import Any, Final, ParamSpec, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.core.errors import Closed, KeyConflict, QueueFull, StoreFailed
from forebay.core.lease import Settled
from forebay.serve.metrics.tally import OTHER, LabelNames
from forebay.work.metrics import Histogram

P = ParamSpec("P")
R = TypeVar("R")

_METHODS: Final = frozenset("GET POST PUT DELETE PATCH HEAD OPTIONS".split())
_MAX_VERBS: Final = 64
UNMATCHED: Final = "unmatched"


class Meters:
    """Thread-safe; each call costs about a microsecond. `limited`: refused requests by limit."""

    def __init__(self, names: LabelNames) -> None:
        self._names = names
        self._guard = Lock()
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.request_seconds: dict[str, Histogram] = {}
        self.in_flight = 0
        self.refusals: Counter[str] = Counter()
        self.conflicts: Counter[str] = Counter()
        self.limited: Mapping[str, int] = {}
        self.settled: Counter[str] = Counter()
        self.store_seconds: dict[str, Histogram] = {}
        self.store_errors = 0

    def requested(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request. `route`: its template, never the path itself."""
        with self._guard:
            self.requests[method if method in _METHODS else OTHER, route, str(status)] += 1
            took = self.request_seconds.setdefault(route, Histogram())
        took.add(round(seconds * 1_000_000))

    def entered(self, by: int) -> None:
        """Add to the number of requests in flight."""
        with self._guard:
            self.in_flight += by

    def count_error(self, error: BaseException, jobs: int = 1) -> None:
        """Count the error of a response, if it is a refusal, a conflict or a store failure."""
        with self._guard:
            match error:
                case QueueFull():
                    self.refusals[self._names.queue(error.queue)] += jobs
                case KeyConflict():
                    self.conflicts[self._names.queue(error.queue)] += jobs
                case StoreFailed() | Closed():
                    self.store_errors += 1
                case _:
                    pass

    def settled_as(self, answers: "list[Settled]") -> None:
        """Count the answers to settlements over HTTP."""
        with self._guard:
            self.settled.update(answer.value for answer in answers)

    def timed(self, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a verb of the store and record its duration, also when it raises."""
        started = perf_counter()
        try:
            return verb(*args, **kwargs)
        finally:
            seconds = perf_counter() - started
            name = _name_of(verb)
            with self._guard:
                known = name if name in self.store_seconds or len(self.store_seconds) < _MAX_VERBS else OTHER
                took = self.store_seconds.setdefault(known, Histogram())
            took.add(round(seconds * 1_000_000))


def _name_of(verb: Any) -> str:
    """`claim` of `store.claim`; `enqueue` also of `enqueue_each`."""
    return str(getattr(verb, "__name__", OTHER)).strip("_").removesuffix("_each")


class MetricsMiddleware:
    """ASGI, outermost: counts every request by route template and status, with its duration.

    A long poll is in flight while it waits, a stream until its last byte. 499: the caller disconnected first.
    """

    def __init__(self, app: ASGIApp, meters: Meters) -> None:
        self._app = app
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 499

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        started = perf_counter()
        self._meters.entered(1)
        try:
            await self._app(scope, receive, note_status)
        except Exception:
            status = 500
            raise
        finally:
            self._meters.entered(-1)
            self._meters.requested(scope["method"], _route_of(scope), status, perf_counter() - started)


def _route_of(scope: Scope) -> str:
    """The template, such as /jobs/{job_id}: names and ids from callers never become labels."""
    route: Any = scope.get("route")
    path = getattr(route, "path_format", None) or getattr(route, "path", None)
    return path if isinstance(path, str) else UNMATCHED
