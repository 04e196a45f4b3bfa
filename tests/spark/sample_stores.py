"""Stores with jobs in many states for the tests of Spark, and rows as plain Python."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
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


def worked(url: str, directory: Path, count: int, *, first: int = 0, done: int | None = None) -> None:
    """Jobs that are done, and what producers and handlers wrote down of them: receipts.ndjson, effects.ndjson. `done`:
    how many of all jobs that are open, the oldest first."""
    with opened(url) as store:
        enqueue_with_receipts(store, [Draft("k", {"seq": seq}) for seq in range(first, first + count)], directory)
        leases = store.claim([Want("default", count if done is None else done)], "worker", timedelta(seconds=30))
        did = [
            {"seq": lease.job.payload["seq"], "job_id": lease.job.id, "delivery": 1, "effect_at": _now()}
            for lease in leases
        ]
        _written(directory / "effects.ndjson", did)
        store.settle([(lease, Ack()) for lease in leases])


def enqueue_with_receipts(store: Store, drafts: list[Draft], directory: Path) -> dict[int, int]:
    """Enqueue jobs with a seq each and write down the receipts; the seq of each job."""
    seqs = {receipt.id: draft.payload["seq"] for receipt, draft in zip(store.enqueue(drafts), drafts, strict=True)}
    rows = [{"seq": seq, "job_id": job, "answer": "accepted", "sent_at": _now()} for job, seq in seqs.items()]
    _written(directory / "receipts.ndjson", rows)
    return seqs


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _written(file: Path, rows: list[dict[str, Any]]) -> None:
    with file.open("a") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def rows(df: DataFrame) -> list[dict[str, Any]]:
    """In the order of their ids."""
    return sorted(df.toArrow().to_pylist(), key=lambda row: row["id"])
