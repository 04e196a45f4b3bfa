"""Reading a journal back: whatever was cut, flipped, lost or torn, the acknowledged comes back or is refused."""

import pytest

from forebay.core.errors import JournalDamaged, StoreLocked
from forebay.store.memory.frame import HEADER_BYTES, MARKER, encode_frame, encode_header, encode_mark
from forebay.store.memory.recovery import recover
from forebay_proof.disk import FaultyDisk, MemoryDisk
from tests.unit.journals import DIRECTORY, nothing_survives, opened, put

MARK = "j/synced"
GROUPS = [[b"a"], [b"bb" * 9, b"c"], [b"d" * 30], [b"e", b"f", b"g" * 40], [b"h"], [b"i" * 5, b"j"]]
SNAPSHOT_AT = 3
BODIES = [body for group in GROUPS for body in group]


def log(first: int) -> str:
    return f"j/wal-{first:016x}.log"


def built(*, seal: bool, segment_bytes: int = 170, discard: bool = False) -> MemoryDisk:
    """Six groups over several segments with a snapshot among them; everything was acknowledged."""
    disk = MemoryDisk()
    journal, _ = opened(disk, segment_bytes=segment_bytes)
    for group in GROUPS:
        lsn = put(journal, *group)
        if lsn == SNAPSHOT_AT:
            journal.snapshot(SNAPSHOT_AT, BODIES[:SNAPSHOT_AT])
            if discard:
                journal.rotate()
                journal.discard(SNAPSHOT_AT)
    if seal:
        journal.close()
    return disk.kill()


def state(disk: MemoryDisk) -> list[bytes]:
    with recover(DIRECTORY, disk) as recovery:
        return [*recovery.chunks(), *(body for _, body in recovery.frames())]


def refused(disk: MemoryDisk) -> JournalDamaged:
    """The refusal, which must leave every byte as it was."""
    before = disk.files()
    with pytest.raises(JournalDamaged) as caught:
        state(disk)
    assert disk.files() == before
    return caught.value


def with_file(disk: MemoryDisk, path: str, data: bytes | None) -> MemoryDisk:
    changed = disk.kill()
    changed.put(path, data)
    return changed


def last_segment(disk: MemoryDisk) -> tuple[str, bytes]:
    path = max(path for path in disk.files() if "wal-" in path)
    return path, disk.files()[path]


def single_log() -> tuple[bytes, list[int], list[int]]:
    """One segment with all groups: its bytes, the end of each frame, the last lsn of each group."""
    ends: list[int] = []
    group_ends: list[int] = []
    data, synced = encode_header(1, 5), 0
    for group in GROUPS:
        for body in group:
            data += encode_frame(len(ends) + 1, synced, body, 5)
            ends.append(len(data))
        synced = len(ends)
        group_ends.append(synced)
    return data, ends, group_ends


def test_the_fixture_has_what_the_tests_below_are_about() -> None:
    files = built(seal=False).files()
    assert sum("wal-" in path for path in files) >= 3
    assert sum(".snap" in path for path in files) == 1
    assert state(built(seal=False)) == state(built(seal=True)) == state(built(seal=True, discard=True)) == BODIES


TAILS = {"nothing": b"", "zeros": bytes(64), "garbage": b"\xa5" * 70, "stale": encode_frame(4, 3, b"stale", 6)}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS.keys())
def test_a_cut_at_every_byte_keeps_exactly_the_whole_frames_before_it(tail: bytes) -> None:
    data, ends, group_ends = single_log()
    for cut in range(len(data) + 1):
        whole = sum(end <= cut for end in ends)
        disk = MemoryDisk()
        disk.make_directory(DIRECTORY)
        disk.put(log(1), data[:cut] + tail)
        disk.put(MARK, encode_mark(max([end for end in group_ends if end <= whole], default=0)))
        if cut < HEADER_BYTES and MARKER in tail:
            assert refused(disk).offset == 0, "a frame follows a broken header"
            continue
        journal, bodies = opened(disk)
        assert bodies == BODIES[:whole]
        assert put(journal, b"next") == whole + 1
        assert state(disk.crash(nothing_survives)) == [*BODIES[:whole], b"next"]


