"""`PostgresStore`: every verb of the contract on a Postgres database, for the processes of many machines.

A call returns once its change is durable. Only the server's clock counts; tests may inject another one.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import Any, Final

from msgspec.structs import replace

from forebay.core.clock import Clock
from forebay.core.job import Draft
from forebay.core.lease import Heartbeat, Lease
from forebay.core.limits import SETTLE_MEMORY
from forebay.core.outcome import Verdict
from forebay.store.backend import BoundVerbs
from forebay.store.postgres.bulk import Bulk
from forebay.store.postgres.claims import Claims
from forebay.store.postgres.control import Control
from forebay.store.postgres.export import Export
from forebay.store.postgres.health import inspect, vitals_of
from forebay.store.postgres.intake import Intake
from forebay.store.postgres.logs import Ledger, Logs
from forebay.store.postgres.observing import Observing
from forebay.store.postgres.session import Session
from forebay.store.postgres.settling import Settling
from forebay.store.postgres.transaction import Transactions
from forebay.store.protocol import Capabilities, Promotion, Query, Tally, Vitals
from forebay.store.shell import PipeliningShell, checked_lease

_log: Final = logging.getLogger("forebay.store")


class PostgresBackend(BoundVerbs):
    """The verbs of all parts, which share one session."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.session = session = Session(url, clock)
        self.capabilities = Capabilities(
            name="postgres", durable=True, processes="many", settle_memory=SETTLE_MEMORY, lease_grain=0.0
        )
        self.intake, self.claims, self.logs = intake, claims, logs = Intake(session), Claims(session), Logs(session)
        self.transactions = transactions = Transactions(session, claims, settling := Settling(session, claims))
        observing, control, ledger = Observing(session, claims), Control(session), Ledger(session)
        bulk, export = Bulk(session, intake), Export(session)
        super().__init__(observing, control, ledger, logs)
        self.now = session.now
        self.enqueue, self.wait_for_room = intake.enqueue, intake.wait_for_room
        self.enqueue_stream, self.ingested, self.ingest, self.replace_dead = (
            bulk.enqueue_stream,
            bulk.ingested,
            bulk.ingest,
            bulk.replace_dead,
        )
        self.claim, self.extend, self.beat, self.overdue = claims.claim, claims.extend, claims.beat, claims.overdue
        self.settle, self.settle_and_claim, self.cancel = settling.settle, settling.settle_and_claim, settling.cancel
        self.redrive, self.purge, self.purge_dead = settling.redrive, settling.purge, settling.purge_dead
        self.transaction, self.atransaction = transactions.transaction, transactions.atransaction
        self.settle_in = transactions.settle_in
        self.specs = observing.specs
        self.wait, self.wait_ended = observing.wait, observing.wait_ended
        self.wait_cancel_requests = observing.wait_cancel_requests
        self.id_extent, self.export = export.id_extent, export.export
        self.report_progress = control.report_progress
        if len(session.server.hosts) > 1:
            self.vitals()

    def promote(self, limit: int) -> Promotion:
        """Also trims logs to their windows."""
        promotion = self.claims.promote(limit)
        self.logs.keep_windows(limit)
        return promotion

    def vitals(self) -> Vitals:
        """Also compares the settings with what the hosts of the URL promise, and logs what is unsafe once."""
        health = inspect(self.session.server)
        unsafe: tuple[str, ...] = ()
        if health.fail_over_risk is not None:
            setting, remedy = health.fail_over_risk
            unsafe = (f"{setting}: a fail-over can lose acknowledged jobs",)
            if unsafe != self.capabilities.unsafe:
                _log.warning("%s: %s; on the primary: %s", self.session.server.name, unsafe[0], remedy)
        self.capabilities = replace(self.capabilities, unsafe=unsafe)
        return vitals_of(health, self.session.waiters.listening)

    def close(self) -> None:
        """No verb works afterwards; waiters wake up and find it closed."""
        self.transactions.close()
        self.session.close()


class PostgresStore(PipeliningShell[PostgresBackend]):
    """The production store, with verbs that are not in the contract."""

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

    def settle_in(self, connection: object, lease: Lease, verdict: Verdict) -> Callable[[], None]:
        return self.backend.settle_in(connection, lease, verdict)

    def id_extent(self) -> tuple[int, int]:
        return self.backend.id_extent()

    def export(self, query: Query, first: int, last: int) -> Iterator[tuple[str, list[str], bytes]]:
        return self.backend.export(query, first, last)
