"""`audit`: receipts of producers and effects of handlers, compared with the ledger, on Spark.

Exit codes: 0 PASS · 1 FAIL, a promise was broken · 2 INVALID, the evidence does not suffice. An audit
that could not run never exits with 0 or 1.

With `--follow` each turn judges the events of two turns ago by the evidence of one turn ago and the ledger of now. So a
receipt or an effect may be written a turn before or after its event is added to the lake.
"""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from forebay.cli.argtypes import duration, fraction
from forebay.cli.command import Command, Invocation
from forebay.cli.exits import OK, UNREACHABLE, CommandFailed
from forebay.cli.pipeline import progress_of
from forebay.cli.report import check_place
from forebay.cli.spark_commands import (
    absolute_url,
    ending_by_signal,
    lake_argument,
    lasting_spark,
    master_argument,
    needing_spark,
    number,
    spark_on_demand,
)
from forebay.core.errors import ForebayError, Invalid
from forebay.store.clock import SystemClock

if TYPE_CHECKING:
    from forebay.spark.audit import AuditOptions, AuditVerdict
    from forebay.spark.evidence import StartSpark
    from forebay.spark.lake import Lake
    from forebay.spark.proof import LakeEvidence

_LAG: Final = 2
"""Turns of --follow between an event and its verdict."""

_MAX_SHORT: Final = 10_000_000
"""Events that an audit reads before the optimizing compiler of Java is worth its CPU."""


def _line(text: str) -> tuple[str, str]:
    queue, sign, field = text.rpartition(":")
    if not sign or not queue:
        raise ArgumentTypeError(f"{text!r} names no line; write QUEUE:subject, QUEUE:tenant or QUEUE:kind")
    return queue, field


def _schedule(text: str) -> tuple[str, timedelta]:
    name, sign, every = text.rpartition("=")
    if not sign or not name:
        raise ArgumentTypeError(f"{text!r} names no schedule; write NAME=LENGTH, such as nightly=1d")
    return name, duration(every)


def _arguments(parser: ArgumentParser) -> None:
    lake_argument(parser)
    for name, what in (("--receipts", "answers to producers"), ("--effects", "effects of handlers")):
        help_ = f"{what}: a file or directory of NDJSON or Parquet; may be repeated"
        parser.add_argument(name, metavar="PATH", action="append", default=[], help=help_)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="leave out the checks that compare each job's events; the verdict names them",
    )
    parser.add_argument(
        "--whole", action="store_true", help="rely on no earlier audit: check all events and all evidence again"
    )
    parser.add_argument(
        "--drained", action="store_true", help="the queues were empty: a job without an end is a failure"
    )
    parser.add_argument("--exactly-once", action="store_true", help="effects by two deliveries are a failure")
    parser.add_argument(
        "--dropped", metavar="KIND", action="append", help="kinds of errors by which handlers drop a job"
    )
    help_ = "jobs of a line run in order (default: as the specs of --store say)"
    parser.add_argument("--ordered", type=_line, action="append", default=[], metavar="QUEUE:FIELD", help=help_)
    parser.add_argument(
        "--schedule",
        type=_schedule,
        action="append",
        default=[],
        metavar="NAME=LENGTH",
        help="no slot of it is missing (default: of the schedules of --store it is a note)",
    )
    parser.add_argument("--from-offset", type=int, default=0, metavar="OFFSET", help="earlier events are not judged")
    parser.add_argument(
        "--min-jobs", type=number, default=1, metavar="N", help="with fewer jobs the answer is INVALID (default: 1)"
    )
    parser.add_argument(
        "--coverage", type=fraction, default=0.9, metavar="SHARE", help="share of jobs with a receipt (default: 0.9)"
    )
    parser.add_argument("--store", metavar="URL", help="run the pipeline from this store first")
    parser.add_argument(
        "--log", metavar="NAME", action="append", default=[], help="check a retained log of --store, too"
    )
    parser.add_argument(
        "--follow", action="store_true", help="a verdict per --every, until one is not PASS, ctrl-c or SIGTERM"
    )
    parser.add_argument(
        "--every", type=duration, default="1m", metavar="LENGTH", help="with --follow: how often (default: 1m)"
    )
    parser.add_argument("--report", metavar="FILE", help="write the report, too: one HTML page")
    master_argument(parser)


