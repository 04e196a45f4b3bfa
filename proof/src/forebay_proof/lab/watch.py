"""`Watch`: a thread that samples a run every second: depth and age of the queue, jobs done, CPU and memory used.

A sample costs the store one `backlog` of one queue. Where that is expensive (dead letters by the hundred thousand),
samples become rarer, down to one in five seconds, so that they take no more than a fifth of the time. A store that
is unreachable gives a sample without these numbers, never an error. Samples are kept in memory, at most 1,200 of them
in 20 minutes.
"""

import time
from collections.abc import Callable
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

from msgspec import Struct

from forebay.core.errors import ForebayError
from forebay.store.open import open_store
from forebay.store.protocol import Backlog, Store
from forebay_proof.lab.lab_server import LabServer
from forebay_proof.load.app import QUEUE
from forebay_proof.load.fleet import Fleet
from forebay_proof.load.generator import Load, ProducerReport

_SECOND: Final = 1_000_000
_REST, _MAX_REST = 5, 5


class StoreSample(Struct, frozen=True, kw_only=True):
    """At `at` seconds after the beginning. CPU in seconds since then, ages in seconds. None: the store did not answer.

    acked  jobs that are neither open nor dead any more, of those that producers know to be accepted
    """

    at: float
    depth: int | None = None
    waiting: int | None = None
    ready: int | None = None
    running: int | None = None
    dead: int | None = None
    oldest_age: float | None = None
    accepted: int = 0
    acked: int | None = None
    fleet_rss: int = 0
    fleet_descriptors: int = 0
    workers: int = 0
    fleet_cpu: float = 0.0
    producers_cpu: float = 0.0
    server_cpu: float = 0.0


class Watch:
    """`seeded`: jobs that were in before the load, and count as accepted."""

    def __init__(
        self,
        url: str,
        *,
        queue: str = QUEUE,
        fleet: Fleet | None = None,
        load: Load | None = None,
        lab_server: LabServer | None = None,
        seeded: int = 0,
        every: float = 1.0,
        on_sample: Callable[[StoreSample], object] | None = None,
    ) -> None:
        self._url = url
        self._queue = queue
        self._fleet = fleet
        self._load = load
        self._lab_server = lab_server
        self._seeded = seeded
        self._every = every
        self._on_sample = on_sample
        self._store: Store | None = None
        self._stop = Event()
        self._thread = Thread(target=self._run, name="watch", daemon=True)
        self._began = 0.0
        self.samples: list[StoreSample] = []

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def finish(self) -> None:
        """End the thread, and take the last sample."""
        self._end_thread()
        self.samples.append(self.sample())

    def _end_thread(self) -> None:
        self._stop.set()
        self._thread.join()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end_thread()
        if self._store is not None:
            self._store.close()

    def _run(self) -> None:
        due = self._began
        while True:
            began = time.monotonic()
            sample = self.sample()
            took = time.monotonic() - began
            self.samples.append(sample)
            if self._on_sample is not None:
                self._on_sample(sample)
            due = max(due + self._every, began + min(_REST * took, _MAX_REST * self._every))
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return

    def sample(self) -> StoreSample:
        """One sample, now."""
        fleet, load, lab_server = self._fleet, self._load, self._lab_server
        report = load.report() if load else ProducerReport()
        accepted = self._seeded + report.accepted
        now = self._backlog()
        return StoreSample(
            at=time.monotonic() - self._began,
            depth=now.depth if now else None,
            waiting=now.waiting if now else None,
            ready=now.ready if now else None,
            running=now.running if now else None,
            dead=now.dead if now else None,
            oldest_age=now.oldest_age / _SECOND if now else None,
            accepted=accepted,
            acked=max(0, accepted - now.depth - now.dead) if now else None,
            fleet_rss=fleet.rss() if fleet else 0,
            fleet_descriptors=fleet.descriptors() if fleet else 0,
            workers=len(fleet.workers()) if fleet else 0,
            fleet_cpu=fleet.cpu_seconds() if fleet else 0.0,
            producers_cpu=report.cpu,
            server_cpu=lab_server.server_cpu_seconds() if lab_server else 0.0,
        )

    def _backlog(self) -> Backlog | None:
        try:
            if self._store is None:
                self._store = open_store(self._url)
            return self._store.backlog([self._queue])[0]
        except (ForebayError, OSError):
            return None
