"""`bench`: what each guarantee costs on each store, as a ratio to a plain queue in the same run."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from forebay.cli.argtypes import count
from forebay.cli.command import Call, Command
from forebay.cli.exits import OK
from forebay.store.open import open_store
from forebay.store.protocol import Store
from forebay_proof.bench.guarantees import GUARANTEES, Price, Rounds, parked_price, prices

_HEADINGS: Final = ("store", "with", "costs", "least", "most", "jobs/s", "plain jobs/s")


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in GUARANTEES]
    if unknown:
        raise ArgumentTypeError(f"{', '.join(unknown)}: there is no such guarantee; use {', '.join(GUARANTEES)}")
    return names


def _arguments(parser: ArgumentParser) -> None:
    every = ",".join(GUARANTEES)
    parser.add_argument(
        "--store",
        action="append",
        metavar="URL",
        help="one to measure, may be given again (default: memory, and a new SQLite file)",
    )
    parser.add_argument("--with", dest="wanted", type=_names, default=list(GUARANTEES), metavar="NAMES", help=every)
    parser.add_argument("--jobs", type=count, default=2_000, metavar="N", help="in a round (default: 2000)")
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="pairs of rounds (default: 5)")
    parser.add_argument("--batch", type=count, default=100, metavar="N", help="jobs in a call (default: 100)")
    parser.add_argument("--parked", type=count, metavar="N", help="also beside so many jobs behind a closed gate")


@contextmanager
def _stores(urls: list[str] | None) -> Iterator[Iterator[Store]]:
    with TemporaryDirectory(prefix="forebay-bench-") as folder:
        named = urls or ["memory://", f"sqlite:///{Path(folder, 'bench.db')}"]
        yield (open_store(url) for url in named)


def _bench(call: Call) -> int:
    args = call.args
    rounds = Rounds(args.jobs, args.rounds, args.batch)
    found: list[Price] = []
    with _stores(args.store) as stores:
        for store in stores:
            try:
                for price in _all(store, args.wanted, args.parked, rounds):
                    found.append(price)
                    if call.screen.as_json:
                        call.screen.emit(msgspec.to_builtins(price))
                    else:
                        call.screen.note(f"{price.store}: {price.guarantee} … {price.ratio:.2f}×")
            finally:
                store.close()
    if not call.screen.as_json:
        call.screen.table(_HEADINGS, [_row(price) for price in found], "costs least most jobs/s plain")
    return OK


def _all(store: Store, wanted: list[str], parked: int | None, rounds: Rounds) -> Iterator[Price]:
    yield from prices(store, [GUARANTEES[name] for name in wanted], rounds)
    if parked is not None:
        yield parked_price(store, parked, rounds)


def _row(price: Price) -> tuple[object, ...]:
    ratios = (f"{ratio:.2f}×" for ratio in (price.ratio, price.least, price.most))
    return price.store, price.guarantee, *ratios, f"{price.rate:,.0f}", f"{price.plain_rate:,.0f}"


COMMANDS = (
    Command(
        "bench",
        "what each guarantee costs, beside a plain queue in the same run",
        _bench,
        """
forebay bench
forebay bench --with fair,rate,order,cap,key,bounded --jobs 5000
forebay bench --store postgresql:///jobs --with order --json
forebay bench --with cap --parked 100000
""",
        _arguments,
        takes_store=False,
    ),
)
