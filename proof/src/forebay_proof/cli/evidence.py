"""`evidence`: run the layers of the proof at full counts, keep what they did, and show it for these sources alone."""

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forebay.cli.argtypes import count, duration
from forebay.cli.command import Command, CommandGroup, Invocation
from forebay.cli.exits import FAILED, OK, USAGE

if TYPE_CHECKING:
    from forebay_proof.evidence import EvidencePart, PartResult

_FOLDER: Final = "docs/results/evidence"
_HEADS: Final = ("part", "count", "goal", "unit", "older", "hours", "commits", "result", "what")
_HOUR: Final = 3_600


def _arguments(parser: ArgumentParser, scale: str) -> None:
    parser.add_argument("parts", nargs="*", metavar="PART", help="only these (default: all)")
    parser.add_argument(
        "--results", default=_FOLDER, metavar="DIR", help=f"where results are kept (default: {_FOLDER})"
    )
    parser.add_argument(
        "--scale", choices=("quick", "full"), default=scale, help=f"full takes many hours (default: {scale})"
    )


def _run_arguments(parser: ArgumentParser) -> None:
    _arguments(parser, "quick")
    parser.add_argument(
        "--for", type=duration, dest="limit", metavar="DURATION", help="begin no further round after this time"
    )
    parser.add_argument(
        "--parallel", type=count, default=2, metavar="N", help="rounds that may run side by side (default: 2)"
    )


def _show_arguments(parser: ArgumentParser) -> None:
    _arguments(parser, "full")


def _run(call: Invocation) -> int:
    from forebay_proof.evidence import EvidenceRun
    from forebay_proof.evidence_parts import chosen

    args = call.args
    work = EvidenceRun(Path.cwd(), Path(args.results), parts := chosen(args.parts), args.scale, args.parallel)
    goals = {part.name: part.goal for part in parts}
    call.screen.note(f"{sum(len(work.open_rounds(part)) for part in parts)} rounds, {_hours(work.seconds_left())} h")
    for result, done in work.carry_out(**({} if args.limit is None else {"seconds": args.limit.total_seconds()})):
        call.screen.note(
            f"{result.part} {len(result.rounds)}/{result.planned}: {'passed' if done.passed else 'FAILED'}, "
            f"{done.count:,} {result.unit} in {done.seconds:,.0f} s; {result.count:,} of {goals[result.part]:,}; "
            f"{_hours(work.seconds_left())} h left"
        )
    return FAILED if work.failed else OK


def _hours(seconds: float) -> str:
    return f"{seconds / _HOUR:.1f}"


def _row(part: "EvidencePart", result: "PartResult | None", identity: str) -> tuple[object, ...]:
    if result is None:
        return (part.name, "–", f"{part.goal:,}", part.unit, "–", "–", "–", "not run", part.title)
    current = result.of(identity)
    verdict = current.verdict(part.goal) if current.rounds else "stale"
    older = result.count - current.count
    numbers = f"{current.count:,}", f"{part.goal:,}", part.unit, f"{older:,}" if older else "–"
    return (part.name, *numbers, _hours(result.seconds), " ".join(result.commits), verdict, part.title)


def _show(call: Invocation) -> int:
    from forebay_proof.evidence import recorded, sources
    from forebay_proof.evidence_parts import chosen

    args, parts = call.args, chosen(call.args.parts)
    known, identity = recorded(Path(args.results), args.scale), sources(Path.cwd())
    found = {part.name: known[part.name] for part in parts if part.name in known}
    if call.screen.as_json:
        for result in found.values():
            call.screen.emit(result)
    else:
        rows = [_row(part, found.get(part.name), identity) for part in parts]
        call.screen.table(_HEADS, rows, "count goal older hours")
    if old := [result.part for result in found.values() if result.stale(identity)]:
        call.screen.note(f"results of other sources: {', '.join(old)}; run `forebay evidence run {' '.join(old)}`")
    verdicts = {found[part.name].of(identity).verdict(part.goal) if part.name in found else "" for part in parts}
    return OK if verdicts == {"passed"} else USAGE


COMMANDS = (
    CommandGroup(
        "evidence",
        "what was run against these sources, how often, and what it found",
        (
            Command(
                "run",
                "run the rounds that have not passed for these sources yet, two side by side, and keep their results",
                _run,
                """
forebay evidence run
forebay evidence run simulation --scale full
forebay evidence run --scale full --for 3h
""",
                _run_arguments,
                takes_store=False,
            ),
            Command(
                "show",
                "the table of results; exit code 2 if some are missing, failed, below their goal or of other sources,"
                " which count for nothing",
                _show,
                "forebay evidence show\nforebay evidence show --json",
                _show_arguments,
                takes_store=False,
            ),
        ),
    ),
)
