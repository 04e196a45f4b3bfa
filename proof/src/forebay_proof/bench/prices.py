"""What each guarantee costs on each store, as a ratio in the same run: `forebay bench guarantees`, with a server.

forebay bench run prices            memory, SQLite, and a private Postgres that syncs
forebay bench run prices --quick    a first look

The ratio is time with the guarantee over time without, alternating rounds: over plain jobs, which are all alike, and
(`…/unlike`) over jobs no two neighbours of which are; beside it, the ratio of the CPU time of the Postgres server, or
of this process where the store is in it. Beside them: what 100,000 jobs behind a closed gate cost those
that are claimed beside them, and how long a claim takes from 100,000 lanes.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace

from forebay.store.open import open_store
from forebay.store.protocol import Store
from forebay_proof.bench.guarantees import (
    GUARANTEES,
    PLAIN,
    UNLIKE,
    Price,
    Rounds,
    lanes_latency,
    parked_price,
    prices,
)
from forebay_proof.bench.measure import arguments, selected
from forebay_proof.servers.postgres import PostgresServer

MANY: Final = 100_000
GOALS: Final = {"parked": 1.1, "cap": 1.2, "rate": 1.2, "fair": 1.3, "order": 2.0, "cap_200": 1.6, "cap_5000": 1.6}


@contextmanager
def stores() -> Iterator[Iterator[tuple[Store, int]]]:
    """Each with the process that does its work."""
    with (
        tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory,
        PostgresServer(durable=True, private=True) as server,
    ):
        urls = {"memory://": os.getpid(), f"sqlite:///{directory}/jobs.db": os.getpid()}
        urls[server.create_database()] = server.pid
        yield ((open_store(url), pid) for url, pid in urls.items())


def measured(store: Store, only: str, rounds: Rounds, many: int) -> Iterator[Price]:
    """One after the other; a queue without the guarantee beside each."""
    name = store.capabilities.name
    for base in (PLAIN, UNLIKE):
        ending = "" if base is PLAIN else f"/{base.name}"
        wanted = [
            each for key, each in GUARANTEES.items() if selected(only, f"{name}/{key}{ending}") and each is not base
        ]
        yield from prices(store, wanted, rounds, base)
    if selected(only, f"{name}/parked"):
        yield parked_price(store, many, rounds)


def main() -> None:
    args = arguments(__doc__)
    rounds = Rounds(jobs=1_000, pairs=3) if args.quick else Rounds(jobs=5_000, pairs=7)
    many = MANY // 10 if args.quick else MANY
    with stores() as opened:
        for store, pid in opened:
            for price in measured(store, args.only, replace(rounds, pids=(pid,)), many):
                show(price, as_json=args.json)
            if selected(args.only, f"{store.capabilities.name}/lanes"):
                show_lanes(store.capabilities.name, *lanes_latency(store, many, rounds), as_json=args.json)
            store.close()


def show(price: Price, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**price.figure(), "goal": GOALS.get(price.name.split("/")[1], 2.0)}))
    else:
        ratio = f"{price.ratio:6.2f} × {price.base} [{price.minimum:.2f} … {price.maximum:.2f}]"
        cpu = (
            "" if price.cpu is None else f"   CPU {price.cpu_ratio:.2f} × ({price.cpu[1]:.1f} by {price.cpu[0]:.1f} µs)"
        )
        print(f"{price.name:26} {ratio:34} {price.rate:12,.0f} jobs/s, {price.base} {price.plain_rate:,.0f}{cpu}")
    sys.stdout.flush()


def show_lanes(store: str, middle: float, p99: float, *, as_json: bool) -> None:
    if as_json:
        figure = {"name": f"{store}/lanes", "value": p99, "unit": "ms", "spread": [middle, p99]}
        print(json.dumps({**figure, "baseline": None, "ratio": None, "goal": 10}))
    else:
        print(f"{store + '/lanes':26} a claim of 100: median {middle:.1f} ms, p99 {p99:.1f} ms")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
