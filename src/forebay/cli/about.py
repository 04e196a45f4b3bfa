"""`conformance`, `sim`, `demo` and `version`."""

import platform
import sqlite3
from argparse import ArgumentParser
from importlib.metadata import PackageNotFoundError, version

from forebay.cli.command import Call, Command
from forebay.cli.exits import OK


def _conformance_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the store, such as sqlite:///trial or memory:// ")
    parser.add_argument("--only", metavar="PATTERN", help="cases that match: leases/*, or a part of the name")
    parser.add_argument("--list", action="store_true", help="show the cases and run none")
    parser.add_argument("--real-time", action="store_true", help="use the store's own clock: slower")


def _conformance(call: Call) -> int:
    from forebay.testing.conformance.__main__ import main

    args = call.args
    words = [args.url, *(["--only", args.only] if args.only else [])]
    flags = {"--list": args.list, "--real-time": args.real_time, "--json": args.json}
    return main([*words, *(flag for flag, given in flags.items() if given)])


def _demo_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=7, help="the same seed tells the same story (default: 7)")


def _demo(call: Call) -> int:
    from forebay.demo.story import main

    return main(["--seed", str(call.args.seed)])


def _sim_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--seed", metavar="N", default="0", help="one seed (default: 0)")
    parser.add_argument("--seeds", metavar="A:B", help="the seeds from A up to, not with, B")
    parser.add_argument("--hours", metavar="H", help="simulated hours of chaos")
    parser.add_argument("--faults", metavar="KIND,…", help="only these faults, or none")


def _sim(call: Call) -> int:
    from forebay.testing.sim.__main__ import main

    args = call.args
    words = ["--seeds", args.seeds] if args.seeds else ["--seed", args.seed]
    for name in ("hours", "faults"):
        if getattr(args, name) is not None:
            words += [f"--{name}", getattr(args, name)]
    return main([*words, *(["--json"] if args.json else [])])


def forebay_version() -> str:
    try:
        return version("forebay")
    except PackageNotFoundError:
        return "unknown"


def _version(call: Call) -> int:
    found = {
        "forebay": forebay_version(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    if call.screen.as_json:
        call.screen.emit(found)
    else:
        call.screen.say(" · ".join(f"{name} {number}" for name, number in found.items()))
    return OK


COMMANDS = (
    Command(
        "conformance",
        "hold a store to the contract, case by case",
        _conformance,
        """
forebay conformance memory://
forebay conformance sqlite:///trial --only 'leases/*'
""",
        _conformance_arguments,
        takes_store=False,
    ),
    Command(
        "demo", "the guided tour, with kill -9 and the proof", _demo, "forebay demo", _demo_arguments, takes_store=False
    ),
    Command(
        "sim",
        "simulate workers, store, disk and network by seed, with faults, and check every promise",
        _sim,
        "forebay sim --seed 7\nforebay sim --seeds 0:300",
        _sim_arguments,
        takes_store=False,
    ),
    Command("version", "say which versions run here", _version, "forebay version --json", takes_store=False),
)
