"""Durations of milliseconds end after milliseconds, not at the next second: unit tests of applications use them."""

from datetime import timedelta

from forebay.core.instant import ms
from forebay.core.job import State
from forebay.core.policy import DeadLetters, KeepFor, LatestWins, Rate, Retained, Routing
from forebay_proof.conformance.case import case
from forebay_proof.conformance.harness import Harness

_MILLISECOND = 1_000
_GRAIN = 10 * _MILLISECOND
"""Clean-up may come so much later; no claim and no answer depends on it."""


@case
def a_key_is_remembered_for_milliseconds(h: Harness) -> None:
    h.spec(key_window=ms(200))
    (first, again) = h.send(h.draft(key="k"))[0], h.send(h.draft(key="k"))[0]
    assert (again.id, again.duplicate) == (first.id, True)
    h.advance(201 * _MILLISECOND)
    assert h.one(key="k") != first.id
    assert len(h.drain()) == 2


@case
def a_key_window_of_one_millisecond_ends_after_it(h: Harness) -> None:
    h.spec(key_window=timedelta(milliseconds=1))
    first = h.one(key="k")
    h.advance(2 * _MILLISECOND)
    assert h.one(key="k") != first


@case
def a_finished_job_is_kept_for_milliseconds(h: Harness) -> None:
    h.spec(retention=KeepFor(ms(300)))
    job_id = h.one()
    h.ack(h.take(), b"1")
    assert h.get(job_id).result == 1
    h.advance(300 * _MILLISECOND + _GRAIN)
    assert h.state(job_id) is None


@case
def a_dead_letter_is_kept_for_milliseconds(h: Harness) -> None:
    h.spec(routing=Routing(dead=DeadLetters(keep=ms(300))))
    job_id = h.dead()
    h.advance(300 * _MILLISECOND + _GRAIN)
    assert h.state(job_id) is None


@case
def a_job_expires_after_milliseconds(h: Harness) -> None:
    job_id = h.one(expires_at=h.now() + 300 * _MILLISECOND, delay=1_000 * _MILLISECOND)
    assert h.state(job_id) is State.WAITING
    h.advance(300 * _MILLISECOND + _GRAIN)
    assert h.state(job_id) is State.DEAD


@case
def a_log_keeps_entries_for_milliseconds(h: Harness) -> None:
    h.spec("log", retention=Retained(window=ms(300)))
    h.store.append("log", [b"1"])
    h.advance(300 * _MILLISECOND + _GRAIN)
    h.store.append("log", [b"2"])
    h.store.promote(10)
    assert h.store.extent("log") == [(1, 2)]


@case
def a_lease_may_last_a_few_milliseconds(h: Harness) -> None:
    h.one()
    lease = h.take(lease_for=timedelta(milliseconds=2))
    h.advance(4 * _MILLISECOND)
    assert [each.fence for each in h.store.overdue(10)] == [lease.fence]


@case
def a_rate_a_pause_and_a_quiet_time_may_last_milliseconds(h: Harness) -> None:
    h.spec(eligibility=Rate(1, ms(300), burst=1))
    h.enqueue(2)
    h.ack(h.take())
    assert h.claim() == []
    h.advance(300 * _MILLISECOND)
    h.ack(h.take())
    h.one(queue="other")
    h.store.pause("other", h.now() + 300 * _MILLISECOND)
    assert h.claim(1, "other") == []
    h.advance(300 * _MILLISECOND)
    assert len(h.claim(1, "other")) == 1
    h.spec("quiet", merge=LatestWins(quiet=ms(300)))
    h.one(queue="quiet", subject="s")
    assert h.claim(1, "quiet") == []
    h.advance(300 * _MILLISECOND)
    assert len(h.claim(1, "quiet")) == 1
