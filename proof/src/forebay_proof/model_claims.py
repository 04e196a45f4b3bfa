"""The reference model of claims: exactly the jobs that a claim must hand out, one after the other, by the rules of now.

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
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from forebay.store.protocol import Want
from forebay_proof.model_gates import OPEN, GateModel, Item
from forebay_proof.model_logs import require


class Turns:
    """One reading of the turns of a queue's classes: at least and at most, of each and of what started last."""

    def __init__(self) -> None:
        self.last = (0, 0)
        self.classes: dict[str, tuple[int, int]] = {}

    def of(self, cls: str) -> tuple[int, int]:
        return self.classes.get(cls, self.last)

    def lift(self, cls: str, *, surely: bool) -> None:
        """The class had no work, or may have had none: it saved nothing up."""
        least, most = self.of(cls)
        self.classes[cls] = (max(least, self.last[0]) if surely else least, max(most, self.last[1]))

    def start(self, cls: str, weight: int, *, in_turn: bool) -> None:
        least, most = self.of(cls)
        self.last = (least if in_turn else min(least, self.last[0]), most if in_turn else max(most, self.last[1]))
        self.classes[cls] = (least + UNIT // weight, most + UNIT // weight)

    def before(self, cls: str, other: str, *, surely: bool) -> bool:
        (least, most), (others_least, others_most) = self.of(cls), self.of(other)
        return most < others_least if surely else least <= others_most


class ClaimModel(GateModel):
    """What claims hand out. `uncovered`: lines whose head ended in this call by itself, so that the next is late."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: dict[str, list[Turns]] = {}
        self.uncovered: set[str] = set()
        self._busy: set[tuple[str, str]] = set()

    def put_spec(self, spec: QueueSpec) -> None:
        super().put_spec(spec)
        self._begin_anew(spec.name)

    def reopened(self) -> None:
        for queue in self.turns:
            self._begin_anew(queue)

    def lift_classes(self) -> None:
        """Called after each look: classes that have ready work again were lifted when they got it."""
        busy = {(item.job.queue, item.entry.cls) for item in self.jobs(State.READY)}
        for queue, cls in busy - self._busy:
            for turns in self._turns(queue):
                turns.lift(cls, surely=True)
        self._busy = busy

    def claimable(self, now: Instant, queue: str) -> list[Item]:
        """Those that are due, exposed and not past their expiry, in the order of rank and id."""
        items = [i for i in self.jobs(*OPEN[:2], queue=queue) if i.job.due_at <= now and not i.expired(now)]
        return sorted((item for item in items if self.exposed(item)), key=lambda item: item.place)

    def begin_claim(self, now: Instant, queue: str) -> None:
        """What is due gets ready first, so its classes are lifted first."""
        for item in self.claimable(now, queue):
            if (queue, item.entry.cls) not in self._busy:
                self._busy.add((queue, item.entry.cls))
                for turns in self._turns(queue):
                    turns.lift(item.entry.cls, surely=True)

    def next_in(self, now: Instant, want: Want, item: Item) -> None:
        """The item is handed out next: it may start, and nothing that must start goes before it."""
        heads = self._heads(now, want.queue)
        job_id = item.job.id
        first = next((head.job.id for head in heads if head.lane == item.lane), job_id)
        require(first == job_id or item.entry.line in self.uncovered, f"job {job_id} starts before", first)
        gates = [*self.whole(want.queue), *self.lane_gates(item)]
        closed = self.closed(item, gates, now)
        require(not closed, f"job {job_id} starts at a closed gate", closed, [self._state(g.name) for g in closed])
        others = [head for head in heads if head.lane != item.lane and want.cls in (None, head.entry.cls)]
        passed = [head.job.id for head in others if self._surely_waits_before(head, item, heads, now)]
        require(not passed, f"job {job_id} passes one that waits for room", passed)
        rivals = [head for head in others if self._surely_free(head, heads, now)]
        self._check_turn(want, item, rivals)

    def started(self, now: Instant, want: Want, item: Item) -> None:
        """Called when it runs: its class has had a turn, and held classes may count as idle."""
        weight = Stamper(self.spec(want.queue)).weight(item.entry.cls)
        if not weight:
            return
        heads = self._heads(now, want.queue)
        free = {head.entry.cls for head in heads if self._surely_free(head, heads, now)}
        for turns in self._turns(want.queue):
            turns.start(item.entry.cls, weight, in_turn=want.cls is None)
            for cls in turns.classes.keys() - free:
                turns.lift(cls, surely=False)

    def end_claim(self, now: Instant, want: Want) -> None:
        """No more came, though more was wanted: nothing is left that must start."""
        heads = self._heads(now, want.queue)
        left = [head for head in heads if want.cls in (None, head.entry.cls) and self._surely_free(head, heads, now)]
        require(not left, "jobs were there, fewer came", want, [head.job.id for head in left])

    def _turns(self, queue: str) -> list[Turns]:
        return self.turns.setdefault(queue, [Turns()])

    def _begin_anew(self, queue: str) -> None:
        known = self._turns(queue)
        self.turns[queue] = [*known, Turns()] if any(turns.classes for turns in known) else [Turns()]

    def _check_turn(self, want: Want, item: Item, rivals: list[Item]) -> None:
        passed = [each for each in rivals if each.place < item.place]
        if self.spec(want.queue).share is not None:
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

    def _heads(self, now: Instant, queue: str) -> list[Item]:
        """The first of each lane, in order. What was exposed only in this call does not hide one that was before."""
        heads: dict[object, Item] = {}
        for item in self.claimable(now, queue):
            if item.entry.line not in self.uncovered or item.entry.line is None:
                heads.setdefault(item.lane, item)
        return list(heads.values())

    def _before(self, head: Item, item: Item, *, surely: bool) -> bool:
        """Whether a claim meets the head first."""
        share = self.spec(item.job.queue).share
        if share is None or head.entry.cls == item.entry.cls:
            return head.place < item.place
        readings = [t.before(head.entry.cls, item.entry.cls, surely=surely) for t in self._turns(item.job.queue)]
        return all(readings) if surely else any(readings)

    def _surely_waits_before(self, head: Item, item: Item, heads: list[Item], now: Instant) -> bool:
        """Whether the head comes first and waits at a gate of the item, in every reading."""
        if not self._before(head, item, surely=True) or self._expired_before(head, now):
            return False
        lane, whole = self.lane_gates(head), self.closed(head, self.whole(head.job.queue), now)
        if not lane:
            return bool(whole)
        names = {gate.name for gate in self.lane_gates(item)}
        closed = [gate.name for gate in self.closed(head, lane, now)]
        elsewhere = [gate for gate in lane if gate.name not in closed and self._waiting_at(gate.name, head, heads, now)]
        return not whole and len(closed) == 1 and closed[0] in names and not elsewhere

    def _surely_free(self, head: Item, heads: list[Item], now: Instant) -> bool:
        """Whether the head must start when a claim meets it, in every reading."""
        gates, queue = self.lane_gates(head), head.job.queue
        if self._expired_before(head, now) or self.closed(head, [*self.whole(queue), *gates], now):
            return False
        if any(self._waiting_at(gate.name, head, heads, now) for gate in gates):
            return False
        whole = self.whole(queue)
        dear = [each for each in heads if each is not head and self.closed(each, whole, now)]
        return not any(self._before(each, head, surely=False) for each in dear)

    def _waiting_at(self, name: str, head: Item, heads: list[Item], now: Instant) -> bool:
        """Whether a head that may come first may wait for room there, be it expired or not."""
        late = [each for each in self.jobs(*OPEN[:2], queue=head.job.queue) if each.expired(now)]
        return any(
            gate.name == name
            for each in (*heads, *late)
            if each.lane != head.lane and self._before(each, head, surely=False)
            for gate in self.closed(each, self.lane_gates(each), now)
        )

    def _expired_before(self, head: Item, now: Instant) -> bool:
        """Whether one past its expiry may still be the first of the lane."""
        return any(
            each.expired(now) and each.lane == head.lane and each.place < head.place
            for each in self.jobs(*OPEN[:2], queue=head.job.queue)
        )
