"""Waiters: as many are woken as there are jobs, the longest waiting first; none is stuck behind a greedy one."""

from threading import Event, Thread

from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.core.policy import Block, Bounded
from forebay.core.spec import QueueSpec
from forebay.engine.waiters import QueueWaiters
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Receipt, Want
from forebay.testing.clock import ManualClock


def asleep(waiters: QueueWaiters, *needs: int) -> list[Event]:
    sleepers = [Event() for _ in needs]
    for sleeper, need in zip(sleepers, needs, strict=True):
        waiters.add(sleeper, need)
    return sleepers


def woken(sleepers: list[Event]) -> list[bool]:
    return [sleeper.is_set() for sleeper in sleepers]


def test_news_wakes_as_many_as_it_is_enough_for_longest_asleep_first() -> None:
    waiters = QueueWaiters()
    sleepers = asleep(waiters, 1, 1, 1)
    waiters.wake(0)
    assert woken(sleepers) == [False, False, False]
    waiters.wake(2)
    assert woken(sleepers) == [True, True, False]
    waiters.wake(5)
    assert woken(sleepers) == [True, True, True]
    assert not waiters.waiting


def test_a_greedy_one_does_not_hold_up_those_behind_it() -> None:
    waiters = QueueWaiters()
    sleepers = asleep(waiters, 5, 1, 2)
    waiters.wake(3)
    assert woken(sleepers) == [False, True, True]
    waiters.wake(5)
    assert woken(sleepers) == [True, True, True]


def test_a_waiter_that_left_is_not_woken_and_takes_no_notice_with_it() -> None:
    waiters = QueueWaiters()
    first, second = asleep(waiters, 1, 1)
    waiters.drop(first)
    waiters.drop(first)
    waiters.wake(1)
    assert woken([first, second]) == [False, True]


def test_a_notice_that_a_waiter_already_has_goes_to_the_next() -> None:
    """One waiter at two queues: the second queue's notification is not lost."""
    here, there = QueueWaiters(), QueueWaiters()
    both, other = Event(), Event()
    here.add(both)
    there.add(both)
    there.add(other)
    here.wake(1)
    there.wake(1)
    assert woken([both, other]) == [True, True]


def test_everybody_is_woken_at_the_end() -> None:
    waiters = QueueWaiters()
    sleepers = asleep(waiters, 1, 50)
    waiters.wake_all()
    assert woken(sleepers) == [True, True]
    assert not waiters.waiting


def test_a_small_producer_is_not_stuck_behind_a_large_one() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    store.put_spec(QueueSpec(name="q", capacity=Bounded(10, Block(seconds(60)))))
    store.enqueue([Draft("k", queue="q")] * 10)
    leases = store.claim([Want("q", 10)], "ada", seconds(600))
    taken: list[list[Receipt]] = []
    producers = []
    for number, size in enumerate((5, 1)):
        batch = [Draft("k", queue="q")] * size
        producers.append(Thread(target=lambda batch=batch: taken.append(store.enqueue(batch))))
        producers[-1].start()
        clock.until_asleep(number + 1)
    store.settle([(leases[0], Ack())])
    producers[1].join(10)
    assert [len(receipts) for receipts in taken] == [1]
    store.settle([(lease, Ack()) for lease in leases[1:]])
    producers[0].join(10)
    assert [len(receipts) for receipts in taken] == [1, 5]


def test_a_wait_leaves_no_trace() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    answers: list[bool] = []
    sleeper = Thread(target=lambda: answers.append(store.wait(["a", "b"], seconds(5))))
    sleeper.start()
    clock.until_asleep(1)
    clock.advance(5_000_000)
    sleeper.join(10)
    assert answers == [False]
    assert not any(queue.claimers.waiting for queue in store.backend.session.index.queues.values())
