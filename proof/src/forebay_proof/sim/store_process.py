"""The store process of the simulation: a real in-process store, its real journal, a disk that can lose its power.

Promise: whatever the store answered was synced by its own journal on this disk; a power cut keeps of the rest what the
disk's model allows. After each fall the store is recovered through the real recovery, which may itself be cut short.
`ledger` is every record that counts: records that a cut took back are taken out of it, and it is a violation when one
of those had been acknowledged, or when recovery reads another record than was written.

Authority: the journal about what is durable, this file about when the machine falls.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from forebay.core.changeset import ChangeSet, decode_entry
from forebay.core.clock import Signal
from forebay.core.errors import ForebayError
from forebay.core.instant import Duration, Instant
from forebay.core.job import Job, State
from forebay.store.memory.changes import apply
from forebay.store.memory.image import restore
from forebay.store.memory.journaled import CompactingJournal
from forebay.store.memory.recovery import recover
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Query, Store
from forebay_proof.disk import DiskCrash, FaultyDisk, MemoryDisk
from forebay_proof.faulty import ConnectionLost, ReplyLost
from forebay_proof.sim.world import EPOCH, SECOND, CannotContinue, World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")

_DIRECTORY: Final = "/sim"
_SEGMENT: Final = 32 * 1024
_NEVER: Final = 2**62


class StoreClock:
    """The store's own clock: the world's, and what it was moved by. No thread sleeps on it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.slept: Duration = 0

    def now(self) -> Instant:
        return EPOCH + self._world.now + self._world.skew

    def wait(self, signal: Signal, duration: Duration) -> None:
        """Return at once and remember how long it would have been; the actor rests for as long afterwards."""
        self.slept = duration


class PowerDisk(FaultyDisk):
    """A disk that dies at a chosen change, before it or behind it, and whose syncs may be slow."""

    def __init__(self, inner: MemoryDisk, on_sync: Callable[[], None]) -> None:
        super().__init__(inner)
        self.memory = inner
        self.dies_in = -1
        self._behind = False
        self._off = False
        self._on_sync = on_sync

    def arm(self, calls: int, behind: bool) -> None:
        self.dies_in, self._behind = calls, behind

    def _call(self, name: str, path: str, action: Callable[[], T]) -> T:
        if self._off:
            raise DiskCrash
        if self.dies_in < 0:
            return action()
        self.dies_in -= 1
        self._off = self.dies_in < 0
        if self._off and not self._behind:
            raise DiskCrash
        result = action()
        if self._off:
            raise DiskCrash
        return result

    def _sync(self, handle: int) -> None:
        self._on_sync()
        self.memory.sync(handle)


class QuickJournal(CompactingJournal):
    """Compacts when it is called, without a pause."""

    def _unhurried(self, items: "Iterable[T]", per_breath: int) -> "Iterator[T]":
        return iter(items)


class RecordCopy:
    """One record of the ledger: its number, when it was written and as which of all stores, and its body."""

    __slots__ = ("at", "body", "lsn", "place")

    def __init__(self, lsn: int, at: int, place: int, body: bytes) -> None:
        self.lsn = lsn
        self.at = at
        self.place = place
        self.body = body


class CopyingRecorder:
    """Between the store and its journal: keeps a copy of every record and the last acknowledged number."""

    def __init__(self, journal: QuickJournal, store_process: "StoreProcess") -> None:
        self._journal = journal
        self._store_process = store_process

    def append(self, body: bytes) -> int:
        lsn, world = self._journal.append(body), self._store_process.world
        self._store_process.ledger.append(RecordCopy(lsn, world.now, world.next_record(), body))
        return lsn

    def sync(self, lsn: int) -> None:
        self._journal.sync(lsn)
        self._store_process.acknowledged = max(self._store_process.acknowledged, lsn)

    def close(self) -> None:
        self._journal.close()

    def compact(self) -> None:
        self._journal.compact()


class Stores(Protocol):
    """One store process, or the cells that are one store."""

    notify: Callable[[], None]

    @property
    def store(self) -> Store: ...
    @property
    def ledger(self) -> list[RecordCopy]: ...
    def recover_now(self) -> None: ...
    def changes(self) -> list[ChangeSet]: ...
    def histories(self) -> list[list[ChangeSet]]: ...
    def trouble_of(self, job_id: int, owner: str) -> list[tuple[int, int]]: ...
    def running(self) -> list[Job]: ...


