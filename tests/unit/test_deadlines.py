"""Timers against a plain sorted list: the same answers, exact removal, and no memory for timers taken back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from forebay.core.instant import micros
from forebay.core.limits import MAX_LEASE
from forebay.store.memory.heaps import Deadlines, rounded_up

INSTANTS = st.integers(0, 50)
NAMES = st.integers(0, 15)


class TimersAgainstList(RuleBasedStateMachine):
    """A name has at most one timer; `grain` is what instants are rounded up to."""

    grain = 1

    def __init__(self) -> None:
        super().__init__()
        self.timers: Deadlines[int] = Deadlines(self.grain)
        self.model: dict[int, int] = {}
        self.order: list[int] = []

    def rounded(self, at: int) -> int:
        return -(-at // self.grain) * self.grain

    @rule(at=INSTANTS, name=NAMES)
    def add(self, at: int, name: int) -> None:
        if name not in self.model:
            self.timers.add(at, name)
            self.model[name] = at
            self.order.append(name)

    @rule(name=NAMES)
    def remove(self, name: int) -> None:
        if name in self.model:
            self.timers.remove(self.model.pop(name), name)
            self.order.remove(name)

    @rule(at=INSTANTS, name=NAMES)
    def remove_what_is_not_there(self, at: int, name: int) -> None:
        if self.rounded(at) != self.rounded(self.model.get(name, -1_000)):
            self.timers.remove(at, name)

    @rule(now=INSTANTS, limit=st.integers(1, 20))
    def due(self, now: int, limit: int) -> None:
        late = sorted((self.rounded(at), self.order.index(name), name) for name, at in self.model.items())
        assert self.timers.due(now, limit) == [name for at, _, name in late if at <= now][:limit]
        assert list(self.timers.walk(now)) == [name for at, _, name in late if at <= now]

    @invariant()
    def next_is_the_first(self) -> None:
        first = min((self.rounded(at) for at in self.model.values()), default=None)
        assert self.timers.next() == first


class CoarseTimersAgainstList(TimersAgainstList):
    grain = 7


for machine in (TimersAgainstList, CoarseTimersAgainstList):
    machine.TestCase.settings = settings(stateful_step_count=25)
TestTimersAgainstList = TimersAgainstList.TestCase
TestCoarseTimersAgainstList = CoarseTimersAgainstList.TestCase


def test_a_timer_stays_due_until_it_is_removed() -> None:
    timers: Deadlines[str] = Deadlines()
    timers.add(5, "a")
    assert timers.due(4, 10) == []
    assert timers.due(5, 10) == timers.due(5, 10) == ["a"]
    timers.remove(5, "a")
    assert timers.due(5, 10) == []
    assert timers.next() is None


def test_what_was_taken_back_leaves_no_memory() -> None:
    timers: Deadlines[int] = Deadlines()
    for name in range(10):
        timers.add(10**9 + name, name)
    most = 0
    for at in range(100_000):
        timers.add(at, 99)
        timers.remove(at, 99)
        most = max(most, len(timers._buckets), len(timers.instants))
    assert most <= 2_100
    assert timers.due(2 * 10**9, 100) == list(range(10))


def test_a_bucket_that_empties_and_fills_stands_in_the_heap_once() -> None:
    timers: Deadlines[str] = Deadlines()
    for _ in range(10_000):
        timers.add(5, "a")
        timers.remove(5, "a")
    assert len(timers.instants) == 1
    assert timers._empty == 1
    timers.add(5, "b")
    assert timers.due(5, 10) == ["b"]


@given(st.integers(0, 2**52), st.integers(1_000, micros(MAX_LEASE)))
def test_a_lease_is_rounded_up_by_little_and_never_down(now: int, duration: int) -> None:
    until = rounded_up(now + duration, duration)
    assert now + duration <= until <= now + duration + max(1_000, duration // 256)


@pytest.mark.parametrize("duration", [1_000, 30_000_000, micros(MAX_LEASE)])
def test_many_leases_of_one_length_share_few_buckets(duration: int) -> None:
    """Whatever the length, at most 258 instants are in use at a time: a store with a million leases has few timers."""
    starts = range(0, duration, max(1, duration // 5_000))
    assert len({rounded_up(start + duration, duration) for start in starts}) <= 258
