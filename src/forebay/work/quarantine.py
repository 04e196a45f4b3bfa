"""Quarantine: suspects run in child processes of the worker, one at a time in each; the pool goes on meanwhile.

A child that dies costs the job that ran in it, and nobody else. The verdict about a suspect is durable before the next
one begins in the same child, so whatever happens there is never charged to the one before. A child is kept for the next
suspect only if the last one succeeded; it is started when it is needed, and ended after it was idle for a while.

Suspects that wait for a child are held here, their leases renewed; how many is bounded. They have no start mark, so
whoever takes them back knows that they have not begun.
"""

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from time import monotonic
from typing import Final

from forebay.core.lease import Fence
from forebay.core.outcome import Abandoned, Outcome, Snoozed, Succeeded
from forebay.work.exit_status import describe_exit
from forebay.work.isolate import Child, ChildDied
from forebay.work.options import Options
from forebay.work.run import Run
from forebay.work.stall_watch import StallWatch, describe_stall, end_stalled, stall_bound
from forebay.work.start_marks import Stall, StartMarks, child_path
from forebay.work.suspects import Placement, SuspectBoard
from forebay.work.threads import ThreadSlots

_log = logging.getLogger("forebay.work")

MAX_WAITING: Final = 64
"""Suspects that wait here for a child."""

_IDLE_MOST: Final = 60.0
_START_AGAIN: Final = 3_000_000


class Quarantine:
    """`begin` is called just before a handler; `finish` once a run; `settled` says that its verdict is durable."""

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
        self._place_of: dict[Run, int] = {}
        self._written: set[Fence] = set()
        paths = [None if marks is None else child_path(marks.path, place) for place in range(size)]
        self._children = [Child(target, path) for path in paths]
        self._watches: dict[int, StallWatch] = {}
        self._stalls: dict[Run, Stall] = {}
        self._used_at = [monotonic()] * size

    @property
    def room(self) -> int:
        """How many more suspects may be held here."""
        with self._guard:
            return self._board.room

    def feed(self, runs: Sequence[Run]) -> None:
        with self._guard:
            self._runs.update((run.fence, run) for run in runs)
            begun = self._placed(self._board.admit([run.fence for run in runs]))
        self._slots.feed(begun)

    def settled(self, fence: Fence) -> None:
        """The store has the verdict, or there is none to wait for."""
        if fence not in self._runs:
            return
        with self._guard:
            if self._runs[fence] in self._place_of:
                # It was given up before its child was.
                self._written.add(fence)
                return
            del self._runs[fence]
            begun = self._placed(self._board.settled(fence))
        self._slots.feed(begun)

    def interrupt(self, run: Run) -> None:
        """`run.stop` says why. One that waits for a child ends at once, one that runs is killed."""
        with self._guard:
            place = self._place_of.get(run)
            if place is None and self._runs.pop(run.fence, None) is not None:
                self._board.settled(run.fence)
        if place is not None:
            self._children[place].kill()
        else:
            self._finish(run, run.stopped_outcome())

    def waiting(self) -> list[Run]:
        """Suspects that have no child yet."""
        with self._guard:
            return [run for run in self._runs.values() if run not in self._place_of and not run.over]

    def sweep(self) -> None:
        """End children that were idle for long, and let go of those that died while others hold their pipes."""
        now = monotonic()
        with self._guard:
            used = set(self._place_of.values())
            idle = [place for place, at in enumerate(self._used_at) if place not in used and at + _IDLE_MOST <= now]
            for place in idle:
                self._children[place].close()
            self._watches = {place: watch for place, watch in self._watches.items() if place in used}
        for place in used:
            self._children[place].let_go_of_dead()
        self._end_stalled()

    def _end_stalled(self) -> None:
        """A suspect that holds its interpreter is charged for it, as it would be in the pool."""
        with self._guard:
            running = [(run, place) for run, place in self._place_of.items() if run.started_at]
        for run, place in running:
            child = self._children[place]
            if run in self._stalls:
                child.kill()
            elif child.pulse is not None:
                watch = self._watches.setdefault(place, StallWatch(child.pulse, self._bound))
                if (found := watch.look()) is not None:
                    self._stalls[run] = found[1]
                    end_stalled(child.pulse, *found)

    def close(self) -> None:
        self._slots.close()
        for child in self._children:
            child.close()

    def _placed(self, starts: Sequence[Placement]) -> list[Run]:
        runs = []
        for fence, place in starts:
            run = self._runs[fence]
            self._place_of[run] = place
            runs.append(run)
        return runs

    def _execute(self, run: Run) -> Outcome:
        child = self._children[self._place_of[run]]
        try:
            child.prepare()
            if run.stop is not None or not self._begin(run):
                return run.stopped_outcome()
            return child.run(run)
        except ChildDied as died:
            if run.stop is not None:
                return run.stopped_outcome()
            if not died.begun:
                _log.error("quarantine: a child process %s before it could run a job", died)
                return Snoozed(_START_AGAIN)
            if (stall := self._stalls.get(run)) is not None:
                return Abandoned(describe_stall(stall))
            return Abandoned(f"the process {describe_exit(died.code)} while running it")

    def _conclude(self, run: Run, outcome: Outcome) -> None:
        """Whatever did not go well may have left the child in any state."""
        with self._guard:
            place = self._place_of.pop(run)
            self._stalls.pop(run, None)
            self._watches.pop(place, None)
            self._used_at[place] = monotonic()
            if not isinstance(outcome, Succeeded):
                self._children[place].close()
            written = run.fence in self._written
            self._written.discard(run.fence)
        self._finish(run, outcome)
        if written:
            self.settled(run.fence)
