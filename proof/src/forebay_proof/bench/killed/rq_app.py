"""RQ in `bench.recovery`: `put JOBS`, `work`."""

import os
import sys
from typing import Any

from redis import Redis
from rq import Queue, Worker  # type: ignore[import-not-found,unused-ignore]

from forebay_proof.bench.killed.nap import URL, nap


def main(what: str, jobs: int = 0) -> None:
    connection: Any = Redis.from_url(os.environ[URL])
    queue: Any = Queue(connection=connection)
    if what == "work":
        Worker([queue], connection=connection).work()
    for number in range(jobs):
        queue.enqueue(nap, number)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
