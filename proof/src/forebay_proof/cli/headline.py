"""`lab headline`, `lab cost`, `lab bill`, `lab class-bill`: the long run under kills with its audit, and a job's cost.

Exit codes of the headline: 0 PASS · 1 FAIL, a job was lost or doubled · 2 INVALID, it proves nothing.
"""

import statistics
import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from forebay.cli.argtypes import count, duration, rate
from forebay.cli.command import Command, Invocation
from forebay.cli.exits import FAILED, OK, UNREACHABLE, CommandFailed
from forebay.cli.job_bill import BillFigure, JobBill
from forebay.cli.screen import ProgressBar
from forebay.cli.spark_commands import number
from forebay_proof.cli.experiments import lab, results_argument

if TYPE_CHECKING:
    from forebay_proof.histogram import LatencyHistogram
    from forebay_proof.lab.headline import HeadlineResult
    from forebay_proof.lab.job_cost import JobCost
    from forebay_proof.lab.results import Results
    from forebay_proof.lab.trial import Trial
    from forebay_proof.lab.watch import StoreSample

_MB = 1 << 20


def _headline_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--on", default="postgres", metavar="STORE", help="postgres, redis, sqlite (default: postgres)")
    parser.add_argument("--rate", type=rate, default=10_000.0, metavar="N/s", help="jobs a second (default: 10000)")
    parser.add_argument(
        "--for", type=duration, dest="duration", default="20m", metavar="DURATION", help="(default: 20m)"
    )
    parser.add_argument(
        "--kill-every",
        type=duration,
        default="30s",
        metavar="DURATION",
        help="kill a worker about this often (default: 30s; 0: never)",
    )
    parser.add_argument("--mix", default="fast", help="as of `lab load` (default: fast)")
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="of jobs and kills (default: 7)")
    parser.add_argument("--batch", type=count, default=200, metavar="N", help="jobs in a call (default: 200)")
    parser.add_argument("--producers", type=count, default=1, metavar="N", help="processes that enqueue (default: 1)")
    parser.add_argument("--processes", type=count, default=2, metavar="M", help="worker processes (default: 2)")
    parser.add_argument("--concurrency", type=count, default=1_000, metavar="N", help="jobs at once in each")
    parser.add_argument("--claim-batch", type=count, default=500, metavar="N", help="jobs in a claim (default: 500)")
    parser.add_argument("--lease", type=duration, default="10s", metavar="DURATION", help="the workers' (default: 10s)")
    parser.add_argument("--drain", type=number, metavar="JOBS", help="instead: seed so many and drain them: 5_000_000")
    parser.add_argument("--quick", action="store_true", help="no audit on Spark, no screenshot")
    parser.add_argument(
        "--keep", metavar="DIR", help="keep receipts, effects, audit and screenshot there (default: remove them)"
    )
    results_argument(parser)


def _headline(call: Invocation) -> int:
    from forebay_proof.servers.process import ServerUnavailable

    args = call.args
    with lab(), ExitStack() as stack:
        from forebay_proof.lab.results import Results

        results = Results(Path(args.results) / "headline", seed=args.seed, facts={"scale": "headline"})
        try:
            if args.drain is not None:
                return _drain(call, results)
            kept = args.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-lab-"))
            return _long_run(call, results, Path(kept))
        except ServerUnavailable as error:
            raise CommandFailed(str(error), UNREACHABLE) from None


def trial_of(args: Namespace, processes: int, *, keys: bool = False) -> "Trial":
    """The trial that the arguments of a load say."""
    from forebay_proof.lab.trial import Trial
    from forebay_proof.load.mix import parse_mix

    return Trial(
        store=args.on,
        rate=args.rate,
        seconds=args.duration.total_seconds(),
        mix=parse_mix(args.mix),
        seed=args.seed,
        batch=args.batch,
        producers=args.producers,
        keys=keys,
        processes=processes,
        concurrency=args.concurrency,
        claim_batch=args.claim_batch,
        lease=args.lease.total_seconds(),
    )


def _long_run(call: Invocation, results: "Results", kept: Path) -> int:
    from forebay_proof.lab.headline import Headline

    args = call.args
    trial = trial_of(args, args.processes)
    headline = Headline(
        trial=trial,
        kill_every=args.kill_every.total_seconds(),
        spark=not args.quick,
        picture=not args.quick,
    )
    progress = ProgressBar(call.screen, f"{args.on} {trial.mix}", round(trial.seconds))

    def on_sample(sample: "StoreSample") -> None:
        progress.show(round(sample.at), describe_sample(sample))

    def say(words: str) -> None:
        progress.close()
        call.screen.note(words)

    report = headline.run(kept, results, on_sample, say)
    progress.close()
    if call.screen.as_json:
        call.screen.emit({"headline": headline, "result": report})
    else:
        call.screen.facts(_facts(headline.kill_every, report))
    return report.exit_code


