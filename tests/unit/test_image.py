"""An image of the facts and its restoration are each other's inverse, whatever the store went through."""

import pytest
from msgspec.structs import asdict

from forebay.core.changeset import VERSION
from forebay.core.errors import StoreFailed
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.limits import SETTLE_MEMORY
from forebay.core.outcome import Ack
from forebay.core.policy import Retained
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.memory.facts import Facts
from forebay.store.memory.image import CHUNK_BYTES, image, restore
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Want
from forebay.testing.clock import ManualClock
from tests.stores.journal_history import write_history


def facts_of(chapters: int = 1) -> Facts:
    """The facts of a store that has seen every kind of change."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    for _ in range(chapters):
        write_history(store, clock)
    store.pause("tomorrow", clock.now() + 1)
    store.set_gate("until/dawn", 3)
    return store.backend.session.facts


def pictures(facts: Facts) -> dict[str, object]:
    """Every field by name, in plain values, so that a difference shows where it is."""
    return {
        "next_id": facts.next_id,
        "last_at": facts.last_at,
        "rows": {job_id: asdict(row) for job_id, row in facts.rows.items()},
        "keys": facts.keys,
        "specs": facts.specs,
        "paused": facts.paused,
        "gate_limits": facts.gate_limits,
        "schedules": facts.schedules,
        "last_ticks": facts.last_ticks,
        "places": facts.logs.positions,
        "owners": facts.logs.owners,
        "members": facts.logs.members,
        "seen": facts.logs.seen,
        "lost": facts.logs.lost,
        "logs": {
            log: [(part.first, part.next, part.read(part.first - 1, 10**6)) for part in partitions]
            for log, partitions in facts.logs.partitions.items()
        },
        "removed": list(facts.removed_in_order()),
    }


@pytest.mark.parametrize("chapters", [1, 3])
def test_a_restored_image_is_the_same_store(chapters: int) -> None:
    facts = facts_of(chapters)
    again = restore(image(facts))
    assert pictures(again) == pictures(facts)
    assert list(image(again)) == list(image(facts))


def test_the_history_that_was_written_left_nothing_out() -> None:
    assert [name for name, value in pictures(facts_of()).items() if not value] == []


def test_an_empty_store_is_restored_from_nothing_and_from_its_image() -> None:
    assert pictures(restore([])) == pictures(Facts())
    assert pictures(restore(image(Facts()))) == pictures(Facts())


def test_a_restored_store_goes_on_as_the_first_would_have() -> None:
    facts = facts_of()
    stores = [MemoryStore(clock=ManualClock(facts.last_at), facts=each) for each in (restore(image(facts)), facts)]
    answers = []
    for store in stores:
        receipts = store.enqueue([Draft("new", {"n": 1}, key="brand new")])
        leases = store.claim([Want(spec.name, 50) for spec in store.specs() if not spec.is_log], "ada", seconds(5))
        answers.append((receipts, leases, store.settle([(lease, Ack()) for lease in leases]), store.backlog()))
    assert answers[0] == answers[1]
    assert answers[0][1]


def test_chunks_are_bounded_and_none_is_lost_between_them() -> None:
    store = MemoryStore(clock=ManualClock())
    store.put_spec(QueueSpec(name="log", retention=Retained(2)))
    for start in range(0, 3_000, 1_000):
        store.enqueue([Draft("k", n, key=f"key-{n}") for n in range(start, start + 1_000)])
        store.append("log", [b"1"] * 1_000)
    for _ in range(2):
        leases = store.claim([Want("default", 1_000)], "ada", seconds(30))
        store.settle([(lease, Ack()) for lease in leases])
    chunks = list(image(store.backend.session.facts))
    assert len(chunks) == 1 + 1 + 1 + 3 + 2 + 1 + 3
    assert pictures(restore(chunks)) == pictures(store.backend.session.facts)


def test_chunks_of_large_items_are_cut_by_their_bytes() -> None:
    store = MemoryStore(clock=ManualClock())
    store.put_spec(QueueSpec(name="log", retention=Retained(2)))
    large = Draft("k", "x" * 70_000)
    for number in range(100):
        store.enqueue([large] * 10)
        store.append("log", [b'"%s"' % (b"x" * 200_000)] * 5)
        store.put_schedule(Schedule(f"s{number}", "@daily", 1, large))
    chunks = list(image(store.backend.session.facts))
    assert max(map(len, chunks)) < CHUNK_BYTES + 100
    assert len(chunks) > 150
    assert pictures(restore(chunks)) == pictures(store.backend.session.facts)


def test_only_so_many_removed_jobs_are_remembered() -> None:
    facts = Facts()
    for job_id in range(SETTLE_MEMORY + 500):
        facts.remember_removed(job_id, (1, "a"))
    assert len(facts.removed) == SETTLE_MEMORY
    assert pictures(restore(image(facts))) == pictures(facts)


def test_a_trimmed_log_keeps_its_offsets() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    store.put_spec(QueueSpec(name="log", retention=Retained()))
    store.append("log", [b"%d" % n for n in range(10)])
    clock.advance(1)
    store.append("log", [b"10"])
    store.trim("log", clock.now(), 7)
    again = MemoryStore(clock=clock, facts=restore(image(store.backend.session.facts)))
    assert again.extent("log") == store.extent("log") == [(7, 11)]
    assert [entry.offset for entry in again.read("log", 0, 6, 10)] == [7, 8, 9, 10]
    assert again.append("log", [b"11"])[0].offset == 11


def test_an_image_of_another_version_is_refused() -> None:
    chunks = list(image(facts_of()))
    chunks[1] = bytes([chunks[1][0] + 1]) + chunks[1][1:]
    with pytest.raises(StoreFailed, match=f"chunk 1 has version {VERSION + 1}, this reader supports version {VERSION}"):
        restore(chunks)
