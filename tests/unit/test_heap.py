"""The lazy heap against a plain sorted list: the same answers, and no memory for what was taken back."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.store.memory.heaps import LazyHeap

KEYS = st.integers(-3, 3)


@dataclass
class SortedList:
    """The obvious one."""

    entries: list[tuple[int, int]] = field(default_factory=list)

    def take(self, count: int) -> list[int]:
        self.entries.sort()
        taken, self.entries = self.entries[:count], self.entries[count:]
        return [job_id for _, job_id in taken]


class HeapAgainstList(RuleBasedStateMachine):
    """A number is in the heap at most once at a time, and comes back under the same or another key."""

    def __init__(self) -> None:
        super().__init__()
        self.heap: LazyHeap[int] = LazyHeap()
        self.model = SortedList()

    @rule(number=st.integers(0, 11), key=KEYS)
    def push(self, number: int, key: int) -> None:
        if all(job_id != number for _, job_id in self.model.entries):
            self.heap.push(key, number, number)
            self.model.entries.append((key, number))

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        key, number = data.draw(st.sampled_from(self.model.entries))
        self.model.entries.remove((key, number))
        self.heap.discard(key, number)

    @rule()
    def pop(self) -> None:
        found = self.heap.pop()
        assert ([] if found is None else [found]) == self.model.take(1)

    @rule(count=st.integers(0, 5))
    def take(self, count: int) -> None:
        assert self.heap.take(count) == self.model.take(count)

    @invariant()
    def agrees(self) -> None:
        assert len(self.heap) == len(self.model.entries)
        assert self.heap.peek() == (min(self.model.entries)[1] if self.model.entries else None)
        assert [item[:2] for item in self.heap.walk()] == sorted(self.model.entries)


HeapAgainstList.TestCase.settings = settings(stateful_step_count=25)
TestHeapAgainstList = HeapAgainstList.TestCase


@given(st.lists(KEYS, max_size=40))
def test_rows_come_out_by_key_then_by_id(keys: list[int]) -> None:
    heap: LazyHeap[int] = LazyHeap()
    for number, key in enumerate(keys):
        heap.push(key, number, number)
    expected = [number for _, number in sorted((key, number) for number, key in enumerate(keys))]
    assert heap.take(100) == expected
    assert heap.items == []


def test_a_row_that_returns_under_its_old_key_is_handed_out_once() -> None:
    heap: LazyHeap[int] = LazyHeap()
    heap.push(5, 1, 1)
    heap.discard(5, 1)
    heap.push(5, 1, 1)
    assert heap.take(10) == [1]
    assert heap.pop() is None


def test_what_was_taken_back_leaves_no_memory() -> None:
    heap: LazyHeap[int] = LazyHeap()
    for number in range(10):
        heap.push(-1, number, number)
    most = 0
    for cycle in range(100_000):
        heap.push(cycle, 99, 99)
        heap.discard(cycle, 99)
        most = max(most, len(heap.items), len(heap._dead))
    assert most <= 200
    assert heap.take(100) == list(range(10))


def test_a_large_heap_stays_within_twice_what_is_alive() -> None:
    heap: LazyHeap[int] = LazyHeap()
    for number in range(10_000):
        heap.push(number, number, number)
    for number in range(1_000, 10_000):
        heap.discard(number, number)
    assert len(heap) == 1_000
    assert len(heap.items) <= 2_000
    assert heap.take(20_000) == list(range(1_000))
