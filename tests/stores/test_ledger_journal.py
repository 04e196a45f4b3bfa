"""The ledger of a journal: whatever is cut, torn, compacted or lost, its offsets are dense and its records the same."""

import os
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from forebay.core.changeset import decode_entry
from forebay.core.errors import Closed, Invalid, JournalDamaged, OffsetGone, Unsupported
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.ledger import LedgerEntry, LedgerRule, decode_record
from forebay.core.outcome import Ack
from forebay.core.spec import QueueSpec
from forebay.store.memory.disk import Disk, RealDisk
from forebay.store.memory.frame import encode_mark
from forebay.store.memory.journaled import CompactingJournal, open_journaled
from forebay.store.memory.ledger import JournalLedgerReader
from forebay.store.memory.store import MemoryStore
from forebay.store.open import open_ledger, open_store
from forebay.store.protocol import Want
from forebay.testing.clock import ManualClock
from forebay_proof.checkers import ledger as violations
from forebay_proof.disk import DiskCrash, FaultyDisk, MemoryDisk
from tests.stores.journal_history import DIRECTORY, JournalHistory, on_disk
from tests.stores.test_crash_points import cuts, files_of

ALWAYS = LedgerRule(keep=10**14, keep_bytes=2**40)


def opened(disk: Disk, segment_bytes: int = 4_096) -> MemoryStore:
    return open_journaled(DIRECTORY, clock=ManualClock(), disk=disk, segment_bytes=segment_bytes)


def compact(store: MemoryStore) -> None:
    assert isinstance(store.backend.session.recorder, CompactingJournal)
    store.backend.session.recorder.compact()


def work(store: MemoryStore, rounds: int) -> None:
    """Three records a round."""
    for _ in range(rounds):
        store.enqueue([Draft("mail", {"text": "x" * 50})] * 2)
        store.settle([(lease, Ack()) for lease in store.claim([Want("default", 2)], "w", seconds(30))])


def every(store: MemoryStore | JournalLedgerReader, limit: int = 1_000) -> list[LedgerEntry]:
    found: list[LedgerEntry] = []
    after = store.ledger_extent()[0] - 1
    while page := store.ledger(after, limit):
        found += page
        after = page[-1].offset
    return found


def expected(history: JournalHistory) -> dict[int, list[LedgerEntry]]:
    """By record of the journal: the ledger as it is then."""
    entries: list[LedgerEntry] = []
    after: dict[int, list[LedgerEntry]] = {0: []}
    for lsn, body in history.witness.records.items():
        kept = decode_entry(body).record
        if kept is not None:
            entries = [*entries, LedgerEntry(kept.offset, decode_record(kept.record))]
        after[lsn] = entries
    return after


def test_a_cut_at_every_byte_leaves_the_ledger_of_the_last_whole_record() -> None:
    history = JournalHistory()
    ledgers = expected(history)
    assert len(ledgers[max(ledgers)]) > 30
    for left, last in cuts(files_of(history), step=11):
        disk = on_disk(left)
        outside = JournalLedgerReader(DIRECTORY, disk)
        kept = ledgers[last]
        assert every(outside) == kept[outside.ledger_extent()[0] :], f"cut after record {last}, before recovery"
        store = opened(disk)
        first, following = store.ledger_extent()
        assert following == len(kept)
        assert every(store) == kept[first:], f"cut after record {last}"
        store.close()


def test_what_is_written_and_not_acknowledged_is_not_shown_from_outside() -> None:
    history = JournalHistory()
    ledgers = expected(history)
    files = files_of(history)
    for lsn in list(ledgers)[1::5]:
        files[f"{DIRECTORY}/synced"] = encode_mark(lsn)
        shown = every(JournalLedgerReader(DIRECTORY, on_disk(files)))
        assert shown == ledgers[lsn][shown[0].offset if shown else len(ledgers[lsn]) :]


