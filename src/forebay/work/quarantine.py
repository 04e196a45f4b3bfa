"""Quarantine: suspects run in child processes of the worker, one at a time in each, while the pool continues.

The death of a child is charged only to the job that ran in it. The verdict on a suspect is durable before the next one
begins in the same child, so a crash is never charged to the previous suspect. A child is reused only after a success;
it is started on demand and stopped after it was idle for a while.

Suspects that wait for a child are held here in a bounded number, and their leases are renewed. They have no start mark,
so recovery reads that they have not begun.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from time import monotonic
from typing import Final

from forebay.core.lease import Fence
from forebay.core.outcome import Abandoned, Outcome, Snoozed, Succeeded
from forebay.work.exit_status import describe_exit
from forebay.work.isolate import ChildDied, IsolatedProcess
from forebay.work.options import Options
from forebay.work.run import Run
from forebay.work.stall_watch import StallWatch, abort_stalled, describe_stall, stall_bound
from forebay.work.start_marks import Stall, StartMarks, child_path
from forebay.work.threads import ThreadSlots

_log = logging.getLogger("forebay.work")

MAX_WAITING: Final = 64
"""Suspects that may wait for a child."""

_MAX_IDLE: Final = 60.0
_START_DELAY: Final = 3_000_000


SuspectStart = tuple[Fence, int]
"""A suspect, and the slot in which it may begin now."""


class SuspectBoard:
    """Assigns suspects to slots: one at a time in each, the next one only after the verdict is durable.

    Suspects without a slot wait in a bounded queue. Not thread-safe.
    """

    def __init__(self, slots: int, max_waiting: int) -> None:
        self._capacity = slots + max_waiting
        self._free = list(range(slots))
        self._waiting: deque[Fence] = deque()
        self._slot_of: dict[Fence, int] = {}

    @property
    def capacity(self) -> int:
        """How many more suspects it accepts."""
        return self._capacity - len(self._waiting) - len(self._slot_of)

    def admit(self, suspects: Iterable[Fence]) -> list[SuspectStart]:
        self._waiting.extend(suspects)
        return self._begin()

    def settled(self, suspect: Fence) -> list[SuspectStart]:
        """The verdict of the suspect is durable, or it left without one."""
        slot = self._slot_of.pop(suspect, None)
        if slot is not None:
            self._free.append(slot)
        elif suspect in self._waiting:
            self._waiting.remove(suspect)
        return self._begin()

    def __contains__(self, suspect: Fence) -> bool:
        return suspect in self._slot_of or suspect in self._waiting

    def _begin(self) -> list[SuspectStart]:
        starts: list[SuspectStart] = []
        while self._free and self._waiting:
            suspect, slot = self._waiting.popleft(), self._free.pop()
            self._slot_of[suspect] = slot
            starts.append((suspect, slot))
        return starts


class Quarantine:
    """Runs suspects. `begin` is called just before each handler, `finish` once for each run.

    The pool calls `settled` when the verdict on a run is durable.
    """

    def __init__(
        self,
        options: Options,
        target: str,
        begin: Callable[[Run], bool],
        finish: Callable[[Run, Outcome], bool],
        marks: StartMarks | None = None,
    ) -> None:
        size, self._bound = options.quarantine_processes, stall_bound(options.lease_for.total_seconds())
        self._begin = begin
        self._finish = finish
        self._board = SuspectBoard(size, MAX_WAITING)
        self._slots = ThreadSlots("quarantine", size, self._execute, self._conclude)
        self._guard = Lock()
        self._runs: dict[Fence, Run] = {}
        self._slot_of: dict[Run, int] = {}
        self._written: set[Fence] = set()
        paths = [None if marks is None else child_path(marks.path, slot) for slot in range(size)]
        self._children = [IsolatedProcess(target, path) for path in paths]
        self._watches: dict[int, StallWatch] = {}
        self._stalls: dict[Run, Stall] = {}
        self._used_at = [monotonic()] * size

    @property
    def capacity(self) -> int:
        """How many more suspects may be submitted."""
        with self._guard:
            return self._board.capacity

    def submit(self, runs: Sequence[Run]) -> None:
        with self._guard:
            self._runs.update((run.fence, run) for run in runs)
            begun = self._assign(self._board.admit([run.fence for run in runs]))
        self._slots.submit(begun)

    def settled(self, fence: Fence) -> None:
        """The verdict is durable, or there is none."""
        if fence not in self._runs:
            return
        with self._guard:
            if self._runs[fence] in self._slot_of:
                # The run ended before its child did: `_conclude` releases the slot.
                self._written.add(fence)
                return
            del self._runs[fence]
            begun = self._assign(self._board.settled(fence))
        self._slots.submit(begun)

    def interrupt(self, run: Run) -> None:
        """Stop a run (`run.stop` says why): kill its child, or end it at once if it has none yet."""
        with self._guard:
            slot = self._slot_of.get(run)
            if slot is None and self._runs.pop(run.fence, None) is not None:
                self._board.settled(run.fence)
        if slot is not None:
            self._children[slot].kill()
        else:
            self._finish(run, run.stopped_outcome())

    def waiting(self) -> list[Run]:
        """Suspects that wait for a child."""
        with self._guard:
            return [run for run in self._runs.values() if run not in self._slot_of and not run.over]

    def sweep(self) -> None:
        """Stop idle children, kill the orphans of dead ones, and abort stalled ones."""
        now = monotonic()
        with self._guard:
            used = set(self._slot_of.values())
            idle = [slot for slot, at in enumerate(self._used_at) if slot not in used and at + _MAX_IDLE <= now]
            for slot in idle:
                self._children[slot].close()
            self._watches = {slot: watch for slot, watch in self._watches.items() if slot in used}
        for slot in used:
            self._children[slot].kill_orphans()
        self._abort_stalled()

    def _abort_stalled(self) -> None:
        """A suspect that holds the GIL of its child is charged for it, as in the pool."""
        with self._guard:
            running = [(run, slot) for run, slot in self._slot_of.items() if run.started_at]
        for run, slot in running:
            child = self._children[slot]
            if run in self._stalls:
                child.kill()
            elif child.heartbeat is not None:
                watch = self._watches.setdefault(slot, StallWatch(child.heartbeat, self._bound))
                if (found := watch.check()) is not None:
                    heartbeat, self._stalls[run] = found
                    abort_stalled(child.heartbeat, heartbeat, self._stalls[run])

    def hang_up(self) -> None:
        """Let idle children run their shutdown hooks; `close` waits for them."""
        with self._guard:
            used = set(self._slot_of.values())
            for slot, child in enumerate(self._children):
                if slot not in used:
                    child.hang_up()

    def close(self, children_by: float = 0.0) -> None:
        self._slots.close()
        for child in self._children:
            child.close(max(0.0, children_by - monotonic()))

    def _assign(self, starts: Sequence[SuspectStart]) -> list[Run]:
        runs = []
        for fence, slot in starts:
            run = self._runs[fence]
            self._slot_of[run] = slot
            runs.append(run)
        return runs

    def _execute(self, run: Run) -> Outcome:
        child = self._children[self._slot_of[run]]
        try:
            child.prepare()
            if run.stop is not None or not self._begin(run):
                return run.stopped_outcome()
            return child.run(run)
        except ChildDied as died:
            if run.stop is not None:
                return run.stopped_outcome()
            if not died.begun:
                _log.error("quarantine: a child process %s before it ran a job", died)
                return Snoozed(_START_DELAY)
            if (stall := self._stalls.get(run)) is not None:
                return Abandoned(describe_stall(stall))
            return Abandoned(f"the process {describe_exit(died.code)} while running it")

    def _conclude(self, run: Run, outcome: Outcome) -> None:
        """End the run. After anything but a success the child may be in any state, so it is stopped."""
        with self._guard:
            slot = self._slot_of.pop(run)
            self._stalls.pop(run, None)
            self._watches.pop(slot, None)
            self._used_at[slot] = monotonic()
            if not isinstance(outcome, Succeeded):
                self._children[slot].close()
            written = run.fence in self._written
            self._written.discard(run.fence)
        self._finish(run, outcome)
        if written:
            self.settled(run.fence)
