"""Retained logs: append, read, commit, and groups that share the partitions."""

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

from forebay.core.entries import LogEntry
from forebay.core.errors import Invalid, OffsetGone, WrongQueueKind
from forebay.core.instant import Duration, Instant
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
        reply = _of_log(log, self._session.call("append", log, *arguments, tokened=True))
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
        known, flaw = self._session.call("commit", log, group, *numbers, "" if epoch is None else epoch, tokened=True)
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
        return _count(log, self._session.call("trim", log, before, limit, tokened=True))

    def own(self, log: str, group: str, member: str, span: Duration) -> list[Owned]:
        until, *told = _of_log(log, self._session.call("own", log, group, member, span))
        owned = zip(told[::3], told[1::3], told[2::3], strict=True)
        return [Owned(partition, epoch, position, until) for partition, epoch, position in owned]

    def disown(self, log: str, group: str, member: str) -> int:
        return _count(log, self._session.call("disown", log, group, member, tokened=True))

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        return [_standing(told) for told in _of_log(log, self._session.call("groups", log, after, limit))]


def _of_log(log: str, reply: Sequence[Any], partition: int = 0) -> Sequence[Any]:
    """What was answered, if there is such a log and such a partition of it."""
    match reply:
        case [b"kind"]:
            raise WrongQueueKind(log, is_log=False)
        case [b"partition", count]:
            raise Invalid("partition", f"{partition!r} is not in 0 … {count - 1}", f"log {log!r} has no other")
        case _:
            return reply[1:]


def _count(log: str, told: int) -> int:
    if told < 0:
        raise WrongQueueKind(log, is_log=False)
    return told


def _number(value: object) -> int:
    """What is no number of ours is one that never is: the server answers why."""
    return value if type(value) is int and abs(value) <= _MAX_NUMBER else -2


def _entry(partition: int, offset: int, fields: Sequence[bytes]) -> LogEntry:
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    key = found.get(b"k")
    return LogEntry(partition, offset, int(found[b"a"]), found[b"b"], None if key is None else key.decode())


def _standing(told: Sequence[Any]) -> Standing:
    group, partition, position, lag, lost, loses_at, seen_at, member, epoch, until = told
    owner = (member.decode(), epoch, until or None) if member else (None, 0, None)
    return Standing(group.decode(), partition, position, lag, lost, loses_at or None, seen_at, *owner)
