"""What the in-process store writes into its journal: events, each holding everything that a change did.

An event is batch-shaped (arrays, not one row a job) and complete: replaying events in order rebuilds the store.
Records are never edited; a new version adds fields at the end of a record, values of a field or new records
(`core.written` has the versions). What an older record does not say has its default, and means what it meant.
"""

from typing import TypeAlias

from msgspec import Struct

from forebay.core.instant import Instant, Span
from forebay.core.outcome import Failure
from forebay.core.rank import TIMED
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """A job when it is accepted. `ready`: due at once and in no line. `gates`: names of those its lane has to pass.

    `line`: only the smallest unfinished id of it is exposed; `blocks`: a dead head keeps that line shut.
    """

    id: int
    queue: str
    kind: str
    body: bytes
    due_at: Instant
    ready: bool
    max_attempts: int
    priority: int = 0
    rank_base: int = 0
    rank_timed: int | bool = TIMED
    key: str | None = None
    key_digest: bytes = b""
    key_until: Instant = 0
    tenant: str | None = None
    subject: str | None = None
    deadline: Instant | None = None
    expires_at: Instant | None = None
    meta: dict[str, str] | None = None
    cls: str = ""
    merges: bool = False
    gates: tuple[str, ...] = ()
    cost: int = 1
    line: str | None = None
    blocks: bool = False


class Newer(Struct, frozen=True, array_like=True):
    """What a job takes over of a newer draft besides its payload: all that says how urgent it is, and its meta.

    What says where it stands is its own: id, tenant, subject, class, gates, cost, lives, and its time. `due_at` None:
    the time stays, and the rank moves by as much as `rank_base` does; else both are written anew.
    """

    priority: int = 0
    rank_base: int = 0
    deadline: Instant | None = None
    expires_at: Instant | None = None
    meta: dict[str, str] | None = None
    due_at: Instant | None = None


class Merge(Struct, frozen=True, array_like=True):
    """A waiting job took over a newer draft, and that draft's key points at it. `newer` None: its payload alone."""

    id: int
    kind: str
    body: bytes
    key: str | None = None
    key_digest: bytes = b""
    key_until: Instant = 0
    newer: Newer | None = None


class Grave(Struct, frozen=True, array_like=True):
    """Where a dead job lies, if not in its own queue, and until when (0: until it is redriven or purged)."""

    queue: str | None = None
    kept_until: Instant = 0


class Fed(Struct, frozen=True, array_like=True):
    """A source has come so far."""

    source: str
    batch: int
    taken: int
    digest: bytes


class Enqueued(Struct, frozen=True, array_like=True, tag="enqueued"):
    """`shed` died to make room, `mended` dead ones gave way; `graves` of those who died and have one of their own."""

    at: Instant
    entries: list[Entry]
    merged: list[Merge] = []
    shed: list[int] = []
    graves: dict[int, Grave] = {}
    mended: list[int] = []
    fed: Fed | None = None


class Promoted(Struct, frozen=True, array_like=True, tag="promoted"):
    """Waiting jobs became claimable; `expired` ones died instead, unclaimed."""

    at: Instant
    ids: list[int]
    expired: list[int] = []
    graves: dict[int, Grave] = {}


class Claimed(Struct, frozen=True, array_like=True, tag="claimed"):
    """Jobs were handed out. `tats`: of the rates that they started at, the new theoretical arrival times."""

    at: Instant
    owner: str
    until: Instant
    ids: list[int]
    deliveries: list[int]
    tats: dict[str, Instant] = {}


class Extended(Struct, frozen=True, array_like=True, tag="extended"):
    at: Instant
    until: Instant
    ids: list[int]


class Acked(Struct, frozen=True, array_like=True, tag="a"):
    """`kept_until` 0: the job is gone; otherwise it stays readable until then."""

    id: int
    delivery: int
    kept_until: Instant = 0
    result: bytes | None = None


class Retried(Struct, frozen=True, array_like=True, tag="r"):
    """`keep_rank`: its rank is as `rank_back` says; else it follows from the new due time."""

    id: int
    delivery: int
    due_at: Instant
    error: Failure
    keep_rank: bool = False


class Died(Struct, frozen=True, array_like=True, tag="d"):
    id: int
    delivery: int
    error: Failure
    grave: Grave | None = None


