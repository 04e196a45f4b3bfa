"""Caps and rates: a claim takes no more than its gates have, by the numbers that the specs had at that moment.

caps   what runs costs at most as much as the gate has slots when a claim adds to it; what costs more runs alone
rates  in no stretch of time did more start than the burst and what the stretch had earned, counted by cost

A rate is judged over every stretch between two starts, so over every window too. Where its burst changed, by a spec or
by an operator, the greatest that it ever was is taken. Starts are owed for in time: once a unit costs another length of
it, what was owed before is worth another number of starts, and the rate is not judged any more.
"""

from collections.abc import Iterator, Sequence

from forebay.core.changeset import PASSED, ChangeSet
from forebay.core.entries import Entry
from forebay.core.gate import Gate, gate_of, whole_gates
from forebay.core.instant import Duration, Instant
from forebay.core.ledger import Change
from forebay.core.spec import QueueSpec
from forebay_proof.checkers.violation import Violation


class _Replay:
    """What decides about gates, as far as the changes have come."""

    def __init__(self) -> None:
        self.specs: dict[str, QueueSpec] = {}
        self.given: dict[str, int] = {}
        self.stamps: dict[int, tuple[str, ...]] = {}
        self.born: dict[int, Entry] = {}
        self.running: set[int] = set()

    def apply(self, change: ChangeSet) -> list[int]:
        """The jobs that it claims."""
        if change.tables is not None:
            self.specs |= change.tables.specs
            for name, limit in change.tables.gate_limits.items():
                self.given.pop(name, None)
                self.given |= {} if limit is None else {name: limit}
        self.born |= {entry.id: entry for entry in change.entries}
        self.stamps |= {entry.id: entry.gates for entry in change.entries}
        for each in change.jobs:
            if each.change == PASSED:
                for job_id in each.ids:
                    self.stamps[job_id] = tuple(name for name in self.stamps[job_id] if name != change.name)
            elif each.change not in (Change.EXTENDED, Change.CANCEL_REQUESTED):
                self.running.difference_update(each.ids)
        return [job_id for each in change.jobs if each.change == Change.CLAIMED for job_id in each.ids]

    def gates(self, job_id: int) -> Iterator[Gate]:
        """Those of a job that was accepted, with the numbers that its queue gives them now."""
        entry = self.born.get(job_id)
        spec = None if entry is None else self.specs.get(entry.queue)
        if spec is not None:
            yield from whole_gates(spec)
            yield from (gate for name in self.stamps[job_id] if (gate := gate_of(spec, name)) is not None)

    def used(self, name: str) -> dict[int, int]:
        """What the running jobs at the gate cost."""
        inside = [job_id for job_id in self.running if any(gate.name == name for gate in self.gates(job_id))]
        return {job_id: self.born[job_id].cost for job_id in inside}


class _Rate:
    """One rate: its numbers, and all of its starts."""

    def __init__(self) -> None:
        self._burst = 0
        self._steps: set[Duration] = set()
        self._starts: list[tuple[Instant, int]] = []

    def start(self, gate: Gate, given: int, at: Instant, cost: int) -> str | None:
        """What is wrong with it, if anything."""
        self._burst = max(self._burst, gate.limit, given)
        self._steps.add(gate.step)
        self._starts.append((at, cost))
        total = 0
        for began, each in reversed(self._starts) if len(self._steps) == 1 else ():
            total += each
            most = max(self._burst, cost) + (at - began) // gate.step
            if total > most:
                return f"{total} started within {at - began} µs, {most} may"
        return None


def caps(changes: Sequence[ChangeSet]) -> list[Violation]:
    replay, found = _Replay(), list[Violation]()
    for place, change in enumerate(changes):
        for job_id in replay.apply(change):
            replay.running.add(job_id)
            for gate in replay.gates(job_id):
                used, slots = replay.used(gate.name), replay.given.get(gate.name, gate.limit)
                if not gate.step and sum(used.values()) > slots and (len(used) > 1 or not slots):
                    text = f"{gate.name} has {slots} slots, what runs costs {used}"
                    found.append(Violation("caps", place, job_id, text))
    return found


def rates(changes: Sequence[ChangeSet]) -> list[Violation]:
    replay, known, found = _Replay(), dict[str, _Rate](), list[Violation]()
    for place, change in enumerate(changes):
        for job_id in replay.apply(change):
            for gate in replay.gates(job_id):
                if gate.step:
                    given, rate = replay.given.get(gate.name, 0), known.setdefault(gate.name, _Rate())
                    wrong = rate.start(gate, given, change.at, replay.born[job_id].cost)
                    found += [Violation("rates", place, job_id, f"{gate.name}: {wrong}")] * bool(wrong)
    return found
