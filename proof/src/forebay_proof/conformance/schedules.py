"""Schedules: a slot (name, tick) is taken by exactly one caller, for ever, together with its job or not at all."""

from typing import Any

from msgspec.structs import replace

from forebay.core.errors import Invalid, KeyConflict, QueueFull, WrongQueueKind
from forebay.core.instant import Instant
from forebay.core.policy import Block, Bounded, Retained
from forebay.core.schedule import Schedule
from forebay_proof.conformance.case import Need, case, case_if, refused
from forebay_proof.conformance.harness import SECOND, Harness
from forebay_proof.conformance.racing import RacingCall, answers, race

MINUTE = 60 * SECOND


def _planned(h: Harness, **fields: Any) -> Instant:
    """A schedule `s` that runs each minute; its next tick."""
    tick = h.now() // MINUTE * MINUTE
    h.store.put_schedule(Schedule(**{"name": "s", "rule": "* * * * *", "next_at": tick, "draft": h.draft(), **fields}))
    return tick


def _fire(h: Harness, tick: Instant, **fields: Any) -> bool:
    return h.store.fire("s", tick, tick + MINUTE, h.draft(**fields))


def _stored(h: Harness) -> Schedule:
    (schedule,) = h.store.schedules()
    return schedule


@case
def a_schedule_reads_back_as_it_was_put(h: Harness) -> None:
    tick = _planned(h, rule="0 9 * * 1", zone="Europe/Berlin", draft=h.draft(payload={"a": 1}, priority=3))
    schedule = _stored(h)
    assert (schedule.name, schedule.rule, schedule.zone, schedule.next_at) == ("s", "0 9 * * 1", "Europe/Berlin", tick)
    assert (schedule.draft.payload, schedule.draft.priority) == ({"a": 1}, 3)
    assert (schedule.last_at, schedule.paused) == (None, False)


@case
def firing_takes_the_slot_and_enqueues_its_job(h: Harness) -> None:
    tick = _planned(h)
    assert _fire(h, tick, payload={"tick": 1}) is True
    lease = h.take()
    assert lease.job.payload == {"tick": 1}
    assert (_stored(h).last_at, _stored(h).next_at) == (tick, tick + MINUTE)


@case
def a_slot_is_taken_once(h: Harness) -> None:
    tick = _planned(h)
    assert _fire(h, tick)
    with h.unchanged():
        assert _fire(h, tick) is False
    assert h.backlog().depth == 1


@case
def only_the_next_tick_can_be_fired(h: Harness) -> None:
    tick = _planned(h)
    with h.unchanged():
        assert _fire(h, tick + MINUTE) is False
        assert _fire(h, tick - MINUTE) is False


@case
def ticks_that_were_missed_can_be_fired_one_by_one(h: Harness) -> None:
    tick = _planned(h)
    fired = [_fire(h, tick + number * MINUTE) for number in (0, 1, 1, 2, 0)]
    assert fired == [True, True, False, True, False]
    assert h.backlog().depth == 3


@case
def racing_firers_take_a_slot_once(h: Harness) -> None:
    start = _planned(h)
    for number in range(5):
        tick = start + number * MINUTE
        fired = answers(race(16, lambda _, tick=tick: _fire(h, tick)))  # type: ignore[misc]
        assert fired.count(True) == 1
    assert len(h.drain()) == 5
    h.nothing_left()


@case
def an_edited_schedule_never_fires_a_past_tick_again(h: Harness) -> None:
    tick = _planned(h)
    assert _fire(h, tick)
    _planned(h, rule="*/2 * * * *", next_at=tick)
    assert _fire(h, tick) is False
    _planned(h, next_at=tick - MINUTE)
    assert _fire(h, tick - MINUTE) is False
    assert h.backlog().depth == 1


@case
def a_schedule_dropped_and_put_again_never_fires_a_past_tick_again(h: Harness) -> None:
    tick = _planned(h)
    assert _fire(h, tick)
    assert h.store.drop_schedule("s")
    _planned(h, next_at=tick)
    assert _stored(h).last_at == tick
    assert _fire(h, tick) is False
    _planned(h, next_at=tick + MINUTE)
    assert _fire(h, tick + MINUTE) is True


