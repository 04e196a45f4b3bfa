"""Dead letters by cause: count, an example, and since when, for each queue, kind and error.

There may be very many dead letters, so they are scanned in steps of bounded time while a page shows them. A summary is
kept the longer, the longer its scan took. It carries the time of the scan and whether it is complete.
"""

from threading import Lock
from time import monotonic
from typing import Final

from msgspec import Struct

from forebay.core.fingerprint import cause_of, fingerprint
from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.store.protocol import Query, Store

MAX_GROUPS: Final = 1_000
PAGE: Final = 250
_KEPT_SECONDS: Final = 2.0
_KEPT_TIMES: Final = 20
"""A summary is kept this many times as long as its scan took."""

_OTHER: Final = "other"


class Cause(Struct, frozen=True):
    """One cause of dead letters of a kind in a queue. `name`: its fingerprint. `example`: the newest job."""

    name: str
    queue: str
    kind: str
    error: str
    message: str
    count: int
    first: Instant
    last: Instant
    example: int
    last_message: str


class CauseSummary(Struct, frozen=True):
    """All causes found, most frequent first. `whole`: every dead letter was scanned."""

    causes: tuple[Cause, ...] = ()
    dead: int = 0
    at: Instant = 0
    whole: bool = False

    def since(self) -> dict[str, Instant]:
        """By queue: when its first dead letter died."""
        found: dict[str, Instant] = {}
        for cause in self.causes:
            found[cause.queue] = min(cause.first, found.get(cause.queue, cause.first))
        return found


class CauseScan:
    """Scans the dead letters of a store, or of one tenant."""

    def __init__(self, store: Store, tenant: str | None = None) -> None:
        self._store = store
        self._query = Query(state=State.DEAD, tenant=tenant)
        self._guard = Lock()
        self._last = CauseSummary()
        self._taken_at = float("-inf")
        self._good_for = 0.0
        self._after = 0
        self._spent = 0.0
        self._dead = 0
        self._found: dict[tuple[str, str, str, str], Cause] = {}

    def summary(self) -> CauseSummary:
        """The last complete summary, or the part scanned so far."""
        with self._guard:
            return self._last if self._last.whole else self._so_far(whole=False)

    def due(self) -> bool:
        """Whether a scan should start or continue."""
        with self._guard:
            return self._after > 0 or monotonic() - self._taken_at > self._good_for

    def invalidate(self) -> None:
        """Start a new scan: this server has changed dead letters."""
        with self._guard:
            self._good_for = 0.0
            self._forget()

    def step(self, seconds: float) -> None:
        """Scan for this long, and at least one page."""
        until = monotonic() + seconds
        with self._guard:
            while True:
                began = monotonic()
                page = self._store.browse(self._query, self._after, PAGE)
                for job in page.jobs:
                    self._take(job)
                self._spent += monotonic() - began
                if page.next is None:
                    self._last, self._taken_at = self._so_far(whole=True), monotonic()
                    self._good_for = max(_KEPT_SECONDS, self._spent * _KEPT_TIMES)
                    self._forget()
                    return
                self._after = page.next
                if monotonic() >= until:
                    return

    def _forget(self) -> None:
        self._after, self._spent, self._dead, self._found = 0, 0.0, 0, {}

    def _take(self, job: Job) -> None:
        self._dead += 1
        parts = cause_of(job)
        if parts not in self._found and len(self._found) >= MAX_GROUPS:
            parts = (job.queue, _OTHER, _OTHER, "")
        died = job.finished_at or job.enqueued_at
        known = self._found.get(parts)
        if known is None:
            last_message = job.errors[-1].message if job.errors else ""
            self._found[parts] = Cause(fingerprint(*parts), *parts, 1, died, died, job.id, last_message)
            return
        newest = died >= known.last
        self._found[parts] = Cause(
            known.name,
            *parts,
            known.count + 1,
            min(known.first, died),
            max(known.last, died),
            job.id if newest else known.example,
            (job.errors[-1].message if job.errors else "") if newest else known.last_message,
        )

    def _so_far(self, whole: bool) -> CauseSummary:
        causes = sorted(self._found.values(), key=lambda cause: (-cause.count, cause.queue, cause.name))
        return CauseSummary(tuple(causes), self._dead, self._store.now(), whole)
