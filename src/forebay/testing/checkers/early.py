"""Never early: no job is made ready or handed out before it is due, and none is handed out after it has expired.

Due times come from the ledger itself: acceptance, retry, release and redrive each write a new one. A redrive lifts
the expiry.
"""

from collections.abc import Sequence

from forebay.core.event import Claimed, Enqueued, Event, Fired, Promoted, Redriven, Released, Retried, SettledAll
from forebay.core.instant import Instant
from forebay.core.limits import INSTANT_MOST
from forebay.testing.checkers.violation import Violation


def early(events: Sequence[Event]) -> list[Violation]:
    due: dict[int, Instant] = {}
    expires: dict[int, Instant] = {}
    found: list[Violation] = []
    for place, event in enumerate(events):
        match event:
            case Enqueued() | Fired():
                due.update((entry.id, entry.due_at) for entry in event.entries)
                expires.update((e.id, e.expires_at) for e in event.entries if e.expires_at is not None)
                for job_id, newer in ((merge.id, merge.newer) for merge in event.merged):
                    if newer is not None:
                        due[job_id] = newer.due_at or due.get(job_id, 0)
                        expires[job_id] = newer.expires_at or INSTANT_MOST
                ready = [entry.id for entry in event.entries if entry.ready]
            case Promoted() | Claimed():
                ready = event.ids
            case SettledAll():
                due.update((e.id, e.due_at) for e in event.endings if isinstance(e, Retried | Released))
                ready = []
            case Redriven():
                due.update(dict.fromkeys(event.ids, event.at))
                for job_id in event.ids:
                    expires.pop(job_id, None)
                ready = []
            case _:
                ready = []
        for job_id in ready:
            if due.get(job_id, 0) > event.at:
                message = f"{type(event).__name__} {due[job_id] - event.at} µs before it is due"
                found.append(Violation("early", place, job_id, message))
            if isinstance(event, Claimed) and expires.get(job_id, event.at + 1) <= event.at:
                message = f"claimed {event.at - expires[job_id]} µs after it expired"
                found.append(Violation("early", place, job_id, message))
    return found
