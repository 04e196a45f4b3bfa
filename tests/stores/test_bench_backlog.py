"""The backlogs that benchmarks drain: seeded jobs are claimed like enqueued ones, and what is left is counted."""

from contextlib import closing
from datetime import timedelta
from typing import cast

from forebay.core.outcome import Ack
from forebay.store.postgres.store import PostgresStore
from forebay.store.protocol import Want
from forebay_proof.bench.pg import backlog
from forebay_proof.bench.pg.server import Bench, PostgresDatabase

LEASE = timedelta(minutes=1)


def test_a_seeded_backlog_counts_down_to_nothing(cleared_url: str) -> None:
    with (
        closing(PostgresDatabase(cast(Bench, None), cleared_url)) as database,
        closing(PostgresStore(cleared_url)) as store,
    ):
        backlog.seed(database, 20, batch=10)
        assert database.number(backlog.LEFT) == 20
        leases = store.claim([Want("default", 15)], "bench", LEASE)
        assert database.number(backlog.LEFT) == 20, "what runs is left"
        store.settle([(lease, Ack()) for lease in leases[:4]])
        assert database.number(backlog.LEFT) == 16
        rest = store.claim([Want("default", 15)], "bench", LEASE)
        store.settle([(lease, Ack()) for lease in leases[4:] + rest])
        assert database.number(backlog.LEFT) == 0
