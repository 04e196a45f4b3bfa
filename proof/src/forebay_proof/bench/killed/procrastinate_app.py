"""Procrastinate in `bench.recovery`: `prepare`, `put JOBS`, `work`."""

import os
import sys
from typing import Any

from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found,unused-ignore]

from forebay_proof.bench.killed.nap import URL, anap

app: Any = App(connector=PsycopgConnector(conninfo=os.environ[URL]))
app.task(name="nap")(anap)


async def main(what: str, jobs: int = 0) -> None:
    async with app.open_async():
        if what == "prepare":
            await app.schema_manager.apply_schema_async()
        elif what == "work":
            await app.run_worker_async()
        for number in range(jobs):
            await app.tasks["nap"].defer_async(number=number)


if __name__ == "__main__":
    import asyncio

    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
