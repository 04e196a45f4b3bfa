"""The ledger: what happened to which jobs, one record a mutating call, written in the transaction of the call itself.

A record is batch-shaped. Jobs with neighbouring ids to which the same happened share one `JobRange`, so a call that
moves a hundred alike jobs costs one range. Records hold no payloads: they prove, they do not restore. (A store is
restored from its tables, or from the journal of `core.entries`.) Offsets are dense from 0 in the order of commits, so
that a reader who has seen offset n has seen everything up to n, and nothing ever appears behind it.

What a range says beyond its jobs depends on the change:

    accepted          a new job: `due_at`, `max_attempts`
    merged            took a newer payload, due at `due_at`
    claimed           leased until `until`; `delivery` is the fence
    extended          the lease lasts until `until` now
    acked             done; readable until `until`, 0: gone
    retried           failed, due again at `until`
    died              failed for good
    released          handed back uncharged, due at `until`
    cancel_requested  its cancellation was requested while it ran
    discarded         ended by that request, readable until `until`
    cancelled         ended by request before it ran, readable until `until`
    expired           died because it was not claimed in time
    redriven          a dead job is open again, due at `until`
    purged            a finished job was deleted
    shed              died, before it ran, to make room in a full queue

Changes of a running job carry what its lease said (`delivery`, `attempt`, `enqueued_at`, `due_at`, `claimed_at`), so
that waiting, running and lateness follow from one record. A merge without a `due_at` leaves the job its time. A dead
letter that is in another queue is recorded under the queue that it died in. Copies of a broker are jobs like others,
each in its own queue. A record without ranges is of a verb that moves no job.
New versions add fields at the end of a range or a record, or new changes; `VERSION` is kept beside the records.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.instant import Duration, Instant, micros
from forebay.core.limits import LEDGER_BYTES, LEDGER_KEPT, MAX_DURATION

VERSION: Final = 1
_MAX_KEEP: Final = micros(MAX_DURATION)
_MAX_BYTES: Final = 2**60


class Change(StrEnum):
    """What happened to a job. The values are those in the records."""

    ACCEPTED = "accepted"
    MERGED = "merged"
    CLAIMED = "claimed"
    EXTENDED = "extended"
    ACKED = "acked"
    RETRIED = "retried"
    DIED = "died"
    RELEASED = "released"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"
    CANCEL_REQUESTED = "cancel_requested"
    EXPIRED = "expired"
    REDRIVEN = "redriven"
    PURGED = "purged"
    SHED = "shed"


class Trait(Struct, frozen=True, omit_defaults=True):
    """What most jobs do not have, or what differs from the other jobs of the range."""

    kind: str | None = None
    tenant: str | None = None
    subject: str | None = None
    key: str | None = None
    priority: int = 0
    error_kind: str | None = None
    error: str | None = None


class JobRange(Struct, frozen=True, array_like=True, omit_defaults=True):
    """`n` jobs with neighbouring ids from `first` on, and what happened to them all. An instant of 0: none."""

    change: str
    first: int
    n: int
    queue: str
    kind: str
    delivery: int = 0
    attempt: int = 0
    max_attempts: int = 0
    enqueued_at: Instant = 0
    due_at: Instant = 0
    claimed_at: Instant = 0
    until: Instant = 0
    traits: list[Trait | None] | None = None


class Record(Struct, frozen=True, array_like=True, omit_defaults=True):
    """One call. `owner`: the claimer; `name` and `tick`: the queue, gate or schedule that it is about, and its slot."""

    at: Instant
    verb: str
    ranges: list[JobRange] = []
    owner: str | None = None
    name: str | None = None
    tick: Instant | None = None

    @property
    def jobs(self) -> int:
        return sum(job_range.n for job_range in self.ranges)


class LedgerEntry(Struct, frozen=True):
    """A record and its offset."""

    offset: int
    record: Record


class LedgerRule(Struct, frozen=True):
    """Whether a store keeps its ledger, how long, and how much of it; the first bound that is passed trims."""

    on: bool = True
    keep: Duration = micros(LEDGER_KEPT)
    keep_bytes: int = LEDGER_BYTES

    def __post_init__(self) -> None:
        if type(self.on) is not bool:
            raise Invalid("ledger on", f"{self.on!r} is neither True nor False", "say whether records are written")
        for field, value, maximum in (("keep", self.keep, _MAX_KEEP), ("keep_bytes", self.keep_bytes, _MAX_BYTES)):
            if type(value) is not int or not 0 <= value <= maximum:
                raise Invalid(f"ledger {field}", f"{value!r} is not an integer in 0 … {maximum}", "keep less of it")

    def dropped(self, oldest: Iterable[tuple[Instant, int]], size: int, now: Instant) -> tuple[int, int]:
        """How many of the oldest records the rule gives up, and their bytes.

        `oldest`: instants and bytes of records from the front of the ledger on; `size`: bytes of all records.
        """
        count = freed = 0
        for at, length in oldest:
            if at >= now - self.keep and size - freed <= self.keep_bytes:
                break
            count, freed = count + 1, freed + length
        return count, freed


RECORDS_PER_TRIM: Final = 64
"""After how many records a store trims its ledger in passing."""

TRIMMED_AT_ONCE: Final = 256
"""How many records it gives up then, at most."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final[msgspec.msgpack.Decoder[Record]] = msgspec.msgpack.Decoder(Record)
_VERSION_BYTE: Final = bytes([VERSION])


def encode_record(record: Record) -> bytes:
    """What a store keeps: the version, followed by the record."""
    return _VERSION_BYTE + _encode(record)


def decode_record(kept: bytes | memoryview) -> Record:
    """The record. Raises `ValueError` for an unknown version or for bytes that are not a record."""
    if not kept or kept[0] != VERSION:
        raise ValueError(
            f"ledger record version {kept[0] if kept else 'missing'}, this reader supports version {VERSION}"
        )
    try:
        return _decoder.decode(kept[1:])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
