"""Attempts: a claim costs a life, a release gives it back, a redrive gives all of them; nobody has more than stamped.

A job that failures killed died with exactly `max_attempts` lives used. Handlers may give up sooner (`Dropped`); the
ledger does not tell such a death from another, so the caller names the kinds of errors by which handlers gave up.
"""

from collections.abc import Collection, Sequence

from forebay.core.event import Claimed, Died, Enqueued, Event, Fired, Redriven, Released, SettledAll
from forebay.testing.checkers.violation import Violation


def attempts(events: Sequence[Event], *, dropped: Collection[str] = ()) -> list[Violation]:
    most: dict[int, int] = {}
    used: dict[int, int] = {}
    found: list[Violation] = []

    def report(place: int, job_id: int, message: str) -> None:
        found.append(Violation("attempts", place, job_id, message))

    for place, event in enumerate(events):
        match event:
            case Enqueued() | Fired():
                most.update((entry.id, entry.max_attempts) for entry in event.entries)
                used.update((entry.id, 0) for entry in event.entries)
            case Claimed():
                for job_id in event.ids:
                    used[job_id] = used.get(job_id, 0) + 1
                    if used[job_id] > most.get(job_id, 0):
                        report(place, job_id, f"life {used[job_id]} of {most.get(job_id, 0)}")
            case SettledAll():
                for ending in event.endings:
                    if isinstance(ending, Released):
                        used[ending.id] = used.get(ending.id, 0) - 1
                    elif isinstance(ending, Died) and ending.error.kind not in dropped:
                        lives = used.get(ending.id, 0), most.get(ending.id, 0)
                        if lives[0] != lives[1]:
                            report(place, ending.id, f"died after {lives[0]} of {lives[1]} lives: {ending.error.kind}")
            case Redriven():
                used.update(dict.fromkeys(event.ids, 0))
            case _:
                pass
    return found
