"""A history of a journaled store with every kind of record there is, in groups, over segments and a snapshot.

It keeps what a recovery should find: the image of the facts after every single record.
"""

from collections.abc import Callable

from msgspec import Struct, structs

from forebay.core.changeset import ChangeSet, JobChange, LedgerChange, LogChange, TableChanges, decode_entry
from forebay.core.gate import condition_gate
from forebay.core.instant import days, micros, minutes, seconds
from forebay.core.job import Draft, State
from forebay.core.ledger import LedgerRule
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Release, Retry
from forebay.core.policy import (
    AtMost,
    Bounded,
    DeadLetters,
    Fair,
    InOrder,
    KeepFor,
    LatestWins,
    Priority,
    Rate,
    Retained,
    Routing,
    Shed,
    Until,
)
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.memory.changes import RULES, apply
from forebay.store.memory.facts import Facts
from forebay.store.memory.image import image
from forebay.store.memory.journaled import CompactingJournal, open_journaled
from forebay.store.memory.session import Recorder
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Checkpoint, Want
from forebay.testing.clock import ManualClock
from forebay_proof.disk import MemoryDisk
from forebay_proof.evidence import happened

DIRECTORY = "/journal"
ERROR = Failure("Oops", "it broke")


class CopyingRecorder:
    """A recorder that passes records on and keeps a copy of each."""

    def __init__(self, inner: Recorder) -> None:
        self.inner = inner
        self.records: dict[int, bytes] = {}
        self.sync = inner.sync
        self.close = inner.close

    def append(self, body: bytes) -> int:
        lsn = self.inner.append(body)
        self.records[lsn] = body
        return lsn


class JournalHistory:
    """The store after that history, not closed, as after kill -9."""

    def __init__(self, *, chapters: int = 1, compact: bool = False, segment_bytes: int = 2_048) -> None:
        self.disk = MemoryDisk()
        self.clock = ManualClock()
        self.store = open_journaled(DIRECTORY, clock=self.clock, disk=self.disk, segment_bytes=segment_bytes)
        compacting = self.store.backend.session.recorder
        assert isinstance(compacting, CompactingJournal)
        self.witness = CopyingRecorder(compacting)
        self.store.backend.session.recorder = self.witness
        for chapter in range(chapters):
            write_history(self.store, self.clock)
            if compact and chapter == chapters // 2:
                compacting.compact()
        self.images = expected_images(self.witness.records)
        assert list(image(self.store.backend.session.facts)) == self.images[max(self.images)]

    @property
    def parts(self) -> set[str]:
        """What its changes say, by the fields that say something, and what happened to jobs."""
        return {part for body in self.witness.records.values() for part in _parts(decode_entry(body).change)}


ALL_PARTS = {
    *RULES,
    *(
        f"{kind.__name__}.{field.name}"
        for kind in (ChangeSet, JobChange, TableChanges, LogChange, LedgerChange)
        for field in structs.fields(kind)
    ),
}


def _parts(change: ChangeSet) -> set[str]:
    found = {each.change for each in change.jobs}
    values: list[Struct | None] = [change, *change.jobs, change.tables, change.log, change.ledger]
    for value in values:
        for field in () if value is None else structs.fields(value):
            output = getattr(value, field.name)
            if output != field.default and output not in ({}, []):
                found.add(f"{type(value).__name__}.{field.name}")
    return found


def expected_images(records: dict[int, bytes]) -> dict[int, list[bytes]]:
    """The facts after each record, applied one by one to a store that never crashed."""
    facts = Facts()
    images = {0: list(image(facts))}
    for lsn, body in records.items():
        entry = decode_entry(body)
        apply(facts, entry.change, entry.record)
        images[lsn] = list(image(facts))
    return images


def write_history(store: MemoryStore, clock: ManualClock) -> None:
    """Every verb, every verdict, every axis."""
    for scene in (_configure, _accept, _work, _gates, _lines, _operate, _schedule, _feed, _log, _ledger):
        scene(store, clock)


def _configure(store: MemoryStore, clock: ManualClock) -> None:
    store.put_spec(QueueSpec(name="keep", retention=KeepFor(minutes(5)), selection=Priority(), share=Fair()))
    store.put_spec(QueueSpec(name="order", eligibility=InOrder(dead_head="block") & AtMost(2)))
    store.put_spec(QueueSpec(name="merge", merge=LatestWins(), capacity=Bounded(50)))
    store.put_spec(QueueSpec(name="list", eligibility=Until("room")))
    line, dead = InOrder() & Rate(5, seconds(1)), Routing(dead=DeadLetters("keep"))
    store.put_spec(QueueSpec(name="line", eligibility=line, capacity=Bounded(2, when_full=Shed()), routing=dead))
    if not any(spec.name == "log" for spec in store.specs()):
        store.put_spec(QueueSpec(name="log", retention=Retained(partitions=2, window=days(1))))


def _accept(store: MemoryStore, clock: ManualClock) -> None:
    key = f"key-{clock.now()}"
    store.enqueue([Draft("mail", {"n": n}, key=f"{key}-{n}") for n in range(3)])
    store.enqueue([Draft("mail", {"n": 0}, key=f"{key}-0")])
    store.enqueue([Draft("mail", [1, "ü", None], "keep", priority=n, tenant=f"t{n % 2}") for n in range(3)])
    store.enqueue([Draft("step", n, "order", subject=f"s{n % 2}", meta={"trace": "abc"}) for n in range(6)])
    store.enqueue([Draft("draw", n, "merge", subject="view", key=f"{key}-m{n}") for n in range(3)])
    store.enqueue([Draft("late", None, delay=micros(seconds(5))), Draft("seat", 1, "list")])
    store.enqueue([Draft("stale", None, "list", expires_at=clock.now() + micros(seconds(2)))])


