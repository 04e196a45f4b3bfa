"""The model of claims: exactly the jobs that a claim must hand out, one after the other, by the current specs.

The next job is the first in (rank, id), where classes share that of a class with the smallest turn. It starts if all
its gates have room and no earlier head waits for room at one of them. Where a lane with two closed gates waits at only
one of them, and what a head past its expiry keeps waiting, is the store's affair: only what is held in every reading
must be, and only what is free in every reading must start.

Turns are kept as intervals: a class that was held may have been lifted like one that was idle, or not. After a
reopening and with another spec they may begin anew, so a queue has several `Turns`, and one of them must explain all.
"""

from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.share import UNIT
from forebay.core.stamp import Stamper
from forebay.store.protocol import Want
from forebay_proof.model.gates import GateModel
from forebay_proof.model.jobs import OPEN, Item, JobTable, require


class Turns:
    """One reading of the turns of a queue's classes: the earliest and the latest of each, and of what started last."""

    def __init__(self) -> None:
        self.last = (0, 0)
        self.classes: dict[str, tuple[int, int]] = {}

    def of(self, cls: str) -> tuple[int, int]:
        return self.classes.get(cls, self.last)

    def lift(self, cls: str, *, surely: bool) -> None:
        """The class had no work, or may have had none: an idle class saves no turns."""
        earliest, latest = self.of(cls)
        self.classes[cls] = (max(earliest, self.last[0]) if surely else earliest, max(latest, self.last[1]))

    def start(self, cls: str, weight: int, *, in_turn: bool) -> None:
        earliest, latest = self.of(cls)
        last_earliest, last_latest = self.last
        self.last = (earliest, latest) if in_turn else (min(earliest, last_earliest), max(latest, last_latest))
        self.classes[cls] = (earliest + UNIT // weight, latest + UNIT // weight)

    def before(self, cls: str, other: str, *, surely: bool) -> bool:
        (earliest, latest), (other_earliest, other_latest) = self.of(cls), self.of(other)
        return latest < other_earliest if surely else earliest <= other_latest


class ClaimModel:
    """What claims hand out. `uncovered`: lines whose head expired in this call, so that the next job may be late."""

    def __init__(self, jobs: JobTable, gates: GateModel) -> None:
        self._jobs = jobs
        self._gates = gates
        self.turns: dict[str, list[Turns]] = {}
        self.uncovered: set[str] = set()
        self._busy: set[tuple[str, str]] = set()

    def reopened(self) -> None:
        for queue in self.turns:
            self.restart_turns(queue)

    def lift_classes(self) -> None:
        """Called after each observation: classes that have ready work again were lifted when they got it.

        An empty queue may drop its turns: shares are promised while two classes have work.
        """
        busy = {(item.job.queue, item.entry.cls) for item in self._jobs.in_state(State.READY)}
        for queue, cls in busy - self._busy:
            for turns in self._turns(queue):
                turns.lift(cls, surely=True)
        self._busy = busy
        for queue in self.turns:
            if not self._jobs.in_state(*OPEN, queue=queue):
                self.restart_turns(queue)

    def claimable(self, now: Instant, queue: str) -> list[Item]:
        """Those that are due, exposed and not past their expiry, in the order of rank and id."""
        items = [i for i in self._jobs.in_state(*OPEN[:2], queue=queue) if i.job.due_at <= now and not i.expired(now)]
        return sorted((item for item in items if self._jobs.exposed(item)), key=lambda item: item.place)

    def begin(self, now: Instant, queue: str) -> None:
        """What is due gets ready first, so its classes are lifted first."""
        for item in self.claimable(now, queue):
            if (queue, item.entry.cls) not in self._busy:
                self._busy.add((queue, item.entry.cls))
                for turns in self._turns(queue):
                    turns.lift(item.entry.cls, surely=True)

    def check_next(self, now: Instant, want: Want, item: Item) -> None:
        """The item is handed out next: it may start, and nothing that must start goes before it."""
        heads = self._heads(now, want.queue, item)
        job_id = item.job.id
        first = next((head.job.id for head in heads if head.lane == item.lane), job_id)
        require(first == job_id or item.entry.line in self.uncovered, f"job {job_id} starts before", first)
        gates = [*self._gates.whole(want.queue), *self._gates.lane_gates(item)]
        closed = self._gates.closed(item, gates, now)
        require(
            not closed, f"job {job_id} starts at a closed gate", closed, [self._gates.in_use(g.name) for g in closed]
        )
        others = [head for head in heads if head.lane != item.lane and want.cls in (None, head.entry.cls)]
        passed = [head.job.id for head in others if self._surely_waits_before(head, item, heads, now)]
        require(not passed, f"job {job_id} passes one that waits for room", passed)
        rivals = [head for head in others if self._surely_free(head, heads, now)]
        self._check_turn(want, item, rivals)

    def started(self, now: Instant, want: Want, item: Item) -> None:
        """Called when it runs: its class has had a turn, and held classes may count as idle."""
        weight = Stamper(self._jobs.spec(want.queue)).weight(item.entry.cls)
        if not weight:
            return
        heads = self._heads(now, want.queue, item)
        free = {head.entry.cls for head in heads if self._surely_free(head, heads, now)}
        for turns in self._turns(want.queue):
            turns.start(item.entry.cls, weight, in_turn=want.cls is None)
            for cls in turns.classes.keys() - free:
                turns.lift(cls, surely=False)

    def check_exhausted(self, now: Instant, want: Want) -> None:
        """No more came, though more was wanted: nothing is left that must start."""
        heads = self._heads(now, want.queue)
        asked = [head for head in heads if want.cls in (None, head.entry.cls)]
        left = [head for head in asked if self._surely_free(head, [o for o in heads if o.cell == head.cell], now)]
        require(not left, "a claim left jobs that had to be handed out", want, [head.job.id for head in left])

    def _turns(self, queue: str) -> list[Turns]:
        return self.turns.setdefault(queue, [Turns()])

    def restart_turns(self, queue: str) -> None:
        self.turns[queue] = [*(turns for turns in self._turns(queue) if turns.classes), Turns()]

    def _check_turn(self, want: Want, item: Item, rivals: list[Item]) -> None:
        passed = [each for each in rivals if each.place < item.place]
        if self._jobs.spec(want.queue).share is not None:
            alike = [each.job.id for each in passed if each.entry.cls == item.entry.cls]
            require(not alike, f"job {item.job.id} passes others of its class", alike)
            mine, others = item.entry.cls, {each.entry.cls for each in rivals} - {item.entry.cls}
            legal = [t for t in self._turns(want.queue) if all(t.before(mine, each, surely=False) for each in others)]
            seen = [(t.last, t.classes) for t in self._turns(want.queue)]
            require(
                bool(legal) or want.cls is not None, f"job {item.job.id} is not of the class whose turn it is", seen
            )
            self.turns[want.queue] = legal or self.turns[want.queue]
        else:
            require(not passed, f"job {item.job.id} passes others", [each.job.id for each in passed])

    def _heads(self, now: Instant, queue: str, among: Item | None = None) -> list[Item]:
        """The first of each lane, in order, in the cell of an item or in all.

        What was exposed only in this call does not hide one that was before.
        """
        heads: dict[object, Item] = {}
        for item in self.claimable(now, queue):
            if item.entry.line not in self.uncovered or item.entry.line is None:
                heads.setdefault(item.lane, item)
        return [head for head in heads.values() if among is None or head.cell == among.cell]

    def _before(self, head: Item, item: Item, *, surely: bool) -> bool:
        """Whether a claim meets the head first."""
        share = self._jobs.spec(item.job.queue).share
        if share is None or head.entry.cls == item.entry.cls:
            return head.place < item.place
        readings = [t.before(head.entry.cls, item.entry.cls, surely=surely) for t in self._turns(item.job.queue)]
        return all(readings) if surely else any(readings)

    def _surely_waits_before(self, head: Item, item: Item, heads: list[Item], now: Instant) -> bool:
        """Whether the head comes first and waits at a gate of the item, in every reading."""
        if not self._before(head, item, surely=True) or self._expired_before(head, now):
            return False
        lane, whole = self._gates.lane_gates(head), self._gates.closed(head, self._gates.whole(head.job.queue), now)
        if not lane:
            return bool(whole)
        names = {gate.name for gate in self._gates.lane_gates(item)}
        closed = [gate.name for gate in self._gates.closed(head, lane, now)]
        elsewhere = [gate for gate in lane if gate.name not in closed and self._waiting_at(gate.name, head, heads, now)]
        return not whole and len(closed) == 1 and closed[0] in names and not elsewhere

    def _surely_free(self, head: Item, heads: list[Item], now: Instant) -> bool:
        """Whether the head must start when a claim meets it, in every reading."""
        gates, queue = self._gates.lane_gates(head), head.job.queue
        if self._expired_before(head, now) or self._gates.closed(head, [*self._gates.whole(queue), *gates], now):
            return False
        if any(self._waiting_at(gate.name, head, heads, now) for gate in gates):
            return False
        whole = self._gates.whole(queue)
        costly = [each for each in heads if each is not head and self._gates.closed(each, whole, now)]
        return not any(self._before(each, head, surely=False) for each in costly)

    def _waiting_at(self, name: str, head: Item, heads: list[Item], now: Instant) -> bool:
        """Whether a head that may come first may wait for room there, be it expired or not."""
        late = [each for each in self._jobs.in_state(*OPEN[:2], queue=head.job.queue) if each.expired(now)]
        return any(
            gate.name == name
            for each in (*heads, *late)
            if each.lane != head.lane and self._before(each, head, surely=False)
            for gate in self._gates.closed(each, self._gates.lane_gates(each), now)
        )

    def _expired_before(self, head: Item, now: Instant) -> bool:
        """Whether one past its expiry may still be the first of the lane."""
        return any(
            each.expired(now) and each.lane == head.lane and each.place < head.place
            for each in self._jobs.in_state(*OPEN[:2], queue=head.job.queue)
        )
