"""Ways into a transaction of one's own, one a driver: insert a row, enqueue, then commit or roll back.

A way is called with the URL, the calls to make and whether to commit; it answers with the ids that the calls gave. All
of them write the row of the caller's own work as well, so that a test sees whether the two stay together. Started as a
program, this file is the Django way: settings belong to a process.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from forebay.client import Forebay

ROOT = Path(__file__).parents[2]
INSERT: Final = "INSERT INTO orders VALUES ('mine')"


class Call(Struct, frozen=True):
    """One enqueue of `kind`, with or without a connection that is awaited."""

    payload: Any = None
    settings: dict[str, Any] = {}
    kind: str = "send"

    def now(self, app: Forebay, connection: object) -> int:
        return app.enqueue_in(connection, self.kind, self.payload, **self.settings)

    async def later(self, app: Forebay, connection: object) -> int:
        return await app.aenqueue_in(connection, self.kind, self.payload, **self.settings)


Way = Callable[[str, Sequence[Call], bool], list[int]]


def psycopg_connection(url: str, calls: Sequence[Call], commit: bool) -> list[int]:
    import psycopg
    from psycopg.rows import dict_row

    app = Forebay(url)
    with psycopg.connect(url, row_factory=dict_row) as connection:
        connection.execute(INSERT)
        ids = [call.now(app, connection) for call in calls]
        connection.commit() if commit else connection.rollback()
    return ids


def psycopg_cursor(url: str, calls: Sequence[Call], commit: bool) -> list[int]:
    import psycopg

    app = Forebay(url)
    with psycopg.connect(url) as connection, psycopg.RawCursor(connection) as cursor:
        connection.cursor_factory = psycopg.RawCursor
        cursor.execute(INSERT + " RETURNING 7")
        ids = [call.now(app, cursor) for call in calls]
        assert cursor.fetchone() == (7,), "the caller's own cursor is as it was"
        connection.commit() if commit else connection.rollback()
    return ids


def psycopg_async(url: str, calls: Sequence[Call], commit: bool) -> list[int]:
    import psycopg

    app = Forebay(url)

    async def run() -> list[int]:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            cursor = await connection.execute(INSERT)
            ids = [await calls[0].later(app, cursor)] + [await call.later(app, connection) for call in calls[1:]]
            await (connection.commit() if commit else connection.rollback())
            return ids

    return asyncio.run(run())


def asyncpg_connection(url: str, calls: Sequence[Call], commit: bool) -> list[int]:
    import asyncpg  # type: ignore[import-untyped]

    app = Forebay(url)

    async def run() -> list[int]:
        connection = await asyncpg.connect(url)
        # What many applications do: their own values for json columns.
        await connection.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(INSERT)
        ids = [await call.later(app, connection) for call in calls]
        await (transaction.commit() if commit else transaction.rollback())
        await connection.close()
        return ids

    return asyncio.run(run())


def asyncpg_pool(url: str, calls: Sequence[Call], commit: bool) -> list[int]:
    import asyncpg

    app = Forebay(url)

    async def run() -> list[int]:
        async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(INSERT)
            ids = [await call.later(app, connection) for call in calls]
            await (transaction.commit() if commit else transaction.rollback())
            return ids

    return asyncio.run(run())


def sqlalchemy_connection(url: str, calls: Sequence[Call], commit: bool) -> list[int]:
    from sqlalchemy import create_engine, text

    app, engine = Forebay(url), create_engine(_with_driver(url, "psycopg"))
    with engine.connect() as connection:
        connection.execute(text(INSERT))
        ids = [call.now(app, connection) for call in calls]
        connection.commit() if commit else connection.rollback()
    engine.dispose()
    return ids


def sqlalchemy_session(url: str, calls: Sequence[Call], commit: bool) -> list[int]:
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import scoped_session, sessionmaker

    app, engine = Forebay(url), create_engine(_with_driver(url, "psycopg"))
    session = scoped_session(sessionmaker(engine))
    session.execute(text(INSERT))
    ids = [calls[0].now(app, session)] + [call.now(app, session()) for call in calls[1:]]
    session.commit() if commit else session.rollback()
    session.remove()
    engine.dispose()
    return ids


def sqlalchemy_async(url: str, calls: Sequence[Call], commit: bool) -> list[int]:
    return asyncio.run(_sqlalchemy_async(_with_driver(url, "asyncpg"), Forebay(url), calls, commit))


def sqlalchemy_async_psycopg(url: str, calls: Sequence[Call], commit: bool) -> list[int]:
    return asyncio.run(_sqlalchemy_async(_with_driver(url, "psycopg"), Forebay(url), calls, commit))


async def _sqlalchemy_async(url: str, app: Forebay, calls: Sequence[Call], commit: bool) -> list[int]:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(url)
    async with AsyncSession(engine) as session:
        await session.execute(text(INSERT))
        connection = await session.connection()
        ids = [await calls[0].later(app, session)] + [await call.later(app, connection) for call in calls[1:]]
        await (session.commit() if commit else session.rollback())
    await engine.dispose()
    return ids


def django(url: str, calls: Sequence[Call], commit: bool) -> list[int]:
    given = [[call.payload, call.settings, call.kind] for call in calls]
    answer = subprocess.run(
        [sys.executable, __file__, url, json.dumps(given), str(int(commit))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    ids: list[int] = json.loads(answer.stdout)
    return ids


def plain_sql(url: str, calls: Sequence[Call], commit: bool) -> list[int]:
    import psycopg

    statement = b"SELECT forebay.enqueue(%s, %s::text::json, key => %s, delay => make_interval(secs => %s))"
    with psycopg.connect(url) as connection:
        connection.execute(INSERT)
        ids = []
        for call in calls:
            key, delay = call.settings.get("key"), call.settings.get("delay", 0)
            found = connection.execute(statement, (call.kind, json.dumps(call.payload), key, delay)).fetchone()
            assert found is not None
            ids.append(found[0])
        connection.commit() if commit else connection.rollback()
    return ids


WAYS: Final[dict[str, Way]] = {
    way.__name__: way
    for way in (
        psycopg_connection,
        psycopg_cursor,
        psycopg_async,
        asyncpg_connection,
        asyncpg_pool,
        sqlalchemy_connection,
        sqlalchemy_session,
        sqlalchemy_async,
        sqlalchemy_async_psycopg,
        django,
        plain_sql,
    )
}


def _with_driver(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


def _django_main(url: str, calls: Sequence[Call], commit: bool) -> list[int]:
    import django as framework
    from django.conf import settings
    from django.db import connection, connections, transaction

    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username,
        "PASSWORD": parts.password,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
    settings.configure(DATABASES={"default": database}, USE_TZ=True)
    framework.setup()
    app, ids = Forebay(url), []
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(INSERT)
            places = [connection, connections["default"], cursor]
            ids = [call.now(app, places[place % 3]) for place, call in enumerate(calls)]
        transaction.set_rollback(not commit)
    connection.close()
    return ids


if __name__ == "__main__":
    given_calls = [Call(*given) for given in json.loads(sys.argv[2])]
    sys.stdout.write(json.dumps(_django_main(sys.argv[1], given_calls, sys.argv[3] == "1")))
