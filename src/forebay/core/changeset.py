"""One value for a change of the in-process store: what a verb plans, the journal logs, recovery applies again.

The ledger's record is made from it, and it determines which waiters wake up (rules: `store.memory.changes`). A
`ChangeSet` is everything that one call changes: applying change sets in order rebuilds the store. Jobs with the same
change share a `JobChange`, under the ledger's name for it (`core.ledger.Change`). Three changes are not in the ledger;
their names are here.

In the journal a change set and its ledger record are one `JournalEntry`: one write and one sync for both. `VERSION` is
its first field; a reader refuses any other. A new version only adds fields.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from forebay.core.entries import DeadLetterRule, Entry, Ingested, LogEntry, Merge
from forebay.core.instant import Instant
from forebay.core.ledger import LedgerRule
from forebay.core.outcome import Failure
from forebay.core.record_builder import MAINTAIN
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec

VERSION: Final = 8

PROMOTED: Final = "promoted"
WITHDRAWN: Final = "withdrawn"
PASSED: Final = "passed"
"""Changes that are not in the ledger:

promoted   a waiting job became ready
withdrawn  a ready job waits again behind another job of its line
passed     a ready job passed the gate of a condition, and is never held by it again; `name` of the set is the gate
"""


class JobChange(Struct, frozen=True, array_like=True):
    """Jobs with the same change. `deliveries`: their fences, where a lease begins or ends.

    until      as in a `JobRange`: the end of the lease, the new due time, or how long it stays readable
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


class TableChanges(Struct, frozen=True, omit_defaults=True):
    """New values in the tables that are not about single jobs, by name; None: the name is dropped.

    `tats`: the theoretical arrival times of rates at which jobs started.
    """

    specs: dict[str, QueueSpec] = {}
    paused: dict[str, Instant | None] = {}
    gate_limits: dict[str, int | None] = {}
    tats: dict[str, Instant] = {}
    schedules: dict[str, Schedule | None] = {}
    last_ticks: dict[str, Instant] = {}
    ingested: dict[str, Ingested] = {}


class LogChange(Struct, frozen=True, omit_defaults=True):
    """What changes in a retained log. Numbers of partitions are keys.

    committed  the new position of the group
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
    """A new rule, or a trim: the ledger begins at `first` now, and `freed` bytes of records were deleted."""

    rule: LedgerRule | None = None
    first: int = 0
    freed: int = 0


class ChangeSet(Struct, frozen=True, array_like=True):
    """One call. The ledger has `verb`, `owner`, `name` and `tick` from here.

    With the verb `MAINTAIN` the ledger gets a record only if jobs fell due.
    """

    at: Instant
    verb: str = MAINTAIN
    jobs: Sequence[JobChange] = ()
    entries: Sequence[Entry] = ()
    merges: Sequence[Merge] = ()
    owner: str | None = None
    name: str | None = None
    tick: Instant | None = None
    tables: TableChanges | None = None
    log: LogChange | None = None
    ledger: LedgerChange | None = None


class JobChanges:
    """Collects changes job by job; jobs with consecutive ids and the same change share a `JobChange`."""

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
    """A record of the ledger as it is stored: its offset, and the record as `core.ledger` encodes it."""

    offset: int
    record: bytes


class JournalEntry(Struct, frozen=True, array_like=True):
    """One entry of the journal: a change and its ledger record."""

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
    """The ledger's part of a journal entry; nothing else of it is decoded."""

    change: _LedgerOnly
    record: StoredRecord | None = None


_encode: Final = msgspec.msgpack.Encoder().encode
_entries: Final = msgspec.msgpack.Decoder(JournalEntry)
_parts: Final = msgspec.msgpack.Decoder(LedgerPart)
_VERSION_BYTE: Final = bytes([VERSION])


def encode_entry(change: ChangeSet, record: StoredRecord | None = None) -> bytes:
    return _VERSION_BYTE + _encode(JournalEntry(change, record))


def decode_entry(body: bytes | memoryview) -> JournalEntry:
    """Raises `ValueError` for another version or for bytes that are not an entry."""
    try:
        return _entries.decode(_checked(body))
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def decode_ledger_part(body: bytes | memoryview) -> LedgerPart:
    """Raises `ValueError` as `decode_entry` does."""
    try:
        return _parts.decode(_checked(body))
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def _checked(body: bytes | memoryview) -> bytes | memoryview:
    if not body or body[0] != VERSION:
        version = body[0] if body else "missing"
        raise ValueError(f"entry of version {version}, this reader supports version {VERSION}")
    return body[1:]
