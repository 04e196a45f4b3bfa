"""The reference model of rates: up to when the starts of each are paid for, and whom a claim may start.

A start is paid when a claim hands the job out. While jobs with stamps of two specs are about, a store may reckon with
the numbers of either, so what is known of a rate is the least and the most that its tide can be.
"""

from forebay.core.gate import Gate, opens_at, tide_after
from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import INSTANT_MOST
from forebay.testing.model_gates import GateModel, Item
from forebay.testing.model_logs import require

Between = tuple[Instant, Instant]


class PaceModel(GateModel):
    """Gates that are opened by time. `claiming`: a claim is being looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.tides: dict[str, Between] = {}
        self.claiming = False

    def openings(self, now: Instant) -> list[Between]:
        """When the rates of jobs that are due let them in, as early and as late as may be."""
        due = [item for item in self.jobs(State.WAITING) if item.job.due_at <= now]
        found = [self._opens(gate) for item in due for gate in item.entry.gates if gate.step]
        return [each for each in found if each[0] < INSTANT_MOST]

    def next_due(self, now: Instant, shown: Instant | None) -> None:
        """What a promotion may tell as the next instant at which there is something to do."""
        waiting = self.jobs(State.WAITING)
        due = min((item.job.due_at for item in waiting if item.job.due_at > now), default=None)
        openings = self.openings(now)
        known = shown == due or any(least <= (shown or 0) <= most for least, most in openings)
        require(known, "promote tells the next due time", due, openings, shown)
        latest = [due] if due else []
        for item in waiting:
            gates = item.entry.gates
            if item.job.due_at <= now and len(gates) == 1 and gates[0].step and self._is_first(item, gates[0], now):
                least, most = self._opens(gates[0])
                latest += [most] if now < least and most < INSTANT_MOST else []
        require(not latest or (shown or INSTANT_MOST) <= min(latest), "promote tells it in time", latest, shown)

    def _start(self, item: Item, now: Instant) -> None:
        """A claim lets the job in at its rates, which is paid for."""
        for gate in item.entry.gates:
            if gate.step:
                require(self.claiming, f"job {item.job.id} is ready at a rate, and nobody claims")
                least = self._opens(gate)[0]
                require(least <= now, f"rate {gate.name} let job {item.job.id} in before it opened", least, now)
                tides = self.tides.get(gate.name, (0, 0))
                after = [tide_after(tide, each, now) for tide in tides for each in self._numbers(gate)]
                self.tides[gate.name] = (min(after), max(after))

    def _surely_started(self, item: Item, now: Instant) -> bool:
        """A claim that has room for it starts it."""
        rates = [gate for gate in item.entry.gates if gate.step]
        others = [gate for gate in item.entry.gates if not gate.step]
        return (
            item.job.due_at <= now
            and all(self._surely_open(gate, item, now, item.job.queue) for gate in others)
            and all(self._surely_paced(gate, item, now) for gate in rates)
        )

    def _surely_paced(self, gate: Gate, item: Item, now: Instant) -> bool:
        ahead = [each for _, each in self._ahead(item, gate, now, item.job.queue)]
        return all(self._opens(each)[1] <= now for each in (gate, *ahead))

    def _may_stay(self, item: Item, now: Instant) -> bool:
        return any(gate.step and self._opens(gate)[0] <= now for gate in item.entry.gates)

    def _is_first(self, item: Item, gate: Gate, now: Instant) -> bool:
        return not self._ahead(item, gate, now, item.job.queue)

    def _opens(self, gate: Gate) -> Between:
        limit, tides = self.gate_limits.get(gate.name), self.tides.get(gate.name, (0, 0))
        instants = [opens_at(tide, each, limit) for tide in tides for each in self._numbers(gate)]
        return min(instants), max(instants)

    def _numbers(self, gate: Gate) -> list[Gate]:
        """The gate with all numbers that it was ever stamped with; the cost is the job's own."""
        return [Gate(gate.name, limit, cost=gate.cost, step=step) for limit, step in self._stamps[gate.name]]
