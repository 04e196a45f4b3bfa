"""The backend of the store on a Redis or Valkey server: a script a verb."""

from typing import Final

from forebay.core.clock import Clock
from forebay.store.protocol import Capabilities, Vitals
from forebay.store.redis.health import delivery_of, look, vitals_of
from forebay.store.redis.logs import Logs
from forebay.store.redis.presence import PresenceVerbs
from forebay.store.redis.progress import ProgressVerbs
from forebay.store.redis.watching import Watching

_SETTLE_MEMORY: Final = 65_536


class RedisBackend(ProgressVerbs, Logs, PresenceVerbs, Watching):
    """All verbs."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(url, clock)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="redis",
            durable=self._safety.durable,
            processes="many",
            settle_memory=_SETTLE_MEMORY,
            lease_grain=0.0,
            unsafe=self._safety.unsafe,
        )

    def vitals(self) -> Vitals:
        address = self._server.address
        delivery = delivery_of(self._server) or address.delivery
        return vitals_of(look(self._server), address.durability, delivery, self._sleepers.hears)
