"""Servers that process tests may kill: `durable` is a Postgres of their own, which syncs as in production, one for each
worker of xdist; `load` is a fresh database in it, with workers, producers and an audit.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from forebay_proof.servers.postgres import PostgresServer
    from tests.process.load import Load
    from tests.process.site import Site


@pytest.fixture(scope="session")
def durable() -> "Iterator[PostgresServer]":
    from forebay_proof.servers.postgres import PostgresServer
    from forebay_proof.servers.process import ServerUnavailable

    with ExitStack() as stack:
        try:
            server = stack.enter_context(PostgresServer(durable=True, private=True))
        except ServerUnavailable as error:
            pytest.skip(str(error))
        yield server


@pytest.fixture
def durable_url(durable: "PostgresServer") -> Iterator[str]:
    """The test before may have left the server dead."""
    durable.start()
    url = durable.create_database()
    yield url
    durable.start()
    durable.drop_database(url)


@pytest.fixture
def load(durable_url: str, tmp_path: Path) -> "Iterator[Load]":
    from tests.process.load import Load

    load = Load(tmp_path, durable_url)
    try:
        yield load
    finally:
        load.close()


@pytest.fixture(params=("sqlite", "postgres", "redis"))
def each_site(request: pytest.FixtureRequest, tmp_path: Path) -> "Iterator[Site]":
    """A site on each store that several processes share."""
    from tests.process.site import Site

    kept = request.param
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if kept == "sqlite" else request.getfixturevalue(f"{kept}_url")
    site = Site(tmp_path, url)
    try:
        yield site
    finally:
        site.close()
