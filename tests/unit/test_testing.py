"""`forebay.testing`: what the tests of an application need, and nothing else."""

from forebay import Draft, Want
from forebay.core.instant import seconds
from forebay.core.spec import QueueSpec
from forebay.testing import ManualClock, memory_store


def test_a_store_in_memory_keeps_time_by_the_clock_of_the_test() -> None:
    clock = ManualClock()
    store = memory_store(clock=clock)
    store.enqueue([Draft("send", delay=60_000_000)])
    assert store.claim([Want("default", 1)], "test", seconds(5)) == []
    clock.advance(60_000_000)
    (lease,) = store.claim([Want("default", 1)], "test", seconds(5))
    assert lease.job.kind == "send"


def test_it_has_the_queues_that_are_given_and_shares_nothing() -> None:
    first, second = memory_store(QueueSpec(name="mail")), memory_store()
    first.enqueue([Draft("send", queue="mail")])
    assert [spec.name for spec in first.specs()] == ["mail"]
    assert [backlog.depth for backlog in second.backlog(["mail"])] == [0]
