"""Statements of the benchmark on Postgres that name tables of the store."""

from contextlib import closing

import psycopg

from forebay import Draft, Want, open_store
from forebay.core.instant import seconds
from forebay.core.outcome import Ack
from forebay_proof.bench.pg.backlog import LEFT


def test_the_jobs_left_of_a_drain_are_counted(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url, autocommit=True) as connection:
        store.enqueue([Draft("mail")] * 10)
        leases = store.claim([Want("default", 4)], "ada", seconds(30))
        assert connection.execute(LEFT.encode()).fetchone() == (10,)
        store.settle([(lease, Ack()) for lease in leases[:3]])
        assert connection.execute(LEFT.encode()).fetchone() == (7,)
