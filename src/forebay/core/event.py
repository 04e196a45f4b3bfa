"""What the in-process store writes into its journal: events, each holding everything that a change did.

An event is batch-shaped (arrays, not one row a job) and complete: replaying events in order rebuilds the store.
With the event comes, in the same record, what the ledger (`core.ledger`) says of it: one write, one sync, both or
neither. Records are never edited; a new version adds fields at the end of a record, values of a field or new records,
and `VERSION` is written in front of each so that an old reader refuses what it cannot know. A record of any older
version is read, and means what it meant.

    1   the first
    2   `Entry.rank_timed` is a number of `core.rank`; it was a bool, and nobody led
    3   a record is an event and, where the ledger is on, its entry; `Purged.outlived`; the ledger's own events
"""

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from forebay.core.gate import Gate
from forebay.core.instant import Instant, Span
from forebay.core.outcome import Failure
from forebay.core.rank import TIMED
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec

VERSION: Final = 3
READABLE: Final = range(1, VERSION + 1)


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """A job at its birth. `ready`: it was claimable at once; otherwise it waits for its due time or a gate."""

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
    gates: tuple[Gate, ...] = ()


class Merge(Struct, frozen=True, array_like=True):
    """A waiting job took over a newer payload, and the newer draft's key points at it."""

    id: int
    kind: str
    body: bytes
    key: str | None = None
    key_digest: bytes = b""
    key_until: Instant = 0


class Enqueued(Struct, frozen=True, array_like=True, tag="enqueued"):
    at: Instant
    entries: list[Entry]
    merged: list[Merge] = []


class Promoted(Struct, frozen=True, array_like=True, tag="promoted"):
    """Waiting jobs became claimable; `expired` ones died instead, unclaimed."""

    at: Instant
    ids: list[int]
    expired: list[int] = []


class Claimed(Struct, frozen=True, array_like=True, tag="claimed"):
    at: Instant
    owner: str
    until: Instant
    ids: list[int]
    deliveries: list[int]


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
    id: int
    delivery: int
    due_at: Instant
    error: Failure


class Died(Struct, frozen=True, array_like=True, tag="d"):
    id: int
    delivery: int
    error: Failure


class Released(Struct, frozen=True, array_like=True, tag="l"):
    id: int
    delivery: int
    due_at: Instant


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
    at: Instant
    ids: list[int]


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
)


class Told(Struct, frozen=True, array_like=True, gc=False):
    """What the ledger says of an event: the offset of its record, and the record as `core.ledger` encodes it."""

    offset: int
    record: bytes


class Written(Struct, frozen=True, array_like=True):
    """One record of the journal."""

    event: Event
    told: Told | None = None


class _Glimpse(Struct, frozen=True, array_like=True):
    event: msgspec.Raw
    told: Told | None = None


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Written]] = msgspec.msgpack.Decoder(Written)
_bare_decoder: Final[msgspec.msgpack.Decoder[Event]] = msgspec.msgpack.Decoder(Event)
_glimpser: Final[msgspec.msgpack.Decoder[_Glimpse]] = msgspec.msgpack.Decoder(_Glimpse)
_VERSION_BYTE: Final = bytes([VERSION])
_BARE: Final = 2
"""The last version whose records are events and nothing else."""


def encode_event(event: Event, told: Told | None = None) -> bytes:
    return _VERSION_BYTE + _encoder.encode(Written(event, told))


def decode_event(record: bytes | memoryview) -> Event:
    """The event in a record; `ValueError` when it is of a version unknown here or no event at all."""
    return decode_written(record).event


def decode_written(record: bytes | memoryview) -> Written:
    """The event and what the ledger says of it; `ValueError` as in `decode_event`."""
    version = _version(record)
    try:
        return Written(_bare_decoder.decode(record[1:])) if version <= _BARE else _decoder.decode(record[1:])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def decode_told(record: bytes | memoryview) -> Told | None:
    """What the ledger says, without a look at the event."""
    if _version(record) <= _BARE:
        return None
    try:
        return _glimpser.decode(record[1:]).told
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def is_of_ledger(record: bytes | memoryview) -> bool:
    """Whether the event is one of the ledger's own, by its tag alone."""
    return record[4:11] == b"ledger-"


def _version(record: bytes | memoryview) -> int:
    if not record or record[0] not in READABLE:
        version = record[0] if record else "missing"
        raise ValueError(f"record version {version}, this reader knows versions 1 to {VERSION}")
    return record[0]
