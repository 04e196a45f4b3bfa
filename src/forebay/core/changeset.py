"""One value for a change of the in-process store: what a verb plans, the journal logs, recovery applies again.

The ledger's record is made from it, and it says which waiters wake up (rules: `store.memory.changes`). A `ChangeSet`
is everything that one call changes, complete: applying change sets in order rebuilds the store. Jobs to which the same
happened share a `JobChange`, under the name that the ledger has for it (`core.ledger.Change`); three changes are not
the ledger's business and have their names here.

In the journal a change set has a `JournalEntry`, beside the ledger's record of it: one write, one sync, both or
neither. `VERSION` is written in front; a reader refuses any other. Nothing is edited: a new version adds fields.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from forebay.core.entries import DeadLetterRule, Entry, Ingested, LogEntry, Merge
from forebay.core.instant import Instant
from forebay.core.ledger import LedgerRule
from forebay.core.outcome import Failure
from forebay.core.record_builder import TEND
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec

VERSION: Final = 8

PROMOTED: Final = "promoted"
WITHDRAWN: Final = "withdrawn"
PASSED: Final = "passed"
"""What the ledger has no name for:

promoted   a waiting job became ready
withdrawn  a ready job is behind another one of its line again, and waits
passed     a ready job passed the gate of a condition, and is never held by it again; `name` of the set is the gate
"""


class JobChange(Struct, frozen=True, array_like=True):
    """Jobs to which the same happened. `deliveries`: their fences, where a lease begins or ends.

    until      as a span of the ledger has it: the end of the lease, the new due time, or how long it stays readable
    error      why the jobs failed; `dead_letter`: their queue and time, if not for ever in their own
    keep_rank  of jobs that wait again: the rank is as `rank_back` says; otherwise it follows from the new due time
    """

    change: str
    ids: Sequence[int] = ()
    deliveries: Sequence[int] = ()
    until: Instant = 0
    error: Failure | None = None
    dead_letter: DeadLetterRule | None = None
    result: bytes | None = None
    keep_rank: bool = False


class Tables(Struct, frozen=True, omit_defaults=True):
    """New values in the tables that are not about single jobs, by name; None: the name is dropped.

    `tats`: the theoretical arrival times of rates at which jobs started.
    """

    specs: dict[str, QueueSpec] = {}
    paused: dict[str, Instant | None] = {}
    gate_limits: dict[str, int | None] = {}
    tats: dict[str, Instant] = {}
    schedules: dict[str, Schedule | None] = {}
    last_ticks: dict[str, Instant] = {}
    feeds: dict[str, Ingested] = {}


class LogChange(Struct, frozen=True, omit_defaults=True):
    """What changes in a retained log. Numbers of partitions are keys.

    committed  how far the group has come
    trimmed    entries before this offset are gone
    owned      with `member`: the epochs in which that member owns these partitions until `until`, and no others
    """

    log: str
    entries: Sequence[LogEntry] = ()
    group: str = ""
    committed: dict[int, int] = {}
    trimmed: dict[int, int] = {}
    member: str | None = None
    until: Instant = 0
    owned: dict[int, int] = {}


class LedgerChange(Struct, frozen=True, omit_defaults=True):
    """A new rule, or: the ledger begins at `first` now, and `freed` bytes of records are gone."""

    rule: LedgerRule | None = None
    first: int = 0
    freed: int = 0


class ChangeSet(Struct, frozen=True, array_like=True):
    """One call. The ledger has `verb`, `owner`, `name` and `tick` from here.

    A verb of `TEND` is no news by itself: something fell due, or nothing changed that the ledger has a name for.
    """

    at: Instant
    verb: str = TEND
    jobs: Sequence[JobChange] = ()
    entries: Sequence[Entry] = ()
    merges: Sequence[Merge] = ()
    owner: str | None = None
    name: str | None = None
    tick: Instant | None = None
    tables: Tables | None = None
    log: LogChange | None = None
    ledger: LedgerChange | None = None


class JobChanges:
    """Collects what happens to jobs one by one; neighbours to which the same happens share a `JobChange`."""

    __slots__ = ("_deliveries", "_ids", "_last", "jobs")

    def __init__(self) -> None:
        self.jobs: list[JobChange] = []
        self._last: tuple[object, ...] = ()
        self._ids: list[int] = []
        self._deliveries: list[int] = []

    def add(
        self,
        job_id: int,
        delivery: int,
        change: str,
        until: Instant = 0,
        error: Failure | None = None,
        dead_letter: DeadLetterRule | None = None,
        result: bytes | None = None,
        keep_rank: bool = False,
    ) -> None:
        """The fields of a `JobChange`; a delivery of 0: no lease begins or ends."""
        what = (change, until, error, dead_letter, result, keep_rank)
        if what != self._last:
            self._last, self._ids, self._deliveries = what, [], []
            self.jobs.append(
                JobChange(change, self._ids, self._deliveries, until, error, dead_letter, result, keep_rank)
            )
        self._ids.append(job_id)
        if delivery:
            self._deliveries.append(delivery)


class StoredRecord(Struct, frozen=True, array_like=True, gc=False):
    """A record of the ledger as it is kept: its offset, and the record as `core.ledger` encodes it."""

    offset: int
    record: bytes


class JournalEntry(Struct, frozen=True, array_like=True):
    """One entry of the journal: a change, and what the ledger says of it."""

    change: ChangeSet
    record: StoredRecord | None = None


class _LedgerOnly(Struct, frozen=True, array_like=True):
    """A `ChangeSet` of which only the last field is decoded."""

    at: Raw
    verb: Raw
    jobs: Raw
    entries: Raw
    merges: Raw
    owner: Raw
    name: Raw
    tick: Raw
    tables: Raw
    log: Raw
    ledger: LedgerChange | None


class LedgerPart(Struct, frozen=True, array_like=True):
    """What an entry of the journal has to do with the ledger; nothing else of it is decoded."""

    change: _LedgerOnly
    record: StoredRecord | None = None


_encode: Final = msgspec.msgpack.Encoder().encode
_entries: Final = msgspec.msgpack.Decoder(JournalEntry)
_parts: Final = msgspec.msgpack.Decoder(LedgerPart)
_VERSION_BYTE: Final = bytes([VERSION])


def encode_entry(change: ChangeSet, record: StoredRecord | None = None) -> bytes:
    return _VERSION_BYTE + _encode(JournalEntry(change, record))


def decode_entry(body: bytes | memoryview) -> JournalEntry:
    """`ValueError` when it is of another version, or no entry at all."""
    try:
        return _entries.decode(_checked(body))
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def decode_ledger_part(body: bytes | memoryview) -> LedgerPart:
    """`ValueError` as in `decode_entry`."""
    try:
        return _parts.decode(_checked(body))
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def _checked(body: bytes | memoryview) -> bytes | memoryview:
    if not body or body[0] != VERSION:
        version = body[0] if body else "missing"
        raise ValueError(f"entry of version {version}, this reader knows version {VERSION}")
    return body[1:]
