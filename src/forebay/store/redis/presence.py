"""Workers that announce themselves: a field each, until its time is up."""

from datetime import timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from forebay.core.presence import Presence
from forebay.store.checks import check_workers_page, checked_owner, checked_presence
from forebay.store.redis.base import Base

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Presence).decode


class PresenceVerbs(Base):
    """Announce, withdraw, list."""

    def announce(self, presence: Presence, keep_for: timedelta) -> None:
        span = checked_presence(presence, keep_for)
        self._call("announce", presence.owner, span, _encode(presence))

    def withdraw(self, owner: str) -> bool:
        return bool(self._call("withdraw", checked_owner(owner), tokened=True))

    def workers(self, after: str, limit: int) -> list[Presence]:
        check_workers_page(after, limit)
        found = self._call("workers", after, limit)
        return [replace(_decode(body), since=since, seen_at=seen_at) for body, since, seen_at in found]
