"""`dlq redrive`: redrive dead letters by id or by a filter, with a dry run, a rate, and a failure limit."""

from argparse import ArgumentParser
from typing import Any, Final

from forebay.cli.actions import record_action
from forebay.cli.argtypes import count, duration, fraction, job_id, rate
from forebay.cli.command import Invocation, raw_argument
from forebay.cli.exits import FAILED, OK
from forebay.cli.inspect import job_table
from forebay.cli.screen import ProgressBar
from forebay.core.errors import Invalid
from forebay.core.humanize import many
from forebay.core.instant import Instant, micros
from forebay.core.job import Job, State
from forebay.core.limits import MAX_BATCH
from forebay.core.payload import parse_patch
from forebay.redrive import RedrivePlan, RedriveRun, RedriveStep, chosen, run_redrive
from forebay.store.protocol import Store

_FILTERS: Final = ("queue", "kind", "where", "fingerprint")
_SHOWN: Final = 50


def filters(parser: ArgumentParser) -> None:
    """Options that select dead letters."""
    parser.add_argument("--queue", help="only those in this queue")
    parser.add_argument("--kind", help="only of this kind")
    parser.add_argument("--where", metavar="TEXT", help="only those whose last error contains this text, ignoring case")
    parser.add_argument("--fingerprint", metavar="NAME", help="only of this cause, as shown by ls --group")
    parser.add_argument(
        "--died-within", type=duration, metavar="DURATION", help="only those that died within this time"
    )
    parser.add_argument("--died-before", type=duration, metavar="DURATION", help="only those that died longer ago")


def filtered(args: Any, now: Instant) -> dict[str, Any]:
    """The selecting fields of a plan; durations are counted back from now."""
    given: dict[str, Any] = {name: getattr(args, name) for name in _FILTERS}
    if args.died_within is not None:
        given["died_from"] = max(0, now - micros(args.died_within))
    if args.died_before is not None:
        given["died_before"] = max(0, now - micros(args.died_before))
    return given


def redrive_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", type=job_id, nargs="*", help="job ids; else give filters, or --all")
    filters(parser)
    parser.add_argument("--all", action="store_true", help="every dead letter that is not quarantined")
    quarantined = "include jobs whose last worker died while running them"
    parser.add_argument("--quarantined", action="store_true", help=quarantined)
    parser.add_argument("--limit", type=count, metavar="N", help="at most N, lowest ids first")
    parser.add_argument("--sample", type=count, metavar="N", help="a random sample of N of those that match")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the seed of the sample (default: 0)")
    parser.add_argument("--patch", default="", metavar="JSON", help="a JSON merge patch for the payloads")
    parser.add_argument("--rate", type=rate, metavar="RATE", help="jobs per second: 20, 20/s or 600/m")
    stop = "stop when more than this fraction of the redriven jobs that ended have died again: 0.1"
    parser.add_argument("--stop-at", type=fraction, metavar="FRACTION", help=stop)
    parser.add_argument("--dry-run", action="store_true", help="list the jobs, redrive none")
    raw_argument(parser)


def redrive(call: Invocation) -> int:
    args = call.args
    with call.store() as store:
        plan = _plan(args, store.now())
        if bool(args.ids) == (plan.filtered or args.all):
            reason, way_out = "it needs either ids or a filter", "give ids, a filter such as --queue, or --all"
            raise Invalid("redrive", reason, way_out)
        jobs = named_dead(store, args.ids[: args.limit]) if args.ids else chosen(store, plan)
        if args.dry_run:
            return _would(call, jobs, store.now())
        run = _carry_out(call, store, RedriveRun(plan, [job.id for job in jobs]))
        record_action(store, "dlq redrive", "dead letters", moved=len(run.moved), ids=run.moved[:100])
    left = sorted({*args.ids[: args.limit]} - {job.id for job in jobs}) if args.ids else []
    _report(call, run, left)
    return FAILED if left or run.stopped else OK


def _plan(args: Any, now: Instant) -> RedrivePlan:
    return RedrivePlan(
        **filtered(args, now),
        quarantined=args.quarantined,
        limit=args.limit,
        sample=args.sample,
        seed=args.seed,
        patch=parse_patch(args.patch),
        rate=args.rate,
        stop_at=args.stop_at,
    )


def named_dead(store: Store, ids: list[int]) -> list[Job]:
    """The dead ones of these jobs."""
    return [
        job
        for start in range(0, len(ids), MAX_BATCH)
        for job in store.get(ids[start : start + MAX_BATCH])
        if job is not None and job.state is State.DEAD
    ]


def _would(call: Invocation, jobs: list[Job], now: Instant) -> int:
    if call.screen.as_json:
        call.screen.emit({"would_redrive": len(jobs), "ids": [job.id for job in jobs]})
        return OK
    job_table(call.screen, [call.shown(job) for job in jobs[:_SHOWN]], now)
    call.screen.say(f"would redrive {many(len(jobs), 'dead letter')}; nothing was done")
    return OK


def _carry_out(call: Invocation, store: Store, run: RedriveRun) -> RedriveRun:
    total = len(run.chosen)
    progress = ProgressBar(call.screen, "redrive", total)

    def report(step: RedriveStep) -> None:
        progress.show(step.tried, f"{step.moved:,} of {total:,}")

    try:
        return run_redrive(store, run, report)
    except KeyboardInterrupt:
        progress.close()
        call.screen.note(f"stopped: {len(run.moved):,} of {total:,} redriven")
        raise
    finally:
        progress.close()


def _report(call: Invocation, run: RedriveRun, left: list[int]) -> None:
    if call.screen.as_json:
        call.screen.emit({"redriven": len(run.moved), "not_dead": left, "stopped": run.stopped})
        return
    call.screen.say(f"redriven: {many(len(run.moved), 'dead letter')}")
    if run.stopped:
        rest = len(run.chosen) - run.tried
        call.screen.note(f"stopped: {run.stopped}; {many(rest, 'dead letter')} not redriven")
    if left:
        call.screen.note(f"not dead, or unknown: {', '.join(map(str, left[:20]))}{' …' if len(left) > 20 else ''}")
