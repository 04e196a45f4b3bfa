"""The jobs of the reference model and the specs of their queues: one dict each, read by linear scans."""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.entries import Entry
from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.core.spec import QueueSpec
from forebay.store.cells.ids import cell_of

OPEN = (State.WAITING, State.READY, State.RUNNING)
SECOND = 1_000_000


def require(holds: bool, what: str, *seen: object) -> None:
    """Raise `AssertionError` if the store is wrong."""
    if not holds:
        raise AssertionError("; ".join([what, *map(repr, seen)]))


class Item(Struct, frozen=True):
    """A job and what a store does not show of it. `fresh`: never claimed nor ended, so newer work may merge into it."""

    entry: Entry
    job: Job
    rank: int
    fresh: bool = True
    kept_until: Instant = 0

    @property
    def place(self) -> tuple[int, int]:
        return self.rank, self.job.id

    @property
    def cell(self) -> int:
        """The cell that has it, of several stores as one; each claims, counts and orders for itself."""
        return cell_of(self.job.id)

    @property
    def lane(self) -> tuple[str, str, tuple[str, ...], int]:
        return self.job.queue, self.entry.cls, self.entry.gates, self.cell

    def expired(self, now: Instant) -> bool:
        return self.job.expires_at is not None and self.job.expires_at <= now


class JobTable:
    """All jobs and specs that a store has. `paused`: by queue, until when."""

    def __init__(self) -> None:
        self.specs: dict[str, QueueSpec] = {}
        self.items: dict[int, Item] = {}
        self.paused: dict[str, Instant] = {}

    def spec(self, queue: str) -> QueueSpec:
        return self.specs.get(queue) or QueueSpec(name=queue)

    def in_state(self, *states: State, queue: str | None = None) -> list[Item]:
        """In the order of their ids."""
        items = [self.items[job_id] for job_id in sorted(self.items)]
        return [item for item in items if item.job.state in states and queue in (None, item.job.queue)]

    def change(self, item: Item, **changes: Any) -> None:
        self.items[item.job.id] = replace(item, job=replace(item.job, **changes))

    def line(self, item: Item) -> list[Item]:
        """The unfinished jobs of its line, and dead ones that nothing may pass; the item alone where it has none."""
        if item.entry.line is None:
            return [item]
        line = [each for each in self.in_state(*OPEN, State.DEAD) if each.entry.line == item.entry.line]
        return [each for each in line if each.job.state is not State.DEAD or each.entry.blocks]

    def exposed(self, item: Item) -> bool:
        """The first of its line, and none of the others runs."""
        line = self.line(item)
        return line[0] is item and not any(each.job.state is State.RUNNING for each in line[1:])

    def blocked(self, queue: str) -> set[str]:
        """Lines of the queue whose head is dead."""
        dead = [item for item in self.in_state(State.DEAD) if item.entry.blocks and self.line(item)[0] is item]
        return {item.entry.line for item in dead if item.entry.line and item.entry.line.startswith(f"order/{queue}/")}
