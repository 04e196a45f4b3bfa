"""Waiting for the end of a job, or for requests to end those that a worker runs: the waiter is woken at once."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from forebay.core.errors import Invalid
from forebay.core.instant import hours, micros, minutes
from forebay.core.outcome import Ack, Cancel, DeadLetter, Retry
from forebay.core.policy import Bounded, Shed
from forebay.store.protocol import Store
from forebay_proof.conformance.case import case, refused
from forebay_proof.conformance.harness import ERROR, Harness

T = TypeVar("T")

NOW = timedelta(0)
AWHILE = minutes(10)
PATIENCE = 30.0
"""Seconds of the machine's own clock: a waiter that is not woken by then never is."""


@contextmanager
def _asleep(h: Harness, wait: Callable[[Store], T]) -> Iterator["Future[T]"]:
    """A watcher that sleeps; in another process, as far as the store has those."""
    with h.handles(1) as (other,), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait, other)
        h.until_asleep(1)
        assert not waiting.done(), f"it did not wait: {waiting.result()}"
        yield waiting


def _woken(h: Harness, waiting: "Future[T]") -> T:
    """The answer; a store of files notices what other processes did when its clock moves on."""
    h.advance(h.short)
    return waiting.result(PATIENCE)


@case
def waiting_for_a_job_that_has_ended_returns_at_once(h: Harness) -> None:
    done, dead, kept, running, waiting = h.enqueue(5)
    leases = h.claim(4)
    h.store.settle([(leases[0], Ack()), (leases[1], DeadLetter(ERROR)), (leases[2], Ack(b"1", micros(hours(1))))])
    unknown = 10**17
    requested = [running, kept, unknown, waiting, done, dead]
    assert h.store.wait_ended(requested, AWHILE) == [kept, unknown, done, dead]
    assert h.store.wait_ended([running, waiting], NOW) == []
    assert h.store.wait_ended([], NOW) == []


@case
def a_watcher_of_a_job_is_woken_when_its_result_is_kept(h: Harness) -> None:
    other, job_id = h.enqueue(2)
    first, second = h.claim(2)
    with _asleep(h, lambda store: store.wait_ended([other, job_id], AWHILE)) as waiting:
        h.fail(first, after=h.short)
        h.settle(second, Ack(b"1", micros(hours(1))))
        assert _woken(h, waiting) == [job_id]


@case
def a_watcher_of_a_job_is_woken_when_it_dies(h: Harness) -> None:
    job_id = h.one()
    lease = h.take()
    with _asleep(h, lambda store: store.wait_ended([job_id], AWHILE)) as waiting:
        h.dead_letter(lease)
        assert _woken(h, waiting) == [job_id]


@case
def a_watcher_of_a_job_is_woken_when_it_is_shed(h: Harness) -> None:
    h.spec(capacity=Bounded(1, when_full=Shed()))
    job_id = h.one()
    with _asleep(h, lambda store: store.wait_ended([job_id], AWHILE)) as waiting:
        h.one()
        assert _woken(h, waiting) == [job_id]


@case
def a_watcher_of_a_job_is_woken_when_it_is_cancelled(h: Harness) -> None:
    waits, runs = h.enqueue(2)
    lease = h.take()
    assert lease.job.id == waits
    with _asleep(h, lambda store: store.wait_ended([runs], AWHILE)) as waiting:
        h.store.cancel([runs])
        assert _woken(h, waiting) == [runs]
    with _asleep(h, lambda store: store.wait_ended([waits], AWHILE)) as waiting:
        h.store.cancel([waits])
        h.settle(lease, Cancel())
        assert _woken(h, waiting) == [waits]


@case
def a_watcher_waits_no_longer_than_its_timeout(h: Harness) -> None:
    job_id = h.one()
    with _asleep(h, lambda store: store.wait_ended([job_id], 2 * h.short_delta)) as waiting:
        h.advance(2 * h.short + 1)
        assert waiting.result(PATIENCE) == []


@case
def a_request_to_end_a_running_job_reaches_its_owner(h: Harness) -> None:
    *_, waiting = h.enqueue(3)
    mine, other = h.take(owner="me"), h.take(owner="other")
    h.store.cancel([mine.job.id, other.job.id, waiting])
    assert h.store.wait_cancel_requests("me", AWHILE) == [mine.fence]
    assert h.store.wait_cancel_requests("me", NOW) == [mine.fence]
    assert h.store.wait_cancel_requests("me", NOW, {mine.fence}) == []
    assert h.store.wait_cancel_requests("unknown", NOW) == []
    h.settle(mine, Cancel())
    assert h.store.wait_cancel_requests("me", NOW) == []


@case
def an_owner_that_sleeps_is_woken_by_the_request(h: Harness) -> None:
    first, second = h.enqueue(2)
    leases = h.claim(2, owner="me")
    h.store.cancel([first])
    known = {leases[0].fence}
    with _own_asleep(h, lambda: h.store.wait_cancel_requests("me", AWHILE, known)) as waiting:
        with h.handles(1) as (other,):
            other.cancel([second])
        assert _woken(h, waiting) == [leases[1].fence]


@case
def a_request_ends_with_the_delivery_that_it_was_made_to(h: Harness) -> None:
    job_id = h.one()
    lease = h.take(owner="me")
    h.store.cancel([job_id])
    h.settle(lease, Retry(0, ERROR))
    assert h.store.wait_cancel_requests("me", NOW) == []
    again = h.take(owner="you")
    assert again.job.cancel_requested
    assert h.store.wait_cancel_requests("me", NOW) == []


@case
def waiting_for_an_invalid_id_is_refused(h: Harness) -> None:
    refused(Invalid, lambda: h.store.wait_ended(["1"], NOW))  # type: ignore[list-item]
    refused(Invalid, lambda: h.store.wait_ended([1], timedelta(seconds=-1)))
    refused(Invalid, lambda: h.store.wait_ended([1], timedelta(days=2)))
    refused(Invalid, lambda: h.store.wait_cancel_requests("", NOW))
    refused(Invalid, lambda: h.store.wait_cancel_requests("me", timedelta(days=2)))


@contextmanager
def _own_asleep(h: Harness, wait: Callable[[], T]) -> Iterator["Future[T]"]:
    """A watcher that sleeps in the process that claimed."""
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait)
        h.until_asleep(1)
        assert not waiting.done(), f"it did not wait: {waiting.result()}"
        yield waiting
