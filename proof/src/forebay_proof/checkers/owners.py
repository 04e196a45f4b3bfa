"""Owners: a job has one holder at a time, its deliveries only grow, and only the current holder ends its turn.

The fence is (job, delivery). A delivery that comes twice is two holders of one fence, which is how a late worker's
settle would be taken for a current one.
"""

from collections.abc import Iterator, Sequence

from forebay.core.changeset import ChangeSet, JobChange
from forebay.core.ledger import Change
from forebay_proof.checkers.violation import Violation

_ENDINGS = (Change.ACKED, Change.RETRIED, Change.DIED, Change.RELEASED, Change.DISCARDED)
_OF_A_HOLDER = (Change.EXTENDED, Change.CANCEL_REQUESTED)


class _Holders:
    """The last delivery of each job, and the one that is out."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._held: dict[int, int] = {}

    def take(self, owner: str | None, each: JobChange) -> Iterator[tuple[int, str]]:
        """What is wrong, by job."""
        last, held = self._last, self._held
        for place, job_id in enumerate(each.ids):
            if each.change == Change.CLAIMED:
                delivery = each.deliveries[place]
                if job_id in held:
                    yield job_id, f"claimed by {owner} while delivery {held[job_id]} is out"
                if delivery <= last.get(job_id, 0):
                    yield job_id, f"delivery {delivery} after {last[job_id]}"
                held[job_id] = last[job_id] = delivery
            elif each.change in _ENDINGS:
                if held.get(job_id) != each.deliveries[place]:
                    yield job_id, f"delivery {each.deliveries[place]} settled, the holder is {held.get(job_id)}"
                held.pop(job_id, None)
            elif each.change in _OF_A_HOLDER:
                if job_id not in held:
                    yield job_id, f"{each.change}, but it has no holder"
            elif job_id in held:
                yield job_id, f"{each.change} while delivery {held[job_id]} is out"

    def merged(self, job_id: int) -> Iterator[tuple[int, str]]:
        if job_id in self._held:
            yield job_id, f"merged while delivery {self._held[job_id]} is out"


def owners(changes: Sequence[ChangeSet]) -> list[Violation]:
    holders = _Holders()
    found: list[Violation] = []
    for place, change in enumerate(changes):
        wrong = [
            *(each for merge in change.merges for each in holders.merged(merge.id)),
            *(each for jobs in change.jobs for each in holders.take(change.owner, jobs)),
        ]
        found += [Violation("owners", place, job_id, text) for job_id, text in wrong]
    return found