def test_history_outlives_compactions_and_reopenings() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    store.put_ledger_rule(ALWAYS)
    outside = JournalLedgerReader(DIRECTORY, disk)
    reported: list[LedgerEntry] = []
    for turn in range(6):
        work(store, 20)
        reported += every(store)[len(reported) :]
        if turn % 2 == 0:
            compact(store)
        assert every(store) == every(outside) == reported
        if turn % 3 == 2:
            store.close()
            store = opened(disk)
            assert every(store, limit=7) == reported
    assert [entry.offset for entry in reported] == list(range(360))
    assert violations(reported, drained=True) == []
    assert len([path for path in disk.files() if path.endswith(".rec")]) == 3


def test_a_compaction_that_is_cut_off_anywhere_loses_no_record() -> None:
    """Every operation on the disk is the last one; then the power goes, too, and the mark may be lost with it."""
    steps = 0
    while True:
        base = MemoryDisk()
        store = opened(base)
        store.put_ledger_rule(ALWAYS)
        work(store, 10)
        compact(store)
        work(store, 10)
        reported = every(store)
        store.close()
        try:
            compact(opened(FaultyDisk(base, crash_at=steps + 1, after=steps % 2 == 0)))
            died = False
        except DiskCrash:
            died = True
        for left, all_of_it in ((base.kill(), True), (base.crash(Random(steps).randrange), False)):
            shown = every(JournalLedgerReader(DIRECTORY, left))
            assert shown == reported[: None if all_of_it else len(shown)], f"after operation {steps}, from outside"
            again = opened(left)
            assert every(again) == reported, f"after operation {steps}"
            work(again, 2)
            compact(again)
            assert [entry.offset for entry in every(again)] == list(range(len(reported) + 6))
            assert not [path for path in left.files() if path.endswith(".tmp")]
            again.close()
        if not died:
            break
        steps += 1
    assert steps > 10


@pytest.mark.parametrize("seed", range(100))
def test_a_record_is_there_if_and_only_if_its_change_is(seed: int) -> None:
    disk = MemoryDisk()
    store = opened(disk, segment_bytes=512)
    store.put_ledger_rule(ALWAYS)
    work(store, seed % 5 + 1)
    again = opened(disk.crash(Random(seed).randrange))
    assert every(again) == every(store)
    assert violations(every(again), drained=True) == []


def test_files_of_records_that_are_not_kept_are_deleted() -> None:
    disk = MemoryDisk()
    clock = ManualClock()
    store = open_journaled(DIRECTORY, clock=clock, disk=disk, segment_bytes=4_096)
    for _ in range(3):
        work(store, 20)
        compact(store)
        clock.advance(1_000_000)

    def kept() -> list[str]:
        return sorted(os.path.basename(path) for path in disk.files() if path.endswith(".rec"))

    assert kept() == [f"ledger-{offset:016x}.rec" for offset in (0, 60, 120)]
    store.put_ledger_rule(LedgerRule(keep=1_500_000))
    while store.trim_ledger(1_000):
        pass
    assert store.ledger_extent() == (120, 180)
    assert len(kept()) == 3, "what is not yet durable elsewhere is not deleted"
    work(store, 1)
    compact(store)
    assert kept() == [f"ledger-{offset:016x}.rec" for offset in (120, 180)]
    assert [entry.offset for entry in every(store)] == list(range(120, 183))
    with pytest.raises(OffsetGone):
        JournalLedgerReader(DIRECTORY, disk).ledger(-1, 1)
    clock.advance(10_000_000)
    store.promote(1_000)
    store.put_spec(QueueSpec(name="new"))
    while store.trim_ledger(1_000):
        pass
    compact(store)
    assert len(kept()) <= 1
    assert [entry.record.verb for entry in every(store)] == ["put_spec"]


def test_a_silent_ledger_is_compacted_to_no_file() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    store.put_ledger_rule(LedgerRule(on=False, keep_bytes=0))
    store.trim_ledger(10)
    work(store, 5)
    compact(store)
    work(store, 5)
    compact(store)
    assert not [path for path in disk.files() if path.endswith(".rec")]
    store.put_ledger_rule(LedgerRule())
    again = opened(disk.kill())
    assert again.ledger_extent() == JournalLedgerReader(DIRECTORY, disk).ledger_extent() == (1, 2)
    assert [entry.record.name for entry in every(again)] == ["on"]


