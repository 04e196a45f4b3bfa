"""Order per key: a line exposes one job at a time, always the smallest id that is not finished.

A job that waits for its retry is still in line, and so is a dead one where a dead head blocks. A redriven job comes
back to its old place: one that was exposed meanwhile is withdrawn, one that runs finishes first.
"""

from collections.abc import Iterator, Sequence

from forebay.core.event import (
    Cancelled,
    Claimed,
    Died,
    Enqueued,
    Entry,
    Event,
    Fired,
    Promoted,
    Purged,
    Redriven,
    Released,
    Retried,
    SettledAll,
)
from forebay.testing.checkers.violation import Violation


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


def key_order(events: Sequence[Event]) -> list[Violation]:
    lines = _Lines()
    found: list[Violation] = []
    for place, event in enumerate(events):
        match event:
            case Enqueued() | Fired():
                for entry in event.entries:
                    lines.accept(entry)
                for job_id in event.shed:
                    lines.leave(job_id, died=True)
            case Promoted() | Claimed():
                for job_id in event.expired if isinstance(event, Promoted) else ():
                    lines.leave(job_id, died=True)
                for job_id in event.ids:
                    wrong = lines.expose(job_id, runs=isinstance(event, Claimed))
                    found += [Violation("key_order", place, job_id, text) for text in wrong]
            case SettledAll():
                for ending in event.endings:
                    if isinstance(ending, Retried | Released):
                        lines.stop(ending.id)
                    else:
                        lines.leave(ending.id, died=isinstance(ending, Died))
            case Cancelled() | Purged():
                for job_id in event.ids:
                    lines.leave(job_id)
            case Redriven():
                for job_id in event.ids:
                    lines.join(job_id)
            case _:
                pass
    return found
