"""`demo` and `version`."""

import platform
import sqlite3
from argparse import ArgumentParser
from importlib.metadata import PackageNotFoundError, version

from forebay.cli.command import Command, Invocation
from forebay.cli.exits import OK


def _demo_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=7, help="the same seed gives the same run (default: 7)")


def _demo(call: Invocation) -> int:
    from forebay.demo.tour import main

    return main(["--seed", str(call.args.seed)])


def forebay_version() -> str:
    try:
        return version("forebay")
    except PackageNotFoundError:
        return "unknown"


def _version(call: Invocation) -> int:
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
        "demo", "the guided tour, with kill -9 and the proof", _demo, "forebay demo", _demo_arguments, takes_store=False
    ),
    Command(
        "version",
        "show the versions of forebay, Python and SQLite",
        _version,
        "forebay version --json",
        takes_store=False,
    ),
)
