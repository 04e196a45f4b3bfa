"""The reference model of gates: who holds a slot and who is next in line, found by looking at every job.

A slot is held by every ready or running job that is stamped with the gate. The number of slots is the operator's, or
the stamped one; while jobs with stamps of two specs are about, any number between the two is legal.
"""

from msgspec import Struct

from forebay.core.event import Entry
from forebay.core.gate import Gate
from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.testing.model_logs import LogModel, require

OPEN = (State.WAITING, State.READY, State.RUNNING)


class Item(Struct, frozen=True):
    """One job and what its picture does not show. `fresh`: never claimed nor ended, so newer work may merge into it."""

    entry: Entry
    job: Job
    rank: int
    fresh: bool = True
    kept_until: Instant = 0

    def expired(self, now: Instant) -> bool:
        return self.job.expires_at is not None and self.job.expires_at <= now

    def gate(self, name: str) -> Gate | None:
        return next((gate for gate in self.entry.gates if gate.name == name), None)


class GateModel(LogModel):
    """Jobs and the gates in front of them."""

    def __init__(self) -> None:
        super().__init__()
        self.items: dict[int, Item] = {}
        self.gate_limits: dict[str, int] = {}
        self._stamped: dict[str, set[int]] = {}

    def jobs(self, *states: State, queue: str | None = None) -> list[Item]:
        """In the order of their ids."""
        return [
            self.items[job_id]
            for job_id in sorted(self.items)
            if self.items[job_id].job.state in states and queue in (None, self.items[job_id].job.queue)
        ]

    def _slots(self, gate: Gate) -> tuple[int, int]:
        """At least and at most so many, as long as jobs of two specs stand at the gate; never two in order."""
        stamps = {self.gate_limits[gate.name]} if gate.name in self.gate_limits else self._stamped[gate.name]
        slots = {min(stamp, 1) for stamp in stamps} if gate.ordered else stamps
        return min(slots), max(slots)

    def _taken(self, name: str) -> int:
        return len([item for item in self.jobs(State.READY, State.RUNNING) if item.gate(name)])

    def _first_in_line(self, name: str) -> int | None:
        """The smallest id that is not finished, or that died where a dead head blocks."""
        for item in self.jobs(*OPEN, State.DEAD):
            gate = item.gate(name)
            if gate and (gate.blocks or item.job.state is not State.DEAD):
                return item.job.id
        return None

    def blocked(self, queue: str) -> set[str]:
        """Lines of the queue whose head is dead."""
        heads = [gate.name for item in self.jobs(State.DEAD) for gate in item.entry.gates if gate.blocks]
        dead = {name for name in heads if self.items[self._first_in_line(name) or 0].job.state is State.DEAD}
        return {name for name in dead if name.startswith(f"order/{queue}/")}

    def _check_admission(self, item: Item) -> None:
        for gate in item.entry.gates:
            taken, most = self._taken(gate.name), self._slots(gate)[1]
            require(taken <= most, f"gate {gate.name} let job {item.job.id} in: slots and holders", most, taken)
            first = self._first_in_line(gate.name) if gate.ordered else item.job.id
            require(first == item.job.id, f"gate {gate.name} let job {item.job.id} in before", first)

    def _admissible(self, item: Item, now: Instant) -> bool:
        return item.job.due_at <= now and all(
            self._taken(gate.name) < self._slots(gate)[0]
            and (not gate.ordered or self._first_in_line(gate.name) == item.job.id)
            for gate in item.entry.gates
        )