def _audit(call: Invocation) -> int:
    args = call.args
    if args.log and args.store is None:
        raise Invalid("--log", "a log is read from its store", "name that by --store")
    if args.report is not None:
        check_place(Path(args.report))
        if args.follow:
            raise Invalid("--report", "a report shows one verdict, --follow gives many", "omit one of them")
    with _nothing_proved(), needing_spark():
        from forebay.spark.lake import Lake

        url = None if args.store is None else absolute_url(args.store)
        lake = Lake.at(args.lake) if url is None else Lake.of(args.lake, url)
        options = _options(call) if url is None else _promised(call, _options(call), url)
        if args.follow:
            with ending_by_signal() as stop, lasting_spark(call) as spark:
                return _follow(call, lambda: spark, lake, url, options, stop)
        with spark_on_demand(call, short=url is None and _is_short(call, lake, options)) as start:
            if url is not None:
                from forebay.spark.pipeline import Pipeline

                Pipeline(start(), lake, url, progress_of(call)).run()
            verdict = _judge(call, start, lake, _evidence(call, start, lake, url), options)
            if args.report is not None:
                from forebay.spark.report import write_report

                write_report(start(), lake, Path(args.report), verdict, command=_command_line(call))
    if call.screen.as_json:
        call.screen.say(verdict.json())
    else:
        call.screen.say(verdict.text())
        if args.report is not None:
            call.screen.note(f"the report is in {args.report}")
    return verdict.exit_code


def _is_short(call: Invocation, lake: "Lake", options: "AuditOptions") -> bool:
    from forebay.spark.proof import events_to_read

    evidence = [name for name in ("receipts", "effects") if getattr(call.args, name)]
    return events_to_read(lake, evidence, options, whole=call.args.whole) <= _MAX_SHORT


def _follow(
    call: Invocation, start: "StartSpark", lake: "Lake", url: str | None, options: "AuditOptions", stop: Event
) -> int:
    """Until a verdict is not PASS, or `stop` is set."""
    from forebay.spark.lake import EVENTS
    from forebay.spark.pipeline import Pipeline

    pipeline = None if url is None else Pipeline(start(), lake, url)
    ends: list[int] = []
    evidence: LakeEvidence | None = None
    call.screen.note(f"a verdict every {call.args.every.total_seconds():g} s; ctrl-c or SIGTERM ends it")
    while not stop.is_set():
        began = monotonic()
        if pipeline is not None:
            pipeline.run(tables=False)
        ends.append(lake.table(EVENTS).end)
        if len(ends) > _LAG and evidence is not None:
            verdict = _judge(call, start, lake, evidence, options, until=ends.pop(0))
            passed = verdict.answer == "PASS"
            line = verdict.json() if call.screen.as_json else verdict.line() if passed else verdict.text()
            call.screen.write(f"{line}\n")
            if not passed:
                return verdict.exit_code
        evidence = _evidence(call, start, lake, url)
        stop.wait(max(0.0, call.args.every.total_seconds() - (monotonic() - began)))
    return OK


def _keep(lake: "Lake", verdict: "AuditVerdict") -> None:
    """A summary of the last verdict stays in the lake, for the dashboard."""
    failed = [f"{each.check}: {each.count:,}. {each.what}" for each in verdict.results if each.outcome == "failed"]
    summary = {"answer": verdict.answer, "at": SystemClock().now(), "reasons": [*verdict.reasons, *failed]}
    from forebay.spark.lake import VERDICT

    lake.write(VERDICT, msgspec.json.encode(summary))


