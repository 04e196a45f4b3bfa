"""A recorder that keeps the ledger of an in-process store in a list, decoded, for checkers and for replay.

`MemoryStore(clock=…, recorder=history)` writes into it. Records pass through their encoding, as they would on a disk,
and are durable in the only sense that a test needs: `replay` gives the facts back that a crash would have to keep.
"""

from forebay.core.event import Event
from forebay.core.written import decode_event
from forebay.store.memory.facts import Facts


class History:
    """Everything that happened, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, body: bytes) -> int:
        self.events.append(decode_event(body))
        return len(self.events)

    def sync(self, lsn: int) -> None:
        if lsn > len(self.events):
            raise AssertionError(f"record {lsn} was never written")

    def close(self) -> None:
        """Nothing to close; the events stay."""

    def replay(self) -> Facts:
        facts = Facts()
        for event in self.events:
            facts.apply(event)
        return facts
