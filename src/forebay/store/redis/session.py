"""What the parts of an open store share: the server, the clock, and this process's cache of specs."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from forebay.core.clock import Clock
from forebay.core.errors import Invalid, KeyConflict, QueueFull, StoreFailed
from forebay.core.instant import Instant
from forebay.core.spec import QueueSpec
from forebay.store.redis.cluster import server_at
from forebay.store.redis.connect import Address, Argument, DeliveryMode, Server
from forebay.store.redis.health import Safety, delivery_of
from forebay.store.redis.specs import Specs

RETRY_AFTER_SECONDS: Final = 1.0
_MAX_ATTEMPTS: Final = 20


class SourceMoved(Exception):
    """A source is not at the position that the caller read."""


class Session:
    """`clock` is for tests alone: without it the server's clock decides."""

    def __init__(self, url: str, clock: Clock | None) -> None:
        address = Address.of(url)
        self.server: Final[Server] = server_at(address)
        try:
            self.safety: Final = Safety(self.server)
            if address.delivery is not None and delivery_of(self.server) not in (None, address.delivery):
                raise wrong_delivery(address.delivery)
        except BaseException:
            self.server.close()
            raise
        self.clock: Final = clock
        self.specs: Final = Specs(self._read_spec, address.delivery)

    def now(self) -> Instant:
        if self.clock is not None:
            return self.clock.now()
        seconds, micros = self.server.command("TIME")
        return int(seconds) * 1_000_000 + int(micros)

    def call(self, name: str, *arguments: Argument) -> Any:
        """Run the script of a verb."""
        at = None if self.clock is None else self.clock.now()
        reply = self.server.call(name, at, *arguments)
        self.safety.refresh()
        return reply

    def command(self, *arguments: Argument) -> Any:
        """Run one command that may be repeated."""
        return self.server.command(*arguments)

    def key(self, *parts: str) -> str:
        """A key of lua/keys.lua."""
        return self.server.address.prefix + ":".join(parts)

    def stored_specs(self) -> list[QueueSpec]:
        names = self.command("ZRANGE", self.key("queues"), 0, -1)
        texts = self.command("MGET", *(self.key("spec", name.decode()) for name in names)) if names else ()
        return [QueueSpec.from_json(text) for text in texts if text is not None]

    def on_specs(self, attempt: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """The reply of an attempt that relies on the specs; it is made again if they have changed."""
        for _ in range(_MAX_ATTEMPTS):
            reply = attempt()
            if reply[0] != b"stale":
                return reply
            self.specs.reload()
        raise StoreFailed(self.server.name, f"{_MAX_ATTEMPTS} calls in a row found their queues changed by others")

    def _read_spec(self, name: str) -> tuple[int, bytes | None]:
        version = self.command("HGET", self.key("q", name), "version")
        if version is None:
            return 0, None
        return int(version), self.command("GET", self.key("spec", name))


def refuse(reply: Sequence[Any]) -> NoReturn:
    """Raise what a script says of a batch that it refused."""
    match reply:
        case [b"full", queue, depth, limit, requested]:
            raise QueueFull(queue.decode(), depth, limit, requested, RETRY_AFTER_SECONDS)
        case [b"conflict", queue, key, job_id]:
            raise KeyConflict(queue.decode(), key.decode(), job_id)
        case [b"delivery", kept]:
            raise wrong_delivery("sets" if kept == b"streams" else "streams")
        case [b"wrong", field, reason, remedy]:
            raise Invalid(field.decode(), reason.decode(), remedy.decode())
        case [b"moved"]:
            raise SourceMoved
        case _:
            raise AssertionError(f"no such refusal: {reply!r:.200}")


def wrong_delivery(wanted: DeliveryMode) -> Invalid:
    kept = "sets" if wanted == "streams" else "streams"
    return Invalid(
        f"delivery={wanted}",
        f"this store delivers by {kept}, as its first job was put",
        "leave it out of the URL, or begin a store with another prefix",
    )