def describe_sample(sample: "StoreSample") -> str:
    """A sample as text."""
    if sample.depth is None:
        return "the store does not answer"
    return f"accepted {sample.accepted:,}  done {sample.acked or 0:,}  open {sample.depth:,}  dead {sample.dead or 0:,}"


def percentiles(latency: "LatencyHistogram") -> str:
    return ", ".join(f"p{percent:g} {1e3 * latency.percentile(percent):.1f} ms" for percent in (50, 99, 99.9))


def _facts(kill_every: float, report: "HeadlineResult") -> list[tuple[str, object]]:
    outcome, verdict = report.outcome, report.outcome.verdict
    spark = report.spark
    return [
        ("accepted", f"{outcome.accepted_rate:,.0f} jobs/s, {outcome.producers.accepted:,} in all"),
        ("done", f"{outcome.acked_rate:,.0f} jobs/s"),
        ("missed", f"{outcome.producers.missed:,}" if outcome.producers.missed else None),
        ("enqueue", f"{percentiles(outcome.producers.latency)}, from the instant at which the call was due"),
        ("claim", percentiles(outcome.claims)),
        ("kills", f"{report.kills} workers with -9, one every {kill_every:g} s or so" if kill_every else None),
        ("open", f"{outcome.depth[0]:,.0f} in the second quarter, {outcome.depth[1]:,.0f} in the last"),
        ("memory", " → ".join(f"{value / _MB:,.0f} MiB" for value in report.rss)),
        ("open files", " → ".join(f"{value:,.0f}" for value in report.descriptors)),
        ("flat", "yes" if report.flat else "no"),
        *(
            (f"cpu {part}", f"{cores:.2f} cores, {outcome.cpu_per_job(part):,.0f} µs a job")
            for part, cores in outcome.cpu.items()
        ),
        ("waits", outcome.waits or None),
        ("drained", f"in {outcome.drained:.1f} s, exit code {outcome.exit_code}"),
        ("verdict", f"{verdict.answer}{''.join(f'; {reason}' for reason in verdict.reasons)}"),
        *((name, f"{getattr(verdict, name):,}") for name in ("dead", "lost", "doubled", "redelivered", "unknown")),
        (
            "on spark",
            None
            if spark is None
            else f"{spark.answer}: {spark.lost:,} lost, {spark.doubled:,} doubled, {spark.redelivered:,} redelivered",
        ),
        ("picture", report.picture or None),
    ]


def _drain(call: Invocation, results: "Results") -> int:
    """The cold case of experiment 5 with so many jobs, every effect counted."""
    from forebay_proof.lab.experiments.e05_drain import cold, cold_case
    from forebay_proof.lab.experiments.stage import Stage
    from forebay_proof.lab.headline import NAME

    case = cold_case(call.args.on, call.args.drain, proof=True)
    with Stage(NAME, case, 1, call.args.seed, results, call.screen.note) as stage:
        good = cold(case, stage)
    results.finish(NAME, case.name, 1)
    rows = [row for row in results.rows(NAME) if row["case"] == case.name]
    if call.screen.as_json:
        call.screen.emit({row["metric"]: row["value"] for row in rows})
    else:
        call.screen.table(
            ("metric", "value", "unit"), [(row["metric"], f"{row['value']:,.6g}", row["unit"]) for row in rows], "value"
        )
    return OK if good else FAILED


def _job_cost_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--on", default="postgres", choices=("postgres", "redis", "sqlite"), help="(default: postgres)")
    parser.add_argument("--jobs", type=number, default=20_000, metavar="N", help="in each pass (default: 20_000)")


def _job_cost(call: Invocation) -> int:
    with lab(), tempfile.TemporaryDirectory(prefix="forebay-lab-") as directory:
        from forebay_proof.lab.job_cost import BATCHES, measure_job_cost

        costs: list[JobCost] = []
        for batch in BATCHES:
            call.screen.note(f"{call.args.on}: {call.args.jobs:,} jobs in batches of {batch}")
            costs.append(measure_job_cost(call.args.on, batch, call.args.jobs, Path(directory, str(batch))))
    if call.screen.as_json:
        for each in costs:
            call.screen.emit(each)
        return OK
    found = [{(part.what, part.where): part.micros for part in each.parts} for each in costs]
    keys = list(dict.fromkeys(key for each in found for key in each))
    rows = [(*key, *("" if key not in each else f"{each[key]:.1f}" for each in found)) for key in keys]
    rows.append(("CPU of all", "", *(f"{each.cpu():.1f}" for each in costs)))
    heads = [f"{each.batch}/call" for each in costs]
    call.screen.table(("microseconds a job", "where", *heads), rows, " ".join(heads))
    return OK


