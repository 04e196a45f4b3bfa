"""Conservation: every accepted job ends in exactly one of done, dead, cancelled or still open.

Found here: a job accepted twice, an event about a job that was never accepted or is gone already, a change that its
state does not allow (a claim of something done, a redrive of something alive), and, after a drain, what is still open.
"""

from collections.abc import Collection, Iterator, Sequence

from forebay.core.event import (
    Acked,
    Cancelled,
    Claimed,
    Died,
    Dismissed,
    Enqueued,
    Event,
    Extended,
    Fired,
    Promoted,
    Purged,
    Redriven,
    SettledAll,
)
from forebay.core.job import State
from forebay.testing.checkers.violation import Violation

_WAITING, _READY, _RUNNING = State.WAITING, State.READY, State.RUNNING
_FINISHED = (State.DONE, State.DEAD, State.CANCELLED)

Move = tuple[int, Collection[State], State | None]
"""A job, the states it may come from, and where it goes; None: it is gone."""


def conservation(events: Sequence[Event], *, drained: bool = False) -> list[Violation]:
    states: dict[int, State | None] = {}
    found: list[Violation] = []
    for place, event in enumerate(events):
        if isinstance(event, Enqueued | Fired):
            for entry in event.entries:
                if entry.id in states:
                    found.append(Violation("conservation", place, entry.id, "accepted twice"))
                states[entry.id] = _READY if entry.ready else _WAITING
        for job_id, allowed, state in _moves(event):
            was = states.get(job_id)
            if was not in allowed:
                known = (was or "gone") if job_id in states else "never accepted"
                message = f"{type(event).__name__} finds it {known}, not {' or '.join(allowed)}"
                found.append(Violation("conservation", place, job_id, message))
            states[job_id] = state
    if drained:
        still = [(job_id, state) for job_id, state in states.items() if state in (_WAITING, _READY, _RUNNING)]
        found += [
            Violation("conservation", len(events), job_id, f"still {state} at the end") for job_id, state in still
        ]
    return found


def _moves(event: Event) -> Iterator[Move]:
    match event:
        case Enqueued() | Fired():
            yield from ((merge.id, (_WAITING, _READY), _WAITING) for merge in event.merged)
            yield from ((job_id, (_WAITING, _READY), State.DEAD) for job_id in event.shed)
            if isinstance(event, Enqueued):
                yield from ((job_id, (State.DEAD,), None) for job_id in event.mended)
        case Promoted():
            yield from ((job_id, (_WAITING,), _READY) for job_id in event.ids)
            yield from ((job_id, (_WAITING, _READY), State.DEAD) for job_id in event.expired)
        case Claimed():
            yield from ((job_id, (_WAITING, _READY), _RUNNING) for job_id in event.ids)
        case Extended():
            yield from ((job_id, (_RUNNING,), _RUNNING) for job_id in event.ids)
        case SettledAll():
            for ending in event.endings:
                state: State | None = _WAITING
                match ending:
                    case Acked():
                        state = State.DONE if ending.kept_until else None
                    case Dismissed():
                        state = State.CANCELLED if ending.kept_until else None
                    case Died():
                        state = State.DEAD
                    case _:
                        pass
                yield ending.id, (_RUNNING,), state
        case Cancelled():
            for job_id, kept_until in zip(event.ids, event.kept_until, strict=True):
                yield job_id, (_WAITING, _READY), State.CANCELLED if kept_until else None
            yield from ((job_id, (_RUNNING,), _RUNNING) for job_id in event.asked)
        case Redriven():
            yield from ((job_id, (State.DEAD,), _WAITING) for job_id in event.ids)
            yield from ((job_id, (_WAITING, _READY), _WAITING) for job_id in event.withdrawn)
        case Purged():
            yield from ((job_id, _FINISHED, None) for job_id in event.ids)
        case _:
            return
