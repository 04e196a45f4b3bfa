"""Facts as bytes, in chunks of bounded size: what a snapshot holds.

`image(facts)` and `restore(chunks)` are each other's inverse. A chunk holds items of one table and is versioned like an
entry of the journal. It ends after `_PER_CHUNK` items or before `CHUNK_BYTES`, whichever comes first, so that no number
of large jobs, log entries or schedules makes a chunk that a snapshot cannot take; one item is far below that bound.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from forebay.core.changeset import VERSION
from forebay.core.entries import Ingested, LogEntry
from forebay.core.errors import StoreFailed
from forebay.core.instant import Instant
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.engine.intake import KeyFact
from forebay.engine.settle import Mark
from forebay.store.memory.facts import Facts, GroupName, GroupPartition, JobRow, KeyName, LedgerState, Partition

CHUNK_BYTES: Final = 1024 * 1024
"""What the items of a chunk take; a single item may take more."""

_PER_CHUNK: Final = 1_000


class _Chunk(Struct, frozen=True, array_like=True):
    table: str
    items: Raw


class _Table(Struct, frozen=True):
    """One kind of facts: its items, and how they are taken back."""

    items: Callable[[Facts], Iterable[Any]]
    take: Callable[[Facts, list[Any]], object]
    decoder: msgspec.msgpack.Decoder[list[Any]]


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(_Chunk)


def image(facts: Facts) -> Iterator[bytes]:
    """The facts, chunk by chunk; they must not change meanwhile."""
    for name, table in _TABLES.items():
        for items in _cut(table.items(facts)):
            yield bytes([VERSION]) + _encode((name, items))


def restore(chunks: Iterable[bytes], source: str = "snapshot") -> Facts:
    """The facts that an image was made of; no chunks at all are a store that never was."""
    facts = Facts()
    for number, chunk in enumerate(chunks):
        if chunk[0] != VERSION:
            raise StoreFailed(source, f"chunk {number} has version {chunk[0]}, this reader supports version {VERSION}")
        try:
            found = _decoder.decode(memoryview(chunk)[1:])
            table = _TABLES[found.table]
            table.take(facts, table.decoder.decode(found.items))
        except (ValueError, LookupError) as error:
            raise StoreFailed(source, f"chunk {number} is sound but not understood: {error!r}") from error
    return facts


def ledger_state(chunks: Iterable[bytes], source: str = "snapshot") -> LedgerState:
    """What an image says of the ledger; its first chunk is enough."""
    return restore(islice(chunks, 1), source).ledger


def _cut(items: Iterable[Any]) -> Iterator[list[Raw]]:
    batch: list[Raw] = []
    size = 0
    for item in items:
        encoded = _encode(item)
        if batch and (len(batch) == _PER_CHUNK or size + len(encoded) > CHUNK_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(Raw(encoded))
        size += len(encoded)
    if batch:
        yield batch


def _take_head(facts: Facts, items: list[tuple[int, Instant, LedgerState]]) -> None:
    for head in items:
        facts.next_id, facts.last_at, facts.ledger = head


def _take_keys(facts: Facts, items: list[tuple[KeyName, KeyFact]]) -> None:
    for name, fact in items:
        facts.remember_key(name, fact)


def _take_removed(facts: Facts, items: list[tuple[int, Mark]]) -> None:
    for job_id, mark in items:
        facts.remember_removed(job_id, mark)


def _entries(facts: Facts) -> Iterator[tuple[str, LogEntry]]:
    for log, partitions in facts.logs.partitions.items():
        for partition in partitions:
            after = partition.first - 1
            while some := partition.read(after, _PER_CHUNK):
                yield from ((log, entry) for entry in some)
                after = some[-1].offset


def _take_entries(facts: Facts, items: list[tuple[str, LogEntry]]) -> None:
    for log, entry in items:
        facts.logs.partitions[log][entry.partition].append(entry)


def _firsts(facts: Facts) -> Iterator[tuple[str, list[int]]]:
    return ((log, [each.first for each in partitions]) for log, partitions in facts.logs.partitions.items())


def _table(kind: Any, items: Callable[[Facts], Iterable[Any]], take: Callable[[Facts, list[Any]], object]) -> _Table:
    return _Table(items, take, msgspec.msgpack.Decoder(list[kind]))


def _mapping(key: Any, value: Any, of: Callable[[Facts], dict[Any, Any]]) -> _Table:
    """A table whose items are the pairs of a dictionary."""
    return _table(tuple[key, value], lambda facts: of(facts).items(), lambda facts, items: of(facts).update(items))


_TABLES: Final[dict[str, _Table]] = {
    "head": _table(
        tuple[int, Instant, LedgerState], lambda facts: [(facts.next_id, facts.last_at, facts.ledger)], _take_head
    ),
    "specs": _mapping(str, QueueSpec, lambda facts: facts.specs),
    "paused": _mapping(str, Instant, lambda facts: facts.paused),
    "gate_limits": _mapping(str, int, lambda facts: facts.gate_limits),
    "tats": _mapping(str, Instant, lambda facts: facts.tats),
    "schedules": _mapping(str, Schedule, lambda facts: facts.schedules),
    "last_ticks": _mapping(str, Instant, lambda facts: facts.last_ticks),
    "ingested": _mapping(str, tuple[Ingested, Instant], lambda facts: facts.ingested),
    "rows": _table(
        JobRow,
        lambda facts: facts.rows.values(),
        lambda facts, items: facts.rows.update((row.entry.id, row) for row in items),
    ),
    "keys": _table(tuple[KeyName, KeyFact], lambda facts: facts.keys.items(), _take_keys),
    "removed": _table(tuple[int, Mark], lambda facts: facts.removed_in_order(), _take_removed),
    "partitions": _table(
        tuple[str, list[int]],
        _firsts,
        lambda facts, items: facts.logs.partitions.update(
            (log, [Partition(first) for first in firsts]) for log, firsts in items
        ),
    ),
    "places": _mapping(GroupPartition, int, lambda facts: facts.logs.positions),
    "owners": _mapping(GroupPartition, tuple[str | None, int], lambda facts: facts.logs.owners),
    "members": _mapping(GroupName, dict[str, Instant], lambda facts: facts.logs.members),
    "seen": _mapping(str, dict[str, Instant], lambda facts: facts.logs.seen),
    "lost": _mapping(GroupPartition, int, lambda facts: facts.logs.lost),
    "entries": _table(tuple[str, LogEntry], _entries, _take_entries),
}
"""In the order in which they are written and taken back: the head first, logs before their entries."""
