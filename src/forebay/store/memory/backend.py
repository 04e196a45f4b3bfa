"""The backend of the in-process store: one process, many threads."""

from forebay.core.clock import Clock
from forebay.core.errors import Unsupported
from forebay.core.ledger import LedgerEntry, LedgerRule
from forebay.store.clock import SystemClock
from forebay.store.memory.engine import Recorder
from forebay.store.memory.facts import SETTLE_MEMORY, Facts
from forebay.store.memory.log_verbs import LogVerbs
from forebay.store.memory.presence import PresenceVerbs
from forebay.store.memory.progress import ProgressVerbs
from forebay.store.memory.watching import WatchVerbs
from forebay.store.protocol import Capabilities


class MemoryBackend(ProgressVerbs, LogVerbs, PresenceVerbs, WatchVerbs):
    """Every verb of the contract, in this process's memory. Without a journal its ledger is off, and empty."""

    def __init__(
        self, *, clock: Clock | None = None, facts: Facts | None = None, recorder: Recorder | None = None
    ) -> None:
        super().__init__(facts or Facts(), clock or SystemClock(), recorder)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="memory", durable=self._recorder is not None, settle_memory=SETTLE_MEMORY)

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        self._check_open()
        return []

    def ledger_extent(self) -> tuple[int, int]:
        self._check_open()
        return 0, 0

    def ledger_rule(self) -> LedgerRule:
        self._check_open()
        return LedgerRule(on=False)

    def put_ledger_rule(self, rule: LedgerRule) -> None:
        self._check_open()
        if rule.on:
            raise Unsupported("memory://", "a ledger", "give it a directory, memory:///path, or use another store")

    def trim_ledger(self, limit: int) -> int:
        self._check_open()
        return 0

    def _check_open(self) -> None:
        with self._lock:
            self._begin()
