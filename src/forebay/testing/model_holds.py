"""The reference model of what holds a job: told by the store, found to be legal, and exact in its numbers.

Where a job with several gates is parked is the store's choice, as long as that gate is closed for the first who is
parked there, or somebody waits before that one at a rate of both. All numbers follow from who is parked
where. While somebody at the gate is past his expiry, stores may count him or not. Where classes take turns, whose turn
it is is free: one of their first ones finds the gate closed.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from forebay.core.gate import Gate, has_room
from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import INSTANT_MOST
from forebay.store.protocol import Hold
from forebay.testing.model_gates import Item
from forebay.testing.model_logs import require
from forebay.testing.model_paces import PaceModel


class HoldModel(PaceModel):
    """Who is parked where, and who goes before whom."""

    def held_by(self, now: Instant, holds: Mapping[int, Hold | None]) -> None:
        """What the store says of all waiting jobs, once everything that could be ready is."""
        waiting = self.jobs(State.WAITING)
        for item in waiting:
            hold, due = holds[item.job.id], item.job.due_at <= now
            require((hold is not None) == due, f"job {item.job.id} is due, and held", due, hold)
        self.parked = {job_id: hold.gate for job_id, hold in holds.items() if hold is not None}
        for item in waiting:
            hold = holds[item.job.id]
            if hold is not None and not any(each.expired(now) for each in self.parked_at(hold.gate)):
                gate = item.gate(hold.gate)
                assert gate is not None, f"job {item.job.id} is held by {hold.gate}, which it never had"
                self._check_hold(now, item, gate, hold)

    def ahead(self, now: Instant, shown: Mapping[int, int | None]) -> None:
        """What the store says of all jobs."""
        ready = self.jobs(State.READY)
        for job_id, before in shown.items():
            item = self.items.get(job_id)
            if item is None or item.job.state is not State.READY:
                require(before is None, f"job {job_id} is not ready, ahead of it are", before)
                continue
            alike = [i for i in ready if (i.job.queue, i.entry.cls) == (item.job.queue, item.entry.cls)]
            if not any(each.expired(now) for each in alike):
                expected = len([each for each in alike if each.place < item.place])
                require(before == expected, f"ahead of job {job_id} are", expected, before)

    def released(self, now: Instant, name: str, count: int, answer: int) -> None:
        """The first of those that were parked there when `held_by` looked are not held by it any more."""
        first = [item for item in self.parked_at(name) if not item.expired(now)][:count]
        require(answer == len(first), f"release says how many passed {name}", len(first), answer)
        for item in first:
            gates = tuple(gate for gate in item.entry.gates if gate.name != name)
            self.items[item.job.id] = replace(item, entry=replace(item.entry, gates=gates))
            del self.parked[item.job.id]

    def _check_hold(self, now: Instant, item: Item, gate: Gate, hold: Hold) -> None:
        there, (least, most) = self.parked_at(gate.name), self._slots(gate)
        require(least <= hold.slots <= most, f"slots of {gate.name}: at least, at most, shown", least, most, hold)
        before = [each for each in there if (each.job.id < item.job.id if gate.ordered else each.place < item.place)]
        if gate.share:
            before = [each for each in before if self._in_class(each, item, gate)]
        expected = Hold(
            gate.name,
            hold.slots,
            0 if gate.step else self._taken(gate.name),
            len(there),
            len(before),
            self._first_in_line(gate.name) if gate.ordered else None,
            hold.opens_at,
            gate.share > 0,
        )
        require(hold == expected, f"what holds job {item.job.id}: expected and shown", expected, hold)
        self._check_closed(now, item, gate, hold, there)

    def _check_closed(self, now: Instant, item: Item, gate: Gate, hold: Hold, there: list[Item]) -> None:
        if gate.step:
            openings = [self._opens(each) for each in self._next(gate, there, item.job.queue).values()]
            least, most = min(least for least, _ in openings), max(most for _, most in openings)
            shown = INSTANT_MOST if hold.opens_at is None else hold.opens_at
            require(max(least, now) <= shown <= max(most, now), f"{gate.name} opens", least, most, shown)
            return
        require(hold.opens_at is None, f"{gate.name} is no rate", hold)
        if gate.ordered:
            first_id = self._first_in_line(gate.name)
            firsts = {first_id: gate} if self.parked.get(first_id or 0) == gate.name else {}
        else:
            firsts = self._next(gate, there)
        staying = any(self._waits_behind(self.items[job_id], gate, now) for job_id in firsts if job_id)
        room = bool(firsts) and all(has_room(hold.held, each.cost, hold.slots) for each in firsts.values())
        require(not room or staying, f"{gate.name} has room for one of", list(firsts), hold)

    def _waits_behind(self, item: Item, gate: Gate, now: Instant) -> bool:
        """Whether one like it, behind the same gate, is parked before it at a rate of both that may be open."""
        rates = [each for each in item.entry.gates if each.step and self._may_stay(item, now)]
        parked = [each for rate in rates for each in self.parked_at(rate.name) if each.place < item.place]
        alike = [each for each in parked if each.job.queue == item.job.queue and each.gate(gate.name)]
        return bool(alike) and not gate.ordered

    def _next(self, gate: Gate, there: list[Item], queue: str | None = None) -> dict[int | None, Gate]:
        """Who may be next of those parked there: the first in rank, or the first of the classes in its queue."""
        mine = [each for each in there if queue in (None, each.job.queue)]
        stamped = [(each, stamp) for each in mine if (stamp := each.gate(gate.name))]
        first, stamp = stamped[0]
        if not stamp.share:
            return {first.job.id: stamp}
        firsts: dict[str, tuple[Item, Gate]] = {}
        for each, other in stamped:
            if self._in_class(each, each, gate) and each.job.queue == first.job.queue:
                firsts.setdefault(each.entry.cls, (each, other))
        return {each.job.id: other for each, other in firsts.values()}
