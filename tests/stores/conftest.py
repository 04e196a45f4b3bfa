"""A Postgres database with our tables for the tests of stores: made once for a worker of xdist, empty for each test.

`tables` is that database. `cleared_url` is its URL when every table is empty and ids start anew, which takes a
millisecond: a fresh copy of a database takes a hundred, a TRUNCATE thirty. A test that changes the schema itself takes
`postgres_url` instead.

`begin(spec)` begins a world for a story, on each store in turn; see `tests/stores/world.py`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from forebay_proof.servers.postgres import PostgresServer
    from tests.stores.tables import Tables
    from tests.stores.world import Begin


@pytest.fixture(scope="session")
def tables(postgres: "PostgresServer") -> "Iterator[Tables]":
    from tests.stores.openers import LentServer
    from tests.stores.tables import Tables

    with Tables(postgres.create_database()) as tables:
        yield tables
    LentServer.end_sessions()


@pytest.fixture
def cleared_url(tables: "Tables") -> str:
    tables.clear()
    return tables.url


@pytest.fixture(params=("memory", "sqlite", "postgres", "redis"))
def begin(request: pytest.FixtureRequest) -> "Iterator[Begin]":
    from tests.stores.world import Worlds

    with Worlds(request.param, request) as worlds:
        yield worlds
