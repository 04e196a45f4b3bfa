"""`PostgresStore`: every verb of the contract on a Postgres database, for the processes of many machines.

Durable before every answer. The server's clock alone decides; a clock may be injected by tests.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import Any

from forebay.core.clock import Clock
from forebay.core.job import Draft
from forebay.core.lease import Heartbeat, Lease
from forebay.core.outcome import Verdict
from forebay.store.postgres.backend import PostgresBackend
from forebay.store.protocol import Query, Tally, Vitals
from forebay.store.shell import ExchangingShell, checked_lease


class PostgresStore(ExchangingShell[PostgresBackend]):
    """The production store, with what a server gives besides the contract."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(PostgresBackend(url, clock=clock))

    def vitals(self) -> Vitals:
        return self.backend.vitals()

    def beat(self, leases: Sequence[Lease], lease_for: timedelta) -> Heartbeat:
        return self.backend.beat(leases, checked_lease(lease_for))

    def enqueue_stream(self, drafts: Iterable[Draft], progress: Callable[[Tally], object]) -> Tally:
        return self.backend.enqueue_stream(drafts, progress)

    def transaction(self, lease: Lease, verdict: Callable[[], Verdict]) -> AbstractContextManager[Any]:
        return self.backend.transaction(lease, verdict)

    def atransaction(self, lease: Lease, verdict: Callable[[], Verdict]) -> AbstractAsyncContextManager[Any]:
        return self.backend.atransaction(lease, verdict)

    def id_extent(self) -> tuple[int, int]:
        return self.backend.id_extent()

    def export(self, query: Query, first: int, last: int) -> Iterator[tuple[str, list[str], bytes]]:
        return self.backend.export(query, first, last)
