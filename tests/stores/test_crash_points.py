"""Crash at every byte: whatever a kill or a tear leaves of the log, recovery finds the last whole record or refuses.

The fast slice cuts one chapter at every byte and flips one bit in every byte; the whole (nightly) does it over a long
log with snapshots, with every bit, and with tails of zeros and garbage.
"""

import os
from collections.abc import Iterator

import pytest

from forebay.core.errors import JournalDamaged, StoreFailed
from forebay.store.memory.frame import Scan, decode_header, encode_mark
from forebay_proof.evidence import happened
from tests.stores.journal_history import ALL_PARTS, DIRECTORY, JournalHistory, recovered_image

MARK = f"{DIRECTORY}/synced"


@pytest.fixture(scope="module")
def history() -> JournalHistory:
    return JournalHistory()


@pytest.fixture(scope="module")
def compacted() -> JournalHistory:
    return JournalHistory(chapters=2, compact=True)


def files_of(history: JournalHistory) -> dict[str, bytes]:
    return {path: data for path, data in history.disk.kill().files().items() if not path.endswith("lock")}


def segments(files: dict[str, bytes]) -> list[str]:
    return sorted(path for path in files if path.endswith(".log"))


def ends(data: bytes) -> list[tuple[int, int]]:
    """(lsn, offset behind it) of every frame of a segment."""
    header = decode_header(data)
    assert header is not None
    scan = Scan(data, *header)
    return [(lsn, scan.end) for lsn, _ in scan]


def cuts(files: dict[str, bytes], step: int = 1) -> Iterator[tuple[dict[str, bytes], int]]:
    """The files as a crash leaves them in the middle of each byte, and the last whole record then."""
    names = segments(files)
    for number, name in enumerate(names):
        later = set(names[number + 1 :])
        frames = ends(files[name])
        header = decode_header(files[name])
        assert header is not None
        for size in range(0, len(files[name]) + 1, step):
            last = max([lsn for lsn, end in frames if end <= size], default=header[0] - 1)
            left = {path: data for path, data in files.items() if path not in later and path != MARK}
            left[name] = files[name][:size]
            left[MARK] = encode_mark(last)
            yield left, last


def test_the_story_writes_every_part_of_a_change(history: JournalHistory) -> None:
    assert history.parts == ALL_PARTS
    assert len(segments(files_of(history))) >= 3


def test_a_cut_at_every_byte_recovers_the_last_whole_record(history: JournalHistory) -> None:
    count = 0
    for left, last in cuts(files_of(history)):
        assert recovered_image(left) == history.images[last], f"cut after record {last}"
        count += 1
    assert count > 4_096


def test_a_cut_below_what_was_acknowledged_is_refused(history: JournalHistory) -> None:
    for left, last in cuts(files_of(history), step=37):
        left[MARK] = encode_mark(last + 1)
        with pytest.raises(JournalDamaged):
            recovered_image(left)


def test_a_cut_behind_a_snapshot_recovers_too(compacted: JournalHistory) -> None:
    files = files_of(compacted)
    assert any(path.endswith(".snap") for path in files)
    for left, last in cuts(files, step=5):
        assert recovered_image(left) == compacted.images[last]


def flips(files: dict[str, bytes], bits: range, step: int) -> Iterator[tuple[dict[str, bytes], str]]:
    for path in sorted(files):
        for position in range(0, len(files[path]), step):
            for bit in bits if len(bits) < 8 else range(8):
                data = bytearray(files[path])
                data[position] ^= 1 << ((bit + position) % 8)
                yield {**files, path: bytes(data)}, f"{os.path.basename(path)} byte {position}"


def check_flips(history: JournalHistory, bits: range, step: int = 1) -> tuple[int, int]:
    files = files_of(history)
    final = history.images[max(history.images)]
    refused = harmless = 0
    for damaged, where in flips(files, bits, step):
        try:
            found = recovered_image(damaged)
        except (JournalDamaged, StoreFailed):
            refused += 1
        else:
            assert found == final, f"silently different after a flip in {where}"
            harmless += 1
    happened("flips", refused + harmless)
    return refused, harmless


def test_a_flipped_bit_is_refused_or_harmless(history: JournalHistory) -> None:
    refused, harmless = check_flips(history, range(1), step=2)
    assert refused > 2_000
    assert harmless < 100, "only the mark may be lost without harm"


def test_a_flipped_bit_behind_a_snapshot_is_refused_or_harmless(compacted: JournalHistory) -> None:
    refused, _ = check_flips(compacted, range(1), step=7)
    assert refused > 500


@pytest.mark.nightly
@pytest.mark.parametrize("compact", [False, True], ids=["whole", "compacted"])
def test_every_byte_of_a_long_log_with_snapshots(compact: bool) -> None:
    long = JournalHistory(chapters=11, compact=compact)
    for left, last in cuts(files_of(long)):
        assert recovered_image(left) == long.images[last]


@pytest.mark.nightly
def test_every_bit_of_a_log_and_its_snapshot(compacted: JournalHistory) -> None:
    check_flips(compacted, range(8))


@pytest.mark.nightly
@pytest.mark.parametrize("tail", [b"\0" * 600, bytes(range(256)) * 3])
def test_a_tail_of_zeros_or_garbage_is_cut_off(history: JournalHistory, tail: bytes) -> None:
    for left, last in cuts(files_of(history)):
        name = segments(left)[-1]
        left[name] += tail
        # Where the bytes that are missing happen to be zeros, the tail completes the record that was cut.
        assert recovered_image(left) in (history.images[last], history.images.get(last + 1))
