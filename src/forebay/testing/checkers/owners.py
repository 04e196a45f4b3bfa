"""Owners: a job has one holder at a time, its deliveries only grow, and only the current holder ends its turn.

The fence is (job, delivery). A delivery that comes twice is two holders of one fence, which is how a late worker's
settle would be taken for a current one.
"""

from collections.abc import Sequence

from forebay.core.event import Cancelled, Claimed, Enqueued, Event, Extended, Fired, Promoted, SettledAll
from forebay.testing.checkers.violation import Violation


def owners(events: Sequence[Event]) -> list[Violation]:
    last: dict[int, int] = {}
    held: dict[int, int] = {}
    found: list[Violation] = []

    def report(place: int, job_id: int, message: str) -> None:
        found.append(Violation("owners", place, job_id, message))

    for place, event in enumerate(events):
        match event:
            case Claimed():
                for job_id, delivery in zip(event.ids, event.deliveries, strict=True):
                    if job_id in held:
                        report(place, job_id, f"claimed by {event.owner} while delivery {held[job_id]} is out")
                    if delivery <= last.get(job_id, 0):
                        report(place, job_id, f"delivery {delivery} after {last[job_id]}")
                    held[job_id] = last[job_id] = delivery
            case SettledAll():
                for ending in event.endings:
                    if held.get(ending.id) != ending.delivery:
                        message = f"delivery {ending.delivery} settled, the holder is {held.get(ending.id)}"
                        report(place, ending.id, message)
                    held.pop(ending.id, None)
            case Extended():
                for job_id in event.ids:
                    if job_id not in held:
                        report(place, job_id, "extended, but nobody holds it")
            case Cancelled() | Promoted() | Enqueued() | Fired():
                for job_id in _moved(event):
                    if job_id in held:
                        report(place, job_id, f"{type(event).__name__} moved it while delivery {held[job_id]} is out")
            case _:
                pass
    return found


def _moved(event: Cancelled | Promoted | Enqueued | Fired) -> list[int]:
    """Jobs that nobody may hold while this happens to them."""
    match event:
        case Cancelled():
            return event.ids
        case Promoted():
            return [*event.ids, *event.expired]
        case Enqueued() | Fired():
            return [*(merge.id for merge in event.merged), *event.shed]