def test_a_missing_or_damaged_file_is_reported_and_not_skipped() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    for _ in range(2):
        work(store, 5)
        compact(store)
    files = {path: data for path, data in disk.files().items() if not path.endswith("lock")}
    (first, second) = sorted(path for path in files if path.endswith(".rec"))
    flipped = bytearray(files[first])
    flipped[len(flipped) // 2] ^= 4
    for wrong in ({**files, first: bytes(flipped)}, {**files, first: files[first][:-1]}):
        with pytest.raises(JournalDamaged):
            every(JournalLedgerReader(DIRECTORY, on_disk(wrong)))
    for missing in (first, second):
        without = {path: data for path, data in files.items() if path != missing}
        with pytest.raises(JournalDamaged, match="is missing"):
            every(JournalLedgerReader(DIRECTORY, on_disk(without)))


def test_another_process_reads_while_the_owner_writes_and_compacts(tmp_path: Path) -> None:
    directory = str(tmp_path / "j")
    store = open_journaled(directory, segment_bytes=8_192, compact_bytes=16_384)
    stop = Event()

    def write() -> None:
        while not stop.is_set():
            work(store, 1)

    writer = Thread(target=write)
    writer.start()
    reader = open_ledger(f"memory:///{directory}")
    seen: list[LedgerEntry] = []
    try:
        while len(seen) < 1_200:
            seen += reader.ledger(seen[-1].offset if seen else -1, 100)
            first, following = reader.ledger_extent()
            assert first == 0
            assert following >= len(seen)
    finally:
        stop.set()
        writer.join()
    assert [entry.offset for entry in seen] == list(range(len(seen)))
    assert violations(seen) == []
    assert [name for name in os.listdir(directory) if name.endswith(".rec")], "nothing was compacted meanwhile"
    store.close()
    assert reader.ledger(len(seen) - 1, 1_000) is not None
    reader.close()
    with pytest.raises(Closed):
        reader.ledger(-1, 1)


class LateCompaction(RealDisk):
    """On demand the journal is compacted just after the reader has listed the directory."""

    def __init__(self) -> None:
        self.stores: list[MemoryStore] = []

    def entries(self, path: str) -> list[str]:
        names = super().entries(path)
        while self.stores:
            compact(self.stores.pop())
        return names


def test_a_compaction_in_the_middle_of_a_look_hides_nothing(tmp_path: Path) -> None:
    directory = str(tmp_path / "j")
    store, disk = open_journaled(directory, segment_bytes=512), LateCompaction()
    reader = JournalLedgerReader(directory, disk)
    work(store, 20)
    disk.stores.append(store)
    assert reader.ledger_extent() == store.ledger_extent()
    assert disk.stores == []
    store.close()


def test_a_reader_changes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "j"
    store = open_journaled(str(directory))
    work(store, 3)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    reader = open_ledger(f"memory:///{directory}")
    assert len(reader.ledger(-1, 1_000)) == 9
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    store.close()


def test_a_store_that_keeps_no_ledger_says_so(tmp_path: Path) -> None:
    for url in ("memory://", f"memory:///{tmp_path}/nothing", f"sqlite:///{tmp_path}/nothing.db"):
        with pytest.raises(Invalid, match=r"store URL: .+; .+"):
            open_ledger(url)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Unsupported, match="memory:// does not support a ledger; give it a directory"):
        open_store("memory://").put_ledger_rule(LedgerRule())


def test_a_ledger_that_cannot_be_trimmed_fails_no_verb(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    store = opened(disk)
    work(store, 10)
    compact(store)
    store.put_ledger_rule(LedgerRule(keep_bytes=0))
    (path,) = [path for path in disk.files() if path.endswith(".rec")]
    disk.put(path, b"damaged")
    work(store, 100)
    assert "the ledger was not trimmed" in caplog.text
    with pytest.raises(JournalDamaged):
        store.trim_ledger(10)
