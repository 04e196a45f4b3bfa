"""Scratch databases beside a named one, on the same server: made, used and dropped; the named one is only connected to.

The user of the URL must be allowed to create databases; if not, `ServerUnavailable` says so.
"""

from secrets import token_hex
from typing import LiteralString

import psycopg
from psycopg import sql

from forebay_proof.servers.postgres import database_of, with_database
from forebay_proof.servers.process import ServerUnavailable


class Scratch:
    """The databases of one run; their names begin alike, so that leftovers of a crash are easily found."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._name = f"forebay_scratch_{token_hex(4)}"
        self._count = 0

    def create(self) -> str:
        """The URL of a fresh, empty database."""
        self._count += 1
        url = with_database(self._url, f"{self._name}_{self._count:03}")
        self._execute("CREATE DATABASE {}", database_of(url))
        return url

    def drop(self, url: str) -> None:
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", database_of(url))

    def _execute(self, statement: LiteralString, name: str) -> None:
        try:
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(sql.SQL(statement).format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege:
            reason = "the user of the URL may not create databases, and none but scratch databases are worked in"
            raise ServerUnavailable(f"{reason}: give it CREATEDB, or use another user") from None
        except psycopg.OperationalError as error:
            raise ServerUnavailable(f"no connection to the server: {type(error).__name__}") from None
