"""The journaled store as a whole: durable answers, fail-stop, compaction beside live work, bounded use of the disk."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from forebay.core.changeset import VERSION, ChangeSet, encode_entry
from forebay.core.errors import Closed, StoreFailed
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.ledger import LedgerRule
from forebay.core.outcome import Ack
from forebay.core.policy import Rate, Retained
from forebay.core.spec import QueueSpec
from forebay.store.memory.facts import Facts
from forebay.store.memory.image import image
from forebay.store.memory.journaled import RESERVE_BYTES, CompactingJournal, open_journaled
from forebay.store.memory.recovery import recover
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Query, Want
from forebay.testing.clock import ManualClock
from forebay_proof.disk import FaultyDisk, MemoryDisk
from forebay_proof.history import RunHistory
from tests.stores.journal_history import DIRECTORY


def drafts(count: int) -> list[Draft]:
    return [Draft("mail", {"n": n, "text": "x" * 50}) for n in range(count)]


def picture(facts: Facts) -> list[bytes]:
    return list(image(facts))


def recorder(store: MemoryStore) -> CompactingJournal:
    assert isinstance(store.backend.session.recorder, CompactingJournal)
    return store.backend.session.recorder


@pytest.mark.parametrize("seed", range(200))
def test_what_was_answered_survives_a_power_cut(seed: int) -> None:
    disk = MemoryDisk()
    store = open_journaled(DIRECTORY, clock=ManualClock(), disk=disk, segment_bytes=512)
    accepted = [receipt.id for _ in range(seed % 7 + 1) for receipt in store.enqueue(drafts(3))]
    leases = store.claim([Want("default", 2)], "worker", seconds(30))
    store.settle([(leases[0], Ack())])

    state = seed * 2_654_435_761

    def draw(most: int) -> int:
        nonlocal state
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        return (state >> 33) % most

    again = open_journaled(DIRECTORY, clock=ManualClock(), disk=disk.crash(draw))
    assert picture(again.backend.session.facts) == picture(store.backend.session.facts)
    found = {job.id for job in again.browse(Query(), after=0, limit=1000).jobs}
    assert found == set(accepted) - {leases[0].job.id}


def test_an_answer_holds_nothing_that_a_crash_could_take_back() -> None:
    """A record that another thread has written and not yet synced is synced by the verb that saw its effect."""
    store = open_journaled(DIRECTORY, clock=ManualClock(), disk=MemoryDisk())
    journal = recorder(store)._journal
    work = (lambda: store.enqueue([]), lambda: store.claim([Want("q", 1)], "w", seconds(1)), lambda: store.settle([]))
    for verb in (lambda: store.get([1]), store.backlog, store.schedules, lambda: store.overdue(1), store.specs, *work):
        store.backend.session.lsn = recorder(store).append(encode_entry(ChangeSet(store.now())))
        assert journal.synced < store.backend.session.lsn
        verb()
        assert journal.synced >= store.backend.session.lsn


def test_a_journal_of_an_earlier_version_is_refused_by_name() -> None:
    disk = MemoryDisk()
    with recover(DIRECTORY, disk) as recovery:
        assert list(recovery.frames()) == []
        journal = recovery.start()
    journal.sync(journal.append(bytes([VERSION - 1]) + encode_entry(ChangeSet(1))[1:]))
    journal.close()
    output = (
        f"record 1 is sound but not understood: entry of version {VERSION - 1}, this reader supports version {VERSION}"
    )
    with pytest.raises(StoreFailed, match=output):
        open_journaled(DIRECTORY, disk=disk.kill())


def test_a_start_is_never_left_over_for_later() -> None:
    """A start and what it spends of a rate are one record: a crash keeps both, or the job starts again as if anew."""
    history, clock = RunHistory(), ManualClock()
    store = MemoryStore(clock=clock, recorder=history)
    store.put_spec(QueueSpec(name="q", eligibility=Rate(1, seconds(1), burst=1)))
    store.enqueue([Draft("k", queue="q")] * 2)
    assert len(store.claim([Want("q", 2)], "w", seconds(5))) == 1
    whole = history.changes[:]
    for records in range(len(whole) + 1):
        history.changes = whole[:records]
        fallen = MemoryStore(clock=clock, facts=history.replay())
        running = sum(queue.running for queue in fallen.backlog())
        ready = sum(queue.ready for queue in fallen.backlog())
        assert running + len(fallen.claim([Want("q", 2)], "w", seconds(5))) == min(running + ready, 1)


def test_nothing_is_acknowledged_after_a_failed_sync() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = open_journaled(DIRECTORY, clock=ManualClock(), disk=disk)
    store.enqueue(drafts(1))
    disk._fail_sync = disk.syncs + 1
    with pytest.raises(StoreFailed):
        store.enqueue(drafts(1))
    for verb in (lambda: store.enqueue(drafts(1)), lambda: store.claim([Want("default", 1)], "w", seconds(1))):
        with pytest.raises(StoreFailed):
            verb()


def test_compaction_keeps_the_state_and_shortens_the_log() -> None:
    disk = MemoryDisk()
    store = open_journaled(DIRECTORY, clock=ManualClock(), disk=disk, segment_bytes=4_096)
    for _ in range(50):
        store.enqueue(drafts(20))
        store.settle([(lease, Ack()) for lease in store.claim([Want("default", 19)], "w", seconds(30))])
    before = sum(len(data) for data in disk.files().values())
    recorder(store).compact()
    assert sum(len(data) for data in disk.files().values()) < before / 4
    store.enqueue(drafts(3))
    again = open_journaled(DIRECTORY, disk=disk.kill())
    assert picture(again.backend.session.facts) == picture(store.backend.session.facts)


def test_a_thousand_large_jobs_and_log_entries_are_compacted() -> None:
    disk = MemoryDisk()
    store = open_journaled(DIRECTORY, clock=ManualClock(), disk=disk, segment_bytes=2**20)
    store.put_spec(QueueSpec(name="log", retention=Retained(1)))
    for _ in range(10):
        store.enqueue([Draft("mail", "x" * 68_000)] * 100)
        store.append("log", [b'"%s"' % (b"x" * 68_000)] * 100)
    recorder(store).compact()
    assert [path for path in disk.files() if path.endswith(".snap")]
    again = open_journaled(DIRECTORY, disk=disk.kill())
    assert picture(again.backend.session.facts) == picture(store.backend.session.facts)


class BusyDisk(MemoryDisk):
    """Enqueues a job whenever a compaction has written a piece of its files."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity=capacity)
        self.store: MemoryStore | None = None
        self.accepted = 0
        self._made: dict[int, str] = {}

    def create(self, path: str) -> int:
        handle = super().create(path)
        self._made[handle] = path
        return handle

    def write(self, handle: int, offset: int, data: bytes) -> None:
        super().write(handle, offset, data)
        if self.store is not None and self._made.get(handle, "").endswith(".tmp"):
            self.accepted += len(self.store.enqueue([Draft("mail", "x" * 5_000)]))


