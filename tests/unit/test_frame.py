"""The bytes of the journal: what is whole is read back, what is not is never taken for whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.store.memory.frame import (
    HEAD_BYTES,
    HEADER_BYTES,
    MARKER,
    MAX_BODY_BYTES,
    Scan,
    decode_header,
    decode_mark,
    encode_frame,
    encode_header,
    encode_mark,
    later_watermark,
)

SALT = 0x5EED
BODIES = [b"a", b"bb" * 20, MARKER * 3, b"", b"\x00" * 9]


def segment(bodies: list[bytes], first: int = 1, salt: int = SALT) -> bytes:
    frames = (encode_frame(first + index, index, body, salt) for index, body in enumerate(bodies))
    return encode_header(first, salt) + b"".join(frames)


def flips(data: bytes) -> list[bytes]:
    return [
        data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :] for bit in range(len(data) * 8)
    ]


def test_header_and_mark_come_back_whole_or_not_at_all() -> None:
    header, mark = encode_header(2**63, SALT), encode_mark(2**64 - 1)
    assert decode_header(header + b"frames") == (2**63, SALT)
    assert decode_mark(mark) == 2**64 - 1
    assert len(header) == HEADER_BYTES
    assert {decode_header(broken) for broken in [*flips(header), *(header[:cut] for cut in range(len(header)))]} == {
        None
    }
    assert {decode_mark(broken) for broken in [*flips(mark), *(mark[:cut] for cut in range(len(mark)))]} == {None}


@given(st.lists(st.binary(max_size=300), max_size=30), st.integers(1, 2**62), st.integers(0, 2**32 - 1))
def test_scan_yields_what_was_encoded(bodies: list[bytes], first: int, salt: int) -> None:
    data = segment(bodies, first, salt)
    scan = Scan(data, first, salt)
    assert list(scan) == [(first + index, body) for index, body in enumerate(bodies)]
    assert (scan.fault, scan.end, scan.lsn) == (None, len(data), first + len(bodies))


def test_scan_of_every_cut_yields_the_whole_frames_before_it() -> None:
    data = segment(BODIES)
    ends = [len(segment(BODIES[:count])) for count in range(len(BODIES) + 1)]
    for cut in range(HEADER_BYTES, len(data) + 1):
        scan = Scan(data[:cut], 1, SALT)
        whole = sum(end <= cut for end in ends) - 1
        assert [body for _, body in scan] == BODIES[:whole]
        assert (scan.end, scan.fault is None) == (ends[whole], cut in ends)


def test_scan_of_every_flipped_bit_stops_at_that_frame() -> None:
    data = segment(BODIES)
    ends = [len(segment(BODIES[:count])) for count in range(len(BODIES) + 1)]
    for bit, broken in enumerate(flips(data)):
        if bit < HEADER_BYTES * 8:
            continue
        scan = Scan(broken, 1, SALT)
        before = sum(end <= bit // 8 for end in ends) - 1
        assert [body for _, body in scan] == BODIES[:before]
        assert scan.end == ends[before]
        assert scan.fault


def test_scan_remembers_where_the_proven_part_ends() -> None:
    scan = Scan(segment(BODIES), 1, SALT, proven=2)
    assert len(list(scan)) == len(BODIES)
    assert scan.proven_end == len(segment(BODIES[:2]))
    unproven = Scan(segment(BODIES, first=7), 7, SALT, proven=6)
    assert len(list(unproven)) == len(BODIES)
    assert unproven.proven_end == 0


def test_faults_say_what_is_wrong() -> None:
    whole = segment([b"body"])
    head = HEADER_BYTES
    cases = {
        whole[: head + 5]: "record 1 has 5 of the 32 bytes of a frame head",
        whole[:head] + bytes(HEAD_BYTES): "record 1 does not start with the frame marker",
        whole[: head + 4] + b"\xff" + whole[head + 5 :]: "record 1 has a frame head that fails its checksum",
        whole[:-1]: "record 1 has 3 of its 4 bytes",
        whole[:-1] + b"!": "record 1 fails its checksum",
    }
    for data, reason in cases.items():
        scan = Scan(data, 1, SALT)
        assert not list(scan)
        assert scan.fault == reason
    stranger = Scan(whole, 2, SALT)
    assert not list(stranger)
    assert stranger.fault == "record 1 is in the place of record 2"


def test_a_frame_behind_a_damaged_one_is_a_witness_even_with_a_torn_body() -> None:
    third = encode_frame(3, 2, b"long body", SALT)
    data = encode_header(1, SALT) + b"?" * 50 + third
    assert later_watermark(data, HEADER_BYTES, 1, SALT) == 2
    assert later_watermark(data[:-4], HEADER_BYTES, 1, SALT) == 2
    assert later_watermark(data[: -len(third) + HEAD_BYTES - 1], HEADER_BYTES, 1, SALT) == 0
    assert later_watermark(data, HEADER_BYTES, 3, SALT) == 0, "a frame is no witness for itself"


def test_frames_inside_a_body_are_no_witnesses_and_no_frames() -> None:
    forged = b"".join(encode_frame(lsn, lsn - 1, b"forged", SALT + 1) for lsn in range(1, 50))
    assert later_watermark(encode_header(1, SALT) + forged, HEADER_BYTES, 1, SALT) == 0
    assert not list(Scan(encode_header(1, SALT) + forged, 1, SALT))


@given(st.binary(max_size=200), st.integers(0, 5))
def test_garbage_is_never_a_frame_and_never_an_error(garbage: bytes, markers: int) -> None:
    data = encode_header(1, SALT) + MARKER * markers + garbage
    scan = Scan(data, 1, SALT)
    assert not list(scan)
    assert (scan.fault is None) == (len(data) == HEADER_BYTES)
    assert later_watermark(data, HEADER_BYTES, 0, SALT) == 0
    assert decode_mark(garbage) is None
    assert decode_header(garbage) is None


def test_a_body_over_the_limit_is_refused_with_the_limit() -> None:
    with pytest.raises(ValueError, match=f"{MAX_BODY_BYTES + 1} bytes, the limit is {MAX_BODY_BYTES}"):
        encode_frame(1, 0, bytes(MAX_BODY_BYTES + 1), SALT)
