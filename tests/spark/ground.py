"""What the tests of the data source share: a store that has seen something, and rows as plain Python."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame

from forebay.core.job import Draft, Job
from forebay.core.outcome import Ack, DeadLetter, Failure, Retry
from forebay.store.open import open_store
from forebay.store.protocol import Query, Store, Want


@contextmanager
def opened(url: str) -> Iterator[Any]:
    """For a moment: a file is never open here while Spark works on it."""
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def every_job(store: Store, query: Query | None = None) -> list[Job]:
    found: list[Job] = []
    after: int | None = 0
    while after is not None:
        page = store.browse(query or Query(), after, 1_000)
        found += page.jobs
        after = page.next
    return found


def busy_day(url: str, count: int = 40) -> None:
    """Jobs in many states and with all that a job may have."""
    with opened(url) as store:
        drafts = [
            Draft(
                "odd" if number % 7 == 3 else "k",
                {"seq": number, "text": 'a,"b"\nc é', "list": [1, None, {"x": []}]},
                tenant="t1" if number % 5 == 0 else None,
                subject="s" if number % 9 == 0 else None,
                priority=7 if number == 4 else 0,
                deadline=1_900_000_000_000_000 if number == 5 else None,
                meta={"trace": "x"} if number == 6 else None,
            )
            for number in range(count)
        ]
        for start in range(0, count, 1_000):
            store.enqueue(drafts[start : start + 1_000])
        store.enqueue([Draft("later", {"seq": number}, delay=10**10, queue="late") for number in range(3)])
        store.enqueue([Draft("keyed", {"seq": 1}, key="once", queue="late", expires_at=1_900_000_000_000_000)])
        leases = store.claim([Want("default", 20)], "worker-1", timedelta(seconds=60))
        verdicts = [
            DeadLetter(Failure("ValueError", "no such é", "trace")),
            Ack(),
            Retry(10**9, Failure("OSError", "later")),
            DeadLetter(Failure("KeyError", "x")),
        ]
        store.settle(list(zip(leases, verdicts, strict=False)))
        store.cancel([leases[6].job.id, leases[19].job.id + 5])


def rows(df: DataFrame) -> list[dict[str, Any]]:
    """In the order of their ids."""
    return sorted(df.toArrow().to_pylist(), key=lambda row: row["id"])
