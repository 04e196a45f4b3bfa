"""Drafts from a source that repeats itself, and dead jobs that give way to new ones. See `store.feeding`.

Plain drafts go in by COPY, as those of `bulk` do, in the transaction that moves the source on; the others are taken in
by a turn. Whoever comes second with the same place waits for the first and finds that the source has moved.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4

from forebay.core.instant import micros
from forebay.core.job import Draft
from forebay.core.limits import BATCH_MOST, ID_MOST
from forebay.store.brokers import in_parts
from forebay.store.feeding import FEED_KEPT, Place
from forebay.store.postgres.base import Restart, Turn
from forebay.store.postgres.bulk import Bulk
from forebay.store.postgres.connect import Connection
from forebay.store.postgres.intake import accept
from forebay.store.postgres.tend import forget
from forebay.store.protocol import Receipt, Tally
from forebay.store.states import DEAD

_PLACE: Final = "SELECT batch, taken, digest FROM forebay.feed WHERE source = %s"
_START: Final = (
    "INSERT INTO forebay.feed (batch, taken, digest, at, source) VALUES (%s, %s, %s, forebay.clock(), %s) "
    "ON CONFLICT (source) DO NOTHING"
)
_MOVE: Final = (
    "UPDATE forebay.feed SET batch = %s, taken = %s, digest = %s, at = forebay.clock() "
    "WHERE source = %s AND batch = %s AND taken = %s AND digest = %s"
)
_SWEEP: Final = (
    "DELETE FROM forebay.feed WHERE source = ANY (ARRAY(SELECT source FROM forebay.feed "
    f"WHERE at < forebay.clock() - {micros(FEED_KEPT)} ORDER BY at LIMIT 100 FOR UPDATE SKIP LOCKED))"
)
_DEAD: Final = (
    f"DELETE FROM forebay.ended WHERE id = ANY (%s::bigint[]) AND state + 0 = {DEAD} "
    "RETURNING id, queue, state, lane, line, kind, settled_delivery, settled_code, coalesce(home, queue)"
)


class Feed(Bulk):
    """Exactly once, however often it comes."""

    def fed(self, source: str) -> Place | None:
        found = self._server.query(_PLACE, (source,))
        return Place(*found[0]) if found else None

    def feed(self, source: str, before: Place | None, after: Place, drafts: Sequence[Draft]) -> Tally | None:
        queues = {draft.queue for draft in drafts}
        move = partial(_moved, source, before, after)
        if all(draft.key is None for draft in drafts) and all(self._copies(queue) for queue in queues):
            try:
                tally = self._server.transact(partial(self._feed_plain, move, drafts, queues), within=self._server.long)
            except Restart:
                self._specs.reload(queues)
            else:
                self._sleepers.hear(queues, ())
                return tally
        return self._write(lambda turn: _feed(turn, move, drafts), queues)

    def _feed_plain(self, move: Any, drafts: Sequence[Draft], queues: set[str], connection: Connection) -> Tally | None:
        if not move(connection):
            return None
        if drafts:
            self._copy_on(connection, drafts, queues, uuid4())
        return Tally(len(drafts))

    def discard(self, ids: Sequence[int]) -> list[int]:
        known = [job_id for job_id in dict.fromkeys(ids) if 0 < job_id <= ID_MOST]
        return self._write(partial(_discard, known)) if known else []

    def mend(self, drafts: dict[int, Draft]) -> dict[int, Receipt]:
        return self._write(partial(_mend, drafts), {draft.queue for draft in drafts.values()})


def _moved(source: str, before: Place | None, after: Place, connection: Any) -> bool:
    """Move the source on, if it is where it should be."""
    new = (after.batch, after.taken, after.digest, source)
    if before is None:
        connection.execute(_SWEEP)
        return bool(connection.execute(_START, new).rowcount)
    return bool(connection.execute(_MOVE, (*new, before.batch, before.taken, before.digest)).rowcount)


def _feed(turn: Turn, move: Any, drafts: Sequence[Draft]) -> Tally | None:
    if not move(turn.connection):
        return None
    tally = Tally()
    for start in range(0, len(drafts), BATCH_MOST):
        for receipts in in_parts(lambda some: accept(some, turn), drafts[start : start + BATCH_MOST]):
            tally = tally.plus(Tally.of(receipts))
    return tally


def _mend(drafts: dict[int, Draft], turn: Turn) -> dict[int, Receipt]:
    dead = turn.fetch(_DEAD, (list(drafts),))
    forget(turn, dead)
    ids = [columns[0] for columns in dead]
    receipts = dict(zip(ids, accept([drafts[job_id] for job_id in ids], turn), strict=True))
    if ids:
        turn.scribe.tell("mend")
    return receipts


def _discard(ids: Sequence[int], turn: Turn) -> list[int]:
    dead = {columns[0]: columns for columns in turn.fetch(_DEAD, (list(ids),))}
    if dead:
        forget(turn, list(dead.values()))
        turn.scribe.tell("purge")
    return [job_id for job_id in ids if job_id in dead]
