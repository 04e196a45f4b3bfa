"""What the in-process store knows of its ledger: where it begins and goes on, how large it is, and its rule.

Part of the facts: changed by change sets alone. The records themselves stay in the files (`ledger_files.py`).
"""

from msgspec import Struct

from forebay.core.changeset import LedgerChange, StoredRecord
from forebay.core.ledger import LedgerRule


class LedgerState(Struct, array_like=True):
    """Records from `first` on; `next` is the offset of the one to come, `size` the bytes of those in between."""

    first: int = 0
    next: int = 0
    size: int = 0
    rule: LedgerRule = LedgerRule()

    def add(self, record: StoredRecord) -> None:
        self.next = record.offset + 1
        self.size += len(record.record)

    def apply(self, change: LedgerChange) -> None:
        if change.rule is not None:
            self.rule = change.rule
        else:
            self.first = change.first
            self.size -= change.freed
