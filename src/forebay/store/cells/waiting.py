"""Waiting in several cells at once: a thread of each cell waits there, and the first answer counts.

A wait that is still under way is joined by the next call that waits for the same, so a worker that is notified often
leaves no waiting threads behind. Each lasts for a second at most; a call with more time waits again.
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
_MAX_WAIT: Final[Duration] = 1_000_000


class Waiting:
    """The verbs that wait."""

    def __init__(self, group: CellGroup) -> None:
        self._group: Final = group
        self._lock = Lock()
        self._under_way: dict[tuple[object, ...], Future[Any]] = {}

    def wait(self, queues: Sequence[str], duration: Duration) -> bool:
        queues_in = self._group.of_queues(queues, claimable=True)

        def has_work(cell: Cell, at_most: Duration) -> bool:
            return cell.wait(queues_in.get(cell, []), at_most)

        return bool(self._first(("wait", *queues), list(queues_in), has_work, duration))

    def wait_ended(self, ids: Sequence[int], duration: Duration) -> list[int]:
        self._group.check_open()
        ids_in: dict[Cell, list[int]] = {}
        gone: set[int] = set()
        for job_id in ids:
            cell = self._group.home(job_id)
            if cell is None:
                gone.add(job_id)
            else:
                ids_in.setdefault(cell, []).append(job_id)

        def ended_in(cell: Cell, at_most: Duration) -> list[int]:
            return cell.wait_ended(ids_in[cell], at_most)

        if gone or not ids_in:
            ended = [job_id for cell in ids_in for job_id in ended_in(cell, 0)]
        else:
            ended = self._first(("ended", *ids), list(ids_in), ended_in, duration) or []
        return [job_id for job_id in ids if job_id in gone or job_id in ended]

    def wait_cancel_requests(self, owner: str, duration: Duration, known: Collection[Fence]) -> list[Fence]:
        def requests(cell: Cell, at_most: Duration) -> list[Fence]:
            return cell.wait_cancel_requests(owner, at_most, known)

        found = self._first(("cancel", owner), self._group.cells, requests, duration)
        return [fence for fence in found or () if fence not in known]

    def _first(
        self, key: tuple[object, ...], cells: Sequence[Cell], call: Callable[[Cell, Duration], T], duration: Duration
    ) -> T | None:
        """The first answer that is not empty; None when the time is up."""
        self._group.check_open()
        cells = cells or self._group.cells[:1]
        if len(cells) == 1:
            return self._alone(cells[0], call, duration)
        end = self._now() + duration
        while True:
            left = max(0, end - self._now())
            waits = {cell: self._wait_in((*key, cell.name), cell, call, min(_MAX_WAIT, left)) for cell in cells}
            answer = self._first_answer(key, waits)
            if answer or left == 0 or self._now() >= end:
                return answer

    def _first_answer(self, key: tuple[object, ...], waits: dict[Cell, Future[T]]) -> T | None:
        """The first answer that is not empty; None: there is none. A cell that is down is left out unless all are."""
        pending = set(waits.values())
        failed = 0
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for each in done:
                error = each.exception()
                if error is None and (answer := each.result()):
                    self._keep({(*key, cell.name): each for cell, each in waits.items() if each in pending})
                    return answer
                if error is not None and not isinstance(error, StoreFailed):
                    raise error
                failed += error is not None
        if failed == len(waits):
            self._pause(_MAX_WAIT)
        return None

    def _alone(self, cell: Cell, call: Callable[[Cell, Duration], T], duration: Duration) -> T | None:
        try:
            return call(cell, duration)
        except StoreFailed:
            self._pause(duration)
            return None

    def _pause(self, duration: Duration) -> None:
        """Instead of a wait in cells that are down."""
        if self._group.all_down():
            raise CellDown(self._group.cells[0].name, str(self._group.cells[0].guard.down))
        Event().wait(min(duration, _MAX_WAIT) / 1_000_000)

    def _wait_in(
        self, key: tuple[object, ...], cell: Cell, call: Callable[[Cell, Duration], T], duration: Duration
    ) -> Future[T]:
        with self._lock:
            joined = self._under_way.pop(key, None) if duration == _MAX_WAIT else None
        return joined or cell.guard.threads.submit(lambda: call(cell, duration))

    def _keep(self, waits: dict[tuple[object, ...], Future[Any]]) -> None:
        """For the next call that waits for the same; those that have ended meanwhile are dropped."""
        with self._lock:
            self._under_way = {key: each for key, each in self._under_way.items() if not each.done()} | waits

    def _now(self) -> Instant:
        return self._group.first(lambda cell: cell.now())
