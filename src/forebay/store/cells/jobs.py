"""The life of a job over cells: a draft goes to the cell of its queue or partition, all else to that of the id."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from msgspec.structs import replace

from forebay.core.errors import ForebayError, Invalid, PartlyDone, QueueFull, StoreFailed
from forebay.core.instant import Duration, Instant
from forebay.core.job import Draft, Job, Progress, State
from forebay.core.lease import Fence, Lease, Settled, Settlement
from forebay.store.cells.cell import Cell
from forebay.store.cells.cell_group import CellGroup
from forebay.store.cells.guard import CellDown
from forebay.store.protocol import CancelAnswer, Promotion, Receipt, Want


class Jobs:
    """Intake, leases and verdicts."""

    def __init__(self, group: CellGroup) -> None:
        self._group: Final = group

    # -- intake

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """All or nothing where the drafts live in one cell; else each cell takes its part whole, or `PartlyDone`.

        A part that fails holds up no other. A part that is refused before anything else was done refuses the call.
        """
        self._group.check_open()
        receipts: list[Receipt | None] = [None] * len(drafts)
        parts = deque(self._parts(drafts).items())
        closed: set[Cell] = set()
        causes: list[ForebayError | None] = [None] * len(drafts)
        while parts:
            cell, places = parts.popleft()
            part = [drafts[place] for place in places]
            try:
                found = cell.enqueue(part) if cell in closed else cell.offer(part)
                if left := [place for place, receipt in zip(places, found, strict=True) if receipt is None]:
                    closed.add(cell)
                    self._group.refresh()
                    parts.extendleft(self._parts(drafts, left, moving=False).items())
            except ForebayError as error:
                if not (isinstance(error, StoreFailed) or any(receipts) or any(causes)):
                    raise
                for place in places:
                    causes[place] = error
                continue
            for place, receipt in zip(places, found, strict=True):
                receipts[place] = receipt
        if failures := [cause for cause in causes if cause is not None]:
            _raise(receipts, causes, failures)
        return [receipt for receipt in receipts if receipt is not None]

    def _parts(
        self, drafts: Sequence[Draft], places: Sequence[int] | None = None, *, moving: bool = True
    ) -> dict[Cell, list[int]]:
        """Cells, and the places of their drafts. `moving`: see `Router.homes`."""
        chosen = range(len(drafts)) if places is None else places
        parts: dict[Cell, list[int]] = {}
        homes = self._group.router.homes([drafts[place] for place in chosen], moving=moving)
        for place, name in zip(chosen, homes, strict=True):
            parts.setdefault(self._group.named(name), []).append(place)
        return parts

    def wait_for_room(self, full: QueueFull, until: Instant) -> None:
        """A bounded queue lives in one cell."""
        self._group.named(self._group.map.placement(full.queue).cells[0]).wait_for_room(full, until)

    def replace_dead(self, drafts: dict[int, Draft]) -> dict[int, Receipt]:
        """In the cell of the dead job, where the draft has to live too."""
        self._group.check_open()
        by_cell: dict[Cell, dict[int, Draft]] = {}
        for job_id, draft in drafts.items():
            cell = self._group.home(job_id)
            if cell is not None and self._lives_in(cell, job_id, draft):
                by_cell.setdefault(cell, {})[job_id] = draft
        replaced: dict[int, Receipt] = {}
        for cell, part in by_cell.items():
            try:
                replaced |= cell.replace_dead(part)
            except ForebayError as error:
                if not replaced:
                    raise
                raise PartlyDone([replaced.get(job_id) for job_id in drafts], error) from error
        return replaced

    def _lives_in(self, cell: Cell, job_id: int, draft: Draft) -> bool:
        """Whether the draft lives in the cell of a dead job; False: there is no such job."""
        placement = self._group.map.placement(draft.queue)
        fits = (
            cell.name in placement.distinct
            if placement.by in ("id", "key")
            else cell.name in self._group.router.homes([draft])
        )
        if fits:
            return True
        (job,) = cell.get([job_id])
        if job is None or job.state is not State.DEAD:
            return False
        reason = f"job {job_id} is dead in cell {cell.name!r}, and its draft would live in another one"
        raise Invalid("replace_dead", reason, "enqueue the draft, then purge the dead one")

    # -- leases and verdicts

    def promote(self, limit: int) -> Promotion:
        """Up to the limit in all: one cell after the other, each for what is left of it."""
        left = limit

        def promote(cell: Cell) -> Promotion:
            nonlocal left
            promotion = cell.promote(left) if left else Promotion(0, cell.now())
            left -= promotion.ready
            return promotion

        found = self._group.each(promote)
        due = [each.next_due for each in found if each.next_due is not None]
        return Promotion(sum(each.ready for each in found), min(due, default=None))

    def claim(self, wants: Sequence[Want], owner: str, lease_for: Duration) -> list[Lease]:
        """Cells in turn, each for all that is still wanted; one that is down is left out."""
        self._group.check_open()
        cells = list(self._group.of_queues((want.queue for want in wants), claimable=True))
        left = [want.count for want in wants]
        homes = [self._group.claimable(want.queue) for want in wants]
        found: list[list[Lease]] = [[] for _ in wants]
        for cell in self._group.in_turn(cells):
            wanted = [place for place, count in enumerate(left) if count and cell in homes[place]]
            if not wanted:
                continue
            try:
                leases = cell.claim([replace(wants[place], count=left[place]) for place in wanted], owner, lease_for)
            except StoreFailed:
                if self._group.all_down():
                    raise
                continue
            for lease in leases:
                place = next(each for each in wanted if left[each] and wants[each].queue == lease.job.queue)
                left[place] -= 1
                found[place].append(lease)
        return [lease for leases in found for lease in leases]

    def extend(self, leases: Sequence[Lease], lease_for: Duration) -> list[Lease]:
        """Leases of a cell that does not answer come back as they are: they are not extended, and not lost either."""

        def extend(cell: Cell, part: list[Lease]) -> list[Lease | None]:
            try:
                alive = {lease.fence: lease for lease in cell.extend(part, lease_for)}
            except StoreFailed:
                if self._group.all_down():
                    raise
                return list(part)
            return [alive.get(lease.fence) for lease in part]

        found = self._group.by_id(leases, lambda lease: lease.job.id, extend, None)
        return list({lease.fence: lease for lease in found if lease is not None}.values())

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """`PartlyDone` also where nothing is done while other cells are up: a worker goes on with their verdicts."""

        def job_id(settlement: Settlement) -> int:
            lease, _ = settlement
            return lease.job.id

        try:
            return self._group.by_id(settlements, job_id, lambda cell, part: cell.settle(part), Settled.STALE)
        except CellDown as error:
            if self._group.all_down():
                raise
            raise PartlyDone([None] * len(settlements), error) from error

    def overdue(self, limit: int) -> list[Lease]:
        found = [lease for page in self._group.each(lambda cell: cell.overdue(limit)) for lease in page]
        return sorted(found, key=lambda lease: (lease.until, lease.job.id))[:limit]

    def report_progress(self, newest: dict[Fence, Progress]) -> dict[Fence, bool]:
        def report(cell: Cell, fences: list[Fence]) -> list[bool]:
            current = cell.report_progress({fence: newest[fence] for fence in fences})
            return [current[fence] for fence in fences]

        def job_id(fence: Fence) -> int:
            of_job, _ = fence
            return of_job

        fences = list(newest)
        return dict(zip(fences, self._group.by_id(fences, job_id, report, False), strict=True))

    # -- by id

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        return self._group.by_id(ids, int, lambda cell, part: cell.get(part), None)

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        return self._group.by_id(ids, int, lambda cell, part: cell.cancel(part), CancelAnswer.GONE)

    def redrive(self, ids: Sequence[int]) -> list[int]:
        try:
            return self._moved(ids, lambda cell, part: cell.redrive(part))
        except QueueFull as full:
            if full.limit > 0 or full.queue not in self._group.map.moves:
                raise
            reason = "it has left the cell that has these dead letters, so they cannot become jobs there"
            raise Invalid(f"queue {full.queue}", reason, "enqueue their drafts again, then purge them") from None

    def purge_dead(self, ids: Sequence[int]) -> list[int]:
        return self._moved(ids, lambda cell, part: cell.purge_dead(part))

    def _moved(self, ids: Sequence[int], call: Callable[[Cell, list[int]], list[int]]) -> list[int]:
        """Each cell returns those that it moved."""

        def moved(cell: Cell, part: list[int]) -> list[bool]:
            found = set(call(cell, part))
            return [job_id in found for job_id in part]

        unique = list(dict.fromkeys(ids))
        answers = self._group.by_id(unique, int, moved, False)
        return [job_id for job_id, done in zip(unique, answers, strict=True) if done]

    def purge(self, state: State, before: Instant, limit: int, queue: str | None) -> int:
        self._group.check_open()
        gone = 0
        for cell in self._group.cells if queue is None else self._group.of_queue(queue):
            if gone < limit:
                gone += cell.purge(state, before, limit - gone, queue)
        return gone


def _raise(
    receipts: list[Receipt | None], causes: list[ForebayError | None], failures: Sequence[ForebayError]
) -> NoReturn:
    """The failure of a store alone, if nothing else happened."""
    refused = [failure for failure in failures if not isinstance(failure, StoreFailed)]
    if any(receipts) or refused:
        raise PartlyDone(receipts, failures[0], causes) from failures[0]
    raise failures[0]
