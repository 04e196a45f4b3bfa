"""Facts as bytes, in chunks of bounded size: what a snapshot holds.

`image(facts)` and `restore(chunks)` are each other's inverse. A chunk is versioned like a ledger record.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from forebay.core.errors import StoreFailed
from forebay.core.event import Fed, LogEntry
from forebay.core.instant import Instant
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.core.written import READABLE, VERSION
from forebay.store.memory.facts import Facts, KeyFact, KeyName
from forebay.store.memory.ledger_state import LedgerState
from forebay.store.memory.logs import GroupName, Partition, Place
from forebay.store.memory.row import Row

_PER_CHUNK: Final = 1_000


class _Head(Struct, frozen=True, array_like=True, tag="head"):
    next_id: int
    last_at: Instant
    specs: list[QueueSpec]
    paused: dict[str, Instant]
    gate_limits: dict[str, int]
    schedules: list[Schedule]
    last_ticks: dict[str, Instant]
    places: list[tuple[Place, int]]
    firsts: list[tuple[str, list[int]]]
    ledger: LedgerState = msgspec.field(default_factory=LedgerState)
    tides: dict[str, Instant] = {}
    owners: list[tuple[Place, tuple[str | None, int]]] = []
    members: list[tuple[GroupName, dict[str, Instant]]] = []
    seen: dict[str, dict[str, Instant]] = {}
    lost: list[tuple[Place, int]] = []
    feeds: list[tuple[Fed, Instant]] = []


class _Rows(Struct, frozen=True, array_like=True, tag="rows"):
    rows: list[Row]


class _Keys(Struct, frozen=True, array_like=True, tag="keys"):
    keys: list[tuple[KeyName, KeyFact]]


class _Removed(Struct, frozen=True, array_like=True, tag="removed"):
    removed: list[tuple[int, tuple[int, str]]]


class _Entries(Struct, frozen=True, array_like=True, tag="entries"):
    log: str
    entries: list[LogEntry]


_Chunk: TypeAlias = _Head | _Rows | _Keys | _Removed | _Entries

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[_Chunk]] = msgspec.msgpack.Decoder(_Chunk)


def image(facts: Facts) -> Iterator[bytes]:
    """The facts, chunk by chunk; they must not change meanwhile."""
    return (bytes([VERSION]) + _encoder.encode(chunk) for chunk in _chunks(facts))


def restore(chunks: Iterable[bytes]) -> Facts:
    """The facts that an image was made of; no chunks at all are a store that never was."""
    facts = Facts()
    for number, chunk in enumerate(chunks):
        if chunk[0] not in READABLE:
            raise StoreFailed("snapshot", f"chunk {number} has version {chunk[0]}, this reader knows 1 to {VERSION}")
        _take(facts, _decoder.decode(memoryview(chunk)[1:]))
    return facts


def ledger_state(chunks: Iterable[bytes]) -> LedgerState:
    """What an image says of the ledger; its first chunk is enough."""
    facts = restore(islice(chunks, 1))
    return facts.ledger


def _chunks(facts: Facts) -> Iterator[_Chunk]:
    logs = facts.logs
    yield _Head(
        facts.next_id,
        facts.last_at,
        list(facts.specs.values()),
        facts.paused,
        facts.gate_limits,
        list(facts.schedules.values()),
        facts.last_ticks,
        list(logs.places.items()),
        [(log, [partition.first for partition in partitions]) for log, partitions in logs.partitions.items()],
        facts.ledger,
        facts.tides,
        list(logs.owners.items()),
        list(logs.members.items()),
        logs.seen,
        list(logs.lost.items()),
        list(facts.feeds.values()),
    )
    rows = iter(facts.rows.values())
    while batch := list(islice(rows, _PER_CHUNK)):
        yield _Rows(batch)
    keys = iter(facts.keys.items())
    while some := list(islice(keys, _PER_CHUNK)):
        yield _Keys(some)
    removed = facts.removed_in_order()
    while gone := list(islice(removed, _PER_CHUNK)):
        yield _Removed(gone)
    for log, partitions in logs.partitions.items():
        for partition in partitions:
            yield from _entries(log, partition)


def _entries(log: str, partition: Partition) -> Iterator[_Entries]:
    after = partition.first - 1
    while entries := partition.read(after, _PER_CHUNK):
        yield _Entries(log, entries)
        after = entries[-1].offset


def _take(facts: Facts, chunk: _Chunk) -> None:
    match chunk:
        case _Head():
            _take_head(facts, chunk)
        case _Rows(rows):
            facts.rows.update((row.entry.id, row) for row in rows)
        case _Keys(keys):
            for name, fact in keys:
                facts.remember_key(name, fact)
        case _Removed(removed):
            for job_id, settled in removed:
                facts.remember_removed(job_id, settled)
        case _Entries(log, entries):
            for entry in entries:
                facts.logs.partitions[log][entry.partition].append(entry)


def _take_head(facts: Facts, head: _Head) -> None:
    facts.next_id, facts.last_at = head.next_id, head.last_at
    facts.specs = {spec.name: spec for spec in head.specs}
    facts.paused, facts.gate_limits, facts.last_ticks = head.paused, head.gate_limits, head.last_ticks
    facts.schedules = {schedule.name: schedule for schedule in head.schedules}
    facts.ledger, facts.tides = head.ledger, head.tides
    facts.logs.places = dict(head.places)
    facts.logs.partitions = {log: [Partition(first) for first in firsts] for log, firsts in head.firsts}
    facts.logs.owners, facts.logs.members = dict(head.owners), dict(head.members)
    facts.logs.seen, facts.logs.lost = head.seen, dict(head.lost)
    facts.feeds = {fed.source: (fed, at) for fed, at in head.feeds}
    for log, group, _ in facts.logs.places:
        # An image from before groups were known by name.
        facts.logs.seen.setdefault(log, {}).setdefault(group, head.last_at)
