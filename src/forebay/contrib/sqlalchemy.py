"""Enqueue with a session of SQLAlchemy: the job exists if, and only if, the session's transaction commits.

    with Session(engine) as session, session.begin():
        session.add(order)
        enqueue_with(session, send_receipt, order.id)

If the store and the session are in the same Postgres database or the same SQLite file, the enqueue is part of the
transaction. With any other store or database the job is enqueued right after the commit, and never after a rollback,
that of a savepoint included; a process that dies between the two loses it. So it is with the store of a `JobTester`.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, ParamSpec

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction, scoped_session
from sqlalchemy.util import await_only

from forebay.client import Bound
from forebay.transactions import database_of, is_file_of

P = ParamSpec("P")

_DEFERRED: Final = "forebay.deferred"


class _Deferred(NamedTuple):
    """An enqueue that waits for the commit, and the transactions whose rollback undoes it."""

    enqueue: Callable[[], object]
    within: tuple[SessionTransaction, ...]


def enqueue_with(
    session: Session | scoped_session[Any], job: Bound[P], /, *args: P.args, **kwargs: P.kwargs
) -> int | None:
    """The id of the job; None where it is enqueued after the commit."""
    own: Session = session() if isinstance(session, scoped_session) else session
    if _joins(own, job):
        return job.enqueue_in(own, *args, **kwargs)
    job.draft(*args, **kwargs)
    _defer(own, lambda: job.enqueue(*args, **kwargs))
    return None


async def aenqueue_with(session: AsyncSession, job: Bound[P], /, *args: P.args, **kwargs: P.kwargs) -> int | None:
    """The same for an async session."""
    if _joins(session.sync_session, job):
        return await job.aenqueue_in(session, *args, **kwargs)
    job.draft(*args, **kwargs)
    await session.run_sync(_defer, lambda: await_only(job.aenqueue(*args, **kwargs)))
    return None


def _joins(session: Session, job: Bound[P]) -> bool:
    if job.app.store_replaced:
        return False
    engine = session.get_bind().engine
    if engine.dialect.name == "sqlite":
        return engine.dialect.driver == "pysqlite" and is_file_of(job.app.url, engine.url.database or "")
    own = database_of(engine.url.render_as_string(hide_password=False))
    return own is not None and database_of(job.app.url) == own


def _defer(session: Session, enqueue: Callable[[], object]) -> None:
    if _DEFERRED not in session.info:
        session.info[_DEFERRED] = []
        event.listen(session, "after_commit", _enqueue_deferred)
        event.listen(session, "after_soft_rollback", _drop_rolled_back)
        event.listen(session, "after_transaction_end", _drop_at_end)
    # Begins the transaction where none has begun yet.
    session.connection()
    within, innermost = [], session.get_nested_transaction() or session.get_transaction()
    while innermost is not None:
        within.append(innermost)
        innermost = innermost.parent
    session.info[_DEFERRED].append(_Deferred(enqueue, tuple(within)))


def _enqueue_deferred(session: Session) -> None:
    """After the outermost commit; a released savepoint is a commit, too."""
    if session.in_nested_transaction():
        return
    deferred, session.info[_DEFERRED] = session.info[_DEFERRED], []
    for each in deferred:
        each.enqueue()


def _drop_rolled_back(session: Session, ended: SessionTransaction) -> None:
    session.info[_DEFERRED] = [each for each in session.info[_DEFERRED] if ended not in each.within]


def _drop_at_end(session: Session, ended: SessionTransaction) -> None:
    """A session that is closed without a commit."""
    if ended.parent is None:
        session.info[_DEFERRED] = []
