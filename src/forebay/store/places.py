"""What a store that keeps its gates in tables knows of a job and of a gate, and what `store.gating` asks of it."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from forebay.core.gate import Gate, has_room, opens_at, tide_after
from forebay.core.instant import Instant, Span

_decode_gates: Final = msgspec.json.Decoder(tuple[Gate, ...]).decode


class Row(NamedTuple):
    """What a move from state to state needs to know of a job. `gate`: where a waiting job is parked."""

    id: int
    queue: str
    cls: str
    state: int
    rank: int
    due_at: Instant
    gates: tuple[Gate, ...]
    gate: str | None

    @classmethod
    def of(cls, columns: Sequence[Any]) -> "Row":
        """From the first eight columns of a statement; the gates are JSON, or NULL."""
        job_id, queue, group, state, rank, due_at, gates, gate = columns[:8]
        return cls(job_id, queue, group, state, rank, due_at, _decode_gates(gates) if gates else (), gate)


class Place:
    """One gate. `limit` is the operator's number of slots, which wins over the stamped `slots`.

    `held` slots are taken, so many jobs are `parked` and `standing` in its line; `opened`: a parked one may have room.
    `step` and `tide` are those of a rate. `head`: the smallest id in its line, where it is known; `fallen`: so many in
    its line are dead, and block it once they are its head. `first`: who of those that parked in this transaction goes
    before the others; `queues`: where somebody came to the rate, or left it. `turning`: classes may have turns there.
    """

    __slots__ = (
        "fallen",
        "first",
        "head",
        "held",
        "limit",
        "moved",
        "name",
        "opened",
        "parked",
        "queues",
        "slots",
        "standing",
        "step",
        "stored",
        "tide",
        "turning",
    )

    def __init__(
        self,
        name: str,
        slots: int,
        held: int = 0,
        parked: int = 0,
        standing: int = 0,
        opened: bool = False,
        limit: int | None = None,
        step: Span = 0,
        tide: Instant = 0,
        head: int | None = None,
        stored: bool = False,
        fallen: int = 0,
    ) -> None:
        self.name = name
        self.slots = slots
        self.held = held
        self.parked = parked
        self.standing = standing
        self.opened = opened
        self.limit = limit
        self.step = step
        self.tide = tide
        self.head = head
        self.stored = stored
        self.fallen = fallen
        self.first: tuple[int, int] | None = None
        self.queues: dict[str, None] = {}
        self.moved = False
        self.turning = False

    @property
    def room(self) -> int:
        """So many slots hold for now. No number of them lets two in where a line says who is next."""
        slots = self.slots if self.limit is None else self.limit
        return min(slots, 1) if self.standing else slots

    def has_room(self, cost: int = 1) -> bool:
        return has_room(self.held, cost, self.room)

    def opens_at(self, cost: int) -> Instant:
        """When the rate lets in a job of this cost."""
        return opens_at(self.tide, Gate(self.name, self.slots, cost=cost, step=self.step), self.limit)

    def start(self, cost: int, now: Instant) -> None:
        self.tide = tide_after(self.tide, Gate(self.name, self.slots, cost=cost, step=self.step), now)
        self.moved = True

    def unused(self, now: Instant) -> bool:
        return not (self.held or self.parked or self.standing) and self.tide <= now


class GateTables(Protocol):
    """What a store keeps of its gates."""

    def look(self, names: Sequence[str]) -> Iterable[Place]:
        """These gates with the heads of their lines; of one that nobody is at, only the operator's number is true."""

    def put(self, places: Sequence[Place]) -> None:
        """These gates look like this from now on; they may be new. The operators' numbers are not theirs to write."""

    def drop(self, names: Sequence[str]) -> None:
        """Nobody holds them, waits at them or stands in line."""

    def opened(self, most: int) -> Iterable[str]:
        """Names of gates that may have room for someone parked."""

    def line_up(self, places: Sequence[tuple[str, int]]) -> None:
        """New jobs stand in the lines of ordered gates."""

    def join(self, name: str, job_id: int) -> bool:
        """The job stands in the line of an ordered gate; False: it did so already."""

    def leave(self, name: str, job_id: int) -> bool:
        """The job leaves the line; False: it was not there."""

    def head(self, name: str) -> int | None:
        """The smallest id in the line."""

    def first_parked(self, name: str) -> Row | None:
        """Of the jobs that are parked at the gate, the one with the smallest (rank, id)."""

    def one(self, job_id: int) -> Row | None:
        """The job."""

    def first_of(self, name: str, queue: str) -> Row | None:
        """The same of one queue's jobs, which are parked at a rate."""

    def paced(self, name: str) -> list[str]:
        """The queues whose paces at this rate are known."""

    def put_pace(self, queue: str, first: Row, opens_at: Instant | None, now: Instant) -> None:
        """The job is the next of its queue at the rate where it is parked, which lets it in then; None: never."""

    def drop_pace(self, queue: str, name: str) -> None:
        """Nobody of the queue is parked at the rate."""

    def first_of_class(self, name: str, queue: str, cls: str) -> Row | None:
        """Of the jobs that are parked at the gate, where classes take turns, the first one of a class of a queue."""

    def join_turns(self, classes: Sequence[tuple[str, str, str]]) -> None:
        """These classes (gate, queue, class) have a place in the ring; at the end, if they had none."""

    def whose_turn(self, name: str, queue: str) -> str | None:
        """The class at the head of the ring."""

    def rest_of_turn(self, name: str, queue: str, cls: str) -> int | None:
        """How many it may still take in a turn that has begun; 0: none has; None: it has no place in the ring."""

    def go_on(self, name: str, queue: str, cls: str, rest: int) -> None:
        """So many are left of its turn."""

    def end_turn(self, name: str, queue: str, cls: str) -> None:
        """Its place is at the end now."""

    def leave_turns(self, name: str, queue: str, cls: str) -> None:
        """It has no place any more."""

    def drop_turns(self, names: Sequence[str]) -> None:
        """Nobody is parked at these gates."""

    def next_start(self, queue: str, cls: str | None) -> Row | None:
        """The first of those who are let in by now at the rates of the queue; with `cls`, of that class."""