def test_a_cut_below_the_mark_is_refused_with_file_and_offset() -> None:
    data, ends, _ = single_log()
    starts = [HEADER_BYTES, *ends]
    for cut in range(len(data)):
        disk = MemoryDisk()
        disk.make_directory(DIRECTORY)
        disk.put(log(1), data[:cut])
        disk.put(MARK, encode_mark(len(BODIES)))
        damage = refused(disk)
        assert damage.file == log(1)
        assert damage.offset == max([start for start in starts if start <= cut], default=0)
        assert ("is missing" in damage.reason) == (cut in starts)


def test_a_cut_at_every_byte_of_the_last_segment_behind_others_and_a_snapshot() -> None:
    whole = built(seal=False)
    path, data = last_segment(whole)
    first = int(path[6:-4], 16)
    for cut in range(len(data) + 1):
        cut_disk = with_file(whole, path, data[:cut])
        assert refused(cut_disk).file == path if cut < len(data) else state(cut_disk) == BODIES
        cut_disk.put(MARK, encode_mark(first - 1))
        bodies = state(cut_disk)
        assert bodies == BODIES[: len(bodies)]
        assert len(bodies) >= first - 1


def test_a_cut_at_any_byte_of_an_earlier_segment_is_refused_even_without_the_mark() -> None:
    whole = built(seal=False, discard=True)
    whole.put(MARK, None)
    path, *later = sorted(path for path in whole.files() if "wal-" in path)
    assert later
    data = whole.files()[path]
    for cut in range(len(data)):
        assert refused(with_file(whole, path, data[:cut])).file == path


def test_bytes_added_to_an_earlier_segment_are_refused() -> None:
    whole = built(seal=True, discard=True)
    whole.put(MARK, None)
    path = min(path for path in whole.files() if "wal-" in path)
    data = whole.files()[path]
    damage = refused(with_file(whole, path, data + b"more"))
    assert (damage.file, damage.offset) == (path, len(data))


