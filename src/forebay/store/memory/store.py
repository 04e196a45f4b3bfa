"""`MemoryStore`: the in-process store. Fast, complete, and durable when a journal is behind it.

One process, many threads. Without a journal everything ends with the process; with one (`journaled.py`) every answer
is durable before it is given.
"""

from forebay.core.clock import Clock
from forebay.store.memory.backend import MemoryBackend
from forebay.store.memory.engine import Recorder
from forebay.store.memory.facts import Facts
from forebay.store.shell import Shell


class MemoryStore(Shell[MemoryBackend]):
    """Every verb of the contract, in this process's memory. Without a journal its ledger is off, and empty."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        facts: Facts | None = None,
        recorder: Recorder | None = None,
        backend: MemoryBackend | None = None,
    ) -> None:
        super().__init__(backend or MemoryBackend(clock=clock, facts=facts, recorder=recorder))
