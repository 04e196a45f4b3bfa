"""Workers that announce themselves: a row each, until its time is up."""

from typing import Final

import msgspec
from msgspec.structs import replace

from forebay.core.instant import Span
from forebay.core.presence import Presence
from forebay.store.postgres.base import Base
from forebay.store.postgres.runs import text_of

_ANNOUNCE: Final = (
    "WITH now AS (SELECT coalesce(%s::bigint, forebay.clock()) AS at), late AS ("
    "DELETE FROM forebay.worker AS w WHERE w.owner IN (SELECT l.owner FROM forebay.worker AS l, now "
    "WHERE l.until <= now.at AND l.owner <> %s LIMIT 100 FOR UPDATE OF l SKIP LOCKED)) "
    "INSERT INTO forebay.worker AS w (owner, since, seen_at, until, body) "
    "SELECT %s, now.at, now.at, now.at + %s, %s FROM now "
    "ON CONFLICT (owner) DO UPDATE SET since = CASE WHEN w.until > excluded.seen_at THEN w.since "
    "ELSE excluded.since END, seen_at = excluded.seen_at, until = excluded.until, body = excluded.body"
)
_WITHDRAW: Final = "DELETE FROM forebay.worker WHERE owner = %s RETURNING until > coalesce(%s::bigint, forebay.clock())"
_WORKERS: Final = (
    "SELECT body, since, seen_at FROM forebay.worker "
    "WHERE owner > %s AND until > coalesce(%s::bigint, forebay.clock()) ORDER BY owner LIMIT %s"
)

_decode: Final = msgspec.json.Decoder(Presence).decode


class PresenceVerbs(Base):
    """Announce, withdraw, list."""

    def announce(self, presence: Presence, span: Span) -> None:
        owner = presence.owner
        self._server.query(_ANNOUNCE, (self._at, owner, owner, span, text_of(presence)))

    def withdraw(self, owner: str) -> bool:
        rows = self._server.query(_WITHDRAW, (owner, self._at))
        return any(known for (known,) in rows)

    def workers(self, after: str, limit: int) -> list[Presence]:
        rows = self._server.query(_WORKERS, (after, self._at, limit))
        return [replace(_decode(body), since=since, seen_at=seen_at) for body, since, seen_at in rows]
