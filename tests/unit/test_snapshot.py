"""Snapshots: whole and durable under their name, or not there at all."""

import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import JournalDamaged
from forebay.store.memory.disk import RealDisk
from forebay.store.memory.frame import MAX_BODY_BYTES
from forebay.store.memory.snapshot import is_leftover, read_snapshot, snapshot_lsn, snapshot_path, write_snapshot
from forebay_proof.disk import DiskCrash, FaultyDisk, MemoryDisk

DIRECTORY = "j"
CHUNKS = [b"first", b"", b"second" * 9, b"second" * 9]


def fresh() -> MemoryDisk:
    disk = MemoryDisk(sector=16)
    disk.make_directory(DIRECTORY)
    return disk


def damage_in(disk: MemoryDisk, lsn: int = 7) -> JournalDamaged:
    with pytest.raises(JournalDamaged) as caught:
        read_snapshot(disk, DIRECTORY, lsn)
    return caught.value


@given(st.lists(st.binary(max_size=500), max_size=20), st.integers(0, 2**64 - 1))
def test_chunks_come_back(chunks: list[bytes], lsn: int) -> None:
    disk = fresh()
    size = write_snapshot(disk, DIRECTORY, lsn, iter(chunks))
    assert list(read_snapshot(disk, DIRECTORY, lsn)) == chunks
    assert disk.size(snapshot_path(DIRECTORY, lsn)) == size
    assert disk.entries(DIRECTORY) == [f"snapshot-{lsn:016x}.snap"]


def test_chunks_larger_and_smaller_than_one_read_come_back_from_a_real_disk(tmp_path: Path) -> None:
    chunks = [bytes([index]) * length for index, length in enumerate([3_000_000, 1, 700_000, 700_000, 0, 2_097_152])]
    before = os.umask(0)
    try:
        write_snapshot(RealDisk(), str(tmp_path), 3, chunks)
    finally:
        os.umask(before)
    assert list(read_snapshot(RealDisk(), str(tmp_path), 3)) == chunks
    assert stat.S_IMODE(os.stat(snapshot_path(str(tmp_path), 3)).st_mode) == 0o600


def test_every_cut_and_every_flipped_bit_is_refused_before_the_first_chunk() -> None:
    disk, path = fresh(), snapshot_path(DIRECTORY, 7)
    write_snapshot(disk, DIRECTORY, 7, CHUNKS)
    whole = disk.files()[path]
    for cut in range(len(whole)):
        disk.put(path, whole[:cut])
        assert damage_in(disk).file == path
    for bit in range(len(whole) * 8):
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << bit % 8
        disk.put(path, bytes(broken))
        assert damage_in(disk).offset <= bit // 8 + 8


def test_rearranged_files_are_refused() -> None:
    disk, path = fresh(), snapshot_path(DIRECTORY, 7)
    write_snapshot(disk, DIRECTORY, 7, CHUNKS)
    whole = disk.files()[path]
    header, first, double = whole[:17], whole[17:30], whole[38:100]
    assert whole == header + first + whole[30:38] + double + double + whole[162:]
    disk.put(path, header + whole[30:38] + first + whole[38:])
    assert "footer" in damage_in(disk).reason
    disk.put(path, header + first + whole[30:38] + double + whole[162:])
    assert "footer" in damage_in(disk).reason
    disk.put(path, whole + b"\x00")
    assert "behind the footer" in damage_in(disk).reason
    disk.put(snapshot_path(DIRECTORY, 8), whole)
    assert "record 8" in damage_in(disk, 8).reason


def test_a_chunk_over_the_limit_is_refused_in_both_directions() -> None:
    disk, path = fresh(), snapshot_path(DIRECTORY, 7)
    with pytest.raises(ValueError, match=f"the limit is {MAX_BODY_BYTES}"):
        write_snapshot(disk, DIRECTORY, 7, [bytes(MAX_BODY_BYTES + 1)])
    assert disk.entries(DIRECTORY) == []
    write_snapshot(disk, DIRECTORY, 7, [b"x"])
    whole = disk.files()[path]
    disk.put(path, whole[:17] + (MAX_BODY_BYTES + 1).to_bytes(4, "little") + whole[21:])
    assert f"the limit is {MAX_BODY_BYTES}" in damage_in(disk).reason


def test_a_source_that_fails_leaves_the_old_snapshot_and_no_leftover() -> None:
    def breaking() -> Iterator[bytes]:
        yield b"half"
        raise LookupError("the state is gone")

    disk = fresh()
    write_snapshot(disk, DIRECTORY, 7, CHUNKS)
    with pytest.raises(LookupError):
        write_snapshot(disk, DIRECTORY, 7, breaking())
    assert list(read_snapshot(disk, DIRECTORY, 7)) == CHUNKS
    assert disk.entries(DIRECTORY) == ["snapshot-0000000000000007.snap"]


def test_a_leftover_of_the_same_lsn_is_replaced() -> None:
    disk = fresh()
    disk.put(snapshot_path(DIRECTORY, 7).replace(".snap", ".tmp"), b"half of a longer snapshot" * 20)
    write_snapshot(disk, DIRECTORY, 7, CHUNKS)
    assert list(read_snapshot(disk, DIRECTORY, 7)) == CHUNKS


def test_snapshots_are_recognized_by_their_names() -> None:
    assert snapshot_lsn("snapshot-00000000000000ff.snap") == 255
    assert is_leftover("snapshot-00000000000000ff.tmp")
    for stranger in ["snapshot-ff.snap", "snapshot-00000000000000ff.tmp", "wal-00000000000000ff.log", "synced"]:
        assert snapshot_lsn(stranger) is None
    assert not is_leftover("snapshot-00000000000000ff.snap")


@pytest.mark.parametrize("after", [False, True])
def test_a_power_cut_at_any_call_leaves_a_whole_snapshot_or_none(after: bool) -> None:
    done = False
    for call in range(1, 7):
        disk = fresh()
        done = False
        try:
            write_snapshot(FaultyDisk(disk, crash_at=call, after=after), DIRECTORY, 7, CHUNKS)
            done = True
        except DiskCrash:
            pass
        for seed in range(200):
            found = disk.crash(random.Random(seed).randrange)
            names = [name for name in found.entries(DIRECTORY) if snapshot_lsn(name) is not None]
            assert names or not done
            for _ in names:
                assert list(read_snapshot(found, DIRECTORY, 7)) == CHUNKS
    assert done, "the last round had no call left to die at"
