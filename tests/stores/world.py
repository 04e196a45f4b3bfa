"""Where the stories of the named queues take place: one store, a clock that is turned by hand, and the queue `q`.

`Worlds` begins one after the other, each on fresh state; by then the one before has ended. A story is the same on every
store, so its verbs are the contract's, and its numbers are small.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

import pytest
from msgspec.structs import replace

from forebay.core.decide import decide
from forebay.core.instant import Duration, seconds
from forebay.core.job import Draft, State
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Abandoned, Ack, Failure, Outcome
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Backlog, Want
from forebay.testing.clock import ManualClock
from forebay_proof.conformance import Opener
from forebay_proof.servers.redis import RedisServer
from tests.stores import openers
from tests.stores.tables import Tables

SECOND: Final[Duration] = 1_000_000
HOUR: Final[Duration] = 3_600 * SECOND
DAY: Final[Duration] = 24 * HOUR
BOOM: Final = Failure("Boom", "it broke")

Begin: TypeAlias = Callable[[QueueSpec], "World"]


class World:
    """The store of one chapter. Every helper works on the queue that it began with, unless another is given."""

    def __init__(self, opener: Opener, spec: QueueSpec) -> None:
        self._opener = opener
        self.clock = ManualClock()
        self.store = opener(self.clock)
        self.spec = spec
        self.store.put_spec(spec)

    def send(self, *drafts: Draft) -> list[int]:
        queued = [replace(draft, queue=self.spec.name) for draft in drafts]
        batches = [queued[start : start + 1_000] for start in range(0, len(queued), 1_000)]
        return [receipt.id for batch in batches for receipt in self.store.enqueue(batch)]

    def claim(self, most: int = 1, queue: str | None = None) -> list[Lease]:
        return self.store.claim([Want(queue or self.spec.name, most)], "ada", seconds(30))

    def done(self, leases: Iterable[Lease]) -> list[Settled]:
        return self.store.settle([(lease, Ack()) for lease in leases])

    def settle(
        self, leases: Sequence[Lease], outcome: Outcome, draw: Callable[[], float] = lambda: 0.5
    ) -> list[Settled]:
        """As core decides by the routing of the queue."""
        return self.store.settle([(lease, decide(lease.job, outcome, self.spec.routing, draw())) for lease in leases])

    def reap(self) -> None:
        """Let half a minute pass: the leases that are not settled have expired."""
        self.clock.advance(31 * SECOND)
        self.settle(self.store.overdue(1_000), Abandoned(expired=True))

    def backlog(self, queue: str | None = None) -> Backlog:
        return self.store.backlog([queue or self.spec.name])[0]

    def state(self, job_id: int) -> State | None:
        job = self.store.get([job_id])[0]
        return None if job is None else job.state

    def reopen(self) -> None:
        """Another process finds what was written; what the one before only had in mind is gone."""
        self.store.close()
        self.store = self._opener(self.clock)


class Worlds:
    """Begins worlds on the store of that name: `memory` (with its journal), `sqlite`, `postgres` or `redis`."""

    def __init__(self, store: str, request: pytest.FixtureRequest) -> None:
        self._store = store
        self._request = request
        self._number = count()
        self._world: World | None = None

    def __call__(self, spec: QueueSpec) -> World:
        self._end()
        self._world = World(self._fresh(), spec)
        return self._world

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        if self._world is not None:
            self._world.store.close()

    def _fresh(self) -> Opener:
        if self._store == "postgres":
            tables: Tables = self._request.getfixturevalue("tables")
            tables.clear()
            return openers.postgres(tables.url)
        if self._store == "redis":
            server: RedisServer = self._request.getfixturevalue("redis")
            server.clear()
            return openers.redis(server.url())
        parent: Path = self._request.getfixturevalue("tmp_path")
        directory = parent / str(next(self._number))
        directory.mkdir()
        return openers.sqlite(directory) if self._store == "sqlite" else openers.journaled(directory)


def payloads(leases: Iterable[Lease]) -> list[object]:
    return [lease.job.payload for lease in leases]


def steps(subject: str, number: int) -> list[Draft]:
    """So many drafts about one subject: a1, a2, …"""
    return [Draft("step", f"{subject}{n}", subject=subject) for n in range(1, number + 1)]
