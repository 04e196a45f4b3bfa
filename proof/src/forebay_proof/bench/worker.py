"""The worker: what it costs a job, what it costs when idle, how fast a killed process's jobs run again, the import.

make bench-worker                    all of it, about five minutes
make bench-worker ARGS="--quick"     a first look
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from forebay import Draft, Want
from forebay.client import Forebay
from forebay.core.instant import seconds
from forebay.core.lease import Lease, Settlement
from forebay.core.policy import Routing
from forebay.work.options import Options
from forebay.work.pool import Pool
from forebay.work.worker import Worker
from forebay_proof.bench.measure import Figure, arguments, run
from forebay_proof.histogram import percentile

IDLE_SECONDS = 4.0
GROWN_UP_SECONDS = 2.1

APP = """
import os, time
from forebay import Context, Forebay
fb = Forebay()

@fb.job(max_attempts=1000)
def long(ctx: Context | None = None) -> None:
    with open(os.environ["STARTS"], "a") as starts:
        starts.write(f"{time.time()} {os.getpid()}\\n")
    time.sleep(600)
"""


def app_of_nothing() -> Forebay:
    fb = Forebay("memory://")

    @fb.job
    async def nothing(name: str, number: int = 1) -> None:
        pass

    @fb.job
    async def failing(name: str, number: int = 1) -> None:
        raise ConnectionError(f"{name} does not answer to {number}")

    return fb


def fill(fb: Forebay, jobs: int, kind: str = "nothing") -> None:
    fb.enqueue_many(Draft(kind, {"name": "ada", "number": 1}) for _ in range(jobs))


def overhead(jobs: int, kind: str = "nothing") -> float:
    """Microseconds of CPU a job from its lease to its verdict, the store left out."""
    fb = app_of_nothing()
    fill(fb, jobs, kind)
    leases: list[Lease] = []
    while batch := fb.store.claim([Want("default", 500)], "bench", seconds(600)):
        leases += batch
    verdicts: list[Settlement] = []
    routing = Routing()
    pool = Pool(fb.registry, Options(concurrency=100), lambda _: routing, verdicts.extend)
    pool.start()
    began = time.process_time()
    for start in range(0, len(leases), 100):
        while pool.free < 100:
            pool.wait_for_capacity(0.05)
        pool.submit(leases[start : start + 100])
    pool.wait_until_idle(30)
    spent = time.process_time() - began
    pool.close()
    assert len(verdicts) == len(leases)
    return spent / len(leases) * 1e6


def end_to_end(jobs: int) -> float:
    """Jobs a second, claimed, run and acknowledged by a whole worker on the memory store."""
    fb = app_of_nothing()
    fill(fb, jobs)
    worker = Worker(fb, Options(concurrency=100))
    began = time.perf_counter()
    worker.start()
    while worker.settler.applied < jobs and time.perf_counter() - began < 60:
        time.sleep(0.005)
    took = time.perf_counter() - began
    worker.drain(5)
    return jobs / took


def idle_percent() -> float:
    """CPU of a worker with nothing to do on a SQLite file, in percent of a core."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        fb = Forebay(f"sqlite:///{directory}/idle.db")
        worker = Worker(fb)
        worker.start()
        time.sleep(1)
        began, spent = time.perf_counter(), time.process_time()
        time.sleep(IDLE_SECONDS)
        percent = (time.process_time() - spent) / (time.perf_counter() - began) * 100
        worker.drain(5)
        fb.close()
    return percent


def import_milliseconds(statement: str) -> float:
    code = f"import time; began = time.perf_counter(); {statement}; print((time.perf_counter() - began) * 1000)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def recovery_seconds(kills: int) -> list[float]:
    """From kill -9 of the supervised process that runs a job to the job's next start.

    The process is given time to grow up first: one that dies young, again and again, is restarted later and later.
    """
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        starts = Path(directory) / "starts"
        starts.touch()
        (Path(directory) / "app.py").write_text(APP)
        environment = {**os.environ, "FOREBAY_URL": f"sqlite:///{directory}/jobs.db", "STARTS": str(starts)}
        enqueue = [sys.executable, "-c", "import app; app.long.enqueue()"]
        subprocess.run(enqueue, cwd=directory, env=environment, check=True)
        command = [sys.executable, "-m", "forebay", "worker", "app:fb", "--processes", "2", "--drain-timeout", "0"]
        fleet = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        took = []
        try:
            for number in range(kills):
                started_at, holder = _lines(starts, number)[number]
                time.sleep(max(0.0, float(started_at) + GROWN_UP_SECONDS - time.time()))
                killed_at = time.time()
                os.kill(int(holder), signal.SIGKILL)
                took.append(float(_lines(starts, number + 1)[number + 1][0]) - killed_at)
        finally:
            fleet.terminate()
            fleet.wait(60)
    return took


def _lines(starts: Path, count: int) -> list[list[str]]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        lines = [line.split() for line in starts.read_text().rpartition("\n")[0].splitlines()]
        if len(lines) > count:
            return lines
        time.sleep(0.005)
    raise TimeoutError("the job did not start again")


def figures(quick: bool) -> list[Figure]:
    jobs = 20_000 if quick else 100_000
    kills = 5 if quick else 50
    return [
        Figure("worker/overhead", "µs/job", lambda: overhead(jobs), goal="≤ 15"),
        Figure("worker/failing", "µs/job", lambda: overhead(jobs // 4, "failing"), baseline="worker/overhead"),
        Figure("worker/end-to-end-memory", "jobs/s", lambda: end_to_end(jobs)),
        Figure("worker/idle", "% core", idle_percent, goal="≤ 1"),
        Figure("import/forebay", "ms", lambda: import_milliseconds("import forebay"), goal="≤ 150"),
        Figure(
            "import/forebay.Forebay", "ms", lambda: import_milliseconds("from forebay import Forebay"), goal="≤ 150"
        ),
        Figure("import/asyncio", "ms", lambda: import_milliseconds("import asyncio")),
        Figure(f"recovery/supervised-p99-of-{kills}", "s", lambda: percentile(recovery_seconds(kills), 99), goal="≤ 1"),
    ]


def main() -> None:
    args = arguments(__doc__)
    run(figures(args.quick), rounds=1 if args.quick else 3, only=args.only, as_json=args.json)


if __name__ == "__main__":
    main()
