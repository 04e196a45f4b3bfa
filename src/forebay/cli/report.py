"""`report`: the tables of a lake as one HTML page that needs no network."""

from argparse import ArgumentParser
from pathlib import Path

from forebay.cli.command import Command, Invocation
from forebay.cli.exits import OK
from forebay.cli.spark_commands import lake_argument, master_argument, needing_spark, spark_of
from forebay.core.errors import Invalid


def _arguments(parser: ArgumentParser) -> None:
    lake_argument(parser)
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page (default: report.html)")
    master_argument(parser)


def _report(call: Invocation) -> int:
    out = Path(call.args.out)
    check_place(out)
    with needing_spark():
        from forebay.spark.lake import Lake

        lake = Lake.at(call.args.lake)
        with spark_of(call) as spark:
            from forebay.spark.report import write_report

            write_report(spark, lake, out, None, command=f"forebay report --lake {call.args.lake}")
    if call.screen.as_json:
        call.screen.emit({"report": str(out), "bytes": out.stat().st_size})
    else:
        call.screen.say(f"the report is in {out}")
    return OK


def check_place(out: Path) -> None:
    """Checked before Spark starts."""
    if not out.parent.is_dir() or out.is_dir():
        raise Invalid("report", f"{out} cannot be written", "name a file in a directory that exists")


COMMANDS = (
    Command(
        "report",
        "show the tables of a lake as one HTML page",
        _report,
        "forebay report --lake lake --out report.html",
        _arguments,
        takes_store=False,
    ),
)