@contextmanager
def _nothing_proved() -> Iterator[None]:
    """An error must not be reported as a broken promise."""
    try:
        yield
    except Invalid:
        raise
    except (ForebayError, OSError) as error:
        raise CommandFailed(str(error), UNREACHABLE) from error


def _command_line(call: Invocation) -> str:
    """The options of the audit, shown on the page."""
    args = call.args
    words = [f"--lake {args.lake}"]
    words += [f"--{name} {path}" for name in ("receipts", "effects") for path in getattr(args, name)]
    words += [
        f"--{name.replace('_', '-')}" for name in ("quick", "whole", "drained", "exactly_once") if getattr(args, name)
    ]
    return " ".join(["forebay audit", *words])


def _options(call: Invocation) -> "AuditOptions":
    from forebay.spark.audit import AuditOptions

    args = call.args
    return AuditOptions(
        quick=args.quick,
        drained=args.drained,
        exactly_once=args.exactly_once,
        dropped=None if args.dropped is None else frozenset(args.dropped),
        ordered=dict(args.ordered),
        schedules=dict(args.schedule),
        from_offset=args.from_offset,
        min_jobs=args.min_jobs,
        coverage=args.coverage,
    )


def _promised(call: Invocation, options: "AuditOptions", url: str) -> "AuditOptions":
    """With the order and the slots that the store promises, unless --ordered or --schedule says which."""
    from forebay.spark.promises import promises_of

    try:
        found = promises_of(url)
    except ForebayError as error:
        call.screen.note(f"the order and the slots that the store promises are not checked: {error}")
        return options
    if found.lines and not options.ordered:
        words = " ".join(f"--ordered {queue}:{field}" for queue, field in sorted(found.lines.items()))
        call.screen.note(f"the store promises {words}, for jobs accepted since the last change of the queue's spec")
        options = replace(options, ordered=found.lines, promised=True)
    return options if options.schedules else replace(options, rules=found.rules)


def _evidence(call: Invocation, start: "StartSpark", lake: "Lake", url: str | None) -> "LakeEvidence":
    from forebay.spark.evidence import read_effects, read_receipts
    from forebay.spark.lake import missing_events
    from forebay.spark.proof import LakeEvidence

    args = call.args
    receipts = read_receipts(start, args.receipts, lake) if args.receipts else None
    effects = read_effects(start, args.effects, lake) if args.effects else None
    doubts = [f"the lake is not whole: {each}" for each in missing_events(lake.contents())]
    cut = bool(doubts)
    for what, found in (("receipts", receipts), ("effects", effects)):
        if found is not None and found.torn:
            call.screen.note(f"{what}: {found.torn} files end in the middle of a line; those ends are left out")
        doubts += [f"{what}: {each}" for each in ([] if found is None else found.doubled)]
    logs = {
        name: start().read.format("forebay").options(url=url or "", table=f"log:{name}").load() for name in args.log
    }
    return LakeEvidence(receipts, effects, logs, doubts, cut)


def _judge(
    call: Invocation,
    start: "StartSpark",
    lake: "Lake",
    evidence: "LakeEvidence",
    options: "AuditOptions",
    until: int | None = None,
) -> "AuditVerdict":
    from forebay.spark.proof import audit_lake

    args, note = call.args, call.screen.note
    by_spark = args.master is not None
    verdict = audit_lake(start, lake, evidence, options, whole=args.whole, until=until, by_spark=by_spark, note=note)
    _keep(lake, verdict)
    return verdict


COMMANDS = (
    Command(
        "audit",
        "prove from the ledger that no promise was broken: exit code 0, 1 or 2",
        _audit,
        """
forebay audit --lake lake --receipts receipts.ndjson --effects effects/ --drained
forebay audit --lake lake --receipts receipts.parquet --quick --json | jq .answer
forebay audit --lake lake --store sqlite:///jobs.db --receipts receipts.ndjson --report report.html
forebay audit --lake lake --store sqlite:///jobs.db --receipts receipts/ --effects effects/ --follow --every 1m
""",
        _arguments,
        takes_store=False,
    ),
)
