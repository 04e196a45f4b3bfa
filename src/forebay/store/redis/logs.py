"""Retained logs: append, read, commit, and groups that share the partitions. And the ledger, which the scripts write.

An entry of the ledger is written by the call that it is about; here it becomes a record. See lua/ledger.lua.
"""

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

from forebay.core.entries import LogEntry
from forebay.core.errors import Invalid, OffsetGone, WrongQueueKind
from forebay.core.instant import Duration, Instant
from forebay.core.ledger import JobRange, LedgerEntry, LedgerRule, Record, Trait
from forebay.store.log import Owned, Standing, committed
from forebay.store.redis.connect import Argument
from forebay.store.redis.session import Session

_MAX_NUMBER: Final = 2**53 - 2


class Logs:
    """Dense offsets, groups, replay."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def append(self, log: str, entries: Sequence[tuple[bytes, str | None]]) -> list[LogEntry]:
        arguments: list[Argument] = []
        for body, key in entries:
            arguments += (crc32(key.encode()) if key else -1, key or "", body)
        reply = _of_log(log, self._session.call("append", log, *arguments))
        places = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        return [LogEntry(*place, body, key) for place, (body, key) in zip(places, entries, strict=True)]

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        reply = _of_log(
            log, self._session.call("read", log, _number(partition), min(after, _MAX_NUMBER), limit), partition
        )
        first, _, *found = reply
        if after + 1 < first:
            raise OffsetGone(log, partition, after + 1, first)
        return [_entry(partition, after + 1 + place, fields) for place, fields in enumerate(found)]

    def commit(self, log: str, group: str, partition: int, offset: int, rewind: bool, epoch: int | None) -> int:
        numbers = (_number(partition), _number(offset), int(rewind))
        known, flaw = self._session.call("commit", log, group, *numbers, "" if epoch is None else epoch)
        return committed(known, flaw.decode() or None, log, group, partition, offset, epoch)

    def position(self, log: str, group: str, partition: int) -> int:
        (position,) = _of_log(log, self._session.call("position", log, group, _number(partition)), partition)
        return int(position)

    def extent(self, log: str) -> list[tuple[int, int]]:
        extents = [(first, following) for first, following in self._session.call("extent", log)]
        if not extents:
            raise WrongQueueKind(log, is_log=False)
        return extents

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        (offset,) = _of_log(log, self._session.call("offset_at", log, _number(partition), instant), partition)
        return int(offset)

    def trim(self, log: str, before: Instant, limit: int) -> int:
        return _count(log, self._session.call("trim", log, before, limit))

    def own(self, log: str, group: str, member: str, lease_for: Duration) -> list[Owned]:
        until, *reply = _of_log(log, self._session.call("own", log, group, member, lease_for))
        owned = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        return [Owned(partition, epoch, position, until) for partition, epoch, position in owned]

    def disown(self, log: str, group: str, member: str) -> int:
        return _count(log, self._session.call("disown", log, group, member))

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        return [_standing(reply) for reply in _of_log(log, self._session.call("groups", log, after, limit))]


def _of_log(log: str, reply: Sequence[Any], partition: int = 0) -> Sequence[Any]:
    """The reply, if there is such a log and such a partition of it."""
    match reply:
        case [b"kind"]:
            raise WrongQueueKind(log, is_log=False)
        case [b"partition", count]:
            raise Invalid("partition", f"{partition!r} is not in 0 … {count - 1}", f"log {log!r} has no other")
        case _:
            return reply[1:]


def _count(log: str, reply: int) -> int:
    if reply < 0:
        raise WrongQueueKind(log, is_log=False)
    return reply


def _number(value: object) -> int:
    """-2 for what no partition or offset can be, so that the server refuses it with its reason."""
    return value if type(value) is int and abs(value) <= _MAX_NUMBER else -2


def _entry(partition: int, offset: int, fields: Sequence[bytes]) -> LogEntry:
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    key = found.get(b"k")
    return LogEntry(partition, offset, int(found[b"a"]), found[b"b"], None if key is None else key.decode())


def _standing(reply: Sequence[Any]) -> Standing:
    group, partition, position, lag, lost, loses_at, seen_at, member, epoch, until = reply
    owner = (member.decode(), epoch, until or None) if member else (None, 0, None)
    return Standing(group.decode(), partition, position, lag, lost, loses_at or None, seen_at, *owner)


_decode: Final = msgspec.msgpack.Decoder().decode


class Ledger:
    """What the calls of this store did, a record each."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        first, _, *entries = self._session.call("ledger", min(after, _MAX_NUMBER), limit)
        if after + 1 < first:
            raise OffsetGone("ledger", 0, after + 1, first)
        return [LedgerEntry(after + 1 + place, _record(kept)) for place, kept in enumerate(entries)]

    def ledger_extent(self) -> tuple[int, int]:
        first, following = self._session.call("ledger_rule")[3:]
        return first, following

    def ledger_rule(self) -> LedgerRule:
        off, keep, keep_bytes, _, _ = self._session.call("ledger_rule")
        return LedgerRule(not off, keep, keep_bytes)

    def put_ledger_rule(self, rule: LedgerRule) -> None:
        self._session.call("put_ledger_rule", int(not rule.on), rule.keep, rule.keep_bytes)

    def trim_ledger(self, limit: int) -> int:
        dropped: int = self._session.call("trim_ledger", limit)
        return dropped


def _record(kept: bytes) -> Record:
    at, verb, ranges, owner, name, tick = _decode(kept)
    return Record(at, verb, [_job_range(each) for each in ranges], owner or None, name or None, _tick(tick))


def _job_range(reply: Sequence[Any]) -> JobRange:
    """The fields of `JobRange` in their order; of traits each is a map, or false."""
    *facts, traits = reply
    fields: Any = (*facts, [Trait(**each) if each else None for each in traits] if traits else None)
    return JobRange(*fields)


def _tick(reply: int | bool) -> int | None:
    return None if reply is False else reply
