"""`SqliteStore`: every verb of the contract on one SQLite file, for the threads and processes of one machine.

Durable before every answer. Two machines must never share the file: SQLite's locks do not work over a network.
"""

from forebay.core.clock import Clock
from forebay.core.limits import SETTLE_MEMORY
from forebay.store.clock import SystemClock
from forebay.store.protocol import Capabilities, Promotion
from forebay.store.shell import PipeliningShell
from forebay.store.sqlite.control import Control
from forebay.store.sqlite.intake import Intake
from forebay.store.sqlite.leases import Leases
from forebay.store.sqlite.logs import Ledger, Logs
from forebay.store.sqlite.observing import Observing
from forebay.store.sqlite.session import Session


class SqliteBackend:
    """The verbs of all parts; these share one session."""

    capabilities = Capabilities(
        name="sqlite", durable=True, processes="many", settle_memory=SETTLE_MEMORY, lease_grain=0.0
    )

    def __init__(self, path: str, clock: Clock | None = None, shared: bool = False) -> None:
        self.session = session = Session(path, clock or SystemClock(), shared)
        intake, observing, ledger = Intake(session), Observing(session), Ledger(session)
        self.leases, self.control, self.logs = leases, control, logs = Leases(session), Control(session), Logs(session)
        self.now, self.close = session.now, session.close
        self.enqueue, self.wait_for_room = intake.enqueue, intake.wait_for_room
        self.ingested, self.ingest, self.replace_dead = intake.ingested, intake.ingest, intake.replace_dead
        self.claim, self.extend, self.overdue = leases.claim, leases.extend, leases.overdue
        self.settle, self.settle_and_claim = leases.settle, leases.settle_and_claim
        self.cancel, self.redrive = control.cancel, control.redrive
        self.purge, self.purge_dead = control.purge, control.purge_dead
        self.get, self.browse, self.hold, self.ahead = observing.get, observing.browse, observing.hold, observing.ahead
        self.queues, self.backlog, self.totals = observing.queues, observing.backlog, observing.totals
        self.specs, self.gates = observing.specs, observing.gates
        self.wait, self.wait_ended = observing.wait, observing.wait_ended
        self.wait_cancel_requests = observing.wait_cancel_requests
        self.put_spec, self.pause = control.put_spec, control.pause
        self.set_gate, self.release = control.set_gate, control.release
        self.put_schedule, self.drop_schedule = control.put_schedule, control.drop_schedule
        self.schedules, self.fire = control.schedules, control.fire
        self.announce, self.withdraw, self.workers = control.announce, control.withdraw, control.workers
        self.report_progress = control.report_progress
        self.ledger, self.ledger_extent, self.ledger_rule = ledger.ledger, ledger.ledger_extent, ledger.ledger_rule
        self.put_ledger_rule, self.trim_ledger = ledger.put_ledger_rule, ledger.trim_ledger
        self.append, self.read, self.commit, self.position = logs.append, logs.read, logs.commit, logs.position
        self.extent, self.offset_at, self.trim = logs.extent, logs.offset_at, logs.trim
        self.own, self.disown, self.groups = logs.own, logs.disown, logs.groups

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