@pytest.mark.parametrize("room", [0, 2**20, 3 * 2**20, 10 * 2**20])
def test_a_compaction_that_finds_no_room_leaves_the_journal_running(room: int) -> None:
    """However far it came: its files are gone, the log took what came meanwhile, and with more room it works."""
    disk = BusyDisk(capacity=2**40)
    store = open_journaled(DIRECTORY, clock=ManualClock(), disk=disk, segment_bytes=2**20)
    store.put_ledger_rule(LedgerRule())
    for _ in range(40):
        store.enqueue([Draft("mail", "x" * 5_000, tenant=f"t{n % 7}", meta={"trace": "x" * 200}) for n in range(100)])
    disk.store = store
    disk._capacity = 2**40 - disk.free("") + RESERVE_BYTES + room
    with pytest.raises(StoreFailed, match=r"bytes are free on its disk.*make room"):
        recorder(store).compact()
    assert not [path for path in disk.files() if path.endswith((".tmp", ".snap", ".rec"))]
    store.enqueue(drafts(1))
    disk._capacity = 2**40
    recorder(store).compact()
    assert [path for path in disk.files() if path.endswith(".snap")]
    assert disk.accepted > (1 if room < 2**20 else 2)
    assert store.backlog(["default"])[0].ready == 4_001 + disk.accepted
    again = open_journaled(DIRECTORY, disk=disk.kill())
    assert picture(again.backend.session.facts) == picture(store.backend.session.facts)


