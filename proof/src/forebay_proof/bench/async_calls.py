"""What the thread behind the calls for coroutines costs: `aget` and `aenqueue` beside `get` and `enqueue`.

    forebay bench run async                          memory, SQLite and Postgres
    forebay bench run async --quick --only memory    a first look

`alone` is one coroutine, whose calls follow each other, so each pays for its own way to the thread and back; `together`
is a thousand coroutines at once, which share calls of the store.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from typing import Any

from forebay.client import Forebay
from forebay_proof.bench.measure import Figure, arguments, run, selected
from forebay_proof.servers.postgres import PostgresServer

CALLS = 1_000
ROUNDS = 5
STORES = ("memory", "sqlite", "postgres")
WAYS = ("blocking", "alone", "together")


def blocking(call: Callable[[], object], calls: int) -> float:
    """Microseconds a call."""
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls * 1_000_000


def alone(call: Callable[[], Coroutine[Any, Any, object]], calls: int) -> float:
    async def one_after_another() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            await call()
        return (time.perf_counter() - began) / calls * 1_000_000

    return asyncio.run(one_after_another())


def together(call: Callable[[], Coroutine[Any, Any, object]], calls: int) -> float:
    async def at_once() -> float:
        began = time.perf_counter()
        await asyncio.gather(*[call() for _ in range(calls)])
        return (time.perf_counter() - began) / calls * 1_000_000

    return asyncio.run(at_once())


def figures(store: str, url: str, calls: int, stack: ExitStack) -> list[Figure]:
    fb = stack.enter_context(Forebay(url))
    known = fb.enqueue("x").id
    found = []
    for verb, call, acall in (
        ("get", partial(fb.get, known), partial(fb.aget, known)),
        ("enqueue", partial(fb.enqueue, "x"), partial(fb.aenqueue, "x")),
    ):
        name = f"{store}/{verb}"
        found += [
            Figure(f"{name}/blocking", "µs/call", partial(blocking, call, calls)),
            Figure(f"{name}/alone", "µs/call", partial(alone, acall, calls), f"{name}/blocking"),
            Figure(f"{name}/together", "µs/call", partial(together, acall, calls), f"{name}/blocking"),
        ]
    return found


def main() -> None:
    args = arguments(__doc__)
    calls, rounds = (CALLS // 10, 2) if args.quick else (CALLS, ROUNDS)
    with ExitStack() as stack:
        found: list[Figure] = []
        for store in STORES:
            if not any(selected(args.only, f"{store}/{verb}/{way}") for verb in ("get", "enqueue") for way in WAYS):
                continue
            match store:
                case "postgres":
                    url = stack.enter_context(PostgresServer()).create_database()
                case "sqlite":
                    url = (
                        f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory(prefix='forebay-bench-'))}/jobs.db"
                    )
                case _:
                    url = "memory://"
            found += figures(store, url, calls, stack)
        run(found, rounds=rounds, only=args.only, as_json=args.json)


if __name__ == "__main__":
    main()
