"""`evidence`: run the layers of the proof at full counts, keep what they did, and show it for these sources alone."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Final

from forebay.cli.command import Call, Command, Group
from forebay.cli.exits import FAILED, OK, USAGE

_FOLDER: Final = "docs/results/evidence"
_HEADS: Final = ("part", "count", "goal", "unit", "scale", "took s", "result", "what")


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("parts", nargs="*", metavar="PART", help="only these (default: all)")
    parser.add_argument(
        "--results", default=_FOLDER, metavar="DIR", help=f"where results are kept (default: {_FOLDER})"
    )


def _run_arguments(parser: ArgumentParser) -> None:
    _arguments(parser)
    parser.add_argument(
        "--scale", choices=("quick", "full"), default="quick", help="full takes many hours (default: quick)"
    )


def _run(call: Call) -> int:
    from forebay_proof import evidence

    args, passed = call.args, True
    for result in evidence.run(Path.cwd(), Path(args.results), evidence.chosen(args.parts), args.scale):
        passed = passed and result.passed
        verdict = "passed" if result.passed else "FAILED"
        call.screen.note(f"{result.part}: {result.count:,} {result.unit}, {verdict}, {result.seconds:,.0f} s")
    return OK if passed else FAILED


def _show(call: Call) -> int:
    from forebay_proof import evidence

    args = call.args
    parts = evidence.chosen(args.parts)
    known = evidence.recorded(Path(args.results))
    found = {part.name: known[part.name] for part in parts if part.name in known}
    rows = [
        (
            part.name,
            f"{found[part.name].count:,}" if part.name in found else "–",
            f"{part.goal:,}",
            part.unit,
            found[part.name].scale if part.name in found else "–",
            f"{found[part.name].seconds:,.0f}" if part.name in found else "–",
            "not run" if part.name not in found else "passed" if found[part.name].passed else "FAILED",
            part.title,
        )
        for part in parts
    ]
    old = evidence.stale(Path.cwd(), list(found.values()))
    if old:
        call.screen.note(f"results of other sources: {', '.join(old)}; run `forebay evidence run {' '.join(old)}`")
        return USAGE
    if call.screen.as_json:
        for result in found.values():
            call.screen.emit(result)
    else:
        call.screen.table(_HEADS, rows, "count goal took s")
    return OK if all(result.passed for result in found.values()) and len(found) == len(parts) else USAGE


COMMANDS = (
    Group(
        "evidence",
        "what was run against these sources, how often, and what it found",
        (
            Command(
                "run",
                "run the parts that have no passed result for these sources yet, and keep their results",
                _run,
                "forebay evidence run\nforebay evidence run simulation --scale full",
                _run_arguments,
                takes_store=False,
            ),
            Command(
                "show",
                "the table of results; exit code 2 if some are missing, failed or of other sources",
                _show,
                "forebay evidence show\nforebay evidence show --json",
                _arguments,
                takes_store=False,
            ),
        ),
    ),
)
