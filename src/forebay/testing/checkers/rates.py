"""Rates: in no stretch of time did more start than the burst and what the stretch had earned.

A start is a claim, and counts for as much as the job costs. Said of every stretch between two starts, however long: so
of every window too. Where a rate got other numbers, by a newer stamp or an operator, the most generous of all that it
ever had are taken; who costs more than the burst may go alone.
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
        self._step: Span | None = None
        self._starts: list[tuple[Instant, int]] = []

    def stamped(self, gate: Gate) -> None:
        self._burst = max(self._burst, gate.limit)
        self._step = gate.step if self._step is None else min(self._step, gate.step)

    def allowed(self, limit: int) -> None:
        self._burst = max(self._burst, limit)

    def start(self, at: Instant, cost: int) -> str | None:
        """What is wrong with it, if anything."""
        self._starts.append((at, cost))
        step, total = self._step or 1, 0
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
