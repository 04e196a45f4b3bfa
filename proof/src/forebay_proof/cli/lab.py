"""`lab`: load and experiments on a store of their own, and the proof of what came of them.

Exit codes of what judges: 0 PASS · 1 FAIL, a job was lost or doubled · 2 INVALID, it proves nothing.
"""

import tempfile
from argparse import ArgumentParser
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forebay.cli.argtypes import count, duration, rate
from forebay.cli.command import Command, CommandGroup, Invocation
from forebay.cli.exits import OK, UNREACHABLE, CommandFailed
from forebay.cli.screen import ProgressBar
from forebay_proof.cli import experiments, headline

if TYPE_CHECKING:
    from forebay_proof.lab.trial import Trial, TrialResult

_MB = 1 << 20


def _load_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--on", default="postgres", metavar="STORE", help="postgres, redis, sqlite: a new one; or a URL"
    )
    parser.add_argument("--rate", type=rate, default=1_000.0, metavar="N/s", help="jobs a second (default: 1000)")
    parser.add_argument(
        "--for", type=duration, dest="duration", default="60s", metavar="DURATION", help="so long (default: 60s)"
    )
    parser.add_argument(
        "--mix", default="s1", help="s1, fast, idle, slow, long, poison, dependent; fast=95,poison=5; s1@0.1 is shorter"
    )
    parser.add_argument(
        "--seed", type=int, default=7, metavar="N", help="the same seed makes the same jobs (default: 7)"
    )
    parser.add_argument("--batch", type=count, default=100, metavar="N", help="jobs in a call (default: 100)")
    parser.add_argument("--producers", type=count, default=1, metavar="N", help="processes that enqueue (default: 1)")
    parser.add_argument("--keys", action="store_true", help="each job has a key: calls with lost answers are repeated")
    parser.add_argument("--processes", type=count, default=2, metavar="M", help="worker processes (default: 2)")
    parser.add_argument("--concurrency", type=count, default=64, metavar="N", help="jobs at once in each (default: 64)")
    parser.add_argument("--claim-batch", type=count, default=100, metavar="N", help="jobs in a claim (default: 100)")
    parser.add_argument("--lease", type=duration, default="5s", metavar="DURATION", help="the workers' (default: 5s)")
    parser.add_argument("--no-fleet", action="store_true", help="the load alone, for workers that run elsewhere")
    parser.add_argument(
        "--keep", metavar="DIR", help="leave receipts, effects and logs there (default: they are removed)"
    )


def _load(call: Invocation) -> int:
    from forebay_proof.servers.process import ServerUnavailable

    args = call.args
    trial = headline.trial_of(args, 0 if args.no_fleet else args.processes, keys=args.keys)
    with ExitStack() as stack:
        kept = args.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-lab-"))
        progress = ProgressBar(call.screen, f"{args.on} {trial.mix}", round(trial.seconds))
        stack.callback(progress.close)
        try:
            outcome = trial.run(
                Path(kept), on_sample=lambda sample: progress.show(round(sample.at), headline.describe_sample(sample))
            )
        except ServerUnavailable as error:
            raise CommandFailed(str(error), UNREACHABLE) from None
        except ModuleNotFoundError as error:
            raise CommandFailed(
                f"{error.name} is not installed; pip install 'forebay[postgres,redis]'", UNREACHABLE
            ) from error
    if call.screen.as_json:
        call.screen.emit({"trial": trial, **msgspec.structs.asdict(outcome)})
    else:
        call.screen.facts(_facts(trial, outcome))
    return outcome.verdict.exit_code if trial.processes else OK


def _facts(trial: "Trial", outcome: "TrialResult") -> list[tuple[str, object]]:
    """The calls to the store and their cost; what became of the jobs only where the fleet is ours."""
    report, evidence = outcome.producers, outcome.evidence
    seconds, jobs = evidence["seconds"], max(1, report.accepted)
    facts: list[tuple[str, object]] = [
        ("offered", f"{trial.rate:,.0f} jobs/s of {trial.mix} for {trial.seconds:g} s, seed {trial.seed}"),
        ("accepted", f"{outcome.accepted_rate:,.0f} jobs/s; {report.accepted:,} in all, {report.missed:,} missed"),
        ("enqueue", f"{headline.percentiles(report.latency)}, from the instant at which the call was due"),
        *(_worked(outcome) if trial.processes else []),
        *((f"cpu {part}", _cores(outcome, part)) for part, cores in outcome.cpu.items() if cores),
    ]
    if "wal_bytes" in evidence:
        facts.append(("wal", f"{evidence['wal_bytes'] / jobs:,.0f} bytes a job"))
    if "wal_syncs" in evidence:
        facts.append(("syncs", f"{evidence['wal_syncs'] / seconds:,.0f} a second"))
    return [*facts, ("waits", outcome.waits or None), *(_judged(outcome) if trial.processes else [])]


def _worked(outcome: "TrialResult") -> list[tuple[str, object]]:
    first, last = outcome.depth
    return [
        ("claim", headline.percentiles(outcome.claims)),
        ("done", f"{outcome.acked_rate:,.0f} jobs/s, the dead not counted"),
        ("open", f"{first:,.0f} in the second quarter, {last:,.0f} in the last: {'' if outcome.flat else 'not '}flat"),
        ("drained", f"in {outcome.drained:.1f} s, exit code {outcome.exit_code}"),
        ("memory", f"{max(each.fleet_rss for each in outcome.samples) / _MB:,.0f} MB"),
    ]


def _cores(outcome: "TrialResult", part: str) -> str:
    cores = f"{outcome.cpu[part]:.2f} cores"
    return f"{cores}, {outcome.cpu_per_job(part):,.0f} µs a job" if outcome.acked_rate else cores


def _judged(outcome: "TrialResult") -> list[tuple[str, object]]:
    verdict = outcome.verdict
    counts = ("dead", "lost", "unfinished", "doubled", "redelivered", "unknown")
    return [
        ("verdict", "; ".join([verdict.answer, *verdict.reasons])),
        *((name, f"{getattr(verdict, name):,}") for name in counts),
        *((f"{name}: seq", ", ".join(map(str, seqs))) for name, seqs in verdict.offenders.items()),
    ]


COMMANDS = (
    CommandGroup(
        "lab",
        "load, faults and experiments, each with an audit of its results",
        (
            Command(
                "load",
                "jobs at a fixed rate, a fleet that works them off, and a verdict",
                _load,
                """
forebay lab load --rate 2000 --for 30s
forebay lab load --rate 10000 --mix fast --batch 500 --processes 2 --concurrency 500 --claim-batch 500
forebay lab load --on sqlite --rate 500 --for 10s --mix s1@0.1 --json | jq .verdict
forebay lab load --on postgresql:///jobs --no-fleet --rate 100
""",
                _load_arguments,
                takes_store=False,
            ),
            *experiments.COMMANDS,
            *headline.COMMANDS,
        ),
    ),
)
