"""The verbs about gates: another number of slots, releasing jobs from a condition, what holds a job."""

from forebay.core.limits import AHEAD_MOST
from forebay.store.protocol import GateUse, Hold
from forebay.store.redis.row import sids
from forebay.store.redis.settling import Settling


class GateVerbs(Settling):
    """Set, list, release, hold, ahead."""

    def set_gate(self, name: str, limit: int | None) -> None:
        self._call("set_gate", name, "" if limit is None else limit)

    def gates(self, after: str, limit: int, prefix: str) -> list[GateUse]:
        return [GateUse(name.decode(), *numbers) for name, *numbers in self._call("gates", after, limit, prefix)]

    def release(self, name: str, count: int) -> int:
        released: int = self._call("release", name, count, tokened=True)
        return released

    def hold(self, job_id: int) -> Hold | None:
        found = self._call("hold", *sids([job_id]), AHEAD_MOST) if sids([job_id]) else ()
        if not found:
            return None
        gate, slots, used, before, head, opens_at = found
        at = opens_at if isinstance(opens_at, int) else None
        return Hold(gate.decode(), slots, used, before, int(head) if head else None, at)

    def ahead(self, job_id: int) -> int | None:
        place = self._call("ahead", *sids([job_id]), AHEAD_MOST) if sids([job_id]) else -1
        return None if place < 0 else min(place, AHEAD_MOST)
