"""What all verbs share: the server, what is known of the specs, the clock, who sleeps."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

from forebay.core.clock import Clock
from forebay.core.errors import Invalid, KeyConflict, QueueFull, StoreFailed
from forebay.core.instant import Instant
from forebay.core.spec import QueueSpec
from forebay.store.clock import SystemClock
from forebay.store.protocol import Capabilities
from forebay.store.redis.address import Address, Delivery
from forebay.store.redis.connect import Argument, Server
from forebay.store.redis.health import Safety, delivery_of
from forebay.store.redis.specs import Specs
from forebay.store.redis.waiting import Sleepers

RETRY_AFTER_SECONDS: Final = 1.0
_STARTS_MOST: Final = 20

T = TypeVar("T")


class SourceMoved(Exception):
    """A source is not where the caller thought it was."""


class Base:
    """An open store. `clock` is for tests alone: without it the server's clock decides."""

    def __init__(self, url: str, clock: Clock | None) -> None:
        address = Address.of(url)
        self._server = Server(address)
        try:
            self._safety = Safety(self._server)
            if address.delivery is not None and delivery_of(self._server) not in (None, address.delivery):
                raise wrong_delivery(address.delivery)
        except BaseException:
            self._server.close()
            raise
        self._clock = clock
        self._specs = Specs(self._read_spec, address.delivery)
        self._sleepers = Sleepers(self._server, clock or SystemClock(), self.now)

    def now(self) -> Instant:
        if self._clock is not None:
            return self._clock.now()
        seconds, micros = self._server.command("TIME")
        return int(seconds) * 1_000_000 + int(micros)

    def close(self) -> None:
        """No verb works afterwards; sleepers wake up and find it closed."""
        self._sleepers.close()
        self._server.close()

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the whole store claims."""

    def specs(self) -> list[QueueSpec]:
        names = self._server.command("ZRANGE", self._key("queues"), 0, -1)
        if not names:
            return []
        texts = self._server.command("MGET", *(self._key("spec", name.decode()) for name in names))
        return [QueueSpec.from_json(text) for text in texts if text is not None]

    def _call(self, name: str, *arguments: Argument, tokened: bool = False) -> Any:
        at = None if self._clock is None else self._clock.now()
        reply = self._server.call(name, at, *arguments, tokened=tokened)
        self._safety.refresh()
        return reply

    def _on_specs(self, attempt: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """The reply of an attempt that relied on the specs as they are; it is made again when they have changed."""
        for _ in range(_STARTS_MOST):
            reply = attempt()
            if reply[0] != b"stale":
                return reply
            self._specs.reload()
        raise StoreFailed(self._server.name, f"{_STARTS_MOST} calls in a row found their queues changed by others")

    def _read_spec(self, name: str) -> tuple[int, bytes | None]:
        version = self._server.command("HGET", self._key("q", name), "version")
        if version is None:
            return 0, None
        return int(version), self._server.command("GET", self._key("spec", name))

    def _key(self, *words: str) -> str:
        """A key as lua/lib/keys.lua tells of them."""
        return self._server.address.prefix + ":".join(words)


def refuse(reply: Sequence[Any]) -> NoReturn:
    """Why a batch was refused, in our words."""
    match reply:
        case [b"full", queue, depth, limit, asked]:
            raise QueueFull(queue.decode(), depth, limit, asked, RETRY_AFTER_SECONDS)
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


def wrong_delivery(wanted: Delivery) -> Invalid:
    kept = "sets" if wanted == "streams" else "streams"
    return Invalid(
        f"delivery={wanted}",
        f"this store delivers by {kept}, as its first job was put",
        "leave it out of the URL, or begin a store with another prefix",
    )
