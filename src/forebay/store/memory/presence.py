"""Workers that announce themselves. They live in this process alone, so nothing of them is written to the journal."""

from msgspec.structs import replace

from forebay.core.clock import Clock
from forebay.core.instant import Duration, Instant
from forebay.core.presence import Presence
from forebay.store.memory.engine import Engine, Recorder
from forebay.store.memory.facts import Facts


class PresenceVerbs(Engine):
    """Announce, withdraw, list."""

    def __init__(self, facts: Facts, clock: Clock, recorder: Recorder | None) -> None:
        super().__init__(facts, clock, recorder)
        self._known: dict[str, tuple[Presence, Instant]] = {}

    def announce(self, presence: Presence, span: Duration) -> None:
        with self._lock:
            now = self._begin()
            self._known = {owner: known for owner, known in self._known.items() if known[1] > now}
            before = self._known.get(presence.owner)
            since = now if before is None else before[0].since
            self._known[presence.owner] = (replace(presence, since=since, seen_at=now), now + span)

    def withdraw(self, owner: str) -> bool:
        with self._lock:
            now = self._begin()
            known = self._known.pop(owner, None)
        return known is not None and known[1] > now

    def workers(self, after: str, limit: int) -> list[Presence]:
        with self._lock:
            now = self._begin()
            found = sorted(owner for owner, (_, until) in self._known.items() if until > now and owner > after)
            return [self._known[owner][0] for owner in found[:limit]]
