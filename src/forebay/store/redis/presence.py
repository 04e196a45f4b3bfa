"""Workers that announce themselves: a field each, until its time is up."""

from typing import Final

import msgspec
from msgspec.structs import replace

from forebay.core.instant import Duration
from forebay.core.presence import Presence
from forebay.store.redis.session import Session

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Presence).decode


class Presences:
    """Announce, withdraw, list."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def announce(self, presence: Presence, span: Duration) -> None:
        self._session.call("announce", presence.owner, span, _encode(presence))

    def withdraw(self, owner: str) -> bool:
        return bool(self._session.call("withdraw", owner, tokened=True))

    def workers(self, after: str, limit: int) -> list[Presence]:
        found = self._session.call("workers", after, limit)
        return [replace(_decode(body), since=since, seen_at=seen_at) for body, since, seen_at in found]
