"""Bulk reads: runs and ended jobs of a range of ids, by COPY, in one snapshot.

Rows are CSV with the columns of the tables; the reader splits runs into jobs. They come in blocks of whole rows, so
that memory is bounded whatever the size of the tables, on a connection of its own, in a read-only transaction.
"""

from collections.abc import Iterator
from typing import Final

from psycopg import Error, sql

from forebay.core.job import State
from forebay.store.postgres.connect import Connection
from forebay.store.postgres.intake import empty_inbox
from forebay.store.postgres.session import Session
from forebay.store.protocol import Query
from forebay.store.states import STATES

_BLOCK_BYTES: Final = 4 * 1024 * 1024
_MAX_RUN: Final = 1_000
"""Jobs of a run: the run of an id has a `last_id` at most so far beyond it."""

_EXTENT: Final = (
    "SELECT least((SELECT min(last_id - n + 1) FROM (SELECT last_id, n FROM forebay.run WHERE NOT single "
    "ORDER BY last_id LIMIT 1) AS f), (SELECT min(last_id) FROM forebay.run WHERE single), "
    "(SELECT min(lower(ids)) FROM forebay.pack), (SELECT min(id) FROM forebay.ended)), "
    "greatest((SELECT max(last_id) FROM forebay.run WHERE NOT single), "
    "(SELECT max(last_id) FROM forebay.run WHERE single), "
    "(SELECT max(upper(ids)) - 1 FROM forebay.pack), (SELECT max(id) FROM forebay.ended))"
)
_RUN: Final = {
    "last_id": "r.last_id",
    "n": "r.n",
    "size": "r.size",
    "state": "r.state",
    "queue": "r.queue",
    "kind": "r.kind",
    "due_at": "r.due_at",
    "enqueued_at": "r.enqueued_at",
    "delivery": "r.delivery",
    "attempt": "r.attempt",
    "max_attempts": "r.max_attempts",
    "claimed_at": "NULL",
    "lease_until": "NULL",
    "expires_at": "r.expires_at",
    "errors": "r.errors",
    "owner": "NULL",
    "settled": "NULL",
    "cancel_requests": "CASE WHEN r.cancel_requested THEN B'1' END",
    "facts": "r.facts",
    "bodies": "r.bodies",
}
_RUNNING: Final = _RUN | {
    "state": "2",
    "claimed_at": "r.claimed_at",
    "lease_until": "forebay.leased_until(r.by_heartbeat, r.lease_until, r.holder)",
    "owner": "(SELECT h.owner FROM forebay.holder AS h WHERE h.id = r.holder)",
    "settled": "r.settled",
    "cancel_requests": "r.cancel_requested",
}
_ENDED: Final = {
    "id": "e.id",
    "state": "e.state",
    "queue": "e.queue",
    "kind": "e.kind",
    "due_at": "e.due_at",
    "enqueued_at": "e.enqueued_at",
    "delivery": "e.delivery",
    "attempt": "e.attempt",
    "max_attempts": "e.max_attempts",
    "expires_at": "e.expires_at",
    "finished_at": "e.finished_at",
    "cancel_requested": "e.cancel_requested",
    "errors": "e.errors",
    "facts": "e.facts",
    "body": "e.body",
    "result": "e.result",
}
_STORED: Final = {State.WAITING: (0, 3), State.READY: (1,)}
"""States of a run in its table, by the state of its jobs."""


class Export:
    """The verbs of bulk reads."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def id_extent(self) -> tuple[int, int]:
        empty_inbox(self._session)
        first, last = self._session.server.query(_EXTENT, within=self._session.server.long_timeout)[0]
        return (1, 0) if first is None else (first, last)

    def export(self, query: Query, first: int, last: int) -> Iterator[tuple[str, list[str], bytes]]:
        connection = self._session.server.connect()
        connection.call_timeout = self._session.server.long_timeout
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if query.state is None or query.state in _STORED:
                for block in _blocks(connection, _runs(query, first, last)):
                    yield "runs", list(_RUN), block
            if query.state is None or query.state is State.RUNNING:
                for block in _blocks(connection, _running(query, first, last)):
                    yield "runs", list(_RUN), block
            if query.state is None or query.state.terminal:
                for block in _blocks(connection, _ended(query, first, last)):
                    yield "ended", list(_ENDED), block
            connection.execute("COMMIT")
        except Error as error:
            raise self._session.server.failure(error) from error
        finally:
            connection.close()


def _blocks(connection: Connection, select: sql.Composed) -> Iterator[bytes]:
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT CSV)").format(select)
    rows: list[bytes] = []
    size = 0
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in copy:
            rows.append(bytes(row))
            size += len(rows[-1])
            if size >= _BLOCK_BYTES:
                yield b"".join(rows)
                rows, size = [], 0
    if rows:
        yield b"".join(rows)


def _runs(query: Query, first: int, last: int) -> sql.Composed:
    """Both halves of the primary key, so that a range is one scan of each."""
    columns = sql.SQL(", ".join(_RUN.values()))
    wanted = _wanted("r", query, None if query.state is None else _STORED[query.state])
    many = sql.SQL(
        "SELECT {} FROM forebay.run AS r WHERE NOT r.single AND r.last_id >= {} AND r.last_id < {} "
        "AND r.last_id - r.n + 1 <= {} AND {} UNION ALL "
        "SELECT {} FROM forebay.run AS r WHERE r.single AND r.last_id >= {} AND r.last_id <= {} AND {}"
    )
    low, high = sql.Literal(first), sql.Literal(last)
    reach = sql.Literal(min(last + _MAX_RUN, 2**63 - 1))
    return many.format(columns, low, reach, high, wanted, columns, low, high, wanted)


def _running(query: Query, first: int, last: int) -> sql.Composed:
    one = sql.SQL("SELECT {} FROM forebay.running AS r WHERE r.last_id >= {} AND r.last_id - r.n + 1 <= {} AND {}")
    columns = sql.SQL(", ".join(_RUNNING.values()))
    return one.format(columns, sql.Literal(first), sql.Literal(last), _wanted("r", query, None))


def _ended(query: Query, first: int, last: int) -> sql.Composed:
    columns = sql.SQL(", ".join(_ENDED.values()))
    wanted = _wanted("e", query, None if query.state is None else (STATES.index(query.state),))
    one = sql.SQL(
        "SELECT {} FROM forebay.ended AS e WHERE e.id >= {} AND e.id <= {} "
        "AND (e.kept_until IS NULL OR e.kept_until > forebay.clock()) AND {}"
    )
    return one.format(columns, sql.Literal(first), sql.Literal(last), wanted)


def _wanted(table: str, query: Query, states: tuple[int, ...] | None) -> sql.Composable:
    """Conditions on columns of the tables; kind, tenant and subject may be in a job's facts and are not checked."""
    terms: list[sql.Composable] = [sql.SQL("true")]
    if query.queue is not None:
        terms.append(sql.SQL("{}.queue = {}").format(sql.Identifier(table), sql.Literal(query.queue)))
    if states is not None:
        terms.append(sql.SQL("{}.state = ANY ({})").format(sql.Identifier(table), sql.Literal(list(states))))
    return sql.SQL(" AND ").join(terms)
