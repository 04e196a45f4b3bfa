"""pgqueuer as a client of benchmarks, in `.venv-bench`: `prepare URL`, `put|singles URL JOBS`, `work URL BATCH`."""

import asyncio
import json
import sys
import time
from datetime import timedelta
from typing import Any

from forebay_proof.load.payloads import BULK, payloads
from forebay_proof.tally import CLAIM, ENQUEUE, TallyFile


async def prepare(url: str) -> None:
    import asyncpg  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from pgqueuer import Queries  # type: ignore[import-not-found,unused-ignore]

    connection: Any = await asyncpg.connect(url)
    queries: Any = Queries.from_asyncpg_connection(connection)
    await queries.install()
    await queries.optimize_autovacuum()
    await connection.close()


async def put(url: str, jobs: int, tally: TallyFile) -> None:
    import asyncpg
    from pgqueuer import Queries
    from pgqueuer.db import AsyncpgPoolDriver  # type: ignore[import-not-found,unused-ignore]

    pool: Any = await asyncpg.create_pool(url, min_size=2, max_size=2)
    queries: Any = Queries(AsyncpgPoolDriver(pool))
    bodies: list[bytes | None] = [json.dumps(load).encode() for load in payloads(jobs)]
    starts = iter(range(0, jobs, BULK))

    async def some() -> None:
        for start in starts:
            part = bodies[start : start + BULK]
            began = time.perf_counter()
            await queries.enqueue(["email"] * len(part), part, [0] * len(part))
            tally.add(ENQUEUE, time.perf_counter() - began)

    with tally.whole(jobs):
        await asyncio.gather(some(), some())
    await pool.close()


async def singles(url: str, jobs: int, tally: TallyFile) -> None:
    """One connection, one job a call."""
    import asyncpg
    from pgqueuer import Queries

    connection: Any = await asyncpg.connect(url)
    queries: Any = Queries.from_asyncpg_connection(connection)
    bodies = [json.dumps(load).encode() for load in payloads(jobs)]
    await queries.enqueue("email", bodies[0])
    with tally.whole(jobs):
        for body in bodies:
            began = time.perf_counter()
            await queries.enqueue("email", body)
            tally.add(ENQUEUE, time.perf_counter() - began)
    await connection.close()


async def work(url: str, batch_size: int, tally: TallyFile) -> None:
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.queries import Queries  # type: ignore[import-not-found,unused-ignore]

    real = Queries.dequeue

    async def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        jobs = await real(*args, **kwargs)
        if jobs:
            tally.add(CLAIM, time.perf_counter() - began)
        return jobs

    Queries.dequeue = timed

    async def email(job: Any) -> None:
        json.loads(job.payload)
        tally.count()

    pool: Any = await asyncpg.create_pool(url, min_size=3, max_size=3)
    app: Any = PgQueuer.from_asyncpg_pool(pool)
    app.entrypoint("email")(email)
    await app.run(batch_size=batch_size, log_aggregation_interval=timedelta(0))


async def main(what: str, url: str, *count: str) -> None:
    tally = TallyFile.of_this_process()
    if what == "prepare":
        await prepare(url)
    elif what == "put":
        await put(url, int(count[0]), tally)
    elif what == "singles":
        await singles(url, int(count[0]), tally)
    else:
        await work(url, int(count[0]), tally)


if __name__ == "__main__":
    import uvloop  # type: ignore[import-not-found,unused-ignore]

    uvloop.run(main(*sys.argv[1:]))
