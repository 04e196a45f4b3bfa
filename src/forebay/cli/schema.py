"""The schema version of a store; reading it changes nothing."""

import sqlite3
from urllib.parse import quote, urlsplit

from msgspec import Struct

from forebay.cli.resolve_store import connecting, is_postgres, is_redis, store_path
from forebay.store.sqlite.migrate import migrations


class Schema(Struct, frozen=True):
    """`version` is None for a store without a schema."""

    version: int | None
    known: int | None
    words: str
    remedy: str = ""

    @property
    def current(self) -> bool:
        return self.version == self.known


def schema_of(url: str) -> Schema:
    if is_postgres(url):
        return _schema_of_server(url)
    if is_redis(url):
        return Schema(None, None, "keys, which need no schema")
    if urlsplit(url).scheme == "cells":
        return Schema(None, None, "cells, each of which has the schema of its own store")
    file = store_path(url)
    if urlsplit(url).scheme != "sqlite" or file is None:
        return Schema(None, None, "a journal, which needs no schema")
    known = len(migrations())
    if not file.exists():
        return Schema(0, known, f"schema 0 of {known}", "forebay migrate")
    connection = sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True)
    try:
        (version,) = connection.execute("SELECT max(number) FROM migration").fetchone()
    except sqlite3.Error as error:
        return Schema(0, known, f"it cannot be read ({error})", "forebay migrate")
    finally:
        connection.close()
    return _schema(version, known)


def _schema_of_server(url: str) -> Schema:
    with connecting(url):
        from forebay.cli.postgres import steps_of

        steps = steps_of(url)
    return _schema(sum(step.applied_at is not None for step in steps), len(steps))


def _schema(version: int, known: int) -> Schema:
    return Schema(version, known, f"schema {version} of {known}", "" if version == known else "forebay migrate")
