"""Workers that announce themselves: a field each, until its time is up."""

from typing import Final

import msgspec
from msgspec.structs import replace

from forebay.core.instant import Span
from forebay.core.presence import Presence
from forebay.store.redis.base import Base

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Presence).decode


class PresenceVerbs(Base):
    """Announce, withdraw, list."""

    def announce(self, presence: Presence, span: Span) -> None:
        self._call("announce", presence.owner, span, _encode(presence))

    def withdraw(self, owner: str) -> bool:
        return bool(self._call("withdraw", owner, tokened=True))

    def workers(self, after: str, limit: int) -> list[Presence]:
        found = self._call("workers", after, limit)
        return [replace(_decode(body), since=since, seen_at=seen_at) for body, since, seen_at in found]
