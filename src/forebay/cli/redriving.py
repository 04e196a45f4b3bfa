"""`dlq redrive`: a plan from the command line, shown by a dry run, carried out at its pace, stopped when it fails."""

from argparse import ArgumentParser
from typing import Any, Final

from forebay.cli.acts import noted
from forebay.cli.command import Call, raw_argument
from forebay.cli.exits import FAILED, OK
from forebay.cli.look import job_table
from forebay.cli.screen import Progress
from forebay.cli.words import count, job_id, length, rate, share
from forebay.core.errors import Invalid
from forebay.core.instant import Instant, micros
from forebay.core.job import Job, State
from forebay.core.limits import BATCH_MOST
from forebay.core.patch import parse_patch
from forebay.core.words import many
from forebay.redrive import Course, Plan, Step, carry_out, chosen
from forebay.store.protocol import Store

_FILTERS: Final = ("queue", "kind", "where", "fingerprint")
_SHOWN: Final = 50


def filters(parser: ArgumentParser) -> None:
    """Which dead letters are meant."""
    parser.add_argument("--queue", help="only those that lie in this queue")
    parser.add_argument("--kind", help="only of this kind")
    parser.add_argument("--where", metavar="TEXT", help="only whose last error holds this text, in any case")
    parser.add_argument("--fingerprint", metavar="NAME", help="only what died of this, as ls --group names it")
    parser.add_argument("--died-within", type=length, metavar="LENGTH", help="only what died within so long")
    parser.add_argument("--died-before", type=length, metavar="LENGTH", help="only what died longer ago than that")


def filtered(args: Any, now: Instant) -> dict[str, Any]:
    """The fields of a plan that choose; lengths are counted back from now."""
    said: dict[str, Any] = {name: getattr(args, name) for name in _FILTERS}
    if args.died_within is not None:
        said["died_from"] = max(0, now - micros(args.died_within))
    if args.died_before is not None:
        said["died_before"] = max(0, now - micros(args.died_before))
    return said


def redrive_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", type=job_id, nargs="*", help="these; else by the filters, or --all")
    filters(parser)
    parser.add_argument("--all", action="store_true", help="every dead letter that is not quarantined")
    parser.add_argument("--quarantined", action="store_true", help="also those whose last holder died with them")
    parser.add_argument("--limit", type=count, metavar="N", help="at most so many, the oldest ids first")
    parser.add_argument("--sample", type=count, metavar="N", help="so many, drawn from all that match")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another sample (default: 0)")
    parser.add_argument("--patch", default="", metavar="JSON", help="change payloads alike: a JSON merge patch")
    parser.add_argument("--rate", type=rate, metavar="RATE", help="so many a second: 20, 20/s or 600/m")
    parser.add_argument(
        "--stop-at", type=share, metavar="SHARE", help="stop when more of those that ended have died again, such as 0.1"
    )
    parser.add_argument("--dry-run", action="store_true", help="say which, move none")
    raw_argument(parser)


def redrive(call: Call) -> int:
    args = call.args
    with call.store() as store:
        plan = _plan(args, store.now())
        if bool(args.ids) == (plan.filtered or args.all):
            reason, way_out = "it wants ids or a filter, one of the two", "give ids, a filter such as --queue, or --all"
            raise Invalid("redrive", reason, way_out)
        jobs = named_dead(store, args.ids[: args.limit]) if args.ids else chosen(store, plan)
        if args.dry_run:
            return _would(call, jobs, store.now())
        course = _carried(call, store, Course(plan, [job.id for job in jobs]))
        noted(store, "dlq redrive", "dead letters", moved=len(course.moved), ids=course.moved[:100])
    left = sorted({*args.ids[: args.limit]} - {job.id for job in jobs}) if args.ids else []
    _tell(call, course, left)
    return FAILED if left or course.stopped else OK


def _plan(args: Any, now: Instant) -> Plan:
    return Plan(
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
    """Those of these that are dead."""
    return [
        job
        for start in range(0, len(ids), BATCH_MOST)
        for job in store.get(ids[start : start + BATCH_MOST])
        if job is not None and job.state is State.DEAD
    ]


def _would(call: Call, jobs: list[Job], now: Instant) -> int:
    if call.screen.as_json:
        call.screen.emit({"would_redrive": len(jobs), "ids": [job.id for job in jobs]})
        return OK
    job_table(call.screen, [call.shown(job) for job in jobs[:_SHOWN]], now)
    call.screen.say(f"would redrive {many(len(jobs), 'dead letter')}; nothing was moved")
    return OK


def _carried(call: Call, store: Store, course: Course) -> Course:
    total = len(course.chosen)
    progress = Progress(call.screen, "redrive", total)

    def told(step: Step) -> None:
        progress.show(step.tried, f"{step.moved:,} of {total:,}")

    try:
        return carry_out(store, course, told)
    except KeyboardInterrupt:
        progress.close()
        call.screen.note(f"stopped: {len(course.moved):,} of {total:,} redriven")
        raise
    finally:
        progress.close()


def _tell(call: Call, course: Course, left: list[int]) -> None:
    if call.screen.as_json:
        call.screen.emit({"redriven": len(course.moved), "not_dead": left, "stopped": course.stopped})
        return
    call.screen.say(f"redriven: {many(len(course.moved), 'dead letter')}")
    if course.stopped:
        rest = len(course.chosen) - course.tried
        call.screen.note(f"stopped: {course.stopped}; {many(rest, 'dead letter')} left as they were")
    if left:
        call.screen.note(f"not dead, or unknown: {', '.join(map(str, left[:20]))}{' …' if len(left) > 20 else ''}")
