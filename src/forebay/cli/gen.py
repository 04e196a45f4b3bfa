"""`gen`: jobs by the million from a seed, into a store or into Parquet, on Spark."""

from argparse import ArgumentParser
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from forebay.cli.command import Command, Invocation
from forebay.cli.exits import OK
from forebay.cli.resolve_store import masked
from forebay.cli.screen import ProgressBar
from forebay.cli.spark_commands import absolute_url, master_argument, needing_spark, number, spark_of
from forebay.core.errors import Invalid
from forebay.core.humanize import many
from forebay.core.names import check_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from forebay.spark.generate import Seeded


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--jobs", type=number, required=True, metavar="N", help="how many: 5_000_000")
    parser.add_argument(
        "--seed", type=int, default=7, metavar="N", help="the same seed makes the same jobs (default: 7)"
    )
    parser.add_argument("--to", required=True, metavar="URL|DIR", help="a store, or a directory of Parquet")
    parser.add_argument("--queue", default="default", help="the queue of the jobs (default: default)")
    parser.add_argument("--start", type=int, default=0, metavar="SEQ", help="the first seq (default: 0)")
    parser.add_argument(
        "--write-id", metavar="ID", help="continue the generation with this id where it stopped (default: a new one)"
    )
    master_argument(parser)


def _gen(call: Invocation) -> int:
    args = call.args
    check_name("queue", args.queue)
    to_store = "://" in args.to
    if not to_store and args.write_id is not None:
        raise Invalid(
            "--write-id", "it applies to stores only", "leave it out, a directory is written whole or not at all"
        )
    if not to_store and Path(args.to).exists():
        raise Invalid("--to", f"{args.to} exists", "name a directory that does not")
    with needing_spark():
        from forebay.spark import generate

        began = monotonic()
        with spark_of(call) as spark:
            made = generate.jobs(spark, args.jobs, args.seed, start=args.start, queue=args.queue)
            if to_store:
                jobs, seconds = _seeded(call, made)
            else:
                made.write.parquet(str(Path(args.to).resolve()))
                jobs, seconds = args.jobs, monotonic() - began
    if call.screen.as_json:
        call.screen.emit({"jobs": jobs, "seconds": round(seconds, 3), "to": masked(args.to)})
    else:
        call.screen.say(f"{many(jobs, 'job')} in {masked(args.to)}, {jobs / max(seconds, 0.001):,.0f} a second")
    return OK


def _seeded(call: Invocation, made: "DataFrame") -> tuple[int, float]:
    from forebay.spark.generate import seed_store

    progress = ProgressBar(call.screen, "gen", call.args.jobs)

    def show(so_far: "Seeded") -> None:
        progress.show(so_far.jobs, f"{so_far.jobs:,} jobs")

    try:
        done = seed_store(made, absolute_url(call.args.to), write_id=call.args.write_id, progress=show)
    finally:
        progress.close()
    return done.jobs, done.seconds


COMMANDS = (
    Command(
        "gen",
        "make jobs from a seed, the mix of a busy day, into a store or Parquet",
        _gen,
        """
forebay gen --jobs 5_000_000 --seed 7 --to postgresql://db/app --queue mix
forebay gen --jobs 1_000_000 --to jobs.parquet
forebay gen --jobs 5_000_000 --to postgresql://db/app --write-id load-7
""",
        _arguments,
        takes_store=False,
    ),
)
