"""Sleeping in several cells at once: a thread of each cell sleeps there, and the first answer counts.

A sleep that is still under way is joined by the next caller who waits for the same, so a worker that is woken often
leaves no sleepers behind. Each lasts for a second at most; a caller with more time sleeps again.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from threading import Event, Lock
from typing import Any, Final, TypeVar

from forebay.core.errors import StoreFailed
from forebay.core.instant import Duration, Instant
from forebay.core.lease import Fence
from forebay.store.cells.cell import Cell
from forebay.store.cells.cell_group import CellGroup
from forebay.store.cells.guard import CellDown

T = TypeVar("T", bound=bool | list[Any])
_MAX_SLEEP: Final[Duration] = 1_000_000


class Waiting:
    """The verbs that sleep."""

    def __init__(self, group: CellGroup) -> None:
        self._group: Final = group
        self._guard = Lock()
        self._asleep: dict[tuple[object, ...], Future[Any]] = {}

    def wait(self, queues: Sequence[str], span: Duration) -> bool:
        of = self._group.of_queues(queues, claimed=True)
        return bool(
            self._first(("wait", *queues), list(of), lambda cell, slept: cell.wait(of.get(cell, []), slept), span)
        )

    def wait_ended(self, ids: Sequence[int], span: Duration) -> list[int]:
        self._group.check_open()
        of: dict[Cell, list[int]] = {}
        gone: set[int] = set()
        for job_id in ids:
            cell = self._group.home(job_id)
            if cell is None:
                gone.add(job_id)
            else:
                of.setdefault(cell, []).append(job_id)
        if gone or not of:
            ended = [job_id for cell, part in of.items() for job_id in cell.wait_ended(part, 0)]
        else:
            watch = self._first(("ended", *ids), list(of), lambda cell, slept: cell.wait_ended(of[cell], slept), span)
            ended = watch or []
        return [job_id for job_id in ids if job_id in gone or job_id in ended]

    def wait_cancel_requests(self, owner: str, span: Duration, known: Collection[Fence]) -> list[Fence]:
        def requests(cell: Cell, slept: Duration) -> list[Fence]:
            return cell.wait_cancel_requests(owner, slept, known)

        found = self._first(("cancel", owner), self._group.cells, requests, span)
        return [fence for fence in found or () if fence not in known]

    def _first(
        self, key: tuple[object, ...], cells: Sequence[Cell], call: Callable[[Cell, Duration], T], span: Duration
    ) -> T | None:
        """The first answer that is not empty; None when the time is up."""
        self._group.check_open()
        cells = cells or self._group.cells[:1]
        if len(cells) == 1:
            return self._alone(cells[0], call, span)
        end = self._now() + span
        while True:
            left = max(0, end - self._now())
            sleepers = {cell: self._sleeper((*key, cell.name), cell, call, min(_MAX_SLEEP, left)) for cell in cells}
            answer = self._race(key, sleepers)
            if answer or left == 0 or self._now() >= end:
                return answer

    def _race(self, key: tuple[object, ...], sleepers: dict[Cell, Future[T]]) -> T | None:
        """The first answer; None: all slept in vain. Cells that are down do not take part, unless all are."""
        pending = set(sleepers.values())
        failed = 0
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for each in done:
                error = each.exception()
                if error is None and (answer := each.result()):
                    self._keep({(*key, cell.name): each for cell, each in sleepers.items() if each in pending})
                    return answer
                if error is not None and not isinstance(error, StoreFailed):
                    raise error
                failed += error is not None
        if failed == len(sleepers):
            self._rest(_MAX_SLEEP)
        return None

    def _alone(self, cell: Cell, call: Callable[[Cell, Duration], T], span: Duration) -> T | None:
        try:
            return call(cell, span)
        except StoreFailed:
            self._rest(span)
            return None

    def _rest(self, span: Duration) -> None:
        """In place of a sleep in cells that are down."""
        if self._group.all_down():
            raise CellDown(self._group.cells[0].name, str(self._group.cells[0].guard.down))
        Event().wait(min(span, _MAX_SLEEP) / 1_000_000)

    def _sleeper(
        self, key: tuple[object, ...], cell: Cell, call: Callable[[Cell, Duration], T], span: Duration
    ) -> Future[T]:
        with self._guard:
            asleep = self._asleep.pop(key, None) if span == _MAX_SLEEP else None
        return asleep or cell.guard.threads.submit(lambda: call(cell, span))

    def _keep(self, sleepers: dict[tuple[object, ...], Future[Any]]) -> None:
        """For the next caller who waits for the same; what nobody joined in time is forgotten."""
        with self._guard:
            self._asleep = {key: each for key, each in self._asleep.items() if not each.done()} | sleepers

    def _now(self) -> Instant:
        return self._group.first(lambda cell: cell.now())
