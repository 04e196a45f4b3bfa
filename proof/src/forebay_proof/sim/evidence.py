"""What the simulation itself saw: receipts, handler starts, effects, verdicts and their answers.

Promise: nothing here was read from the store's counters. Producers, pools and connections write it down as it happens
to them; the checks hold it against the ledger afterwards. A reply that was lost leaves an entry that says so.
"""

from collections import Counter

from msgspec import Struct

from forebay.core.lease import Fence
from forebay.work.start_marks import Stall


class SentDraft(Struct):
    """One draft that a producer sent: `sent` so often, as far as the store may know, to become `copies` jobs."""

    serial: int
    queue: str
    subject: str | None
    keyed: bool
    delay: int
    begun_at: int
    copies: int = 1
    sent: int = 0
    ids: list[int] = []
    merged: bool = False
    refused: bool = False
    answered_at: int | None = None


class HandlerStart(Struct):
    """A handler began. `alone`: it was a suspect, beside which nothing else may run."""

    fence: Fence
    owner: str
    attempt: int
    at: int
    serial: int | None
    subject: str | None
    alone: bool
    ended_at: int | None = None
    outcome: str = ""


class Sent(Struct):
    """A verdict on its way to the store: sender, role, whether it has an error and was applied."""

    sender: str
    role: str
    verdict: str
    after: int
    error: bool
    at: int
    applied: bool = False


class Exit(Struct, frozen=True):
    """A process that drained: when it was signalled, when it exited, and whether all its verdicts were written."""

    owner: str
    asked_at: int
    gone_at: int
    flushed: bool
    still_running: tuple[Fence, ...]


class RunEvidence:
    """Everything kept for the checks."""

    def __init__(self) -> None:
        self.sent_drafts: dict[int, SentDraft] = {}
        self.starts: dict[Fence, HandlerStart] = {}
        self.starts_of: Counter[int] = Counter()
        self.effects: Counter[Fence] = Counter()
        self.received: dict[Fence, str] = {}
        self.lost: dict[Fence, int] = {}
        self.concluded: dict[Fence, tuple[str, str]] = {}
        self.sent: dict[Fence, list[Sent]] = {}
        self.applied: dict[Fence, list[str]] = {}
        self.answered: dict[Fence, str] = {}
        self.fires: Counter[tuple[str, int]] = Counter()
        self.redriven: Counter[int] = Counter()
        self.died_at: dict[str, int] = {}
        self.unwritten: dict[str, None] = {}
        self.exits: list[Exit] = []
        self.poison_deaths: Counter[int] = Counter()
        self.stalls: dict[str, Stall] = {}
        self.troubles: dict[str, list[tuple[int, int]]] = {}
        self.stale = 0
        self.alone = 0