def _work(store: MemoryStore, clock: ManualClock) -> None:
    mails = store.claim([Want("default", 3)], "worker-1", seconds(30))
    store.extend(mails, seconds(60))
    store.settle([(mails[0], Ack()), (mails[1], Retry(1_000_000, ERROR)), (mails[2], Release(2_000_000))])
    kept = store.claim([Want("keep", 3)], "worker-2", seconds(30))
    store.settle([(kept[0], Ack(b'{"sent":true}')), (kept[1], DeadLetter(ERROR)), (kept[2], Cancel())])
    views = store.claim([Want("merge", 1)], "worker-1", seconds(30))
    store.enqueue([Draft("draw", "newer", "merge", subject="view")])
    store.settle([(views[0], Retry(500_000, ERROR))])
    clock.advance(3_000_000)
    store.promote(100)


def _gates(store: MemoryStore, clock: ManualClock) -> None:
    steps = store.claim([Want("order", 10)], "worker-3", seconds(30))
    store.settle([(step, DeadLetter(ERROR)) for step in steps[:1]])
    store.settle([(step, Ack()) for step in steps[1:]])
    store.enqueue([Draft("seat", 2, "list")])
    assert store.release("room", 1) == 1
    store.set_gate(condition_gate("room"), 1)
    seats = store.claim([Want("list", 5)], "usher", seconds(30))
    store.settle([(seat, Ack()) for seat in seats])
    store.set_gate(condition_gate("room"), None)


def _lines(store: MemoryStore, clock: ManualClock) -> None:
    """A head that dies and comes back before its successor, in a queue with a rate that sheds; one that is replaced."""
    first, _ = store.enqueue([Draft("step", n, "line", subject="s") for n in range(2)])
    for verdict in (DeadLetter(ERROR), Retry(1, ERROR, keep_rank=True)):
        store.settle([(lease, verdict) for lease in store.claim([Want("line", 1)], "worker-1", seconds(30))])
        store.promote(10)
        store.redrive([first.id])
    store.enqueue([Draft("step", 2, "line", subject="s")])
    assert store.replace_dead([(first.id, Draft("step", 0, "line"))]) != [None]


def _feed(store: MemoryStore, clock: ManualClock) -> None:
    before = store.ingested("source")
    after = Checkpoint(0 if before is None else before.batch + 1, 1, b"digest")
    assert store.ingest("source", before, after, [Draft("fed", 1, key=f"fed-{clock.now()}")]) is not None


def _operate(store: MemoryStore, clock: ManualClock) -> None:
    dead = [row.entry.id for row in store.backend.session.facts.rows.values() if row.state is State.DEAD]
    store.redrive(dead[:1])
    running = store.claim([Want("default", 1)], "worker-4", seconds(30))
    waiting = [row.entry.id for row in store.backend.session.facts.rows.values() if row.state is State.WAITING]
    store.cancel([lease.job.id for lease in running] + waiting[:2])
    store.pause("default", clock.now() + 60_000_000)
    store.resume("default")
    store.purge(State.DEAD, clock.now() + 1, 1)
    clock.advance(400_000_000)
    store.promote(100)


def _schedule(store: MemoryStore, clock: ManualClock) -> None:
    tick = clock.now()
    store.put_schedule(Schedule("nightly", "0 1 * * *", tick, Draft("report", {"day": 1})))
    store.fire("nightly", tick, tick + 86_400_000_000, Draft("report", {"day": 1}))
    store.put_schedule(Schedule("gone", "* * * * *", tick, Draft("tick")))
    store.drop_schedule("gone")


def _log(store: MemoryStore, clock: ManualClock) -> None:
    store.append("log", [b'{"e":1}', b"2", b"3"], ["a", "b", None])
    for partition, (_, following) in enumerate(store.extent("log")):
        store.commit("log", "readers", partition, following - 1)
    store.commit("log", "readers", 0, -1, rewind=True)
    store.own("log", "readers", "one", seconds(30))
    store.own("log", "readers", "two", seconds(30))
    store.disown("log", "readers", "two")
    clock.advance(1_000_000)
    store.append("log", [b"4"], ["a"])
    store.trim("log", clock.now(), 2)


def _ledger(store: MemoryStore, clock: ManualClock) -> None:
    if not store.ledger_rule().on:
        return
    store.put_ledger_rule(LedgerRule(on=False))
    store.enqueue([Draft("untold")])
    store.put_ledger_rule(LedgerRule(keep=micros(minutes(5))))
    store.trim_ledger(2)


def on_disk(files: dict[str, bytes]) -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    for path, data in files.items():
        disk.put(path, data)
    return disk


def recovered_image(files: dict[str, bytes], *, check: Callable[[MemoryStore], None] | None = None) -> list[bytes]:
    """What a recovery of these files finds."""
    happened("recoveries")
    store = open_journaled(DIRECTORY, clock=ManualClock(), disk=on_disk(files))
    try:
        found = list(image(store.backend.session.facts))
        if check is not None:
            check(store)
        return found
    finally:
        store.close()
