"""How an event is written into a journal, and read back.

With the event comes, in the same record, what the ledger (`core.ledger`) says of it: one write, one sync, both or
neither. `VERSION` is written in front of each record: a reader refuses what it cannot know. Versions before 6 were
never released; in them jobs took slots when they became ready.
"""

from typing import Final

import msgspec
from msgspec import Struct

from forebay.core.event import Event

VERSION: Final = 6
READABLE: Final = range(6, VERSION + 1)


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
_glimpser: Final[msgspec.msgpack.Decoder[_Glimpse]] = msgspec.msgpack.Decoder(_Glimpse)
_VERSION_BYTE: Final = bytes([VERSION])


def encode_event(event: Event, told: Told | None = None) -> bytes:
    return _VERSION_BYTE + _encoder.encode(Written(event, told))


def decode_event(record: bytes | memoryview) -> Event:
    """The event in a record; `ValueError` when it is of a version unknown here or no event at all."""
    return decode_written(record).event


def decode_written(record: bytes | memoryview) -> Written:
    """The event and what the ledger says of it; `ValueError` as in `decode_event`."""
    _check_version(record)
    try:
        return _decoder.decode(record[1:])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def decode_told(record: bytes | memoryview) -> Told | None:
    """What the ledger says, without a look at the event."""
    _check_version(record)
    try:
        return _glimpser.decode(record[1:]).told
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def is_of_ledger(record: bytes | memoryview) -> bool:
    """Whether the event is one of the ledger's own, by its tag alone."""
    return record[4:11] == b"ledger-"


def _check_version(record: bytes | memoryview) -> None:
    if not record or record[0] not in READABLE:
        version = record[0] if record else "missing"
        raise ValueError(f"record version {version}, this reader knows version {VERSION}")
