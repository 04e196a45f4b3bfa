"""The index of docs/guides/search.md: Postgres accepts it as written, and uses it for the query beside it."""

import re
from datetime import timedelta
from pathlib import Path

import psycopg

from forebay.core.job import Draft
from forebay.core.outcome import DeadLetter, Failure
from forebay.store.open import open_store
from forebay.store.protocol import Want

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "search.md"


def test_the_documented_index_is_used(cleared_url: str) -> None:
    (block,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    index, query, _ = block.split(";")
    store = open_store(cleared_url)
    store.enqueue([Draft("ship", {"customer": {"id": n % 50}}) for n in range(500)])
    leases = store.claim([Want("default", 500)], "me", timedelta(minutes=1))
    store.settle([(lease, DeadLetter(Failure("E"))) for lease in leases])
    store.close()
    with psycopg.connect(cleared_url, autocommit=True) as connection:
        try:
            connection.execute(index.encode())
            connection.execute("ANALYZE forebay.ended")
            assert len(connection.execute(query.encode()).fetchall()) == 10
            plan = "\n".join(row[0] for row in connection.execute(b"EXPLAIN " + query.encode()).fetchall())
            assert "ended_by_customer" in plan, plan
        finally:
            connection.execute("DROP INDEX IF EXISTS forebay.ended_by_customer")
