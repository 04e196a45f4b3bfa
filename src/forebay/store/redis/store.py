"""`RedisStore`: every verb of the contract on a Redis or Valkey server, for the processes of many machines.

Durable before every answer where the server syncs every write (`appendfsync always`), which is what it is held to while
it runs; weaker only by the operator's word in the URL. The server's clock alone decides; tests may inject one.
"""

from forebay.core.clock import Clock
from forebay.store.protocol import Vitals
from forebay.store.redis.backend import RedisBackend
from forebay.store.shell import ExchangingShell


class RedisStore(ExchangingShell[RedisBackend]):
    """The store in memory that several machines share."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(RedisBackend(url, clock=clock))

    def vitals(self) -> Vitals:
        return self.backend.vitals()
