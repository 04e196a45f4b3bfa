"""What the in-process store knows of its ledger: where it begins and goes on, how large it is, and its rule.

Part of the facts: changed by events alone. The records themselves stay in the files (`ledger_files.py`).
"""

from msgspec import Struct

from forebay.core.event import LedgerRuled, LedgerTrimmed
from forebay.core.instant import Span
from forebay.core.ledger import LedgerRule
from forebay.core.written import Told

_USUAL = LedgerRule()


class LedgerState(Struct, array_like=True):
    """Records from `first` on; `next` is the offset of the one to come, `size` the bytes of those in between."""

    first: int = 0
    next: int = 0
    size: int = 0
    on: bool = _USUAL.on
    keep: Span = _USUAL.keep
    keep_bytes: int = _USUAL.keep_bytes

    def told(self, told: Told) -> None:
        self.next = told.offset + 1
        self.size += len(told.record)

    def ruled(self, event: LedgerRuled) -> None:
        self.on, self.keep, self.keep_bytes = event.on, event.keep, event.keep_bytes

    def trimmed(self, event: LedgerTrimmed) -> None:
        self.first = event.first
        self.size -= event.freed