class StoreProcess:
    """A store, up or down. `trouble`: when it was not well. `alone`: no other store has its clock."""

    def __init__(self, world: World, slow: Callable[[], Duration], *, alone: bool = True) -> None:
        self.world = world
        self.trouble: list[tuple[int, int]] = []
        self._alone = alone
        self.clock = StoreClock(world)
        self.ledger: list[RecordCopy] = []
        self.acknowledged = 0
        self.up = True
        self.out_until = 0
        self.falls = 0
        self.notify: Callable[[], None] = lambda: None
        self._slow = slow
        self._disk = PowerDisk(MemoryDisk(), self._on_sync)
        self.store, self._recorder = self._open()

    @property
    def reachable(self) -> bool:
        return self.up and self.world.now >= self.out_until

    def perform(self, action: Callable[[], T]) -> T:
        """One call inside the store process, which may fall in the middle of it."""
        if not self.reachable:
            raise ConnectionLost("the store is out of reach")
        try:
            return action()
        except DiskCrash:
            self.fall(power=True)
            raise ReplyLost("the store fell during the call") from None

    def arm(self) -> None:
        """The power goes within the next few writes."""
        self._disk.arm(self.world.between(0, 5), self.world.chance(0.5))

    def fall(self, *, power: bool) -> None:
        """Power cut, or kill -9 of the store process; it comes back after a while."""
        if not self.up:
            return
        self.up = False
        self.falls += 1
        draw = self.world.random.randrange
        self._disk = PowerDisk(self._disk.memory.crash(draw) if power else self._disk.memory.kill(), self._on_sync)
        self.world.record(f"store falls, power={power}")
        duration = self.world.between(SECOND // 20, 3 * SECOND)
        self.trouble.append((self.world.now, self.world.now + duration))
        self.world.after(duration, self._restart)

    def recover_now(self) -> None:
        """The end of all faults: whatever was armed is disarmed, and the store is up."""
        self._disk.dies_in = -1
        self.out_until = 0
        if not self.up:
            self._restart(safely=True)

    def compact(self) -> None:
        if self.reachable:
            try:
                self._recorder.compact()
            except DiskCrash:
                self.fall(power=True)

    def changes(self) -> list[ChangeSet]:
        return [decode_entry(record.body).change for record in self.ledger]

    def histories(self) -> list[list[ChangeSet]]:
        """The changes of each store that decides by itself."""
        return [self.changes()]

    def trouble_of(self, job_id: int, owner: str) -> list[tuple[int, int]]:
        """When the store of a job was not well, or its holder could not reach it."""
        return self.trouble

    def running(self) -> list[Job]:
        """The jobs that run, as far as the store can be read."""
        return self.store.browse(Query(state=State.RUNNING), 0, 1_000).jobs if self.up else []

    def _on_sync(self) -> None:
        duration = self._slow()
        if duration:
            self.trouble.append((self.world.now, self.world.now + duration))
            self.world.now += duration

    def _restart(self, *, safely: bool = False) -> None:
        if self.up:
            return
        if not safely and self.world.chance(0.2):
            self._disk.arm(self.world.between(0, 8), self.world.chance(0.5))
        if self._alone and not safely and self.world.chance(0.3):
            self.world.jumped_at = self.world.now
            self.world.skew -= self.world.between(0, min(5 * SECOND, max(0, self.world.skew)))
        try:
            self.store, self._recorder = self._open()
        except DiskCrash:
            self.world.record("store falls again during recovery")
            draw = self.world.random.randrange
            self._disk = PowerDisk(self._disk.memory.crash(draw), self._on_sync)
            self.world.after(self.world.between(SECOND // 20, SECOND), self._restart)
            return
        except ForebayError as error:
            self.world.violation("I1 no loss", f"the store cannot be recovered: {error}")
            raise CannotContinue from error
        self._disk.dies_in = -1
        self.up = True
        self.world.record(f"store is back, {len(self.ledger)} records")

    def _open(self) -> tuple[MemoryStore, CopyingRecorder]:
        with recover(_DIRECTORY, self._disk, _SEGMENT) as recovery:
            facts = restore(recovery.chunks())
            frames = list(recovery.frames())
            for _, body in frames:
                apply(facts, decode_entry(body).change)
            snapshot_lsn = recovery.snapshot_lsn
            journal = recovery.start()
        self._compare(frames, journal.lsn)
        recorder = CopyingRecorder(QuickJournal(journal, _DIRECTORY, self._disk, snapshot_lsn, _NEVER), self)
        return MemoryStore(clock=self.clock, facts=facts, recorder=recorder), recorder

    def _compare(self, frames: list[tuple[int, bytes]], lsn: int) -> None:
        """Recovery must read what was written, and everything that was acknowledged."""
        if lsn < self.acknowledged:
            self.world.violation(
                "I1 no loss", f"record {self.acknowledged} was acknowledged, recovery ends at record {lsn}"
            )
        while self.ledger and self.ledger[-1].lsn > lsn:
            self.ledger.pop()
        written = {record.lsn: record.body for record in self.ledger[-len(frames) - 1 :]}
        for number, body in frames:
            if written.get(number, body) != body:
                self.world.violation("I1 no loss", f"record {number} was recovered as another one")
