"""`audit`: is every promise kept? What producers were told and handlers did, held against the ledger, on Spark.

Exit codes: 0 PASS · 1 FAIL, a promise was broken · 2 INVALID, there was too little to judge by. What keeps the audit
from running at all is never a 0 or a 1.
"""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forebay.cli.command import Call, Command
from forebay.cli.exits import UNREACHABLE, CommandFailed
from forebay.cli.pipeline import remarks
from forebay.cli.report import check_place
from forebay.cli.sparking import everywhere, lake_argument, master_argument, needing_spark, number, spark_of
from forebay.cli.words import length, share
from forebay.core.errors import ForebayError, Invalid
from forebay.store.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forebay.spark.audit import Options, Verdict
    from forebay.spark.lake import Lake


def _line(text: str) -> tuple[str, str]:
    queue, sign, field = text.rpartition(":")
    if not sign or not queue:
        raise ArgumentTypeError(f"{text!r} names no line; write QUEUE:subject, QUEUE:tenant or QUEUE:kind")
    return queue, field


def _schedule(text: str) -> tuple[str, timedelta]:
    name, sign, every = text.rpartition("=")
    if not sign or not name:
        raise ArgumentTypeError(f"{text!r} names no schedule; write NAME=LENGTH, such as nightly=1d")
    return name, length(every)


def _arguments(parser: ArgumentParser) -> None:
    lake_argument(parser)
    for name, what in (("--receipts", "what producers were told"), ("--effects", "what handlers did")):
        help_ = f"{what}: a file or directory of NDJSON or Parquet; may be repeated"
        parser.add_argument(name, metavar="PATH", action="append", default=[], help=help_)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="leave out the checks that compare each job's events; the verdict names them",
    )
    parser.add_argument("--drained", action="store_true", help="all was worked off: a job without an end is a failure")
    parser.add_argument("--exactly-once", action="store_true", help="effects by two deliveries are a failure")
    parser.add_argument("--dropped", metavar="KIND", action="append", help="errors by which handlers give up at once")
    parser.add_argument(
        "--ordered", type=_line, action="append", default=[], metavar="QUEUE:FIELD", help="jobs of a line run in order"
    )
    parser.add_argument(
        "--schedule", type=_schedule, action="append", default=[], metavar="NAME=LENGTH", help="it leaves out no slot"
    )
    parser.add_argument("--begins", type=int, default=0, metavar="OFFSET", help="what was before it is not judged")
    parser.add_argument("--least-jobs", type=number, default=1, metavar="N", help="fewer prove nothing (default: 1)")
    parser.add_argument(
        "--coverage", type=share, default=0.9, metavar="SHARE", help="so many jobs have a receipt (default: 0.9)"
    )
    parser.add_argument("--store", metavar="URL", help="bring the lake up to date from this store first")
    parser.add_argument("--log", metavar="NAME", action="append", default=[], help="a retained log of --store as well")
    parser.add_argument("--report", metavar="FILE", help="write the report, too: one HTML page")
    master_argument(parser)


def _audit(call: Call) -> int:
    args = call.args
    if args.log and args.store is None:
        raise Invalid("--log", "a log is read from its store", "name that by --store")
    if args.report is not None:
        check_place(Path(args.report))
    with _nothing_proved(), needing_spark():
        from forebay.spark.lake import Lake

        url = None if args.store is None else everywhere(args.store)
        lake = Lake.at(args.lake) if url is None else Lake.of(args.lake, url)
        options = _options(call)
        with spark_of(call) as spark:
            if url is not None:
                from forebay.spark.pipeline import Pipeline

                Pipeline(spark, lake, url, remarks(call)).run()
            verdict = _judged(call, spark, lake, url, options)
            _keep(lake, verdict)
            if args.report is not None:
                from forebay.spark.report import write_report

                write_report(spark, lake, Path(args.report), verdict, said=_said(call))
    if call.screen.as_json:
        call.screen.say(verdict.json())
    else:
        call.screen.say(verdict.text())
        if args.report is not None:
            call.screen.note(f"the report is in {args.report}")
    return verdict.exit_code


def _keep(lake: "Lake", verdict: "Verdict") -> None:
    """The last verdict stays in its lake, in a few words, for whoever shows it: the dashboard does."""
    failed = [f"{each.check}: {each.count:,}. {each.what}" for each in verdict.results if each.outcome == "failed"]
    told = {"answer": verdict.answer, "at": SystemClock().now(), "reasons": [*verdict.reasons, *failed]}
    draft = lake.path / ".verdict.json.new"
    draft.write_bytes(msgspec.json.encode(told))
    draft.replace(lake.path / "verdict.json")


@contextmanager
def _nothing_proved() -> Iterator[None]:
    """What fails on the way must not look like a broken promise."""
    try:
        yield
    except Invalid:
        raise
    except (ForebayError, OSError) as error:
        raise CommandFailed(str(error), UNREACHABLE) from error


def _said(call: Call) -> str:
    """What was asked, for the one who reads the page later."""
    args = call.args
    words = [f"--lake {args.lake}"]
    words += [f"--{name} {path}" for name in ("receipts", "effects") for path in getattr(args, name)]
    words += [f"--{name.replace('_', '-')}" for name in ("quick", "drained", "exactly_once") if getattr(args, name)]
    return " ".join(["forebay audit", *words])


def _options(call: Call) -> "Options":
    from forebay.spark.audit import Options

    args = call.args
    return Options(
        quick=args.quick,
        drained=args.drained,
        exactly_once=args.exactly_once,
        dropped=None if args.dropped is None else frozenset(args.dropped),
        ordered=dict(args.ordered),
        schedules=dict(args.schedule),
        begins=args.begins,
        least_jobs=args.least_jobs,
        coverage=args.coverage,
    )


def _judged(call: Call, spark: "SparkSession", lake: "Lake", url: str | None, options: "Options") -> "Verdict":
    from forebay.spark.audit import audit
    from forebay.spark.evidence import read_effects, read_receipts
    from forebay.spark.frames import read_events

    args = call.args
    keep = lake.path / "evidence"
    receipts = read_receipts(spark, args.receipts, keep) if args.receipts else None
    effects = read_effects(spark, args.effects, keep) if args.effects else None
    doubts = []
    for what, found in (("receipts", receipts), ("effects", effects)):
        if found is not None and found.torn:
            call.screen.note(f"{what}: {found.torn} files end in the middle of a line; those ends are left out")
        doubts += [f"{what}: {each}" for each in ([] if found is None else found.doubled)]
    source = spark.read.format("forebay").option("url", url or "")
    return audit(
        read_events(spark, lake),
        None if receipts is None else receipts.rows,
        None if effects is None else effects.rows,
        logs={name: source.option("table", f"log:{name}").load() for name in args.log},
        options=options,
        doubts=doubts,
        absent=[] if receipts is None else receipts.absent,
    )


COMMANDS = (
    Command(
        "audit",
        "prove from the ledger that no promise was broken: exit code 0, 1 or 2",
        _audit,
        """
forebay audit --lake lake --receipts receipts.ndjson --effects effects/ --drained
forebay audit --lake lake --receipts receipts.parquet --quick --json | jq .answer
forebay audit --lake lake --store sqlite:///jobs.db --receipts told.ndjson --report report.html
""",
        _arguments,
        takes_store=False,
    ),
)
