"""Order per key: a line exposes one job at a time, always the smallest id that is not finished.

A job that waits for its retry is still in line, and so is a dead one where a dead head blocks. A redriven job comes
back to its old place: one that was exposed meanwhile is withdrawn, one that runs finishes first.
"""

from collections.abc import Iterator, Sequence

from forebay.core.changeset import PROMOTED, ChangeSet
from forebay.core.entries import Entry
from forebay.core.ledger import Change
from forebay_proof.checkers.violation import Violation

_DEATHS = (Change.DIED, Change.EXPIRED, Change.SHED)
_ENDS = (Change.ACKED, Change.DISCARDED, Change.CANCELLED, Change.PURGED, *_DEATHS)


class _Lines:
    """The unfinished jobs of each line, and those of them that run."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._blocks: set[int] = set()
        self._line: dict[str, set[int]] = {}
        self._running: dict[str, set[int]] = {}

    def accept(self, entry: Entry) -> None:
        if entry.line is not None:
            self._names[entry.id] = entry.line
            self._blocks |= {entry.id} if entry.blocks else set()
            self.join(entry.id)

    def join(self, job_id: int) -> None:
        if (name := self._names.get(job_id)) is not None:
            self._line.setdefault(name, set()).add(job_id)

    def stop(self, job_id: int) -> None:
        if (name := self._names.get(job_id)) is not None:
            self._running.setdefault(name, set()).discard(job_id)

    def leave(self, job_id: int, *, died: bool = False) -> None:
        self.stop(job_id)
        if (name := self._names.get(job_id)) is not None and not (died and job_id in self._blocks):
            self._line.setdefault(name, set()).discard(job_id)

    def expose(self, job_id: int, *, runs: bool) -> Iterator[str]:
        """What is wrong with it."""
        name = self._names.get(job_id)
        if name is None:
            return
        running, first = self._running.setdefault(name, set()), min(self._line[name] | {job_id})
        if running:
            yield f"exposed in {name} while {sorted(running)} runs"
        if first < job_id:
            yield f"exposed in {name} before {first}"
        if runs:
            running.add(job_id)


def key_order(changes: Sequence[ChangeSet]) -> list[Violation]:
    lines = _Lines()
    found: list[Violation] = []
    for place, change in enumerate(changes):
        for entry in change.entries:
            lines.accept(entry)
        for name, job_id in ((each.change, job_id) for each in change.jobs for job_id in each.ids):
            if name in (PROMOTED, Change.CLAIMED):
                wrong = lines.expose(job_id, runs=name == Change.CLAIMED)
                found += [Violation("key_order", place, job_id, text) for text in wrong]
            elif name in (Change.RETRIED, Change.RELEASED):
                lines.stop(job_id)
            elif name in _ENDS:
                lines.leave(job_id, died=name in _DEATHS)
            elif name == Change.REDRIVEN:
                lines.join(job_id)
    return found
