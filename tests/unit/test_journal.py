"""A running journal: what sync returned for is durable, and the files are what they should be."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from forebay.core.errors import JournalDamaged, StoreFailed, StoreLocked
from forebay.store.memory.disk import RealDisk
from forebay.store.memory.recovery import recover
from forebay_proof.disk import FaultyDisk, MemoryDisk
from tests.unit.journals import DIRECTORY, HeldDisk, in_thread, nothing_survives, opened, put


def test_records_come_back_in_order_over_three_openings(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "j")
    expected: list[bytes] = []
    for round_ in range(3):
        journal, state = opened(RealDisk(), path, segment_bytes=200)
        assert state == expected
        for index in range(5):
            expected += [b"%d-%d-a" % (round_, index), b"%d-%d-b" % (round_, index) * 20]
            lsn = put(journal, *expected[-2:])
            assert journal.lsn == journal.synced == lsn
        journal.close()
    assert opened(RealDisk(), path)[1] == expected


@pytest.mark.parametrize("umask", [0, 0o777])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "j"
    before = os.umask(umask)
    try:
        journal, _ = opened(RealDisk(), str(path), segment_bytes=1)
        put(journal, b"one")
        put(journal, b"two")
        journal.snapshot(2, [b"one", b"two"])
        journal.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    modes = {child.name: stat.S_IMODE(child.stat().st_mode) for child in path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert {name[:4] for name in modes} == {"lock", "sync", "wal-", "snap"}


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.write_bytes(b"untouched")
    for name in ("lock", "synced", "wal-0000000000000001.log", "snapshot-0000000000000001.snap"):
        directory = tmp_path / f"with {name}"
        directory.mkdir()
        (directory / name).symlink_to(outside)
        with pytest.raises((StoreFailed, JournalDamaged)):
            opened(RealDisk(), str(directory))
    assert outside.read_bytes() == b"untouched"


def test_short_reads_and_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:7], offset))
    monkeypatch.setattr(os, "pread", lambda descriptor, length, offset: pread(descriptor, min(length, 5), offset))
    journal, _ = opened(RealDisk(), str(tmp_path))
    put(journal, b"one" * 10, b"two" * 20)
    journal.snapshot(1, [b"one" * 10])
    journal.close()
    assert opened(RealDisk(), str(tmp_path))[1] == [b"one" * 10, b"two" * 20]


def test_a_directory_that_cannot_be_is_a_failure_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreFailed, match="exists"):
        recover(str(tmp_path / "file"))


def test_64_threads_share_syncs_and_lose_nothing(tmp_path: Path) -> None:
    threads, each = 64, 20
    disk = FaultyDisk(RealDisk())
    journal, _ = opened(disk, str(tmp_path), segment_bytes=20_000)
    order, acknowledged = threading.Lock(), []

    def work(name: int) -> None:
        for index in range(each):
            with order:
                lsn = journal.append(b"%d/%d" % (name, index))
            journal.sync(lsn)
            assert journal.synced >= lsn
            acknowledged.append((lsn, b"%d/%d" % (name, index)))

    workers = [in_thread(work, name) for name in range(threads)]
    for worker, errors in workers:
        worker.join()
        assert errors == []
    assert disk.syncs < threads * each / 2
    copy = tmp_path / "after the kill"
    copy.mkdir()
    for file in tmp_path.glob("[ws]*"):
        (copy / file.name).write_bytes(file.read_bytes())
    with recover(str(copy)) as recovery:
        assert list(recovery.frames()) == sorted(acknowledged)
    assert len(acknowledged) == threads * each


def test_all_that_waited_during_one_sync_share_the_next() -> None:
    disk = HeldDisk()
    journal, _ = opened(disk)
    disk.hold()
    journal.append(b"first")
    workers = [in_thread(journal.sync, 1)]
    assert disk.reached.wait(5)
    for lsn in range(2, 12):
        assert journal.append(b"later") == lsn
    workers += [in_thread(journal.sync, lsn) for lsn in range(2, 12)]
    assert journal.synced == 0
    disk.let_go.set()
    for worker, errors in workers:
        worker.join(5)
        assert errors == []
    assert (disk.syncs, journal.synced) == (2, 11)


def test_sync_of_the_durable_touches_neither_disk_nor_lock() -> None:
    disk = FaultyDisk(MemoryDisk())
    journal, _ = opened(disk)
    put(journal, b"one", b"two")
    calls = len(disk.calls)
    with journal._guard:
        journal.sync(1)
        journal.sync(2)
    assert len(disk.calls) == calls


def test_the_acknowledged_survives_a_power_cut_the_moment_sync_returns() -> None:
    disk, expected = MemoryDisk(), []
    journal, _ = opened(disk, segment_bytes=150)
    for index in range(12):
        expected.append(b"body %d" % index)
        put(journal, expected[-1])
        with recover(DIRECTORY, disk.crash(nothing_survives)) as recovery:
            assert [body for _, body in recovery.frames()] == expected


def test_the_mark_follows_every_commit() -> None:
    disk = MemoryDisk()
    journal, _ = opened(disk)
    for index in range(1, 4):
        put(journal, b"body")
        damaged = disk.kill()
        log = "j/wal-0000000000000001.log"
        damaged.put(log, damaged.files()[log][:-1])
        with (
            recover(DIRECTORY, damaged) as recovery,
            pytest.raises(Exception, match=f"record {index} was acknowledged"),
        ):
            list(recovery.frames())


def test_what_the_caller_may_not_ask() -> None:
    journal, _ = opened(MemoryDisk())
    with pytest.raises(ValueError, match="0 bytes"):
        journal.append(b"")
    put(journal, b"one")
    with pytest.raises(ValueError, match="the last record is 1"):
        journal.sync(2)
    for lsn in (0, 2):
        with pytest.raises(ValueError, match=f"snapshot at {lsn}"):
            journal.snapshot(lsn, [])
    with pytest.raises(ValueError, match="take one first"):
        journal.discard(1)
    put(journal, b"two")


def test_a_second_opener_is_refused_with_the_holder(tmp_path: Path) -> None:
    journal, _ = opened(RealDisk(), str(tmp_path))
    with pytest.raises(StoreLocked) as caught:
        recover(str(tmp_path))
    assert caught.value.holder == str(os.getpid())
    program = f"from forebay.store.memory.recovery import recover; recover({str(tmp_path)!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert "StoreLocked" in other.stderr
    assert str(os.getpid()) in other.stderr
    journal.close()
    opened(RealDisk(), str(tmp_path))[0].close()


def test_close_seals_once_and_ends_everything() -> None:
    disk = MemoryDisk()
    journal, _ = opened(disk)
    journal.append(b"never synced by its caller")
    journal.close()
    sealed = disk.files()
    journal.close()
    assert disk.files() == sealed
    for attempt in (lambda: journal.append(b"more"), lambda: journal.sync(1), journal.rotate):
        with pytest.raises(StoreFailed, match="closed"):
            attempt()
    again, state = opened(disk.crash(nothing_survives))
    assert state == [b"never synced by its caller"]
    assert again.append(b"next") == 3, "the seal has a number of its own"


def test_opening_and_closing_an_unused_journal_adds_no_files() -> None:
    disk = MemoryDisk()
    for round_ in range(5):
        journal, state = opened(disk)
        assert state == [b"only"][:round_]
        if round_ == 0:
            put(journal, b"only")
        journal.close()
    assert sum(path.startswith("j/wal") for path in disk.files()) == 2


def test_rotation_syncs_header_and_name_before_the_first_frame() -> None:
    disk = FaultyDisk(MemoryDisk())
    journal, _ = opened(disk, segment_bytes=60)
    put(journal, b"x" * 60)
    start = len(disk.calls)
    put(journal, b"y")
    new = "wal-0000000000000002.log"
    header = [("create", new), ("write", new), ("sync", new), ("sync_directory", "j")]
    assert disk.calls[start:] == [*header, ("write", new), ("sync", new), ("write", "synced")]


def test_rotate_ends_the_segment_now() -> None:
    journal, _ = opened(MemoryDisk())
    journal.append(b"one")
    assert journal.sealed_segments(99) == ()
    assert journal.rotate() == 1
    assert journal.rotate() == 1, "an empty segment is not ended"
    assert journal.sealed_segments(0) == ()
    assert journal.sealed_segments(1) == ("j/wal-0000000000000001.log",)


def test_discard_keeps_what_the_snapshot_does_not_hold() -> None:
    disk = MemoryDisk()
    journal, _ = opened(disk, segment_bytes=1)
    for index in range(1, 7):
        put(journal, b"%d" % index)
        if index in {2, 4}:
            journal.snapshot(index, [b"%d" % old for old in range(1, index + 1)])
    journal.discard(3)
    assert [path for path in disk.files() if "snap" in path] == [f"j/snapshot-{lsn:016x}.snap" for lsn in (2, 4)]
    assert min(path for path in disk.files() if "wal" in path) == "j/wal-0000000000000003.log"
    journal.discard(99)
    assert [path for path in disk.files() if "snap" in path] == ["j/snapshot-0000000000000004.snap"]
    for after in (disk.kill(), disk.crash(nothing_survives)):
        assert opened(after)[1] == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_discard_deletes_the_oldest_first_and_syncs_the_directory() -> None:
    disk = FaultyDisk(MemoryDisk())
    journal, _ = opened(disk, segment_bytes=1)
    for index in range(1, 4):
        put(journal, b"body")
        journal.snapshot(index, [b"state"])
    start = len(disk.calls)
    journal.discard(3)
    gone = [*(f"wal-{lsn:016x}.log" for lsn in (1, 2)), *(f"snapshot-{lsn:016x}.snap" for lsn in (1, 2))]
    assert disk.calls[start:] == [*(("unlink", name) for name in gone), ("sync_directory", "j")]


def test_bytes_are_counted() -> None:
    disk = MemoryDisk()
    journal, _ = opened(disk, segment_bytes=100)
    for _ in range(3):
        put(journal, b"x" * 50)
    assert journal.bytes_since_snapshot == 3 * 82
    journal.snapshot(3, [b"state"])
    put(journal, b"x" * 10)
    journal.discard(3)
    journal.close()
    again, _ = opened(disk)
    for counted in (journal, again):
        assert counted.bytes_since_snapshot == 42 + 32
    files = disk.files()
    assert again.bytes_on_disk == sum(len(data) for path, data in files.items() if path[2:] not in {"synced", "lock"})


def test_a_snapshot_gets_its_name_after_all_it_may_hold_is_durable() -> None:
    disk = MemoryDisk()
    journal, _ = opened(disk)
    put(journal, b"one")

    def chunks() -> list[bytes]:
        journal.append(b"two")
        return [b"one"]

    journal.snapshot(1, (chunk for chunk in chunks()))
    assert journal.synced == 2
    assert opened(disk.crash(nothing_survives))[1] == [b"one", b"two"]