@case
def the_last_tick_cannot_be_forged(h: Harness) -> None:
    tick = _planned(h, last_at=5)
    assert _stored(h).last_at is None
    assert _fire(h, tick)
    h.store.put_schedule(replace(_stored(h), last_at=None, next_at=tick))
    assert _stored(h).last_at == tick
    assert _fire(h, tick) is False


@case
def a_schedule_that_is_put_again_keeps_its_pending_tick(h: Harness) -> None:
    """As a deploy does that puts every schedule anew, each time with the next tick after now."""
    tick = _planned(h)
    for _ in range(2):
        _planned(h, next_at=tick + MINUTE)
        assert _stored(h).next_at == tick
    _planned(h, next_at=tick + MINUTE, draft=h.draft(payload=2))
    _planned(h, next_at=tick + MINUTE, draft=h.draft(payload=2), paused=True)
    assert (_stored(h).next_at, _stored(h).draft.payload, _stored(h).paused) == (tick, 2, True)
    h.store.put_schedule(replace(_stored(h), paused=False))
    assert _fire(h, tick) is True
    _planned(h, next_at=tick + 5 * MINUTE)
    assert (_stored(h).next_at, _stored(h).last_at) == (tick + MINUTE, tick)
    assert _fire(h, tick + MINUTE) is True


@case
def the_next_tick_moves_with_the_rule_the_zone_or_a_resume(h: Harness) -> None:
    tick = _planned(h)
    _planned(h, next_at=tick + 1, rule="*/2 * * * *")
    assert _stored(h).next_at == tick + 1
    _planned(h, next_at=tick + 2, rule="*/2 * * * *", zone="Europe/Berlin")
    assert _stored(h).next_at == tick + 2
    h.store.put_schedule(replace(_stored(h), paused=True))
    h.store.put_schedule(replace(_stored(h), paused=False, next_at=tick + 3))
    assert _stored(h).next_at == tick + 3


@case
def a_tick_that_was_taken_does_not_hold_a_schedule_up(h: Harness) -> None:
    """As when the clock of the process that edited it was behind."""
    tick = _planned(h)
    assert _fire(h, tick)
    _planned(h, rule="edited", next_at=tick - MINUTE)
    _planned(h, rule="edited", next_at=tick + MINUTE)
    assert _fire(h, tick + MINUTE) is True


@case_if(Need.DURABLE)
def putting_a_schedule_again_unchanged_writes_no_record(h: Harness) -> None:
    tick = _planned(h)
    assert _fire(h, tick)
    before = h.store.ledger_extent()
    _planned(h, next_at=tick + 9 * MINUTE)
    assert h.store.ledger_extent() == before


@case
def an_edit_replaces_everything_else(h: Harness) -> None:
    tick = _planned(h, rule="old", draft=h.draft(payload=1))
    _planned(h, rule="new", draft=h.draft(payload=2), next_at=tick + 7)
    schedule = _stored(h)
    assert (schedule.rule, schedule.draft.payload, schedule.next_at) == ("new", 2, tick + 7)
    assert _fire(h, tick) is False
    assert h.store.fire("s", tick + 7, tick + MINUTE, h.draft()) is True


@case
def a_full_queue_keeps_the_slot_free(h: Harness) -> None:
    h.spec(capacity=Bounded(1))
    h.one()
    tick = _planned(h)
    with h.unchanged():
        refused(QueueFull, lambda: _fire(h, tick))
    h.drain()
    assert _fire(h, tick) is True


@case
def firing_into_a_full_queue_never_blocks(h: Harness) -> None:
    h.spec(capacity=Bounded(1, when_full=Block()))
    h.one()
    tick = _planned(h)
    RacingCall(lambda: refused(QueueFull, lambda: _fire(h, tick))).result(patience=5)


