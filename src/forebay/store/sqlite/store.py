"""`SqliteStore`: every verb of the contract on one SQLite file, for the threads and processes of one machine.

Durable before every answer. Two machines must never share the file: SQLite's locks do not work over a network.
"""

from forebay.core.clock import Clock
from forebay.core.limits import SETTLE_MEMORY
from forebay.store.backend import BoundVerbs
from forebay.store.clock import SystemClock
from forebay.store.protocol import Capabilities, Promotion
from forebay.store.shell import PipeliningShell
from forebay.store.sqlite.control import Control
from forebay.store.sqlite.intake import Intake
from forebay.store.sqlite.leases import Leases
from forebay.store.sqlite.logs import Ledger, Logs
from forebay.store.sqlite.observing import Observing
from forebay.store.sqlite.session import Session


class SqliteBackend(BoundVerbs):
    """The verbs of all parts; these share one session."""

    capabilities = Capabilities(
        name="sqlite", durable=True, processes="many", settle_memory=SETTLE_MEMORY, lease_grain=0.0
    )

    def __init__(self, path: str, clock: Clock | None = None, shared: bool = False) -> None:
        self.session = session = Session(path, clock or SystemClock(), shared)
        intake, observing, ledger = Intake(session), Observing(session), Ledger(session)
        self.leases, self.control, self.logs = leases, control, logs = Leases(session), Control(session), Logs(session)
        super().__init__(observing, control, ledger, logs)
        self.now, self.close = session.now, session.close
        self.enqueue, self.wait_for_room = intake.enqueue, intake.wait_for_room
        self.ingested, self.ingest, self.replace_dead = intake.ingested, intake.ingest, intake.replace_dead
        self.claim, self.extend, self.overdue = leases.claim, leases.extend, leases.overdue
        self.settle, self.settle_and_claim = leases.settle, leases.settle_and_claim
        self.cancel, self.redrive = control.cancel, control.redrive
        self.purge, self.purge_dead = control.purge, control.purge_dead
        self.specs = observing.specs
        self.wait, self.wait_ended = observing.wait, observing.wait_ended
        self.wait_cancel_requests = observing.wait_cancel_requests
        self.report_progress = control.report_progress

    def promote(self, limit: int) -> Promotion:
        """Also drops old progress, and entries that left the windows of logs."""
        promotion = self.leases.promote(limit)
        self.control.sweep_progress()
        self.logs.keep_windows(limit)
        return promotion


class SqliteStore(PipeliningShell[SqliteBackend]):
    """The embedded store. `shared`: in a file that has tables of an application."""

    def __init__(self, path: str, *, clock: Clock | None = None, shared: bool = False) -> None:
        super().__init__(SqliteBackend(path, clock, shared))
