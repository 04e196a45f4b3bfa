"""The indexes of docs/guides/search.md, as written there: searches use them, and find what they find without."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from forebay.core.job import Draft, State
from forebay.core.limits import CONTENT_SCAN
from forebay.core.outcome import DeadLetter, Failure
from forebay.store.open import open_store
from forebay.store.protocol import Query, Store, Want

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "search.md"
ON_SQLITE, ON_POSTGRES, WITH_VIEW = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
JOBS = 4 * CONTENT_SCAN
VALUES: list[Any] = [7, "7", "7.0", 7.0, True, "true", None, "null", "a'b", "é", {"id": 7}, [7], 2**53 + 1, -3]
TEXTS = ["7", "7.0", "true", "null", "a'b", "é", str(2**53 + 1), "-3", "", "NaN", '"7"', "[7]"]
DEAD = Query(state=State.DEAD)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    url: str = request.getfixturevalue("cleared_url")
    yield url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP INDEX IF EXISTS forebay.ended_by_customer, forebay.ended_by_trace")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Dead letters: few with each of the values, among many."""
    store = open_store(url)
    drafts = [Draft("ship", {"customer": {"id": n, "kind": "plain"}}, meta={"trace": "many"}) for n in range(100, JOBS)]
    drafts[::200] = [Draft("ship", {"customer": {"id": value}}, meta={"trace": "few"}) for value in VALUES[:10]]
    drafts += [Draft("ship", {"customer": {"id": value}}) for value in VALUES]
    for start in range(0, len(drafts), 500):
        store.enqueue(drafts[start : start + 500])
        leases = store.claim([Want("default", 500)], "me", timedelta(minutes=1))
        store.settle([(lease, DeadLetter(Failure("E"))) for lease in leases])
    yield store
    store.close()


def indexed(url: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(ON_SQLITE)
        return
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in ON_POSTGRES.split(";")[:-1]:
            connection.execute(statement.encode())
        connection.execute("ANALYZE forebay.ended")


def found(store: Store, query: Query, limit: int = 100) -> tuple[list[int], int]:
    """All ids, and how many pages that took."""
    ids: list[int] = []
    after: int | None = 0
    pages = 0
    while after is not None:
        page = store.browse(query, after, limit)
        ids += [job.id for job in page.jobs]
        after, pages = page.next, pages + 1
    return ids, pages


def test_an_index_finds_the_same_in_one_page(url: str, store: Store) -> None:
    queries = [Query(state=State.DEAD, payload=(("customer.id", text),)) for text in TEXTS]
    queries += [Query(state=State.DEAD, meta=(("trace", text),)) for text in ("few", "none")]
    queries.append(Query(state=State.DEAD, kind="other", payload=(("customer.id", "7"),)))
    queries.append(Query(state=State.DEAD, payload=(("customer.kind", "plain"), ("customer.id", "700"))))
    before = [found(store, query) for query in queries]
    assert all(pages >= JOBS // CONTENT_SCAN for _, pages in before[: len(TEXTS)])
    assert sum(len(ids) for ids, _ in before) > 30
    indexed(url)
    after = [found(store, query) for query in queries]
    assert [ids for ids, _ in after] == [ids for ids, _ in before]
    scanned = {"null", "7.0"} if url.startswith("sqlite") else {"null"}
    slow = [text for text, (_, pages) in zip(TEXTS, after, strict=False) if pages > 1]
    assert set(slow) == scanned
    assert all(pages == 1 for _, pages in after[len(TEXTS) :])


def test_a_value_of_many_jobs_is_read_page_by_page(url: str, store: Store) -> None:
    query = Query(state=State.DEAD, meta=(("trace", "many"),))
    ids, _ = found(store, query)
    indexed(url)
    assert found(store, query, limit=70) == (ids, -(-len(ids) // 70))


def test_an_index_that_is_written_otherwise_is_not_used(url: str, store: Store) -> None:
    query = Query(state=State.DEAD, payload=(("customer.id", "7"),))
    ids, pages = found(store, query)
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute(f"{ON_SQLITE.split(';')[0]} WHERE state = 3")
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                b"CREATE INDEX ended_by_customer ON forebay.ended ((body #>> '{customer,id}'), id) WHERE state = 3"
            )
    assert found(store, query) == (ids, pages)


def test_waiting_jobs_are_found_too(url: str, store: Store) -> None:
    (waiting,) = store.enqueue([Draft("ship", {"customer": {"id": "ada"}})])
    (dead,) = store.enqueue([Draft("ship", {"customer": {"id": "ada"}}, priority=1)])
    indexed(url)
    ids, _ = found(store, Query(payload=(("customer.id", "ada"),)))
    assert ids == [waiting.id, dead.id]


def test_the_view_uses_the_index_on_postgres(cleared_url: str) -> None:
    store = open_store(cleared_url)
    store.enqueue([Draft("ship", {"customer": {"id": n % 50}}) for n in range(500)])
    leases = store.claim([Want("default", 500)], "me", timedelta(minutes=1))
    store.settle([(lease, DeadLetter(Failure("E"))) for lease in leases])
    store.close()
    with psycopg.connect(cleared_url, autocommit=True) as connection:
        try:
            connection.execute(ON_POSTGRES.split(";")[0].encode())
            connection.execute("ANALYZE forebay.ended")
            assert len(connection.execute(WITH_VIEW.encode()).fetchall()) == 10
            plan = "\n".join(row[0] for row in connection.execute(b"EXPLAIN " + WITH_VIEW.encode()).fetchall())
            assert "ended_by_customer" in plan, plan
        finally:
            connection.execute("DROP INDEX IF EXISTS forebay.ended_by_customer")
