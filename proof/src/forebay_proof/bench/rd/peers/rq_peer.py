"""RQ as a benchmark client: `prepare URL`, `put URL JOBS`, `work URL`. Runs in `.venv-bench`."""

import sys
import time
from functools import cache
from typing import Any

from forebay_proof.load.payloads import BULK, payloads
from forebay_proof.tally import ENQUEUE, TallyFile

EMAIL = "forebay_proof.bench.rd.peers.rq_peer.email"


@cache
def tally_of_this_process() -> TallyFile:
    return TallyFile.of_this_process()


def email(**_: Any) -> None:
    tally_of_this_process().count()


def queue_of(url: str) -> Any:
    from redis import Redis
    from rq import Queue  # type: ignore[import-not-found,unused-ignore]

    return Queue("email", connection=Redis.from_url(url))


def put(url: str, jobs: int) -> None:
    queue, loads, tally = queue_of(url), payloads(jobs), tally_of_this_process()
    with tally.whole(jobs):
        for start in range(0, jobs, BULK):
            began = time.perf_counter()
            part = loads[start : start + BULK]
            queue.enqueue_many([queue.prepare_data(EMAIL, kwargs=load, result_ttl=0) for load in part])
            tally.add(ENQUEUE, time.perf_counter() - began)


def work(url: str) -> None:
    """Without a process for each job."""
    from rq import SimpleWorker

    queue = queue_of(url)
    SimpleWorker([queue], connection=queue.connection).work(logging_level="ERROR")


def main(what: str, url: str, *count: str) -> None:
    if what == "put":
        put(url, int(count[0]))
    elif what == "work":
        work(url)


if __name__ == "__main__":
    main(*sys.argv[1:])
