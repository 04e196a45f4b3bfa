"""Rates: in no stretch of time did more start than the burst and what the stretch had earned.

A start is a claim, and counts for as much as the job costs. Said of every stretch between two starts, however long: so
of every window too. Where the burst became another, by a newer stamp or an operator, the greatest that it ever was is
taken; who costs more than the burst may go alone. Starts are owed for in time: once a unit costs another length of it,
what was owed before is worth another number of starts, and the rate is not judged any more.
"""

from collections.abc import Sequence

from forebay.core.event import Claimed, Enqueued, Entry, Event, Fired, GateSet
from forebay.core.gate import Gate
from forebay.core.instant import Instant, Span
from forebay.testing.checkers.violation import Violation


class _Rate:
    """One rate: its numbers, and all of its starts."""

    def __init__(self) -> None:
        self._burst = 0
        self._steps: set[Span] = set()
        self._starts: list[tuple[Instant, int]] = []

    def stamped(self, gate: Gate) -> None:
        self._burst = max(self._burst, gate.limit)
        self._steps.add(gate.step)

    def allowed(self, limit: int) -> None:
        self._burst = max(self._burst, limit)

    def start(self, at: Instant, cost: int) -> str | None:
        """What is wrong with it, if anything."""
        self._starts.append((at, cost))
        if len(self._steps) > 1:
            return None
        (step,), total = self._steps, 0
        for began, each in reversed(self._starts):
            total += each
            most = max(self._burst, cost) + (at - began) // step
            if total > most:
                return f"{total} started within {at - began} µs, {most} may"
        return None


def rates(events: Sequence[Event]) -> list[Violation]:
    born: dict[int, Entry] = {}
    known: dict[str, _Rate] = {}
    found: list[Violation] = []
    for place, event in enumerate(events):
        match event:
            case GateSet():
                known.setdefault(event.name, _Rate()).allowed(event.limit or 0)
            case Enqueued() | Fired():
                for entry in event.entries:
                    born[entry.id] = entry
                    for gate in entry.gates:
                        known.setdefault(gate.name, _Rate()).stamped(gate)
            case Claimed():
                for entry in (born[job_id] for job_id in event.ids if job_id in born):
                    for gate in entry.gates:
                        wrong = known[gate.name].start(event.at, gate.cost) if gate.step else None
                        found += [Violation("rates", place, entry.id, f"{gate.name}: {wrong}")] * bool(wrong)
            case _:
                pass
    return found