@pytest.mark.parametrize("error", [OSError(28, "no space left on device"), ValueError("a chunk is too large")])
def test_a_compaction_that_fails_is_logged_and_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    store = open_journaled(DIRECTORY, disk=disk, segment_bytes=4_096, compact_bytes=8_192)
    journal = recorder(store)
    tries = []

    def failing(facts: Facts) -> Iterator[bytes]:
        tries.append(facts)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("forebay.store.memory.journaled.image", failing)
        for _ in range(10):
            store.enqueue(drafts(50))
            if journal._thread is not None:
                journal._thread.join()
    assert len(tries) == 1, "the next try has time"
    (record,) = [record for record in caplog.records if record.name == "forebay.store.memory"]
    assert "was not compacted, it works on and grows; next try in 60 s: " in record.getMessage()
    assert str(error) in record.getMessage()
    journal._not_before = 0.0
    store.enqueue(drafts(1))
    assert journal._thread is not None
    journal._thread.join()
    assert [path for path in disk.files() if path.endswith(".snap")]
    store.close()


def test_disk_use_is_bounded_under_churn(tmp_path: Path) -> None:
    limit = 64 * 1024
    store = open_journaled(str(tmp_path / "j"), segment_bytes=limit // 4, compact_bytes=limit)
    most = 0
    for _ in range(400):
        store.enqueue(drafts(20))
        store.settle([(lease, Ack()) for lease in store.claim([Want("default", 20)], "w", seconds(30))])
        if (thread := recorder(store)._thread) is not None:
            thread.join()
        most = max(most, recorder(store)._journal.bytes_on_disk)
    store.close()
    written = 400 * 20 * 100
    assert most < 4 * limit < written


def test_live_work_goes_on_while_the_log_is_compacted(tmp_path: Path) -> None:
    store = open_journaled(str(tmp_path / "j"), segment_bytes=16_384)
    for _ in range(40):
        store.enqueue(drafts(50))
    stop = Event()
    rounds = [0]

    def work() -> None:
        while not stop.is_set():
            store.enqueue(drafts(2))
            store.settle([(lease, Ack()) for lease in store.claim([Want("default", 1)], "w", seconds(30))])
            rounds[0] += 1

    worker = Thread(target=work)
    worker.start()
    try:
        for _ in range(3):
            before = rounds[0]
            recorder(store).compact()
            assert rounds[0] > before, "the store blocked"
    finally:
        stop.set()
        worker.join()
    live = picture(store.backend.session.facts)
    store.close()
    again = open_journaled(str(tmp_path / "j"))
    assert picture(again.backend.session.facts) == live
    again.close()


def test_closing_during_a_compaction_loses_nothing(tmp_path: Path) -> None:
    store = open_journaled(str(tmp_path / "j"), segment_bytes=4_096, compact_bytes=8_192)
    for _ in range(100):
        store.enqueue(drafts(10))
    live = picture(store.backend.session.facts)
    store.close()
    with pytest.raises(Closed):
        store.enqueue(drafts(1))
    again = open_journaled(str(tmp_path / "j"))
    assert picture(again.backend.session.facts) == live
    again.close()
