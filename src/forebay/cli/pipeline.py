"""`pipeline`: the ledger of a store becomes events and tables in a lake, once or all the time."""

import signal
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import TYPE_CHECKING

from forebay.cli.command import Call, Command, Group
from forebay.cli.exits import FAILED, OK
from forebay.cli.place import masked
from forebay.cli.sparking import everywhere, lake_argument, master_argument, needing_spark, spark_of
from forebay.cli.words import length
from forebay.core.words import many

if TYPE_CHECKING:
    from forebay.spark.pipeline import Done


def _run_arguments(parser: ArgumentParser) -> None:
    lake_argument(parser)
    master_argument(parser)


def _stream_arguments(parser: ArgumentParser) -> None:
    _run_arguments(parser)
    parser.add_argument("--every", type=length, default="5s", metavar="LENGTH", help="look so often (default: 5s)")
    parser.add_argument(
        "--tables-every", type=length, default="1m", metavar="LENGTH", help="bring the tables up to date (default: 1m)"
    )


def _run(call: Call) -> int:
    with needing_spark():
        from forebay.spark.lake import Lake
        from forebay.spark.pipeline import Pipeline, check_ledger

        url = everywhere(call.url)
        lake = Lake.of(call.args.lake, url)
        check_ledger(url, lake.contents())
        with spark_of(call) as spark:
            _tell(call, Pipeline(spark, lake, url, remarks(call)).run())
    return OK


def _stream(call: Call) -> int:
    stop = Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with needing_spark():
            from forebay.spark.lake import Lake
            from forebay.spark.pipeline import Pipeline, check_ledger

            url = everywhere(call.url)
            lake = Lake.of(call.args.lake, url)
            check_ledger(url, lake.contents())
            with ExitStack() as stack:
                with _children_deaf_to(signal.SIGTERM):
                    spark = stack.enter_context(spark_of(call))
                pipeline = Pipeline(spark, lake, url, remarks(call))
                call.screen.note(f"following {masked(call.url)}; ctrl-c or SIGTERM ends it")
                every, tables = call.args.every.total_seconds(), call.args.tables_every.total_seconds()
                _tell(call, pipeline.stream(every, stop, tables))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return OK


@contextmanager
def _children_deaf_to(number: signal.Signals) -> Iterator[None]:
    """What is started meanwhile never hears this signal.

    A service manager ends all processes of a service at once. Java is still needed then, for what is under way and for
    the tables; it ends when this process does. A signal that comes meanwhile is not heard here either.
    """
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def _status(call: Call) -> int:
    """From the contents alone: no Spark, no store."""
    from forebay.spark.lake import Lake, holes

    lake = Lake.at(call.args.lake)
    contents = lake.contents()
    missing = holes(contents)
    facts = {
        "lake": str(lake.path),
        "store": contents.store,
        "offsets": f"{contents.first} … {contents.end - 1}" if contents.events else None,
        "records": contents.end - contents.first,
        "events": contents.event_count,
        "parts": len(contents.events),
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


def remarks(call: Call) -> Callable[[str], None] | None:
    """A line on stderr for each step, unless a program reads."""
    return None if call.screen.as_json else call.screen.note


def _tell(call: Call, done: "Done") -> None:
    if call.screen.as_json:
        call.screen.emit(done)
        return
    call.screen.say(f"{many(done.records, 'record')}, {many(done.events, 'event')} in {done.seconds:.1f} s")
    if done.tables:
        call.screen.table(("table", "rows"), [(name, f"{rows:,}") for name, rows in done.tables.items()], "rows")


COMMANDS = (
    Group(
        "pipeline",
        "stream the ledger into a lake of events and tables, on Spark",
        (
            Command(
                "run",
                "bring all that the ledger holds by now, and end",
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
                "say what a lake holds, and whether it is whole",
                _status,
                "forebay pipeline status --lake lake\nforebay pipeline status --lake lake --json",
                lake_argument,
                takes_store=False,
            ),
        ),
    ),
)
