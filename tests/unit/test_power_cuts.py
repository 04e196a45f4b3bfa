"""Power cuts at every call the journal makes: all that was acknowledged comes back, and only what was appended.

The disk is a `MemoryDisk`, so each run is cut in many ways. A seed or a Hypothesis example is the full account.
"""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.store.memory.disk import Disk
from forebay.store.memory.journal import Journal
from forebay_proof.disk import DiskCrash, FaultyDisk, MemoryDisk
from tests.unit.journals import DIRECTORY, nothing_survives, opened, put


class Run:
    """A journal's whole life on `disk`, with what it appended and how much of that it acknowledged."""

    def __init__(self) -> None:
        self.appended: list[bytes] = []
        self.acknowledged = 0

    def live(self, disk: Disk) -> None:
        for life in range(2):
            journal, self.appended = opened(disk, segment_bytes=150)
            self.acknowledged = len(self.appended)
            for group in range(5):
                self.put(journal, [b"%d.%d" % (life, group), b"x" * (20 * group + 1)])
            self.compact(journal)
            self.put(journal, [b"behind the snapshot"])
            journal.append(b"synced by close alone")
            self.appended.append(b"synced by close alone")
            journal.close()
            self.acknowledged = len(self.appended)

    def put(self, journal: Journal, bodies: list[bytes]) -> None:
        self.appended += bodies
        put(journal, *bodies)
        self.acknowledged = len(self.appended)

    def compact(self, journal: Journal) -> None:
        journal.rotate()
        journal.snapshot(journal.lsn, list(self.appended))
        journal.discard(journal.synced)

    def check(self, found: list[bytes]) -> None:
        assert len(found) >= self.acknowledged, "an acknowledged record is gone"
        assert found == self.appended[: len(found)], "a record that was not appended"


def calls_of_a_life() -> int:
    disk = FaultyDisk(MemoryDisk())
    Run().live(disk)
    return len(disk.calls)


def crashed(call: int, after: bool) -> tuple[Run, MemoryDisk]:
    run, memory = Run(), MemoryDisk(sector=32)
    with pytest.raises(DiskCrash):
        run.live(FaultyDisk(memory, crash_at=call, after=after))
    return run, memory


def ways_to_go_on(memory: MemoryDisk, seeds: int) -> Iterator[MemoryDisk]:
    yield memory.kill()
    yield memory.crash(nothing_survives)
    for seed in range(seeds):
        yield memory.crash(random.Random(seed).randrange)


@pytest.mark.parametrize("after", [False, True])
def test_a_power_cut_at_every_call_loses_nothing_acknowledged(after: bool) -> None:
    total = calls_of_a_life()
    assert total > 80
    for call in range(1, total + 1):
        run, memory = crashed(call, after)
        for disk in ways_to_go_on(memory, seeds=25):
            journal, found = opened(disk, segment_bytes=150)
            run.check(found)
            put(journal, b"goes on")
            assert opened(disk.crash(nothing_survives))[1] == [*found, b"goes on"]


def test_recovery_can_be_cut_at_every_call_and_repeated() -> None:
    for call in range(2, calls_of_a_life() + 1, 3):
        run, memory = crashed(call, after=True)
        for disk in ways_to_go_on(memory, seeds=8):
            expected = opened(disk.kill())[1]
            for step in range(1, 20):
                again = disk.kill()
                try:
                    opened(FaultyDisk(again, crash_at=step))
                except DiskCrash:
                    assert opened(again.kill())[1] == expected
                    found = opened(again.crash(random.Random(step).randrange))[1]
                    run.check(found)
                    assert found == expected[: len(found)]
                else:
                    assert opened(again.crash(nothing_survives))[1] == expected
                    break
            else:
                pytest.fail("recovery makes more calls than this test cuts")


@given(
    groups=st.lists(st.lists(st.binary(min_size=1, max_size=120), min_size=1, max_size=6), max_size=8),
    segment_bytes=st.integers(1, 600),
    sector=st.sampled_from([16, 64, 512]),
    crash_at=st.integers(1, 60),
    seed=st.integers(0, 2**32),
)
def test_any_groups_any_segments_any_cut(
    groups: list[list[bytes]], segment_bytes: int, sector: int, crash_at: int, seed: int
) -> None:
    memory, acknowledged = MemoryDisk(sector), 0
    appended: list[bytes] = []
    try:
        journal, _ = opened(FaultyDisk(memory, crash_at=crash_at), segment_bytes=segment_bytes)
        for group in groups:
            appended += group
            put(journal, *group)
            acknowledged = len(appended)
        journal.close()
    except DiskCrash:
        pass
    draw = random.Random(seed).randrange
    for disk in (memory.kill(), memory.crash(nothing_survives), *(memory.crash(draw) for _ in range(5))):
        found = opened(disk, DIRECTORY, segment_bytes)[1]
        assert found == appended[: len(found)]
        assert len(found) >= acknowledged
