"""The lines of the in-process store (`engine.lines`): the jobs of each by id, and the one that is exposed.

Nothing here is a fact: it is rebuilt from the rows.
"""

from collections.abc import Iterator
from itertools import islice

from forebay.core.limits import MAX_AHEAD, MAX_BLOCKED
from forebay.engine.lines import expose, line_hold
from forebay.store.memory.facts import JobRow
from forebay.store.memory.heaps import LazyHeap
from forebay.store.protocol import Hold


class _Line:
    __slots__ = ("exposed", "jobs")

    def __init__(self) -> None:
        self.jobs: LazyHeap[JobRow] = LazyHeap()
        self.exposed: JobRow | None = None


class Lines:
    """All lines that have jobs. `due`: rows that wait for nothing but their time, such as exposed ones."""

    def __init__(self, due: LazyHeap[JobRow]) -> None:
        self._due = due
        self._lines: dict[str, _Line] = {}
        self._dead: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def join(self, name: str, row: JobRow, *, exposed: bool = False) -> bool:
        """The line has this row; whether it may be its head."""
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
        line.jobs.push(row.entry.id, row.entry.id, row)
        if exposed:
            line.exposed = row
        _, _, first = line.jobs.items[0]
        return first is row

    def leave(self, name: str, row: JobRow) -> None:
        """The line does not have the row any more."""
        self.step_back(name, row)
        self._lines[name].jobs.forget(row.entry.id, row.entry.id)

    def step_back(self, name: str, row: JobRow) -> None:
        """The row does not run any more, died, or was withdrawn: it is not exposed, until `expose` says so."""
        line = self._lines[name]
        if line.exposed is row:
            line.exposed = None

    def expose(self, name: str) -> None:
        line = self._lines[name]
        head = line.jobs.peek()
        if head is None:
            del self._lines[name]
            return
        hidden, shown = expose(head, line.exposed)
        if hidden is not None:
            line.exposed = None
            self._due.forget(hidden.due_at, hidden.entry.id)
        if shown is not None:
            line.exposed = shown
            self._due.push(shown.due_at, shown.entry.id, shown)

    def exposed(self, name: str) -> JobRow | None:
        line = self._lines.get(name)
        return None if line is None else line.exposed

    def hold(self, name: str, row: JobRow) -> Hold | None:
        jobs = self._lines[name].jobs
        head = jobs.peek()
        assert head is not None
        first, last = head.id, row.id
        return line_hold(
            name,
            first,
            head.is_running,
            last,
            lambda: jobs.before(last, last, MAX_AHEAD, lambda each: each.id > first and not each.has_ended),
        )

    def block(self, name: str, row: JobRow) -> None:
        """A row died that blocks its line, now or once it is its head."""
        names = self._dead.setdefault(row.queue, {})
        names[name] = names.get(name, 0) + 1

    def unblock(self, name: str, row: JobRow) -> None:
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
        return sum(head is not None and head.has_ended for head in heads)
