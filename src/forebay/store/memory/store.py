"""`MemoryStore`: the in-process store. Fast, complete, and durable when a journal is behind it.

One process, many threads. Without a journal everything ends with the process; with one (`journaled.py`) every answer
is durable before it is given.
"""

from collections.abc import Callable
from typing import Protocol

from forebay.core.clock import Clock
from forebay.core.errors import Unsupported
from forebay.core.instant import Instant
from forebay.core.ledger import LedgerEntry, LedgerRule
from forebay.core.limits import SETTLE_MEMORY
from forebay.store.backend import BoundVerbs, LedgerVerbs
from forebay.store.clock import SystemClock
from forebay.store.memory.control import Control
from forebay.store.memory.facts import Facts
from forebay.store.memory.jobs import Intake, Jobs
from forebay.store.memory.logs import Logs
from forebay.store.memory.observing import Observing
from forebay.store.memory.session import Recorder, Session, verb
from forebay.store.protocol import Capabilities, Promotion
from forebay.store.shell import Shell


class SweptLedger(LedgerVerbs, Protocol):
    """The ledger of a store; `sweep` trims it in passing."""

    def sweep(self) -> None: ...


class NoLedger:
    """The ledger of a store without a journal: off, and empty."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @verb
    def ledger(self, _: Instant, after: int, limit: int) -> list[LedgerEntry]:
        return []

    @verb
    def ledger_extent(self, _: Instant) -> tuple[int, int]:
        return 0, 0

    @verb
    def ledger_rule(self, _: Instant) -> LedgerRule:
        return LedgerRule(on=False)

    @verb
    def put_ledger_rule(self, _: Instant, rule: LedgerRule) -> None:
        if rule.on:
            raise Unsupported("memory://", "a ledger", "give it a directory, memory:///path, or use another store")

    @verb
    def trim_ledger(self, _: Instant, limit: int) -> int:
        return 0

    def sweep(self) -> None:
        return


class MemoryBackend(BoundVerbs):
    """The verbs of all parts; these share one session."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        facts: Facts | None = None,
        recorder: Recorder | None = None,
        ledger: Callable[[Session], SweptLedger] = NoLedger,
    ) -> None:
        self.session = session = Session(facts or Facts(), clock or SystemClock(), recorder)
        self.capabilities = Capabilities(name="memory", durable=recorder is not None, settle_memory=SETTLE_MEMORY)
        self._ledger = records = ledger(session)
        self._jobs, self._logs = jobs, logs = Jobs(session, intake := Intake(session)), Logs(session)
        observing = Observing(session, control := Control(session, intake))
        super().__init__(observing, control, records, logs)
        self.now, self.close = session.now, session.close
        self.enqueue, self.wait_for_room = intake.enqueue, intake.wait_for_room
        self.ingested, self.ingest, self.replace_dead = intake.ingested, intake.ingest, intake.replace_dead
        self.claim, self.extend, self.overdue = jobs.claim, jobs.extend, jobs.overdue
        self.settle, self.cancel, self.redrive = jobs.settle, jobs.cancel, jobs.redrive
        self.purge, self.purge_dead = jobs.purge, jobs.purge_dead
        self.wait, self.wait_ended = observing.wait, observing.wait_ended
        self.wait_cancel_requests = observing.wait_cancel_requests
        self.specs = control.specs
        self.report_progress = control.report_progress

    def promote(self, limit: int) -> Promotion:
        """Also trims logs by their windows, and the ledger by its rule."""
        promotion = self._jobs.promote(limit)
        if self.session.facts.logs.partitions:
            self._logs.keep_windows(limit)
        self._ledger.sweep()
        return promotion


class MemoryStore(Shell[MemoryBackend]):
    """Every verb of the contract, in this process's memory. Without a journal its ledger is off, and empty."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        facts: Facts | None = None,
        recorder: Recorder | None = None,
        ledger: Callable[[Session], SweptLedger] = NoLedger,
    ) -> None:
        super().__init__(MemoryBackend(clock=clock, facts=facts, recorder=recorder, ledger=ledger))
