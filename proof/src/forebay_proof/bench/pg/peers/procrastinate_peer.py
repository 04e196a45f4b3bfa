"""procrastinate as a benchmark client: `prepare URL`, `put URL JOBS`, `work URL CONCURRENCY`. Runs in `.venv-bench`."""

import sys
import time
from typing import Any

from forebay_proof.load.payloads import BULK, payloads
from forebay_proof.tally import CLAIM, ENQUEUE, TallyFile

CONNECTIONS = 7


def app_of(url: str, tally: TallyFile) -> Any:
    from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found,unused-ignore]

    app: Any = App(connector=PsycopgConnector(conninfo=url, min_size=2, max_size=CONNECTIONS))

    async def email(**_: Any) -> None:
        tally.count()

    app.task(name="email")(email)
    return app


async def put(app: Any, jobs: int, tally: TallyFile) -> None:
    loads = payloads(jobs)
    with tally.whole(jobs):
        for start in range(0, jobs, BULK):
            began = time.perf_counter()
            await app.tasks["email"].batch_defer_async(*loads[start : start + BULK])
            tally.add(ENQUEUE, time.perf_counter() - began)


async def work(app: Any, concurrency: int, tally: TallyFile) -> None:
    real = app.job_manager.fetch_job

    async def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        job = await real(*args, **kwargs)
        if job is not None:
            tally.add(CLAIM, time.perf_counter() - began)
        return job

    app.job_manager.fetch_job = timed
    await app.run_worker_async(concurrency=concurrency, delete_jobs="successful", listen_notify=False)


async def main(what: str, url: str, *count: str) -> None:
    tally = TallyFile.of_this_process()
    app = app_of(url, tally)
    async with app.open_async():
        if what == "prepare":
            await app.schema_manager.apply_schema_async()
        elif what == "put":
            await put(app, int(count[0]), tally)
        else:
            await work(app, int(count[0]), tally)


if __name__ == "__main__":
    import uvloop  # type: ignore[import-not-found,unused-ignore]

    uvloop.run(main(*sys.argv[1:]))
