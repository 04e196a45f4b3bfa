"""The ticker fires schedules. Any number of processes may run one: the store lets each slot fire once.

A process that has the app of a schedule runs its job through the app's layers of `around_enqueue`. If a layer raises,
the slot remains, as it does when the queue is full.

Missed slots are caught up as the schedule's rule says. A slot that is skipped (missed, or the last job has not ended
and `overlap=skip`) is consumed without a job, so that it cannot fire later. With `overlap=queue` the slot remains until
the last job has ended; with `overlap=cancel` that job is cancelled before the slot fires, so that a process that dies
between the two leaves the slot to another.
"""

import logging
import random
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from typing import Final, TypeAlias

from msgspec.structs import replace

from forebay.core.errors import Invalid, KeyConflict, QueueFull
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.schedule import Schedule
from forebay.store.protocol import Receipt, Store
from forebay.work.cron import NEVER, Timetable, due

_log = logging.getLogger("forebay.work")

EnqueueLayers: TypeAlias = Callable[[ExitStack, Draft], Draft]
"""Enters the layers of an app around an enqueue; returns the draft as they leave it."""

_MAX_REST: Final = 1.0
_SECOND: Final = 1_000_000


class Ticker:
    """Fires the schedules that are due, and rests until the next tick, at most a second."""

    name = "ticker"

    def __init__(
        self, store: Store, draw: Callable[[], float] = random.random, layers: EnqueueLayers | None = None
    ) -> None:
        self._store = store
        self._draw = draw
        self._layers = layers or _no_layers
        self.fired = 0
        self.missed = 0
        self.skipped = 0

    def step(self) -> float:
        schedules = [schedule for schedule in self._store.schedules() if not schedule.paused]
        now = self._store.now()
        for schedule in schedules:
            if schedule.next_at <= now:
                try:
                    self._fire(schedule, now)
                except (Invalid, KeyConflict) as error:
                    # A rule that is valid only on another machine, or a taken key, must not block other schedules.
                    _log.warning("schedule %s cannot fire here: %s", schedule.name, error)
        waits = [schedule.next_at - now for schedule in schedules if schedule.next_at > now]
        return min([_MAX_REST, *(wait / _SECOND for wait in waits)])

    def _fire(self, schedule: Schedule, now: Instant) -> None:
        timetable = _timetable(schedule.rule, schedule.zone)
        if schedule.last_at is not None and schedule.next_at <= schedule.last_at:
            # Edited while the clock was behind: this slot has already fired and could never fire again.
            following = timetable.cron.next_after(schedule.last_at) or NEVER
            self._store.put_schedule(replace(schedule, next_at=following))
            return
        answer = due(timetable, schedule.next_at, now, schedule.last_at)
        first = answer.fires[0] if answer.fires else answer.next_at
        if first != schedule.next_at and not self._store.fire(schedule.name, schedule.next_at, first, None):
            return
        self.missed += answer.missed
        for tick, following in answer.steps():
            if not self._take(schedule, timetable, tick, following):
                return

    def _take(self, schedule: Schedule, timetable: Timetable, tick: Instant, following: Instant) -> bool:
        """Fire one slot, unless the last job has not ended and the rule says otherwise; False: not taken here."""
        unfinished = None if timetable.overlap == "allow" else self._unfinished(schedule.name, tick)
        if unfinished is not None and timetable.overlap == "queue":
            return False
        if unfinished is not None and timetable.overlap == "skip":
            self.skipped += 1
            return self._store.fire(schedule.name, tick, following, None)
        draft = replace(schedule.draft, run_at=timetable.run_at(tick, self._draw()), delay=0)
        won = False
        with ExitStack() as stack:
            try:
                draft = self._layers(stack, draft)
            except Exception as error:
                _log.warning("schedule %s is delayed: a layer of around_enqueue raised %r", schedule.name, error)
                return False
            if unfinished is not None:
                self._store.cancel([unfinished])
            try:
                won = self._store.fire(schedule.name, tick, following, draft)
            except QueueFull as full:
                # The slot remains: it fires when the queue has capacity, or is caught up as the rule says.
                _log.warning("schedule %s is delayed: %s", schedule.name, full)
            self.fired += won
        return won

    def _unfinished(self, name: str, tick: Instant) -> int | None:
        """The job of an earlier slot than this, if it has not ended."""
        current = next((schedule for schedule in self._store.schedules() if schedule.name == name), None)
        if current is None or current.last_job is None or (current.last_at is not None and current.last_at >= tick):
            return None
        job = self._store.get([current.last_job])[0]
        return None if job is None or job.state.terminal else job.id


def run_now(store: Store, schedule: Schedule) -> Receipt:
    """Enqueue the schedule's job now, paused or not. Its slots and its last job are unchanged."""
    return store.enqueue([replace(schedule.draft, run_at=None, delay=0)])[0]


def _no_layers(_: ExitStack, draft: Draft) -> Draft:
    return draft


@lru_cache(maxsize=1_024)
def _timetable(rule: str, zone: str) -> Timetable:
    return Timetable.parse(rule, zone)
