"""`lab list`, `run`, `all`, `report`: the experiments, one or all of them, and the page that they end in.

What is measured is in a folder, by scale; run again, a command goes on where it stopped. Exit codes: 0 everything was
measured · 1 a case failed · 3 what it takes is not installed.
"""

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forebay.cli.command import Command, Invocation
from forebay.cli.exits import FAILED, OK, UNREACHABLE, CommandFailed
from forebay.cli.report import check_place
from forebay.cli.screen import ProgressBar
from forebay.cli.spark_commands import master_argument, needing_spark, spark_of
from forebay.core.errors import Invalid

if TYPE_CHECKING:
    from forebay_proof.lab.experiments.base import Experiment, ExperimentScale
    from forebay_proof.lab.runner import Remaining, RunStep

RESULTS = "lab-results"
_SCALES: Final[tuple["ExperimentScale", ...]] = ("quick", "full", "release")
_STORES = ("postgres", "redis", "sqlite")


def _scale_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--scale", choices=_SCALES, default="quick", help="how long and how large (default: quick)")


def results_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--results", default=RESULTS, metavar="DIR", help=f"the folder of results (default: {RESULTS})")


def _run_arguments(parser: ArgumentParser) -> None:
    _scale_argument(parser)
    results_argument(parser)
    parser.add_argument("--on", action="append", choices=_STORES, help="on this store alone; may be given again")
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="of jobs and kills (default: 7)")
    parser.add_argument("--force", action="store_true", help="measure again what is in the results already")


def _one_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("number", type=int, metavar="N", help="1 … 10, see `forebay lab list`")
    _run_arguments(parser)


def _all_arguments(parser: ArgumentParser) -> None:
    _run_arguments(parser)
    parser.add_argument("--report", metavar="FILE", help="the page (default: report.html in the folder of results)")
    parser.add_argument("--no-report", action="store_true", help="measure, and leave the page for later")
    master_argument(parser)


def _report_arguments(parser: ArgumentParser) -> None:
    _scale_argument(parser)
    results_argument(parser)
    parser.add_argument("--out", metavar="FILE", help="the page (default: report.html in the folder of results)")
    master_argument(parser)


