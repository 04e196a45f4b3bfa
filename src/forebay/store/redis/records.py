"""Jobs as callers see them, from the records that the scripts keep. See lua/jobs.lua for their fields.

Alike jobs have equal records, so a record is read once a reply.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from forebay.core.job import Job
from forebay.core.lease import Lease
from forebay.core.outcome import Failure
from forebay.store.states import STATES

ID_DIGITS: Final = 16
_MAX_ID: Final = 10**ID_DIGITS - 1

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_meta: Final = msgspec.json.Decoder(dict[str, str]).decode


class _Record(Struct, frozen=True, array_like=True):
    """A record as the scripts have it; an instant of False: none."""

    state: int
    queue: str
    cls: str
    kind: str
    rank: str
    due_at: int
    enqueued_at: int
    max_attempts: int
    attempt: int
    delivery: int
    timed: int
    owner: str | bool
    claimed_at: int | bool
    until: int | bool
    more: dict[str, Any] | bool


_decode: Final = msgspec.msgpack.Decoder(_Record).decode


def packed(value: object) -> bytes:
    """A value as a script reads it."""
    return _encode(value)


def sid(job_id: int) -> str:
    return f"{job_id:016d}"


def sids(ids: Iterable[int]) -> list[str]:
    """Ids as keys have them; what is too large to be one is left out."""
    return [sid(job_id) for job_id in ids if 0 < job_id <= _MAX_ID]


def jobs_of(reply: Sequence[bytes], *, results: bool = False) -> Iterator[Job]:
    """Jobs from a reply: id, record, payload, and with `results` the result."""
    step = 4 if results else 3
    known: dict[bytes, tuple[Any, ...]] = {}
    for place in range(0, len(reply), step):
        record = reply[place + 1]
        fields = known.get(record)
        if fields is None:
            fields = known[record] = _fields(_decode(record))
        queue, kind, middle, cost, home = fields
        result = reply[place + 3] or None if results else None
        facts: Any = (int(reply[place]), queue, kind, reply[place + 2], *middle, result, cost, home)
        yield Job(*facts)


def leases_of(reply: Sequence[bytes]) -> list[Lease]:
    return [Lease(job, job.owner or "", job.lease_until or 0) for job in jobs_of(reply)]


def _fields(record: _Record) -> tuple[Any, ...]:
    """The fields of a `Job` but for id, payload and result."""
    more = record.more if isinstance(record.more, dict) else {}
    meta = more.get("meta")
    middle: Any = (
        STATES[record.state],
        more.get("priority", 0),
        record.enqueued_at,
        record.due_at,
        record.attempt,
        record.max_attempts,
        record.delivery,
        more.get("key"),
        more.get("tenant"),
        more.get("subject"),
        more.get("deadline"),
        more.get("expires"),
        None if meta is None else _decode_meta(meta),
        record.owner or None,
        record.claimed_at or None,
        record.until or None,
        more.get("finished"),
        more.get("cancel_requested", False),
        tuple(Failure(*error) for error in more.get("errors", ())),
    )
    return record.queue, record.kind, middle, more.get("cost", 1), more.get("home")
