"""dramatiq as a benchmark client: `prepare URL`, `put URL JOBS`, `work URL THREADS`. Runs in `.venv-bench`."""

import signal
import sys
import threading
import time
from typing import Any

from forebay_proof.load.payloads import payloads
from forebay_proof.tally import ENQUEUE, TallyFile


def app_of(url: str, tally: TallyFile) -> tuple[Any, Any]:
    import dramatiq  # type: ignore[import-not-found,unused-ignore]
    from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found,unused-ignore]
    from dramatiq.middleware import Retries  # type: ignore[import-not-found,unused-ignore]

    broker: Any = RedisBroker(url=url, middleware=[Retries()])
    dramatiq.set_broker(broker)

    def email(**_: Any) -> None:
        tally.count()

    return broker, dramatiq.actor(email)


def put(email: Any, jobs: int, tally: TallyFile) -> None:
    """One by one: a group is a loop of the same calls."""
    loads = payloads(jobs)
    with tally.whole(jobs):
        for load in loads:
            began = time.perf_counter()
            email.send(**load)
            tally.add(ENQUEUE, time.perf_counter() - began)


def work(broker: Any, threads: int) -> None:
    from dramatiq import Worker

    worker: Any = Worker(broker, worker_threads=threads)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    worker.start()
    stopped.wait()
    worker.stop()


def main(what: str, url: str, *count: str) -> None:
    tally = TallyFile.of_this_process()
    broker, email = app_of(url, tally)
    if what == "put":
        put(email, int(count[0]), tally)
    elif what == "work":
        work(broker, int(count[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
