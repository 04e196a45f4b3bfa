"""What goes wrong, how often, and how often it did.

Promise: every kind has a name, is drawn from the world's chance, and is counted where it takes effect, not where it is
planned. A `FaultProfile` is drawn per seed, so that seeds differ: calm ones show what nothing may disturb, wild ones
what everything may. `chosen` limits a run to some kinds. `stop` ends them all: the healing begins.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from forebay.core.instant import Duration
from forebay_proof.sim.world import SECOND, World


class Kind(StrEnum):
    """A fault. The first five happen to single calls, the others to processes, the store, or by hand."""

    LOST_REQUEST = "lost-request"
    LOST_REPLY = "lost-reply"
    DUPLICATE = "duplicate-call"
    DELAY = "delay"
    SLOW_DISK = "slow-disk"
    CRASH = "worker-crash"
    STALL = "worker-stall"
    CUT = "worker-cut-off"
    DRAIN = "drain"
    POISON = "poison"
    HOLD = "interpreter-held"
    RESTART = "worker-restart"
    POWER = "power-cut"
    STORE_KILL = "store-kill"
    OUTAGE = "store-outage"
    JUMP = "clock-jump"
    COMPACT = "compaction"
    RAISE = "handler-raises"
    HANG = "handler-hangs"
    SNOOZE = "handler-snoozes"
    DROP = "handler-drops"
    CANCEL = "operator-cancels"
    REDRIVE = "operator-redrives"
    PAUSE = "operator-pauses"
    RESCHEDULE = "operator-reschedules"
    FULL = "queue-full"
    PARTITION = "cell-cut-off"
    SLOW_CELL = "cell-slow"
    LATE = "deadline-missed"
    MOVE = "queue-moves"
    MOVE_KILL = "mover-crash"
    LATE_SPEC = "spec-late"


PLANNED: Final = (
    (Kind.CRASH, 5),
    (Kind.STALL, 4),
    (Kind.CUT, 3),
    (Kind.DRAIN, 3),
    (Kind.POWER, 4),
    (Kind.STORE_KILL, 1),
    (Kind.OUTAGE, 2),
    (Kind.JUMP, 2),
    (Kind.COMPACT, 1),
)
"""What the chaos draws from, with weights."""

OF_CELLS: Final = (Kind.PARTITION, Kind.SLOW_CELL, Kind.LATE, Kind.MOVE, Kind.MOVE_KILL, Kind.LATE_SPEC)
"""What happens only where there are cells."""

PLANNED_OF_CELLS: Final = (*PLANNED, (Kind.PARTITION, 12), (Kind.SLOW_CELL, 8))


class FaultProfile(Struct, frozen=True):
    """How rough a seed is: rates per call, and the mean pause between planned faults in seconds."""

    lost_request: float
    lost_reply: float
    duplicate: float
    delay: float
    slow_disk: float
    pause: float

    @staticmethod
    def draw(world: World) -> "FaultProfile":
        draw = world.random.choice
        rates = (0.0, 0.01, 0.02, 0.04)
        return FaultProfile(
            draw(rates), draw(rates), draw(rates), draw((0.01, 0.02, 0.05)), draw((0.0, 0.003)), draw((2.0, 4.0, 8.0))
        )


class Faults:
    """The dice of one run, and the count of what they brought."""

    def __init__(
        self,
        world: World,
        chosen: Collection[Kind] | None = None,
        planned: Sequence[tuple[Kind, int]] = PLANNED,
        per_call: float = 1.0,
    ) -> None:
        self._world = world
        self._planned = planned
        self._per_call = per_call
        self._chosen = None if chosen is None else frozenset(chosen)
        self.profile = FaultProfile.draw(world)
        self.counts: Counter[Kind] = Counter()
        self.on = True
        self._call_rates = [
            (Kind.LOST_REQUEST, self._rate(Kind.LOST_REQUEST, self.profile.lost_request)),
            (Kind.LOST_REPLY, self._rate(Kind.LOST_REPLY, self.profile.lost_reply)),
            (Kind.DUPLICATE, self._rate(Kind.DUPLICATE, self.profile.duplicate)),
            (Kind.DELAY, self._rate(Kind.DELAY, self.profile.delay)),
        ]
        self._any_call = sum(rate for _, rate in self._call_rates)
        self._slow = self._rate(Kind.SLOW_DISK, self.profile.slow_disk)

    def allows(self, kind: Kind) -> bool:
        return self.on and (self._chosen is None or kind in self._chosen)

    def count(self, kind: Kind) -> None:
        self.counts[kind] += 1

    def stop(self) -> None:
        self.on = False
        self._any_call = self._slow = 0.0

    def for_call(self) -> Kind | None:
        """What happens to the next call, if anything."""
        roll = self._world.random.random()
        if roll >= self._any_call:
            return None
        for kind, rate in self._call_rates:
            if roll < rate:
                self.counts[kind] += 1
                return kind
            roll -= rate
        return None

    def slow_sync(self) -> Duration:
        """How long a sync takes longer than it should."""
        if not self._world.chance(self._slow):
            return 0
        self.counts[Kind.SLOW_DISK] += 1
        return self._world.between(SECOND // 50, SECOND // 2)

    def planned(self) -> Kind | None:
        kinds = [(kind, weight) for kind, weight in self._planned if self.allows(kind)]
        if not kinds:
            return None
        return self._world.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]

    def _rate(self, kind: Kind, rate: float) -> float:
        return rate * self._per_call if self.allows(kind) else 0.0