class Released(Struct, frozen=True, array_like=True, tag="l"):
    """`leads`: as `rank_back` says; else it has the rank that it had. `error`: why, where it is to be remembered."""

    id: int
    delivery: int
    due_at: Instant
    leads: bool = False
    error: Failure | None = None


class Dismissed(Struct, frozen=True, array_like=True, tag="c"):
    """Ended by request, while it ran."""

    id: int
    delivery: int
    kept_until: Instant = 0


Ending: TypeAlias = Acked | Retried | Died | Released | Dismissed


class SettledAll(Struct, frozen=True, array_like=True, tag="settled"):
    at: Instant
    endings: list[Ending]


class Cancelled(Struct, frozen=True, array_like=True, tag="cancelled"):
    """`ids` ended at once and stay readable until `kept_until` (0: gone); the holders of `asked` will be told."""

    at: Instant
    ids: list[int]
    kept_until: list[Instant]
    asked: list[int]


class Redriven(Struct, frozen=True, array_like=True, tag="redriven"):
    """`withdrawn` were ready at the head of their lines and wait again, behind one that came back to life."""

    at: Instant
    ids: list[int]
    withdrawn: list[int] = []


class Purged(Struct, frozen=True, array_like=True, tag="purged"):
    """`outlived`: nobody asked, their time to be readable was over."""

    at: Instant
    ids: list[int]
    outlived: bool = False


class SpecPut(Struct, frozen=True, array_like=True, tag="spec"):
    at: Instant
    spec: QueueSpec


class Paused(Struct, frozen=True, array_like=True, tag="paused"):
    """`until` None: resumed."""

    at: Instant
    queue: str
    until: Instant | None


class GateSet(Struct, frozen=True, array_like=True, tag="gate"):
    """`limit` None: back to what the jobs were stamped with."""

    at: Instant
    name: str
    limit: int | None


class GateReleased(Struct, frozen=True, array_like=True, tag="gate-released"):
    """These jobs passed the gate of a condition, and are never held by it again."""

    at: Instant
    gate: str
    ids: list[int]


class SchedulePut(Struct, frozen=True, array_like=True, tag="schedule"):
    at: Instant
    schedule: Schedule


class ScheduleDropped(Struct, frozen=True, array_like=True, tag="schedule-dropped"):
    at: Instant
    name: str


class Fired(Struct, frozen=True, array_like=True, tag="fired"):
    """A slot was taken and its job accepted, in one record."""

    at: Instant
    name: str
    tick: Instant
    next_at: Instant
    entries: list[Entry]
    merged: list[Merge] = []
    shed: list[int] = []
    graves: dict[int, Grave] = {}


class LogEntry(Struct, frozen=True, array_like=True, gc=False):
    """One entry of a retained log."""

    partition: int
    offset: int
    at: Instant
    body: bytes
    key: str | None = None


class Appended(Struct, frozen=True, array_like=True, tag="appended"):
    at: Instant
    log: str
    entries: list[LogEntry]


class Committed(Struct, frozen=True, array_like=True, tag="committed"):
    at: Instant
    log: str
    group: str
    partition: int
    offset: int


class Trimmed(Struct, frozen=True, array_like=True, tag="trimmed"):
    """Every entry of the partition before this offset is gone."""

    at: Instant
    log: str
    partition: int
    before: int


class PartitionsOwned(Struct, frozen=True, array_like=True, tag="owned"):
    """A member of a group owns these partitions until the instant, each in its epoch, and no others any more."""

    at: Instant
    log: str
    group: str
    member: str
    until: Instant
    partitions: list[int]
    epochs: list[int]


class LedgerRuled(Struct, frozen=True, array_like=True, tag="ledger-ruled"):
    """A `core.ledger.LedgerRule`."""

    at: Instant
    on: bool
    keep: Span
    keep_bytes: int


class LedgerTrimmed(Struct, frozen=True, array_like=True, tag="ledger-trimmed"):
    """The ledger begins at `first` now, and `freed` bytes of records are gone."""

    at: Instant
    first: int
    freed: int


Event: TypeAlias = (
    Enqueued
    | Promoted
    | Claimed
    | Extended
    | SettledAll
    | Cancelled
    | Redriven
    | Purged
    | SpecPut
    | Paused
    | GateSet
    | SchedulePut
    | ScheduleDropped
    | Fired
    | Appended
    | Committed
    | Trimmed
    | LedgerRuled
    | LedgerTrimmed
    | GateReleased
    | PartitionsOwned
)
