"""A Postgres database with our tables for the tests of stores: made once for a worker of xdist, empty for each test.

`tables` is that database. `cleared_url` is its URL when every table is empty and ids start anew, which takes a
millisecond: a fresh copy of a database takes a hundred, a TRUNCATE thirty. Whoever changes the schema itself takes
`postgres_url` instead.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from forebay.testing.servers.postgres import PostgresServer
    from tests.stores.tables import Tables


@pytest.fixture(scope="session")
def tables(postgres: "PostgresServer") -> "Iterator[Tables]":
    from tests.stores.tables import Tables

    with Tables(postgres.create_database()) as tables:
        yield tables


@pytest.fixture
def cleared_url(tables: "Tables") -> str:
    tables.clear()
    return tables.url