@contextmanager
def lab() -> Iterator[None]:
    """What is missing is one line, with the way out."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in {"psycopg", "redis", "pyarrow", "hiredis"}:
            raise
        raise CommandFailed(
            f"{name} is not installed; pip install 'forebay[postgres,redis,spark]'", UNREACHABLE
        ) from None


def _list(call: Invocation) -> int:
    with lab():
        from forebay_proof.lab.experiments import EXPERIMENTS
    if call.screen.as_json:
        for each in EXPERIMENTS:
            seconds = {scale: round(each.seconds(scale)) for scale in _SCALES}
            call.screen.emit({"number": each.number, "title": each.title, "bound": each.bound, "seconds": seconds})
        return OK
    rows = [
        (each.number, each.title, *(_minutes(each.seconds(scale)) for scale in _SCALES), len(each.cases("full")))
        for each in EXPERIMENTS
    ]
    whole = (_minutes(sum(each.seconds(scale) for each in EXPERIMENTS)) for scale in _SCALES)
    rows.append(("", "all", *whole, sum(len(each.cases("full")) for each in EXPERIMENTS)))
    call.screen.table(("", "experiment", *_SCALES, "cases"), rows, "quick full release cases")
    return OK


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _one(call: Invocation) -> int:
    with lab():
        from forebay_proof.lab.experiments import experiment

        chosen = experiment(call.args.number)
        code = _measure(call, [chosen])
        if code == OK:
            _show(call, chosen)
        return code


def _all(call: Invocation) -> int:
    out = _page(call, call.args.report)
    with lab():
        from forebay_proof.lab.experiments import EXPERIMENTS

        code = _measure(call, EXPERIMENTS)
    if not call.args.no_report:
        _write(call, out)
    return code


def _measure(call: Invocation, experiments: "Sequence[Experiment]") -> int:
    from forebay_proof.lab.runner import ExperimentRunner, results_at, steps_of
    from forebay_proof.servers.process import ServerUnavailable

    args = call.args
    results = results_at(Path(args.results), args.scale, args.seed)
    steps = steps_of(experiments, args.scale, args.on or _STORES)
    if args.force:
        for step in steps:
            results.forget(*step.key)
    progress = ProgressBar(call.screen, "lab", len(steps))

    def begin(step: "RunStep", left: "Remaining") -> None:
        progress.show(left.done, f"{step}, about {_minutes(left.seconds)} left")

    def say(words: str) -> None:
        progress.close()
        call.screen.note(words)

    try:
        failed = ExperimentRunner(results, args.seed, say, begin).run(steps)
    except ServerUnavailable as error:
        raise CommandFailed(str(error), UNREACHABLE) from None
    finally:
        progress.close()
    return FAILED if failed else OK


def _show(call: Invocation, chosen: "Experiment") -> None:
    """What was measured, in a table, without Spark."""
    from forebay_proof.lab.runner import name_of, results_at

    rows = results_at(Path(call.args.results), call.args.scale, call.args.seed).rows(name_of(chosen))
    if call.screen.as_json:
        for row in rows:
            call.screen.emit({name: row[name] for name in ("case", "round", "metric", "value", "unit")})
        return
    call.screen.table(
        ("case", "round", "metric", "value", "unit"),
        [(row["case"], row["round"], row["metric"], f"{row['value']:,.6g}", row["unit"]) for row in rows],
        "round value",
    )


def _report(call: Invocation) -> int:
    _write(call, _page(call, call.args.out))
    return OK


def _page(call: Invocation, given: str | None) -> Path:
    out = Path(given) if given else Path(call.args.results) / call.args.scale / "report.html"
    if given:
        check_place(out)
    return out


def _write(call: Invocation, out: Path) -> None:
    folder = Path(call.args.results) / call.args.scale
    if not folder.is_dir():
        raise Invalid(
            "results", f"there are none in {folder}", f"measure first: forebay lab all --scale {call.args.scale}"
        )
    with needing_spark(), spark_of(call, quick=True) as spark:
        from forebay_proof.lab.report import judged, read, read_headline, write_report

        measured = read(spark, folder)
        headline = read_headline(spark, folder.parent / "headline")
        write_report(
            measured, headline, out, f"forebay lab all --scale {call.args.scale} --results {call.args.results}"
        )
    findings = [(each.number, finding) for each, found in judged(measured) for finding in found]
    if call.screen.as_json:
        shown = [{"experiment": number, "finding": each.sentence, "holds": each.holds} for number, each in findings]
        call.screen.emit({"report": str(out), "findings": shown})
        return
    words = {True: "ok", False: "fail", None: ""}
    call.screen.table(("", "", "finding"), [(number, words[each.holds], each.sentence) for number, each in findings])
    call.screen.say(f"the report is in {out}")


COMMANDS = (
    Command(
        "list",
        "the experiments, and about how long each takes",
        _list,
        "forebay lab list",
        takes_store=False,
    ),
    Command(
        "run",
        "one experiment, case by case; goes on where it stopped",
        _one,
        """
forebay lab run 4
forebay lab run 1 --scale full --on postgres
""",
        _one_arguments,
        takes_store=False,
    ),
    Command(
        "all",
        "all experiments, and the report; goes on where it stopped",
        _all,
        """
forebay lab all --scale quick
forebay lab all --scale full --results results
""",
        _all_arguments,
        takes_store=False,
    ),
    Command(
        "report",
        "the page of what was measured, by Spark",
        _report,
        "forebay lab report --scale full --results results --out lab.html",
        _report_arguments,
        takes_store=False,
    ),
)
