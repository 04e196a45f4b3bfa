"""The bytes of a journal: segment header, frame and mark. Pure functions, no files.

    header  magic 4 | format version u8 | first lsn u64 | salt u32 | crc
    frame   marker 4 | body length u32 | lsn u64 | watermark u64 | head crc | frame crc | body
    mark    magic 4 | lsn u64 | crc

All numbers are little-endian, every crc is a CRC32C. The watermark of a frame is the
highest lsn that was known to be durable when the frame was made, so each frame is a
witness for the frames before it. The head crc covers length, lsn and watermark; the
frame crc continues from there over the body. A frame with an empty body is a seal.

Promise: a frame that `Scan` yields is the frame that was appended, up to a CRC32C
collision. Whatever the bytes are, nothing here raises and no work is more than
linear in them: a length is believed only under its head crc.

Authority: the salt in the header. It starts every crc of its segment, so a journal
copied into a body, or crafted by a sender of bodies, cannot pose as a frame when
`later_watermark` searches for later watermarks behind a damaged frame.

What can go wrong: a `Scan` that stops early says where (`end`) and why (`fault`);
it does not say whether that is a torn tail or damage. That is the journal's verdict.
"""

import struct
from collections.abc import Iterator
from typing import Final

from google_crc32c import extend

FORMAT_VERSION: Final = 1
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MARKER: Final = b"\xf7\xb3\x1c\xe9"
"""Its first byte occurs in no UTF-8 text, so a search seldom stops inside a body."""

_HEADER: Final = struct.Struct("<4sBQI")
_HEADER_MAGIC: Final = b"FBYJ"
_FIELDS: Final = struct.Struct("<IQQ")
_HEAD: Final = struct.Struct("<4sIQQII")
_CRC: Final = struct.Struct("<I")
_TWO_CRCS: Final = struct.Struct("<II")
_MARK: Final = struct.Struct("<4sQ")
_MARK_MAGIC: Final = b"FBYM"

HEADER_BYTES: Final = _HEADER.size + _CRC.size
HEAD_BYTES: Final = _HEAD.size
MARK_BYTES: Final = _MARK.size + _CRC.size


def checksum(data: bytes, seed: int = 0) -> int:
    """The CRC32C of `data`, going on from `seed`."""
    return int(extend(seed, data))


def encode_header(first: int, salt: int) -> bytes:
    header = _HEADER.pack(_HEADER_MAGIC, FORMAT_VERSION, first, salt)
    return header + _CRC.pack(extend(0, header))


def decode_header(data: bytes) -> tuple[int, int] | None:
    """(first lsn, salt) of the segment that starts with `data`, None if its header is not whole."""
    header = data[: _HEADER.size]
    if len(data) < HEADER_BYTES or _CRC.unpack_from(data, _HEADER.size)[0] != extend(0, header):
        return None
    magic, version, first, salt = _HEADER.unpack(header)
    if magic != _HEADER_MAGIC or version != FORMAT_VERSION:
        return None
    return first, salt


def encode_head(lsn: int, watermark: int, body: bytes, salt: int) -> bytes:
    """The header of the frame of `body`; the body itself is not copied."""
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"a journal body has {len(body)} bytes, the limit is {MAX_BODY_BYTES}: split the batch")
    fields = _FIELDS.pack(len(body), lsn, watermark)
    head_crc = extend(salt, fields)
    return MARKER + fields + _TWO_CRCS.pack(head_crc, extend(head_crc, body))


def encode_frame(lsn: int, watermark: int, body: bytes, salt: int) -> bytes:
    return encode_head(lsn, watermark, body, salt) + body


def encode_mark(lsn: int) -> bytes:
    mark = _MARK.pack(_MARK_MAGIC, lsn)
    return mark + _CRC.pack(extend(0, mark))


def decode_mark(data: bytes) -> int | None:
    """The lsn in a mark file, None if the bytes are not a whole mark."""
    mark = data[: _MARK.size]
    if len(data) < MARK_BYTES or _CRC.unpack_from(data, _MARK.size)[0] != extend(0, mark):
        return None
    magic, lsn = _MARK.unpack(mark)
    return int(lsn) if magic == _MARK_MAGIC else None


class Scan:
    """The frames of one segment, (lsn, body) each, lsn by lsn from `lsn` on; the first one is at `start` of the data.

    With every frame `end` is the offset behind it and `lsn` the one expected there. When the
    iteration is over, `fault` says why the bytes from `end` on are no frame (None: there are
    none), and `proven_end` is the offset behind frame `proven`, 0 if that is not in here.
    """

    def __init__(self, data: bytes, lsn: int, salt: int, proven: int = 0, start: int = HEADER_BYTES) -> None:
        self._data = data
        self._salt = salt
        self._proven = proven
        self.lsn = lsn
        self.end = start
        self.proven_end = 0
        self.fault: str | None = None

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        data, salt, proven, unpack = self._data, self._salt, self._proven, _HEAD.unpack_from
        lsn, start, size = self.lsn, self.end, len(self._data)
        while start + HEAD_BYTES <= size:
            marker, length, found, _, head_crc, frame_crc = unpack(data, start)
            computed = extend(salt, data[start + 4 : start + 24])
            if computed != head_crc or found != lsn or marker != MARKER:
                break
            end = start + HEAD_BYTES + length
            body = data[start + HEAD_BYTES : end]
            if extend(computed, body) != frame_crc or end > size:
                break
            if lsn == proven:
                self.proven_end = end
            start = self.end = end
            self.lsn = lsn = lsn + 1
            yield found, body
        self.fault = _fault(data, start, lsn, salt)


def later_watermark(data: bytes, start: int, lsn: int, salt: int) -> int:
    """The highest watermark in any whole frame head behind `start` whose frame follows `lsn`; 0 if there is none."""
    highest = 0
    start = data.find(MARKER, start)
    while 0 <= start <= len(data) - HEAD_BYTES:
        _, _, found, watermark, head_crc, _ = _HEAD.unpack_from(data, start)
        if found > lsn and watermark > highest and extend(salt, data[start + 4 : start + 24]) == head_crc:
            highest = watermark
        start = data.find(MARKER, start + 1)
    return highest


def _fault(data: bytes, start: int, lsn: int, salt: int) -> str | None:
    left = len(data) - start
    if left == 0:
        return None
    if left < HEAD_BYTES:
        return f"record {lsn} has {left} of the {HEAD_BYTES} bytes of a frame head"
    marker, length, found, _, head_crc, _ = _HEAD.unpack_from(data, start)
    if marker != MARKER:
        return f"record {lsn} does not start with the frame marker"
    if extend(salt, data[start + 4 : start + 24]) != head_crc:
        return f"record {lsn} has a frame head that fails its checksum"
    if found != lsn:
        return f"record {found} is in the place of record {lsn}"
    if left - HEAD_BYTES < length:
        return f"record {lsn} has {left - HEAD_BYTES} of its {length} bytes"
    return f"record {lsn} fails its checksum"
