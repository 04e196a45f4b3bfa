"""A journal that meets a fault stops for good, fails every call, and has lost nothing it acknowledged."""

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.core.errors import StoreFailed
from forebay.store.memory.disk import RealDisk
from forebay.store.memory.journal import Journal
from forebay_proof.disk import FaultyDisk, MemoryDisk
from tests.unit.journals import HeldDisk, in_thread, nothing_survives, opened, put


@pytest.mark.parametrize("bad", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
def test_a_failed_sync_stops_the_journal_for_ever(bad: int) -> None:
    memory = MemoryDisk()
    opened(memory)[0].close()
    disk = FaultyDisk(memory, fail_sync=bad)
    acknowledged: list[bytes] = []
    journal = None
    with pytest.raises(StoreFailed, match="input/output error"):  # noqa: PT012
        journal, _ = opened(disk, segment_bytes=100)
        for index in range(20):
            put(journal, b"record %d" % index)
            acknowledged.append(b"record %d" % index)
    assert disk.syncs == bad
    if journal is not None:
        for attempt in (lambda: journal.append(b"more"), lambda: journal.sync(1), journal.rotate):
            with pytest.raises(StoreFailed, match="input/output error"):
                attempt()
        journal.close()
    assert disk.syncs == bad, "a sync that succeeds after one that failed proves nothing"
    for after in (memory.kill(), memory.crash(nothing_survives)):
        assert opened(after)[1][: len(acknowledged)] == acknowledged


def test_a_full_disk_stops_the_journal_and_keeps_the_acknowledged() -> None:
    for room in range(30, 700, 7):
        memory = MemoryDisk(sector=16)
        disk = FaultyDisk(memory, room=room)
        acknowledged: list[bytes] = []
        with pytest.raises(StoreFailed, match="no space left"):  # noqa: PT012
            journal, _ = opened(disk, segment_bytes=150)
            for index in range(30):
                put(journal, b"record %d" % index)
                acknowledged.append(b"record %d" % index)
        for after in (memory.kill(), *(memory.crash(random.Random(seed).randrange) for seed in range(5))):
            assert opened(after)[1][: len(acknowledged)] == acknowledged


def test_a_failure_reaches_all_waiters() -> None:
    disk = HeldDisk()
    journal, _ = opened(disk)
    disk.hold()
    disk.error = OSError(5, "input/output error")
    for _ in range(5):
        journal.append(b"body")
    workers = [in_thread(journal.sync, 1)]
    assert disk.reached.wait(5)
    workers += [in_thread(journal.sync, lsn) for lsn in range(1, 6)]
    disk.let_go.set()
    for worker, errors in workers:
        worker.join(5)
        assert [type(error) for error in errors] == [StoreFailed]
    assert (disk.syncs, journal.synced) == (1, 0)


def test_an_exception_that_breaks_into_a_commit_stops_the_journal() -> None:
    disk = HeldDisk()
    journal, _ = opened(disk)
    disk.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        put(journal, b"body")
    disk.error = None
    with pytest.raises(StoreFailed, match="KeyboardInterrupt broke into a commit"):
        journal.append(b"body")
    with pytest.raises(StoreFailed):
        journal.sync(1)


class Queue(list[tuple[int, threading.Lock]]):
    """A queue that calls `joined` for every call that joins it."""

    def __init__(self, joined: Callable[[], object]) -> None:
        super().__init__()
        self.joined = joined

    def append(self, item: tuple[int, threading.Lock]) -> None:
        super().append(item)
        self.joined()


class Interrupting:
    """Does nothing the first time, and is a Ctrl-C the second."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == 2:
            raise KeyboardInterrupt


def held_journal() -> tuple[HeldDisk, Journal, tuple[threading.Thread, list[BaseException]]]:
    """A journal whose leader is in the middle of syncing record 1, with record 2 appended."""
    disk = HeldDisk()
    journal, _ = opened(disk)
    disk.hold()
    journal.append(b"one")
    leader = in_thread(journal.sync, 1)
    assert disk.reached.wait(5)
    journal.append(b"two")
    return disk, journal, leader


def test_a_caller_that_is_interrupted_in_the_queue_does_not_get_the_turn() -> None:
    disk, journal, leader = held_journal()
    interrupting = Interrupting()
    interrupting()
    journal._waiting = Queue(interrupting)
    with pytest.raises(KeyboardInterrupt):
        journal.sync(2)
    disk.let_go.set()
    leader[0].join(5)
    follower = in_thread(journal.sync, 2)
    follower[0].join(5)
    assert (journal.synced, leader[1], follower[1]) == (2, [], [])


def test_a_caller_that_is_interrupted_with_the_turn_passes_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, journal, leader = held_journal()
    queued = threading.Event()
    journal._waiting = Queue(queued.set)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "_check", Interrupting())
        heir = in_thread(journal.sync, 2)
        assert queued.wait(5)
        disk.let_go.set()
        for thread, _ in (leader, heir):
            thread.join(5)
    assert [type(error) for error in heir[1]] == [KeyboardInterrupt]
    follower = in_thread(journal.sync, 2)
    follower[0].join(5)
    assert (journal.synced, leader[1], follower[1]) == (2, [], [])


FORK = """
import os, sys
from forebay.core.errors import StoreFailed, StoreLocked
from forebay.store.memory.recovery import recover
with recover(sys.argv[1]) as recovery:
    list(recovery.frames())
    journal = recovery.start()
journal.sync(journal.append(b"parent"))
child = os.fork()
if child == 0:
    try:
        journal.sync(journal.append(b"child"))
    except StoreFailed as failure:
        journal.close()
        os._exit(7 if "after the fork" in failure.reason else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
try:
    recover(sys.argv[1])
except StoreLocked:
    journal.sync(journal.append(b"parent again"))
"""


def test_a_forked_child_cannot_write_and_does_not_unlock(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path)], env=environment, check=True)
    assert opened(RealDisk(), str(tmp_path))[1] == [b"parent", b"parent again"]


def test_a_snapshot_that_fails_does_not_stop_the_journal() -> None:
    memory = MemoryDisk()
    journal, _ = opened(FaultyDisk(memory, room=200))
    put(journal, b"one")
    with pytest.raises(StoreFailed, match="snapshot at 1"):
        journal.snapshot(1, [b"x" * 500])
    with pytest.raises(ValueError, match="take one first"):
        journal.discard(1)
    assert [path for path in memory.files() if "snapshot" in path] == []
    again, _ = opened(FaultyDisk(memory.kill(), fail_sync=5))
    with pytest.raises(StoreFailed, match="snapshot at 1"):
        again.snapshot(1, [b"one"])
    assert put(again, b"two") == 2
