"""Hot calls are parsed and planned once a connection, under names that can be read; behind a pooler they are not."""

from contextlib import closing

import pytest

from forebay.core.errors import StoreFailed
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.store.postgres.connect import Prepared
from forebay.store.postgres.store import PostgresStore
from forebay.store.protocol import Want

NAMES = "SELECT name, generic_plans + custom_plans FROM pg_prepared_statements ORDER BY name"


def worked(url: str) -> list[tuple[str, int]]:
    """What a connection has prepared after jobs were enqueued, claimed and settled one by one; and how often it ran."""
    with closing(PostgresStore(url)) as store:
        for number in range(8):
            store.enqueue([Draft("k", number)])
            (lease,) = store.claim([Want("default", 1)], "ada", seconds(60))
            store.settle([(lease, Ack())])
        server = store.backend.session.server
        return [(name.partition("_pg3")[0], uses) for name, uses in server.query(NAMES)]


def test_hot_calls_are_prepared_once(postgres_url: str) -> None:
    found = dict(worked(postgres_url))
    assert found.keys() >= {"forebay.claim(", "forebay.settle("}
    assert found["forebay.claim("] > 2


def test_a_statement_that_failed_at_first_is_prepared_again(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        server, call = store.backend.session.server, Prepared("SELECT 1 / %s")
        for _ in range(3):
            with pytest.raises(StoreFailed, match="division by zero"):
                server.query(call, (0,))
        assert server.query(call, (1,)) == [(1,)]


def test_nothing_is_prepared_behind_a_pooler(pgbouncer_url: str) -> None:
    assert worked(pgbouncer_url) == []