def test_a_log_that_ends_below_its_snapshot_is_refused_without_the_mark() -> None:
    data, ends, _ = single_log()
    whole = built(seal=False)
    for path in list(whole.files()):
        if ".snap" not in path:
            whole.put(path, None)
    for kept in range(SNAPSHOT_AT):
        whole.put(log(1), data[: ends[kept - 1] if kept else HEADER_BYTES])
        assert "record 3 was acknowledged and is missing" in refused(whole).reason
    whole.put(log(1), data[: ends[SNAPSHOT_AT - 1]])
    assert state(whole) == BODIES[:SNAPSHOT_AT]


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize("segment_bytes", [170, 10_000])
def test_every_flipped_bit_is_refused_or_harmless(seal: bool, segment_bytes: int) -> None:
    whole = built(seal=seal, segment_bytes=segment_bytes)
    refusals = 0
    for path, data in whole.files().items():
        for bit in range(len(data) * 8):
            broken = bytearray(data)
            broken[bit // 8] ^= 1 << bit % 8
            whole.put(path, bytes(broken))
            try:
                assert state(whole) == BODIES
            except JournalDamaged:
                refusals += 1
        whole.put(path, data)
    assert refusals > 1_000


def test_a_flip_in_a_sealed_log_is_refused_without_the_mark() -> None:
    whole = built(seal=True, segment_bytes=10_000)
    whole.put(MARK, None)
    path, data = last_segment(whole)
    for bit in range((len(data) - 32) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        assert refused(with_file(whole, path, bytes(broken))).file == path
    assert state(with_file(whole, path, data[:-1])) == BODIES, "the seal itself was never acknowledged"


def test_a_torn_group_whose_first_page_is_lost_is_cut_not_refused() -> None:
    data, ends, _ = single_log()
    group = [encode_frame(lsn, len(BODIES), b"torn %d" % lsn * 5, 5) for lsn in range(11, 15)]
    assert len(BODIES) == 10
    for mark in (encode_mark(10), encode_mark(3), None):
        for lost in range(1, 4):
            disk = MemoryDisk()
            disk.make_directory(DIRECTORY)
            disk.put(log(1), data + bytes(len(b"".join(group[:lost]))) + b"".join(group[lost:]))
            disk.put(MARK, mark)
            journal, bodies = opened(disk)
            assert bodies == BODIES
            assert disk.size(log(1)) == ends[-1]
            assert journal.append(b"next") == 11


def test_a_hole_that_a_later_frame_vouches_for_is_refused_without_the_mark() -> None:
    data, ends, group_ends = single_log()
    for lsn in range(1, group_ends[-2] + 1):
        start = ends[lsn - 2] if lsn > 1 else HEADER_BYTES
        disk = MemoryDisk()
        disk.make_directory(DIRECTORY)
        disk.put(log(1), data[:start] + bytes(ends[lsn - 1] - start) + data[ends[lsn - 1] :])
        damage = refused(disk)
        assert (damage.file, damage.offset) == (log(1), start)


def test_a_body_that_holds_a_journal_is_no_witness() -> None:
    disk = MemoryDisk()
    journal, _ = opened(disk)
    put(journal, b"one")
    put(journal, b"".join(encode_frame(lsn, lsn - 1, b"forged", salt) for lsn in range(1, 60) for salt in range(5)))
    disk.put(MARK, encode_mark(1))
    disk.put(log(1), disk.files()[log(1)][:-1])
    assert state(disk.kill()) == [b"one"]


def test_missing_segments_are_refused() -> None:
    whole = built(seal=True)
    paths = sorted(path for path in whole.files() if "wal-" in path)
    for gone in paths[1:-1]:
        damage = refused(with_file(whole, gone, None))
        assert damage.file == paths[paths.index(gone) - 1]
    whole.put("j/snapshot-0000000000000003.snap", None)
    assert refused(with_file(whole, paths[0], None)).file == paths[1]
    empty = whole.kill()
    for path in paths:
        empty.put(path, None)
    assert "record 10 was acknowledged" in refused(empty).reason
    empty.put(MARK, None)
    assert state(empty) == []


def test_a_segment_under_a_wrong_name_is_refused() -> None:
    whole = built(seal=True)
    path, data = last_segment(whole)
    whole.put(path, None)
    whole.put(log(99), data)
    assert refused(whole).file < path
    alone = MemoryDisk()
    alone.make_directory(DIRECTORY)
    alone.put(log(1), encode_header(2, 0))
    assert refused(alone).offset == 0


def test_a_torn_header_is_removed_and_a_torn_header_with_frames_is_refused() -> None:
    whole = built(seal=True)
    header = encode_header(12, 9)
    for cut in range(HEADER_BYTES):
        torn = with_file(whole, log(12), header[:cut])
        journal, bodies = opened(torn)
        assert bodies == BODIES
        assert put(journal, b"next") == 12
        assert state(torn.crash(nothing_survives)) == [*BODIES, b"next"]
    headless = b"?" * HEADER_BYTES + encode_frame(12, 11, b"body", 9)
    assert refused(with_file(whole, log(12), headless)).file == log(12)
    assert state(with_file(whole, log(12), headless[: HEADER_BYTES + 3])) == BODIES


def test_a_torn_header_behind_a_snapshot_leaves_the_covered_segments_alone() -> None:
    data, _, _ = single_log()
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    disk.put(log(1), data)
    opened(disk)[0].snapshot(len(BODIES), BODIES)
    torn = with_file(disk, log(11), b"FB")
    journal, bodies = opened(torn)
    assert bodies == BODIES
    put(journal, b"next")
    assert torn.files()[log(1)] == data
    torn.put("j/snapshot-000000000000000a.snap", b"damaged")
    assert state(torn.kill()) == [*BODIES, b"next"]


def test_a_damaged_snapshot_is_passed_over_while_the_log_reaches_back() -> None:
    name = "j/snapshot-0000000000000003.snap"
    whole = built(seal=True)
    whole.put(name, whole.files()[name][:-1])
    with recover(DIRECTORY, whole.kill()) as recovery:
        assert [body for _, body in recovery.frames()] == BODIES
        assert (recovery.snapshot_lsn, [damage.file for damage in recovery.passed_over]) == (0, [name])
    whole.put(name, None)
    two = whole.kill()
    journal, _ = opened(two)
    journal.snapshot(2, BODIES[:2])
    journal.snapshot(9, [b"all but the last"])
    journal.close()
    newest = "j/snapshot-0000000000000009.snap"
    assert state(two) == [b"all but the last", BODIES[-1]]
    two.put(newest, two.files()[newest][:-1])
    assert state(two) == BODIES


def test_a_damaged_snapshot_that_the_log_needs_is_refused() -> None:
    whole = built(seal=True, discard=True)
    name = "j/snapshot-0000000000000003.snap"
    good = whole.files()[name]
    whole.put(name, good[:25] + bytes([good[25] ^ 1]) + good[26:])
    damage = refused(whole)
    assert (damage.file, damage.offset) == (name, 17)
    assert damage.reason.startswith("chunk 0 ")
    assert "the log starts at record 4, and nothing else holds record 1" in damage.reason
    alone = MemoryDisk()
    alone.make_directory("j")
    alone.put(name, whole.files()[name])
    damage = refused(alone)
    assert (damage.file, damage.offset) == (name, 17)
    assert "there is no log, and nothing else holds record 3" in damage.reason
    whole.put(name, None)
    assert "no good snapshot holds record 1" in refused(whole).reason


def test_what_kill_9_left_unsynced_is_durable_once_the_journal_starts() -> None:
    data, _, _ = single_log()
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    handle = disk.create(log(1))
    disk.write(handle, 0, data)
    assert state(disk.crash(nothing_survives)) == []
    after = disk.kill()
    assert opened(after)[1] == BODIES
    assert state(after.crash(nothing_survives)) == BODIES


def test_what_a_failed_sync_lost_is_written_again_before_it_counts() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory, fail_sync=6)
    journal, _ = opened(disk)
    for group in GROUPS[:4]:
        journal.append(b"".join(group))
        try:
            journal.sync(journal.lsn)
        except Exception:
            break
    assert journal.synced < journal.lsn
    after = memory.kill()
    _, bodies = opened(after)
    assert len(bodies) == journal.lsn, "the page cache still has it"
    assert state(after.crash(nothing_survives)) == bodies


def test_reading_changes_nothing_and_leaving_gives_up_the_lock() -> None:
    whole = built(seal=False)
    path, data = last_segment(whole)
    whole.put(path, data + b"torn")
    whole.put("j/snapshot-0000000000000009.tmp", b"half")
    before = whole.files()
    assert state(whole) == BODIES
    with recover(DIRECTORY, whole), pytest.raises(StoreLocked):
        recover(DIRECTORY, whole)
    assert whole.files() == before
    opened(whole)
    assert whole.files()[path] == data
    assert "j/snapshot-0000000000000009.tmp" not in whole.files()


def test_a_journal_starts_only_when_all_was_read_and_only_once() -> None:
    with recover(DIRECTORY, built(seal=True)) as recovery:
        with pytest.raises(RuntimeError, match="iterate"):
            recovery.start()
        frames = recovery.frames()
        next(frames)
        with pytest.raises(RuntimeError, match="iterate"):
            recovery.start()
        list(frames)
        recovery.start().close()
        with pytest.raises(RuntimeError, match="once"):
            recovery.start()


def test_a_damaged_mark_counts_as_absent() -> None:
    whole = built(seal=True)
    for mark in (b"", b"\x00" * 16, encode_mark(99)[:-1] + b"?", encode_mark(99)[:7]):
        assert state(with_file(whole, MARK, mark)) == BODIES
    assert "record 99 was acknowledged" in refused(with_file(whole, MARK, encode_mark(99))).reason
