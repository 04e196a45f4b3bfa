"""Order per key: an ordered gate lets one job in at a time, always the smallest id that is not finished.

The slot is taken when a job becomes ready (or is claimed from waiting) and kept until it is settled; a job that waits
for its retry still stands in line, and so does a dead one where a dead head blocks. A redriven job comes back to its
old place, so it may have to wait for one that was let in meanwhile.
"""

from collections.abc import Sequence

from forebay.core.event import (
    Cancelled,
    Claimed,
    Died,
    Enqueued,
    Event,
    Fired,
    Promoted,
    Purged,
    Redriven,
    Released,
    Retried,
    SettledAll,
)
from forebay.core.gate import Gate
from forebay.testing.checkers.violation import Violation


class _Lines:
    """Who stands in which line, and who is inside."""

    def __init__(self) -> None:
        self.gates: dict[int, tuple[Gate, ...]] = {}
        self.line: dict[str, set[int]] = {}
        self.inside: dict[str, set[int]] = {}

    def join(self, job_id: int) -> None:
        for gate in self.gates.get(job_id, ()):
            self.line.setdefault(gate.name, set()).add(job_id)

    def step_out(self, job_id: int) -> None:
        for gate in self.gates.get(job_id, ()):
            self.inside.setdefault(gate.name, set()).discard(job_id)

    def leave(self, job_id: int, *, died: bool = False) -> None:
        self.step_out(job_id)
        for gate in self.gates.get(job_id, ()):
            if not (died and gate.blocks):
                self.line[gate.name].discard(job_id)

    def enter(self, job_id: int) -> list[str]:
        """What is wrong with letting the job in; nothing, when it is inside already."""
        wrong = []
        for gate in self.gates.get(job_id, ()):
            inside = self.inside.setdefault(gate.name, set())
            if job_id in inside:
                continue
            if inside:
                wrong.append(f"let in at {gate.name} while {sorted(inside)} is inside")
            if self.line[gate.name] and job_id > min(self.line[gate.name]):
                wrong.append(f"let in at {gate.name} before {min(self.line[gate.name])}")
            inside.add(job_id)
        return wrong


def key_order(events: Sequence[Event]) -> list[Violation]:
    lines = _Lines()
    found: list[Violation] = []
    for place, event in enumerate(events):
        match event:
            case Enqueued() | Fired():
                for entry in event.entries:
                    lines.gates[entry.id] = tuple(gate for gate in entry.gates if gate.ordered)
                    lines.join(entry.id)
                for job_id in event.shed:
                    lines.leave(job_id, died=True)
            case Promoted() | Claimed():
                for job_id in event.expired if isinstance(event, Promoted) else ():
                    lines.leave(job_id, died=True)
                for job_id in event.ids:
                    found += [Violation("key_order", place, job_id, wrong) for wrong in lines.enter(job_id)]
            case SettledAll():
                for ending in event.endings:
                    if isinstance(ending, Retried | Released):
                        lines.step_out(ending.id)
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
