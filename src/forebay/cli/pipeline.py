"""`pipeline`: stream the ledger of a store into the events and tables of a lake, once or continuously."""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from forebay.cli.argtypes import duration
from forebay.cli.command import Command, CommandGroup, Invocation
from forebay.cli.exits import FAILED, OK
from forebay.cli.resolve_store import masked
from forebay.cli.spark_commands import (
    absolute_url,
    ending_by_signal,
    lake_argument,
    lasting_spark,
    master_argument,
    needing_spark,
    spark_of,
)
from forebay.core.humanize import many

if TYPE_CHECKING:
    from forebay.spark.pipeline import PipelineRun

_MAX_SHORT: Final = 10_000
"""Up to so many records the optimizing compiler of Java is not worth its CPU."""


def _run_arguments(parser: ArgumentParser) -> None:
    lake_argument(parser)
    master_argument(parser)


def _stream_arguments(parser: ArgumentParser) -> None:
    _run_arguments(parser)
    parser.add_argument(
        "--every", type=duration, default="5s", metavar="LENGTH", help="interval between batches (default: 5s)"
    )
    parser.add_argument(
        "--tables-every",
        type=duration,
        default="1m",
        metavar="LENGTH",
        help="interval between refreshes of the tables (default: 1m)",
    )
    parser.add_argument(
        "--maintain-every",
        type=duration,
        default="1h",
        metavar="LENGTH",
        help="interval between compactions (default: 1h)",
    )
    _keep_argument(parser)


def _maintain_arguments(parser: ArgumentParser) -> None:
    lake_argument(parser)
    _keep_argument(parser)
    parser.add_argument(
        "--grace", type=duration, default="1h", metavar="LENGTH", help="replaced files stay for readers (default: 1h)"
    )


def _keep_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--keep", type=duration, metavar="LENGTH", help="drop days that are older, such as 90d")


def _run(call: Invocation) -> int:
    with needing_spark():
        from forebay.spark.lake import Lake, stale_tables
        from forebay.spark.pipeline import Pipeline, PipelineRun
        from forebay.spark.sections import check_ledger

        url = absolute_url(call.url)
        lake = Lake.of(call.args.lake, url)
        contents = lake.contents()
        positions, late = check_ledger(url, contents), stale_tables(contents)
        if not (positions.new or positions.names or late):
            rows = {name: table.rows for name, table in contents.tables.items()}
            _show(call, PipelineRun(0, 0, 0.0, rows, dict.fromkeys(rows, 0)))
            return OK
        with spark_of(call, short=positions.new <= _MAX_SHORT and not late) as spark:
            _show(call, Pipeline(spark, lake, url, progress_of(call)).run())
    return OK


def _stream(call: Invocation) -> int:
    with ending_by_signal() as stop, needing_spark():
        from forebay.spark.lake import Lake
        from forebay.spark.maintenance import Maintenance
        from forebay.spark.pipeline import Pipeline
        from forebay.spark.sections import check_ledger

        url = absolute_url(call.url)
        maintenance = Maintenance(call.args.maintain_every.total_seconds(), call.args.keep)
        lake = Lake.of(call.args.lake, url)
        check_ledger(url, lake.contents())
        with lasting_spark(call) as spark:
            pipeline = Pipeline(spark, lake, url, progress_of(call))
            call.screen.note(f"following {masked(call.url)}; ctrl-c or SIGTERM ends it")
            every, tables = call.args.every.total_seconds(), call.args.tables_every.total_seconds()
            _show(call, pipeline.stream(every, stop, tables, maintenance))
    return OK


def _status(call: Invocation) -> int:
    """From the Delta logs alone: no Spark, no store."""
    with needing_spark():
        from forebay.spark.lake import Lake, missing_events

        lake = Lake.at(call.args.lake)
        contents = lake.contents()
    missing = missing_events(contents)
    facts = {
        "lake": lake.uri,
        "store": contents.store,
        "offsets": f"{contents.first} … {contents.end - 1}" if contents.event_count else None,
        "records": contents.end - contents.first,
        "events": contents.event_count,
        "files": len(contents.events.files),
        "whole": "no: " + "; ".join(missing) if missing else "yes",
    }
    tables = {name: {"rows": held.rows, "behind": contents.end - held.end} for name, held in contents.tables.items()}
    if call.screen.as_json:
        call.screen.emit(facts | {"tables": tables})
    else:
        call.screen.facts(list(facts.items()))
        if tables:
            rows = [(name, each["rows"], each["behind"]) for name, each in tables.items()]
            call.screen.table(("table", "rows", "records behind"), rows, "rows behind")
    return FAILED if missing else OK


def _maintain(call: Invocation) -> int:
    """No Spark, no store."""
    with needing_spark():
        from forebay.spark.lake import Lake
        from forebay.spark.maintenance import Maintenance, maintain

        done = maintain(Lake.at(call.args.lake), Maintenance(keep=call.args.keep, grace=call.args.grace))
    if call.screen.as_json:
        call.screen.emit(done)
    else:
        call.screen.say(str(done))
    return OK


def progress_of(call: Invocation) -> Callable[[str], None] | None:
    """A line on stderr for each step, except with --json."""
    return None if call.screen.as_json else call.screen.note


def _show(call: Invocation, done: "PipelineRun") -> None:
    if call.screen.as_json:
        call.screen.emit(done)
        return
    call.screen.say(f"{many(done.records, 'record')}, {many(done.events, 'event')} in {done.seconds:.1f} s")
    if done.tables:
        rows = [(name, f"{rows:,}", f"{done.written[name]:,}") for name, rows in done.tables.items()]
        call.screen.table(("table", "rows", "rewritten"), rows, "rows")


COMMANDS = (
    CommandGroup(
        "pipeline",
        "stream the ledger into a lake of events and tables, on Spark",
        (
            Command(
                "run",
                "add all records that the ledger has now, and exit",
                _run,
                """
forebay pipeline run --lake lake
forebay pipeline run --lake /mnt/lake --store postgresql://db/app --master spark://spark:7077
""",
                _run_arguments,
            ),
            Command(
                "stream",
                "follow the ledger until ctrl-c or SIGTERM",
                _stream,
                """
forebay pipeline stream --lake lake
forebay pipeline stream --lake lake --every 2s --tables-every 5m
""",
                _stream_arguments,
            ),
            Command(
                "status",
                "show what a lake contains, and whether it is whole",
                _status,
                "forebay pipeline status --lake lake\nforebay pipeline status --lake lake --json",
                lake_argument,
                takes_store=False,
            ),
            Command(
                "maintain",
                "join small files, drop old days, remove unreferenced files",
                _maintain,
                "forebay pipeline maintain --lake lake\nforebay pipeline maintain --lake s3://bucket/lake --keep 90d",
                _maintain_arguments,
                takes_store=False,
            ),
        ),
    ),
)
