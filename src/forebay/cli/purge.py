"""`dlq purge`: delete dead letters by id or by a filter, after a count and a confirmation."""

from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import islice
from typing import Any

from forebay.cli.actions import record_action
from forebay.cli.argtypes import count, duration, job_id
from forebay.cli.command import Invocation, raw_argument
from forebay.cli.exits import FAILED, OK
from forebay.cli.inspect import job_table
from forebay.cli.redrive import filtered, filters, named_dead
from forebay.cli.screen import ProgressBar, confirm
from forebay.core.errors import Invalid
from forebay.core.humanize import many
from forebay.core.instant import Instant, micros
from forebay.core.job import Job
from forebay.core.limits import MAX_BATCH
from forebay.redrive import RedrivePlan
from forebay.store.protocol import Store, matching

_SHOWN = 20


def purge_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", type=job_id, nargs="*", help="job ids; else give filters, or --all")
    filters(parser)
    parser.add_argument("--older-than", type=duration, metavar="DURATION", help="the same as --died-before: 30d, 12h")
    parser.add_argument("--all", action="store_true", help="every dead letter, quarantined or not")
    parser.add_argument("--limit", type=count, metavar="N", help="at most N, lowest ids first")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument("--dry-run", action="store_true", help="show how many and some of them, purge none")
    raw_argument(parser)


def purge(call: Invocation) -> int:
    args = call.args
    with call.store() as store:
        plan = _plan(args, store.now())
        if bool(args.ids) + plan.filtered + args.all != 1:
            way_out = "give ids, a filter such as --older-than 30d or --queue, or --all"
            raise Invalid("purge", "it needs exactly one of ids, a filter, --all", way_out)
        named = named_dead(store, args.ids) if args.ids else []
        found = len(named) if args.ids else sum(1 for _ in _fitting(store, plan, args.limit))
        if args.dry_run:
            some = named[:_SHOWN] if args.ids else list(islice(_fitting(store, plan, args.limit), _SHOWN))
            return _would(call, store, found, some)
        if found and not args.yes:
            question = f"{many(found, 'dead letter')} will be deleted for ever. Continue? [y/N] "
            confirm(question, "dlq purge", "nothing was purged")
        jobs = iter(named) if args.ids else _fitting(store, plan, args.limit)
        purged = _purged(call, store, jobs, found)
        given = {name: getattr(args, name) for name in ("queue", "kind", "where", "fingerprint")}
        facts = {name: value for name, value in given.items() if value is not None}
        facts |= {"before": plan.died_before} if plan.died_before is not None else {}
        record_action(store, "dlq purge", "dead letters", purged=purged, ids=args.ids[:100], filter=facts)
    left = sorted({*args.ids} - {job.id for job in named})
    if call.screen.as_json:
        call.screen.emit({"purged": purged})
    else:
        call.screen.say(f"purged: {many(purged, 'dead letter')}")
    for job in left:
        call.screen.note(f"job {job} is not dead, or unknown")
    return FAILED if left else OK


def _plan(args: Any, now: Instant) -> RedrivePlan:
    if args.older_than is not None and args.died_before is not None:
        raise Invalid("--older-than", "it means the same as --died-before", "give one of the two")
    given = filtered(args, now)
    if args.older_than is not None:
        given["died_before"] = max(0, now - micros(args.older_than))
    return RedrivePlan(**given, quarantined=True)


def _fitting(store: Store, plan: RedrivePlan, limit: int | None) -> Iterator[Job]:
    return islice((job for job in matching(store, plan.query) if plan.fits(job)), limit)


def _would(call: Invocation, store: Store, found: int, some: list[Job]) -> int:
    if call.screen.as_json:
        call.screen.emit({"would_purge": found})
        return OK
    job_table(call.screen, [call.shown(job) for job in some], store.now())
    call.screen.say(f"would purge {many(found, 'dead letter')}; nothing was done")
    return OK


def _purged(call: Invocation, store: Store, jobs: Iterator[Job], found: int) -> int:
    progress = ProgressBar(call.screen, "purge", found)
    total = 0
    try:
        while ids := [job.id for job in islice(jobs, MAX_BATCH)]:
            total += len(store.purge_dead(ids))
            progress.show(total, f"{total:,} of {found:,}")
    finally:
        progress.close()
    return total
