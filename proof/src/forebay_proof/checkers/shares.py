"""Shares: over a stretch in which every class had work, each was served by its weight, to one start.

A stretch ends when a class joins or runs dry, or the queue gets another spec; it is judged if it was long
(`MIN_ROUNDS` rounds of all weights). After a reopening turns begin anew, which is worth one start more. Only queues
whose spec says `Fair`, and whose jobs no gate of their own holds, are checked. A claim that wants one class does not
follow the turns: such histories are not for here.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import combinations

from forebay.core.changeset import PROMOTED, ChangeSet
from forebay.core.entries import Entry
from forebay.core.gate import whole_gates
from forebay.core.ledger import Change
from forebay.core.policy import Fair, terms_of
from forebay.core.spec import QueueSpec
from forebay_proof.checkers.violation import Violation

_LEAVES = (Change.CLAIMED, Change.CANCELLED, Change.EXPIRED, Change.SHED)
MIN_ROUNDS = 40
_STARTS = 2
"""Of each class: what two that always have work may differ by, and once more for a reopening."""


class _Queue:
    """One fair queue: its ready jobs by class, and how many of each were claimed in this stretch."""

    def __init__(self, share: Fair) -> None:
        self.share = share
        self.unfair: list[str] = []
        self._ready: dict[str, set[int]] = {}
        self._served: Counter[str] = Counter()

    def add(self, cls: str, job_id: int) -> None:
        if cls not in self._ready:
            self.end_stretch()
        self._ready.setdefault(cls, set()).add(job_id)

    def remove(self, ids: Collection[int], *, served: bool) -> None:
        left = {cls: jobs.difference(ids) for cls, jobs in self._ready.items()}
        if all(left.values()):
            self._served.update({cls: len(self._ready[cls]) - len(left[cls]) for cls in left} if served else {})
        else:
            self.end_stretch()
        self._ready = {cls: jobs for cls, jobs in left.items() if jobs}

    def end_stretch(self) -> None:
        weights = {cls: self.share.weights.get(cls, self.share.default) for cls in self._ready}
        total, weight = self._served.total(), sum(weights.values())
        if len(weights) > 1 and total >= MIN_ROUNDS * weight:
            for (one, own), (other, others) in combinations(weights.items(), 2):
                got = {cls: self._served[cls] for cls in (one, other)}
                if abs(got[one] * others - got[other] * own) > _STARTS * (own + others):
                    self.unfair.append(f"of {total} claims classes got {got}, their weights are {own} and {others}")
        self._served.clear()


def shares(changes: Sequence[ChangeSet]) -> list[Violation]:
    queues: dict[str, _Queue] = {}
    born: dict[int, Entry] = {}
    found: list[Violation] = []

    def report(place: int) -> None:
        for queue in queues.values():
            found.extend(Violation("shares", place, None, text) for text in queue.unfair)
            queue.unfair.clear()

    for place, change in enumerate(changes):
        for spec in {} if change.tables is None else change.tables.specs.values():
            _configure(queues, spec)
        born.update((entry.id, entry) for entry in change.entries)
        _ready(queues, [entry for entry in change.entries if entry.ready])
        for each in change.jobs:
            if each.change == PROMOTED:
                _ready(queues, [born[job_id] for job_id in each.ids if job_id in born])
            elif each.change in _LEAVES:
                for queue in queues.values():
                    queue.remove(each.ids, served=each.change == Change.CLAIMED)
        report(place)
    for queue in queues.values():
        queue.end_stretch()
    report(len(changes))
    return found


def _configure(queues: dict[str, _Queue], spec: QueueSpec) -> None:
    queue = queues.get(spec.name)
    if queue is not None:
        queue.end_stretch()
        queue.share = spec.share or Fair()
    elif spec.share is not None and not _stamps(spec):
        queues[spec.name] = _Queue(spec.share)


def _ready(queues: dict[str, _Queue], entries: list[Entry]) -> None:
    for entry in entries:
        if entry.queue in queues:
            queues[entry.queue].add(entry.cls, entry.id)


def _stamps(spec: QueueSpec) -> bool:
    """Whether jobs get gates or a line of their own."""
    return spec.merge is not None or len(whole_gates(spec)) < len(terms_of(spec.eligibility))