def _bill_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--on", default="postgres", choices=("postgres", "redis"), help="(default: postgres)")
    parser.add_argument("--rate", type=rate, default=2_000.0, metavar="N/s", help="jobs a second (default: 2000)")
    parser.add_argument(
        "--for", type=duration, dest="duration", default="20s", metavar="DURATION", help="(default: 20s)"
    )
    parser.add_argument("--mix", default="s1", help="as of `lab load` (default: s1)")
    parser.add_argument("--batch", type=count, default=500, metavar="N", help="jobs in a call (default: 500)")
    parser.add_argument("--processes", type=count, default=2, metavar="M", help="worker processes (default: 2)")
    parser.add_argument("--concurrency", type=count, default=500, metavar="N", help="jobs at once in each")
    parser.add_argument("--claim-batch", type=count, default=500, metavar="N", help="jobs in a claim (default: 500)")
    parser.add_argument("--rounds", type=count, default=2, metavar="N", help="(default: 2)")
    parser.set_defaults(seed=7, producers=1, lease=timedelta(seconds=10))


def _bill(call: Invocation) -> int:
    args = call.args
    with lab(), tempfile.TemporaryDirectory(prefix="forebay-lab-") as directory:
        from forebay_proof.lab.job_bill import measure_bill

        trial = trial_of(args, args.processes)
        found = measure_bill(trial, rounds=args.rounds, directory=Path(directory))
        call.screen.emit(_bill_of(args, found))
    return OK


def _bill_of(args: Namespace, found: dict[str, list[float]]) -> JobBill:
    """The figures of the rounds, with the command, the day and the machine."""
    from forebay_proof.lab.job_bill import UNITS
    from forebay_proof.lab.results import machine

    options = f"--on {args.on} --mix {args.mix} --rate {args.rate:g} --for {args.duration.total_seconds():g}s"
    options += f" --batch {args.batch} --processes {args.processes} --concurrency {args.concurrency}"
    command = f"forebay lab bill {options} --claim-batch {args.claim_batch} --rounds {args.rounds}"
    facts = machine()
    made = (args.rounds, command, f"{datetime.now(UTC):%Y-%m-%d}", f"{facts['cores']} cores, {facts['processor']}")
    figures: dict[str, Any] = {}
    for name, values in found.items():
        low, median, high = (round(each, 3) for each in (min(values), statistics.median(values), max(values)))
        figures[name] = BillFigure(median, UNITS[name], (low, high), *made)
    return JobBill(args.on, args.mix, **figures)


def _class_bill(call: Invocation) -> int:
    args = call.args
    with lab(), tempfile.TemporaryDirectory(prefix="forebay-lab-") as directory:
        from forebay_proof.lab.class_bill import PARTS, measure_class_bill
        from forebay_proof.lab.results import machine

        bill = measure_class_bill(
            trial_of(args, args.processes),
            cores=int(str(machine()["cores"])),
            rounds=args.rounds,
            directory=Path(directory),
            say=call.screen.note,
        )
    costs = [*bill.classes, bill.mix, bill.measured]
    if call.screen.as_json:
        for each in costs:
            lost = round(bill.lost(each.share), 1)
            call.screen.emit({**asdict(each), "microseconds": each.microseconds, "lost": lost, "rate": bill.rate()})
        return OK
    rows = [
        (
            each.name,
            f"{each.share:.0%}",
            *(f"{each.cpu[part]:.0f}" for part in PARTS),
            f"{each.microseconds:.0f}",
            f"{bill.lost(each.share):.1f}",
        )
        for each in costs
    ]
    heads = ("µs of CPU a job", "share", *PARTS, "all", "jobs/s for a further µs")
    call.screen.table(heads, rows, " ".join(("share", *PARTS, "all")))
    full = f"{bill.rate():,.0f} jobs/s by the classes, at {bill.measured_rate:,.0f} by the mix itself"
    call.screen.say(f"{bill.cores} cores are full at {full}; measured at {args.rate:,.0f}")
    return OK


COMMANDS = (
    Command(
        "headline",
        "a fixed rate for minutes while workers are killed, and the audit of it",
        _headline,
        """
forebay lab headline --for 20m --kill-every 30s --keep headline
forebay lab headline --rate 2000 --for 20s --kill-every 5s --quick
forebay lab headline --drain 5_000_000
""",
        _headline_arguments,
        takes_store=False,
    ),
    Command(
        "cost",
        "the CPU cost of one job in microseconds, by part",
        _job_cost,
        "forebay lab cost --on postgres",
        _job_cost_arguments,
        takes_store=False,
    ),
    Command(
        "bill",
        "measure the bill of a job, one JSON document, for `forebay capacity --bill`",
        _bill,
        """
forebay lab bill --on postgres --mix s1 > bill.json
forebay capacity --rate 50000 --mix s1 --bill bill.json
""",
        _bill_arguments,
        takes_store=False,
        takes_json=False,
    ),
    Command(
        "class-bill",
        "the CPU of a job of each class of a mix, and the rate at which the cores are full",
        _class_bill,
        "forebay lab class-bill --mix s1 --rate 2000 --for 60s --concurrency 2500 --claim-batch 1000",
        _bill_arguments,
        takes_store=False,
    ),
)