@case
def a_conflicting_key_keeps_the_slot_free(h: Harness) -> None:
    h.one(key="k", payload=1)
    tick = _planned(h)
    with h.unchanged():
        refused(KeyConflict, lambda: _fire(h, tick, key="k", payload=2))
    assert _fire(h, tick) is True


@case
def a_known_key_takes_the_slot_without_a_second_job(h: Harness) -> None:
    h.one(key="k")
    tick = _planned(h)
    assert _fire(h, tick, key="k") is True
    assert h.backlog().depth == 1
    assert _fire(h, tick, key="k") is False


@case
def firing_into_a_log_keeps_the_slot_free(h: Harness) -> None:
    h.spec("log", retention=Retained())
    tick = _planned(h)
    with h.unchanged():
        refused(WrongQueueKind, lambda: _fire(h, tick, queue="log"))


@case
def a_paused_schedule_does_not_fire(h: Harness) -> None:
    tick = _planned(h, paused=True)
    with h.unchanged():
        assert _fire(h, tick) is False
    h.store.put_schedule(replace(_stored(h), paused=False))
    assert _fire(h, tick) is True


@case
def an_unknown_schedule_does_not_fire(h: Harness) -> None:
    with h.unchanged():
        assert _fire(h, h.now()) is False


@case
def a_slot_that_is_taken_is_reported_before_its_draft_is_checked(h: Harness) -> None:
    h.spec("log", retention=Retained())
    assert h.store.fire("unknown", h.now(), h.now() + MINUTE, h.draft(queue="log")) is False
    tick = _planned(h)
    assert _fire(h, tick)
    assert _fire(h, tick, queue="log") is False


@case
def a_dropped_schedule_does_not_fire(h: Harness) -> None:
    tick = _planned(h)
    assert h.store.drop_schedule("s") is True
    assert h.store.drop_schedule("s") is False
    assert h.store.schedules() == []
    with h.unchanged():
        assert _fire(h, tick) is False


@case
def a_slot_given_up_is_taken_and_enqueues_nothing(h: Harness) -> None:
    tick = _planned(h)
    assert h.store.fire("s", tick, tick + MINUTE, None) is True
    assert h.backlog().depth == 0
    assert (_stored(h).last_at, _stored(h).next_at) == (tick, tick + MINUTE)
    assert _fire(h, tick) is False
    assert _fire(h, tick + MINUTE) is True


@case
def a_schedule_shows_the_last_job_that_it_fired(h: Harness) -> None:
    """A slot given up became none, so the one before it stays; an edit cannot forge it."""
    tick = _planned(h, last_job=77)
    assert _stored(h).last_job is None
    assert _fire(h, tick)
    job_id = h.take().job.id
    assert _stored(h).last_job == job_id
    assert h.store.fire("s", tick + MINUTE, tick + 2 * MINUTE, None)
    assert _stored(h).last_job == job_id
    h.store.put_schedule(replace(_stored(h), last_job=None, rule="edited"))
    assert _stored(h).last_job == job_id


@case
def a_schedule_only_moves_forward(h: Harness) -> None:
    tick = _planned(h)
    with h.unchanged():
        refused(Invalid, lambda: h.store.fire("s", tick, tick, h.draft()))
        refused(Invalid, lambda: h.store.fire("s", tick, tick - 1, h.draft()))


@case
def schedules_do_not_share_slots(h: Harness) -> None:
    tick = _planned(h)
    _planned(h, name="t")
    assert h.store.fire("t", tick, tick + MINUTE, h.draft()) is True
    assert _fire(h, tick) is True
    assert sorted(schedule.name for schedule in h.store.schedules()) == ["s", "t"]


@case_if(Need.DURABLE)
def a_taken_slot_outlives_a_reopening(h: Harness) -> None:
    tick = _planned(h)
    assert _fire(h, tick)
    before = h.store.schedules()
    h.reopen()
    assert h.store.schedules() == before
    assert _fire(h, tick) is False
    h.store.drop_schedule("s")
    h.reopen()
    _planned(h, next_at=tick)
    assert _fire(h, tick) is False
    assert h.backlog().depth == 1
