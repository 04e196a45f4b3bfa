"""A burst of workers on Spark: each task is a whole worker, with claims, renewals and reaper, until nothing is left.

Spark only starts the processes; leases keep it correct. A task that is lost, retried or run twice by speculation is a
worker that stopped, or one worker more: its jobs become ready again when their leases expire, and tasks run until no
job is leased. Jobs are never rows: a row that Spark computes again would be a job that ran twice.
"""

import os
import platform
from collections.abc import Iterable, Iterator
from functools import partial
from threading import Event
from time import monotonic
from typing import Final

from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql import SparkSession

from forebay.core.errors import Invalid
from forebay.spark.executors import shipped
from forebay.store.protocol import Store
from forebay.work.app import find_app
from forebay.work.options import Options
from forebay.work.worker import Worker

_POLL_SECONDS: Final = 0.2
_QUIET_SECONDS: Final = 1.0
"""A task ends when nothing has been ready, running or due soon for this long."""

_SOON_SECONDS: Final = 60.0
"""Tasks wait for jobs that are due within it; later ones are left to other workers."""


class WorkerRun(Struct, frozen=True):
    """The result of one task. `attempt`: Spark's attempt number. `empty`: it ended because no job was left."""

    task: int
    attempt: int
    owner: str
    seconds: float
    empty: bool


def drain(
    spark: SparkSession, target: str, url: str, options: Options, *, tasks: int | None = None, limit: float = 3600.0
) -> list[WorkerRun]:
    """Run workers of the app `module:name` in so many tasks (default: one a slot) until its queues are empty.

    After `limit` seconds each stops claiming, finishes what runs, and leaves the rest. Modules of the app in the
    working directory are shipped; all others must be importable on the executors, and the store reachable from them.
    """
    if url.startswith("memory:"):
        raise Invalid(
            "store",
            "a memory store belongs to one process, and Spark runs in several",
            "use sqlite, postgresql or redis",
        )
    tasks = spark.sparkContext.defaultParallelism if tasks is None else tasks
    places = spark.sparkContext.parallelize(range(tasks), tasks)
    with shipped(spark, target.partition(":")[0]):
        runs = places.mapPartitions(partial(_work, target, url, options, limit)).collect()
    return [WorkerRun(*each) for each in runs]


def _work(
    target: str, url: str, options: Options, limit: float, places: Iterable[int]
) -> Iterator[tuple[int, int, str, float, bool]]:
    """One task. It returns plain tuples, which Spark pickles."""
    os.environ["FOREBAY_URL"] = url
    try:
        app = find_app(target)
    except (Invalid, ImportError) as error:
        reason = error.reason if isinstance(error, Invalid) else f"{target!r} cannot be loaded: {error}"
        raise Invalid("app", f"on {platform.node()} {reason}", "install it there, or name it by --py-files") from None
    if app.url != url:
        raise Invalid("store", f"{target} names its own", "write Forebay() without a URL there")
    context = TaskContext.get()
    attempt = 0 if context is None else context.attemptNumber()
    for place in places:
        began = monotonic()
        worker = Worker(app, options, target=target)
        worker.start()
        try:
            empty = _wait(worker, app.store, began + limit)
        finally:
            worker.drain(options.drain_timeout.total_seconds())
            app.close()
        yield place, attempt, worker.owner, monotonic() - began, empty


def _wait(worker: Worker, store: Store, until: float) -> bool:
    """Whether the queues became empty in time."""
    quiet_since = monotonic()
    while not worker.broken and monotonic() < until:
        if not _at_rest(worker, store):
            quiet_since = monotonic()
        elif monotonic() - quiet_since >= _QUIET_SECONDS:
            return True
        Event().wait(_POLL_SECONDS)
    if worker.broken:
        raise RuntimeError("the worker is broken: its loop ended, handlers hang, or the store is unreachable")
    return False


def _at_rest(worker: Worker, store: Store) -> bool:
    held = store.backlog(list(worker.options.queues))
    if any(queue.ready or queue.running for queue in held) or not worker.pool.idle:
        return False
    next_due = store.promote(1).next_due if any(queue.waiting for queue in held) else None
    return next_due is None or next_due - store.now() > _SOON_SECONDS * 1_000_000
