"""Workers that announce themselves: a row each, until its time is up."""

from typing import Final

import msgspec
from msgspec.structs import replace

from forebay.core.instant import Span
from forebay.core.presence import Presence
from forebay.store.sqlite.base import Base
from forebay.store.sqlite.row import text_of
from forebay.store.sqlite.turn import Turn

_ANNOUNCE: Final = (
    "INSERT INTO worker (owner, since, seen_at, until, body) VALUES (?1, ?2, ?2, ?3, ?4) "
    "ON CONFLICT (owner) DO UPDATE SET seen_at = excluded.seen_at, until = excluded.until, body = excluded.body"
)
_SWEEP: Final = "DELETE FROM worker WHERE until <= ?"
_WITHDRAW: Final = "DELETE FROM worker WHERE owner = ? RETURNING until"
_WORKERS: Final = "SELECT body, since, seen_at FROM worker WHERE owner > ? AND until > ? ORDER BY owner LIMIT ?"

_decode: Final = msgspec.json.Decoder(Presence).decode


class PresenceVerbs(Base):
    """Announce, withdraw, list."""

    def announce(self, presence: Presence, span: Span) -> None:
        self._write(lambda turn: _announce(turn, presence, span))

    def withdraw(self, owner: str) -> bool:
        return self._write(lambda turn: _withdraw(turn, owner))

    def workers(self, after: str, limit: int) -> list[Presence]:
        with self._read() as (reader, now):
            rows = reader.execute(_WORKERS, (after, now, limit)).fetchall()
        return [replace(_decode(body), since=since, seen_at=seen_at) for body, since, seen_at in rows]


def _announce(turn: Turn, presence: Presence, span: Span) -> None:
    turn.connection.execute(_SWEEP, (turn.now,))
    turn.connection.execute(_ANNOUNCE, (presence.owner, turn.now, turn.now + span, text_of(presence)))


def _withdraw(turn: Turn, owner: str) -> bool:
    return any(until > turn.now for (until,) in turn.connection.execute(_WITHDRAW, (owner,)).fetchall())
