"""Lines: of the jobs of one line (`InOrder`, `LatestWins`) the smallest unfinished id is exposed, and no other.

An exposed job is waiting for its time, ready or running; the others wait whatever their time. A dead job that blocks
its line stays in it. Nothing here is a fact: it is rebuilt from the rows.
"""

from collections.abc import Iterator
from itertools import islice

from forebay.core.job import State
from forebay.core.limits import MAX_AHEAD, MAX_BLOCKED
from forebay.store.memory.facts import Row
from forebay.store.memory.heaps import LazyHeap
from forebay.store.protocol import Hold


class _Line:
    __slots__ = ("exposed", "jobs")

    def __init__(self) -> None:
        self.jobs: LazyHeap[Row] = LazyHeap()
        self.exposed: Row | None = None


class Lines:
    """All lines with unfinished jobs, or with a dead job that blocks them."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._dead: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def join(self, name: str, row: Row, *, exposed: bool = False) -> bool:
        """A row that is not finished, or blocks the line; whether it may be the first one."""
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
        line.jobs.push(row.entry.id, row.entry.id, row)
        if exposed:
            line.exposed = row
        return line.jobs.items[0][2] is row

    def leave(self, name: str, row: Row) -> None:
        """The row ended, and does not block the line."""
        line = self._lines[name]
        line.jobs.forget(row.entry.id, row.entry.id)
        if line.exposed is row:
            line.exposed = None

    def hide(self, name: str, row: Row) -> None:
        """The row is not exposed any more: it runs no longer, died, or is behind another one again."""
        line = self._lines[name]
        if line.exposed is row:
            line.exposed = None

    def advance(self, name: str) -> tuple[Row | None, Row | None]:
        """The row that is exposed no longer, and the one exposed instead. What runs finishes first."""
        line = self._lines.get(name)
        if line is None or (line.exposed is not None and line.exposed.state is State.RUNNING):
            return None, None
        before, head = line.exposed, line.jobs.peek()
        if head is None:
            del self._lines[name]
        elif head is not before:
            line.exposed = None if head.state.terminal else head
            return before, line.exposed
        return None, None

    def exposed(self, name: str) -> Row | None:
        line = self._lines.get(name)
        return None if line is None else line.exposed

    def block(self, name: str, row: Row) -> None:
        """A row died that blocks its line, now or when it is its turn."""
        names = self._dead.setdefault(row.queue, {})
        names[name] = names.get(name, 0) + 1

    def unblock(self, name: str, row: Row) -> None:
        """It is alive again, or gone."""
        names = self._dead[row.queue]
        names[name] -= 1
        if not names[name]:
            del names[name]
            if not names:
                del self._dead[row.queue]

    def blocked(self, queue: str) -> int:
        """How many lines of the queue have a dead head."""
        heads = (self._lines[name].jobs.peek() for name in islice(self._dead.get(queue, ()), MAX_BLOCKED))
        return sum(head is not None and head.state is State.DEAD for head in heads)

    def holding(self, name: str, row: Row) -> Hold | None:
        """What a due row waits for in its line; None: it is exposed."""
        line = self._lines[name]
        if line.exposed is row:
            return None
        runs = line.exposed is not None and line.exposed.state is State.RUNNING
        first = line.exposed if runs else line.jobs.peek()
        assert first is not None
        before = line.jobs.before(row.entry.id, row.entry.id, MAX_AHEAD, lambda each: _counts(each, first))
        return Hold(name, 1, int(runs), before, first.entry.id)


def _counts(row: Row, first: Row) -> bool:
    return row is not first and row.state is not State.DEAD
