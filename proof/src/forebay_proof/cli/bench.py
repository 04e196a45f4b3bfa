"""`bench guarantees`: what each guarantee costs, beside a plain queue; `bench run`: every other benchmark."""

import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from forebay.cli.argtypes import count
from forebay.cli.command import Command, CommandGroup, Invocation
from forebay.cli.exits import OK
from forebay.store.open import open_store
from forebay.store.protocol import Store
from forebay_proof.bench.guarantees import GUARANTEES, Price, Rounds, parked_price, prices
from forebay_proof.bench.measure import ONLY

BENCHMARKS: Final = {
    **{
        name: name
        for name in "memory sqlite postgres redis stores cells worker latency ledger http metrics dashboard".split()
    },
    "async": "async_calls",
    "prices": "prices",
    "queue-names": "queue_names",
    "spark": "spark_io",
    "audit": "audit",
    "refresh": "refresh",
    "flood": "flood",
    "http-frameworks": "http_frameworks",
    "lines": "lines",
    "trees": "trees",
}
"""The module of each, by its name."""

_HEADINGS: Final = ("store", "with", "costs", "min", "max", "jobs/s", "plain jobs/s")


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in GUARANTEES]
    if unknown:
        raise ArgumentTypeError(f"{', '.join(unknown)}: there is no such guarantee; use {', '.join(GUARANTEES)}")
    return names


def _guarantee_arguments(parser: ArgumentParser) -> None:
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


def _guarantees(call: Invocation) -> int:
    args = call.args
    rounds = Rounds(args.jobs, args.rounds, args.batch)
    found: list[Price] = []
    with _stores(args.store) as stores:
        for store in stores:
            try:
                for price in _all(store, args.wanted, args.parked, rounds):
                    found.append(price)
                    if call.screen.as_json:
                        call.screen.emit(price.figure())
                    else:
                        call.screen.note(f"{price.store}: {price.guarantee} … {price.ratio:.2f}×")
            finally:
                store.close()
    if not call.screen.as_json:
        call.screen.table(_HEADINGS, [_row(price) for price in found], "costs min max jobs/s plain")
    return OK


def _all(store: Store, wanted: list[str], parked: int | None, rounds: Rounds) -> Iterator[Price]:
    yield from prices(store, [GUARANTEES[name] for name in wanted], rounds)
    if parked is not None:
        yield parked_price(store, parked, rounds)


def _row(price: Price) -> tuple[object, ...]:
    ratios = (f"{ratio:.2f}×" for ratio in (price.ratio, price.minimum, price.maximum))
    return price.store, price.guarantee, *ratios, f"{price.rate:,.0f}", f"{price.plain_rate:,.0f}"


def _run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", choices=sorted(BENCHMARKS), help="which one")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work and two rounds: for a first look")
    parser.add_argument("--only", metavar="TEXT,TEXT", help=ONLY)


def _run(call: Invocation) -> int:
    """In a process of its own, as `make bench-…` does: a benchmark measures its own CPU time and memory."""
    args = call.args
    command = [sys.executable, "-m", f"forebay_proof.bench.{BENCHMARKS[args.name]}"]
    command += ["--quick"] if args.quick else []
    command += ["--json"] if call.screen.as_json else []
    command += ["--only", args.only] if args.only else []
    return subprocess.run(command, check=False).returncode


COMMANDS = (
    CommandGroup(
        "bench",
        "what each part of Forebay costs, beside a baseline in the same run",
        (
            Command(
                "guarantees",
                "what each guarantee costs, beside a plain queue in the same run",
                _guarantees,
                """
forebay bench guarantees
forebay bench guarantees --with fair,rate,order,cap,key,bounded --jobs 5000
forebay bench guarantees --store postgresql:///jobs --with order --json
forebay bench guarantees --with cap --parked 100000
""",
                _guarantee_arguments,
                takes_store=False,
            ),
            Command(
                "run",
                "one benchmark; with --json, one object a figure: name, value, unit, spread, baseline, ratio",
                _run,
                """
forebay bench run memory --quick
forebay bench run postgres --quick --only drain --json
""",
                _run_arguments,
                takes_store=False,
            ),
        ),
    ),
)
