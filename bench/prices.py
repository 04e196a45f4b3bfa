"""What each guarantee costs on each store, as a ratio to a plain queue in the same run: `forebay bench`, with a server.

python -m bench.prices            memory, SQLite, and a private Postgres that syncs
python -m bench.prices --quick    a first look

The ratio is time with the guarantee over time without, alternating rounds. Beside them: what 100,000 jobs behind a
closed gate cost those that are claimed beside them.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure import arguments
from forebay.bench import GUARANTEES, Load, Price, parked_price, prices
from forebay.store.open import open_store
from forebay.store.protocol import Store
from forebay.testing.servers.postgres import PostgresServer

PARKED = 100_000


@contextmanager
def stores() -> Iterator[Iterator[Store]]:
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory, PostgresServer(durable=True) as server:
        urls = ("memory://", f"sqlite:///{directory}/jobs.db", server.create_database())
        yield (open_store(url) for url in urls)


def measured(only: str, *, quick: bool) -> Iterator[Price]:
    """One after the other; a plain queue beside each."""
    load = Load(jobs=500, rounds=2) if quick else Load(jobs=5_000, rounds=7)
    with stores() as opened:
        for store in opened:
            wanted = [each for name, each in GUARANTEES.items() if only in f"{store.capabilities.name}/{name}"]
            yield from prices(store, wanted, load)
            if only in f"{store.capabilities.name}/parked":
                yield parked_price(store, PARKED // 10 if quick else PARKED, load)
            store.close()


def main() -> None:
    args = arguments(__doc__)
    for price in measured(args.only, quick=args.quick):
        name = f"{price.store}/{price.guarantee.rpartition(' ')[2]}"
        if args.json:
            figure = {"name": name, "value": price.ratio, "unit": "×", "spread": [price.least, price.most]}
            goal = "1.3" if name.endswith("parked") else "2"
            print(json.dumps({**figure, "baseline": f"{price.store}/plain", "ratio": price.ratio, "goal": goal}))
        else:
            told = f"{price.ratio:6.2f} × plain [{price.least:.2f} … {price.most:.2f}]"
            print(f"{name:24} {told:32} {price.rate:12,.0f} jobs/s, plain {price.plain_rate:,.0f}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
