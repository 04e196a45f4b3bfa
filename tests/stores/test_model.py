"""The in-process store against the reference model, without a journal and with one.

Without one, a crash is a replay of the ledger, every second time through an image of the facts. With one, it is a power
cut that keeps only what was synced, every second time after a compaction. How many histories are tried is the
Hypothesis profile's say (`tests/conftest.py`); how a failure is replayed stands in `forebay_proof.model.machine`.
"""

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import settings

from forebay.store.memory.image import image, restore
from forebay.store.memory.journaled import CompactingJournal, open_journaled
from forebay.store.memory.store import MemoryStore
from forebay.testing.clock import ManualClock
from forebay_proof.disk import MemoryDisk
from forebay_proof.history import RunHistory
from forebay_proof.model.lockstep import OpenedStore
from forebay_proof.model.machine import StoreMachine

pytestmark = pytest.mark.timeout(3_600)


class _Memory:
    """A store whose ledger is a list."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.history = RunHistory()
        self.store = MemoryStore(clock=clock, recorder=self.history)
        self.crashes = 0

    def reopen(self) -> MemoryStore:
        facts = self.history.replay()
        if self.crashes % 2:
            facts = restore(image(facts))
        self.crashes += 1
        self.store = MemoryStore(clock=self.clock, facts=facts, recorder=self.history)
        return self.store


class _Journaled:
    """A store on a disk that loses its power."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.disk = MemoryDisk()
        self.store = open_journaled("journal", clock=clock, disk=self.disk)
        self.crashes = 0

    def reopen(self) -> MemoryStore:
        if self.crashes % 2:
            assert isinstance(self.store.backend.session.recorder, CompactingJournal)
            self.store.backend.session.recorder.compact()
        self.crashes += 1
        self.disk = self.disk.crash(Random(self.crashes).randrange)
        self.store = open_journaled("journal", clock=self.clock, disk=self.disk)
        return self.store


def _residue(store: MemoryStore) -> Mapping[str, int]:
    facts, index = store.backend.session.facts, store.backend.session.index
    finished = [timer for queues in index._finished.values() for timer in queues.values()]
    timers = [index.leases, index.expiring, index.kept, *finished]
    shed_orders = [queue.shed_order for queue in index.queues.values() if queue.shed_order is not None]
    return {
        "rows": len(facts.rows),
        "keys": len(facts.keys),
        "lanes": sum(len(front.lanes) for front in index.lanes.by_queue.values()),
        "classes": sum(len(front.classes) - len(front.idle) for front in index.lanes.by_queue.values()),
        "slots": sum(state.used for state in index.lanes.gates.values()),
        "conditions": len(index.lanes.conditions),
        "lines": len(index.lines),
        "timers": sum(timer.next() is not None for timer in timers),
        "merge targets": sum(len(queue.newest) for queue in index.queues.values()),
        "shed orders": sum(len(list(each)) for each in shed_orders),
    }


def open_memory(clock: ManualClock) -> OpenedStore:
    memory = _Memory(clock)
    return OpenedStore(memory.store, memory.reopen, lambda: memory.history.changes, lambda: _residue(memory.store))


def open_disk(clock: ManualClock) -> OpenedStore:
    journaled = _Journaled(clock)
    return OpenedStore(journaled.store, journaled.reopen, residue=lambda: _residue(journaled.store))


TestMemory = StoreMachine.for_store(open_memory).TestCase
TestJournaled = StoreMachine.for_store(open_disk).TestCase
TestMemory.settings = TestJournaled.settings = settings(settings(), stateful_step_count=60, print_blob=True)
