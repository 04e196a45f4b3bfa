"""pgqueuer in `bench.recovery`: `prepare`, `put JOBS`, `work`."""

import asyncio
import os
import sys
from typing import Any

import asyncpg  # type: ignore[import-untyped,import-not-found,unused-ignore]
from pgqueuer import PgQueuer, Queries  # type: ignore[import-not-found,unused-ignore]

from forebay_proof.bench.killed.nap import URL, anap


async def nap(job: Any) -> None:
    await anap(int(job.payload))


async def main(what: str, jobs: int = 0) -> None:
    if what == "work":
        app: Any = PgQueuer.from_asyncpg_pool(await asyncpg.create_pool(os.environ[URL]))
        app.entrypoint("nap")(nap)
        await app.run()
    connection: Any = await asyncpg.connect(os.environ[URL])
    queries: Any = Queries.from_asyncpg_connection(connection)
    if what == "prepare":
        await queries.install()
    for number in range(jobs):
        await queries.enqueue("nap", str(number).encode())
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
