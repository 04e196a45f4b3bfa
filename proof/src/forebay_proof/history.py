"""A recorder that keeps the journal of an in-process store in a list, decoded, for checkers and for replay.

`MemoryStore(clock=…, recorder=history)` writes into it. Entries pass through their encoding, as they would on a disk,
and are durable in the only sense that a test needs: `replay` gives the facts back that a crash would have to keep.
"""

from forebay.core.changeset import ChangeSet, decode_entry
from forebay.store.memory.changes import apply
from forebay.store.memory.facts import Facts


class RunHistory:
    """Everything that happened, in order."""

    def __init__(self) -> None:
        self.changes: list[ChangeSet] = []

    def append(self, body: bytes) -> int:
        self.changes.append(decode_entry(body).change)
        return len(self.changes)

    def sync(self, lsn: int) -> None:
        if lsn > len(self.changes):
            raise AssertionError(f"entry {lsn} was never written")

    def close(self) -> None:
        """Nothing to close; the changes stay."""

    def replay(self) -> Facts:
        facts = Facts()
        for change in self.changes:
            apply(facts, change)
        return facts
