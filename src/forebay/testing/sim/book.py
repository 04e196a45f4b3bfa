"""The ledger of a run, read once and put in order: who held what when, and how each turn and each job ended.

Promise: derived from the records alone; the checks hold it against what the simulation saw. Records that a power cut
took back are not in it.
"""

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forebay.core.event import (
    Acked,
    Cancelled,
    Claimed,
    Died,
    Dismissed,
    Ending,
    Enqueued,
    Entry,
    Event,
    Extended,
    Fired,
    Merge,
    Promoted,
    Redriven,
    Released,
    Retried,
    SettledAll,
)
from forebay.core.instant import Instant
from forebay.core.job import is_suspicious
from forebay.core.lease import Fence
from forebay.core.outcome import OUT_OF_TIME, Failure


class Turn(Struct):
    """One delivery: `attempt` as the ledger counts it, `epoch` the number of redrives before it.

    `suspicious`: it was claimed to run in quarantine.
    """

    fence: Fence
    owner: str
    attempt: int
    epoch: int
    due_at: Instant
    claimed_at: Instant
    until: Instant
    began: int
    suspicious: bool = False
    ending: Ending | None = None
    ended_at: Instant = 0
    ended: int = 0


class Life(Struct):
    """One job. `ends` are its final states in order: one an epoch."""

    entry: Entry
    at: Instant
    due_at: Instant
    used: int = 0
    epoch: int = 0
    turns: list[Turn] = []
    ends: list[str] = []
    asked_to_end: bool = False
    errors: list[Failure] = []


class Book:
    """The ledger, by job and by fence."""

    def __init__(self, events: list[Event], times: list[int]) -> None:
        self.events = events
        self.lives: dict[int, Life] = {}
        self.turns: dict[Fence, Turn] = {}
        self.by_serial: dict[int, list[int]] = {}
        self.merges: dict[int, list[int]] = {}
        self.fired: dict[tuple[str, Instant], int] = {}
        self.ticked: dict[tuple[str, Instant], int] = {}
        self.ticks: dict[str, list[Instant]] = {}
        for event, now in zip(events, times, strict=True):
            self._read(event, now)

    def _read(self, event: Event, now: int) -> None:
        match event:
            case Enqueued() | Fired():
                self._born(event.at, event.entries, event.merged)
                for job_id in event.shed:
                    self.lives[job_id].ends.append("dead")
                    self.lives[job_id].errors.append(OUT_OF_TIME)
                if isinstance(event, Fired):
                    slot = (event.name, event.tick)
                    self.fired[slot] = self.fired.get(slot, 0) + 1
                    self.ticked[slot] = self.ticked.get(slot, 0) + len(event.entries)
                    self.ticks.setdefault(event.name, []).append(event.tick)
            case Claimed():
                for job_id, delivery in zip(event.ids, event.deliveries, strict=True):
                    self._claimed(event, job_id, delivery, now)
            case Extended():
                for job_id in event.ids:
                    if (life := self.lives.get(job_id)) is not None and life.turns:
                        life.turns[-1].until = event.until
            case SettledAll():
                for ending in event.endings:
                    self._ended(event.at, ending, now)
            case Promoted():
                for job_id in event.expired:
                    self.lives[job_id].ends.append("dead")
                    self.lives[job_id].errors.append(OUT_OF_TIME)
            case Cancelled():
                for job_id in event.ids:
                    self.lives[job_id].ends.append("cancelled")
                for job_id in event.asked:
                    self.lives[job_id].asked_to_end = True
            case Redriven():
                for job_id in event.ids:
                    life = self.lives[job_id]
                    life.used, life.due_at = 0, event.at
                    life.epoch += 1
            case _:
                pass

    def _born(self, at: Instant, entries: list[Entry], merged: list[Merge]) -> None:
        for entry in entries:
            self.lives[entry.id] = Life(entry, at, entry.due_at, turns=[], ends=[], errors=[])
            serial = serial_of(entry.body)
            if serial is not None:
                self.by_serial.setdefault(serial, []).append(entry.id)
        for merge in merged:
            serial = serial_of(merge.body)
            if serial is not None:
                self.merges.setdefault(serial, []).append(merge.id)

    def _claimed(self, event: Claimed, job_id: int, delivery: int, now: int) -> None:
        life = self.lives.get(job_id)
        if life is None:
            return
        life.used += 1
        turn = Turn((job_id, delivery), event.owner, life.used, life.epoch, life.due_at, event.at, event.until, now)
        turn.suspicious = is_suspicious(life.errors, life.used, life.entry.max_attempts)
        life.turns.append(turn)
        self.turns[turn.fence] = turn

    def _ended(self, at: Instant, ending: Ending, now: int) -> None:
        life = self.lives.get(ending.id)
        if life is None:
            return
        turn = self.turns.get((ending.id, ending.delivery))
        if turn is not None:
            turn.ending, turn.ended_at, turn.ended = ending, at, now
        if isinstance(ending, Retried | Died | Released) and ending.error is not None:
            life.errors.append(replace(ending.error, attempt=life.used))
        match ending:
            case Acked():
                life.ends.append("done")
            case Died():
                life.ends.append("dead")
            case Dismissed():
                life.ends.append("cancelled")
            case Released():
                life.used -= 1
                life.due_at = ending.due_at
            case _:
                life.due_at = ending.due_at


def serial_of(body: bytes) -> int | None:
    number = msgspec.json.decode(body).get("n")
    return number if isinstance(number, int) else None
