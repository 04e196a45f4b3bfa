"""celery as a benchmark client: `prepare URL`, `put URL JOBS`, `work URL PREFETCH LATE`. Runs in `.venv-bench`."""

import sys
import time
from typing import Any

from forebay_proof.load.payloads import payloads
from forebay_proof.tally import ENQUEUE, TallyFile


def app_of(url: str, tally: TallyFile, *, late: bool) -> Any:
    from celery import Celery  # type: ignore[import-not-found,import-untyped,unused-ignore]

    app: Any = Celery("bench", broker=url)
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=late,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
    )

    def email(**_: Any) -> None:
        tally.count()

    app.task(name="email")(email)
    return app


def put(app: Any, jobs: int, tally: TallyFile) -> None:
    """With one producer for all: there is no call for many."""
    loads, email = payloads(jobs), app.tasks["email"]
    with app.producer_pool.acquire(block=True) as producer, tally.whole(jobs):
        for load in loads:
            began = time.perf_counter()
            email.apply_async(kwargs=load, producer=producer)
            tally.add(ENQUEUE, time.perf_counter() - began)


def work(app: Any, prefetch: int) -> None:
    app.worker_main(
        [
            "worker",
            "--pool=solo",
            "--concurrency=1",
            f"--prefetch-multiplier={prefetch}",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "--loglevel=ERROR",
        ]
    )


def main(what: str, url: str, *numbers: str) -> None:
    tally = TallyFile.of_this_process()
    app = app_of(url, tally, late=numbers[1:] == ("1",))
    if what == "put":
        put(app, int(numbers[0]), tally)
    elif what == "work":
        work(app, int(numbers[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
