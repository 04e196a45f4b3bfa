"""Drafts from a source that repeats itself, and dead jobs that give way to new ones. See `store.feeding`."""

from collections.abc import Sequence
from typing import Final

from forebay.core.instant import micros
from forebay.core.job import Draft
from forebay.store.brokers import any_new
from forebay.store.feeding import FEED_KEPT, Place
from forebay.store.protocol import Receipt, Tally
from forebay.store.sqlite.intake import accept
from forebay.store.sqlite.ledger import LedgerVerbs
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import id_list, rows_of
from forebay.store.sqlite.tend import forget
from forebay.store.sqlite.turn import Turn

_SWEEP_MOST: Final = 2
_PLACE: Final = "SELECT batch, taken, digest FROM feed WHERE source = ?"
_MOVE: Final = "INSERT OR REPLACE INTO feed (source, batch, taken, digest, at) VALUES (?, ?, ?, ?, ?)"
_SWEEP: Final = "DELETE FROM feed WHERE source IN (SELECT source FROM feed WHERE at < ? ORDER BY at LIMIT ?)"
_DEAD: Final = statement("dead_of")


class Feed(LedgerVerbs):
    """Exactly once, however often it comes."""

    def fed(self, source: str) -> Place | None:
        with self._read() as (reader, _):
            found = reader.execute(_PLACE, (source,)).fetchone()
        return None if found is None else Place(*found)

    def feed(self, source: str, before: Place | None, after: Place, drafts: Sequence[Draft]) -> Tally | None:
        return self._write(lambda turn: _feed(turn, source, before, after, drafts))

    def discard(self, ids: Sequence[int]) -> list[int]:
        return self._write(lambda turn: _discard(turn, ids))

    def mend(self, drafts: dict[int, Draft]) -> dict[int, Receipt]:
        return self._write(lambda turn: _mend(turn, drafts))


def _feed(turn: Turn, source: str, before: Place | None, after: Place, drafts: Sequence[Draft]) -> Tally | None:
    found = turn.connection.execute(_PLACE, (source,)).fetchone()
    if (None if found is None else Place(*found)) != before:
        return None
    receipts = accept(turn, drafts)
    if turn.scribe is not None and any_new(receipts):
        turn.scribe.tell("enqueue")
    turn.connection.execute(_MOVE, (source, after.batch, after.taken, after.digest, turn.now))
    turn.connection.execute(_SWEEP, (turn.now - micros(FEED_KEPT), _SWEEP_MOST))
    return Tally.of(receipts)


def _mend(turn: Turn, drafts: dict[int, Draft]) -> dict[int, Receipt]:
    dead = rows_of(turn.connection.execute(_DEAD, (id_list(drafts),)))
    forget(turn, dead)
    ids = [row.id for row in dead]
    receipts = dict(zip(ids, accept(turn, [drafts[job_id] for job_id in ids]), strict=True))
    if ids and turn.scribe is not None:
        turn.scribe.tell("mend")
    return receipts


def _discard(turn: Turn, ids: Sequence[int]) -> list[int]:
    dead = {row.id: row for row in rows_of(turn.connection.execute(_DEAD, (id_list(ids),)))}
    if dead:
        forget(turn, list(dead.values()))
        if turn.scribe is not None:
            turn.scribe.tell("purge")
    return [job_id for job_id in dict.fromkeys(ids) if job_id in dead]
