"""`MemoryStore`: the in-process store. Fast, complete, and durable when a journal is behind it.

One process, many threads. Without a journal everything ends with the process; with one (`journaled.py`) every answer
is durable before it is given.
"""

from forebay.core.clock import Clock
from forebay.store.clock import SystemClock
from forebay.store.memory.engine import Recorder
from forebay.store.memory.facts import SETTLE_MEMORY, Facts
from forebay.store.memory.log_verbs import LogVerbs
from forebay.store.memory.presence import PresenceVerbs
from forebay.store.protocol import Capabilities


class MemoryStore(LogVerbs, PresenceVerbs):
    """Every verb of the contract, in this process's memory."""

    def __init__(
        self, *, clock: Clock | None = None, facts: Facts | None = None, recorder: Recorder | None = None
    ) -> None:
        super().__init__(facts or Facts(), clock or SystemClock(), recorder)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="memory", durable=self._recorder is not None, settle_memory=SETTLE_MEMORY)
