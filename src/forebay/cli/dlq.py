"""`dlq`: the dead letters. Look at them, group them by cause, give them their lives back, or forget them.

Nothing is moved or forgotten without being named: `redrive` wants ids or a filter, `purge` wants an age and a yes. What
is to be redriven is chosen before the first one moves, so a job that dies again at once is not moved twice.
"""

import re
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import islice
from typing import Any

from msgspec import Struct

from forebay.cli.acts import noted
from forebay.cli.command import Call, Command, Group, raw_argument
from forebay.cli.exits import FAILED, OK, USAGE, CommandFailed
from forebay.cli.look import checked_names, job_table, matching, one_job, show_job
from forebay.cli.picture import job_json
from forebay.cli.screen import Progress
from forebay.cli.words import count, job_id, length, rate
from forebay.core.errors import Invalid
from forebay.core.instant import Instant, in_words, micros
from forebay.core.job import Job, State
from forebay.core.limits import BATCH_MOST
from forebay.core.words import iso, many, when
from forebay.store.protocol import Query, Store

_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_STEPS_A_SECOND = 5


def _filters(parser: ArgumentParser) -> None:
    parser.add_argument("--queue", help="only of this queue")
    parser.add_argument("--kind", help="only of this kind")
    parser.add_argument("--where", metavar="TEXT", help="only whose last error holds this text, in any case")


def dead_letters(store: Store, args: Any) -> Iterator[Job]:
    """Those that the filters let through."""
    wanted = args.where.lower() if args.where else ""
    queue, kind = checked_names(queue=args.queue, kind=args.kind)
    for job in matching(store, Query(queue=queue, state=State.DEAD, kind=kind)):
        if not wanted or wanted in last_error(job).lower():
            yield job


def last_error(job: Job) -> str:
    return f"{job.errors[-1].kind}: {job.errors[-1].message}" if job.errors else ""


def _ls_arguments(parser: ArgumentParser) -> None:
    _filters(parser)
    parser.add_argument("--group", action="store_true", help="by error and the place it came from, most frequent first")
    parser.add_argument("--limit", type=count, default=50, metavar="N", help="at most so many (default: 50)")
    raw_argument(parser)


def _ls(call: Call) -> int:
    with call.store() as store:
        found, now = dead_letters(store, call.args), store.now()
        if call.args.group:
            return _show_groups(call, grouped(found), now)
        jobs = [call.shown(job) for job in islice(found, call.args.limit)]
        more = next(found, None) is not None
    if call.screen.as_json:
        for job in jobs:
            call.screen.emit(job_json(job))
        return OK
    if not jobs:
        call.screen.note("no dead letters match")
        return OK
    job_table(call.screen, jobs, now)
    if more:
        call.screen.note(f"there are more: --limit {call.args.limit * 10}, or --group")
    return OK


class Cause(Struct):
    """Dead letters of one queue with one error from one place."""

    queue: str
    error: str
    place: str
    kinds: set[str]
    example: int
    first: Instant
    last: Instant
    count: int = 0


def grouped(jobs: Iterator[Job]) -> list[Cause]:
    causes: dict[tuple[str, str, str], Cause] = {}
    for job in jobs:
        at = job.finished_at or job.enqueued_at
        error = job.errors[-1].kind if job.errors else "(no error)"
        place = _place(job.errors[-1].trace) if job.errors else ""
        cause = causes.setdefault((job.queue, error, place), Cause(job.queue, error, place, set(), job.id, at, at))
        cause.count += 1
        cause.kinds.add(job.kind)
        cause.first, cause.last = min(cause.first, at), max(cause.last, at)
    return sorted(causes.values(), key=lambda cause: -cause.count)


def _place(trace: str) -> str:
    """The last file and line of a trace: where it was raised."""
    places = _PLACE.findall(trace)
    return f"{places[-1][0].rsplit('/', 1)[-1]}:{places[-1][1]}" if places else ""


def _show_groups(call: Call, causes: list[Cause], now: Instant) -> int:
    if call.screen.as_json:
        for cause in causes:
            times = {"first_at": iso(cause.first), "last_at": iso(cause.last)}
            call.screen.emit(
                {
                    "count": cause.count,
                    "queue": cause.queue,
                    "error": cause.error,
                    "place": cause.place or None,
                    "kinds": sorted(cause.kinds),
                    "example": cause.example,
                    **times,
                }
            )
        return OK
    if not causes:
        call.screen.note("no dead letters match")
        return OK
    rows = [
        (c.count, c.error, c.place, c.queue, ",".join(sorted(c.kinds)), c.example, when(c.first, now)) for c in causes
    ]
    call.screen.table(("count", "error", "at", "queue", "kinds", "example", "first"), rows, "count example")
    return OK


def _show_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=job_id, help="the job's id")
    raw_argument(parser)


def _show(call: Call) -> int:
    with call.store() as store:
        job, now = call.shown(one_job(store, call.args.id)), store.now()
    if job.state is not State.DEAD:
        raise CommandFailed(f"job {job.id} is {job.state.value}, not dead; see `forebay show {job.id}`")
    if call.screen.as_json:
        call.screen.emit(job_json(job))
    else:
        show_job(call.screen, job, now, trace=True)
    return OK


def _redrive_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", type=job_id, nargs="*", help="these; else by the filters, or --all")
    _filters(parser)
    parser.add_argument("--all", action="store_true", help="every dead letter")
    parser.add_argument("--limit", type=count, metavar="N", help="at most so many, the oldest ids first")
    parser.add_argument("--rate", type=rate, metavar="RATE", help="so many a second: 20, 20/s or 600/m")
    parser.add_argument("--dry-run", action="store_true", help="say which, move none")


def _redrive(call: Call) -> int:
    args = call.args
    filtered = bool(args.queue or args.kind or args.where or args.all)
    if bool(args.ids) == filtered:
        raise Invalid(
            "redrive", "it wants ids or a filter, one of the two", "give ids, --queue, --kind, --where or --all"
        )
    with call.store() as store:
        ids = args.ids or [job.id for job in islice(dead_letters(store, args), args.limit)]
        ids = ids[: args.limit]
        if args.dry_run:
            return _would(call, store, ids)
        moved = _redriven(call, store, ids)
        noted(store, "dlq redrive", "dead letters", moved=len(moved), ids=moved[:100])
    left = sorted(set(ids) - set(moved)) if args.ids else []
    if call.screen.as_json:
        call.screen.emit({"redriven": len(moved), "not_dead": left})
    else:
        call.screen.say(f"redriven: {many(len(moved), 'dead letter')}")
    if left and not call.screen.as_json:
        call.screen.note(f"not dead, or unknown: {', '.join(map(str, left[:20]))}{' …' if len(left) > 20 else ''}")
    return FAILED if left else OK


def _would(call: Call, store: Store, ids: list[int]) -> int:
    jobs = [
        job
        for start in range(0, len(ids), BATCH_MOST)
        for job in store.get(ids[start : start + BATCH_MOST])
        if job is not None and job.state is State.DEAD
    ]
    if call.screen.as_json:
        call.screen.emit({"would_redrive": len(jobs), "ids": [job.id for job in jobs]})
        return OK
    job_table(call.screen, jobs[:50], store.now())
    call.screen.say(f"would redrive {many(len(jobs), 'dead letter')}; nothing was moved")
    return OK


def _redriven(call: Call, store: Store, ids: list[int]) -> list[int]:
    """In steps, each in one transaction; slowly where a rate is given."""
    pace: float | None = call.args.rate
    step = BATCH_MOST if pace is None else max(1, min(BATCH_MOST, int(pace / _STEPS_A_SECOND)))
    progress = Progress(call.screen, "redrive", len(ids))
    moved: list[int] = []
    started = time.monotonic()
    try:
        for start in range(0, len(ids), step):
            if pace is not None:
                time.sleep(max(0.0, started + start / pace - time.monotonic()))
            moved += store.redrive(ids[start : start + step])
            progress.show(min(start + step, len(ids)), f"{len(moved):,} of {len(ids):,}")
    except KeyboardInterrupt:
        progress.close()
        call.screen.note(f"stopped: {len(moved):,} of {len(ids):,} redriven")
        raise
    finally:
        progress.close()
    return moved


def _purge_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--older-than", type=length, required=True, metavar="LENGTH", help="only what died longer ago: 30d, 12h"
    )
    parser.add_argument("--yes", action="store_true", help="do it without asking")
    parser.add_argument("--dry-run", action="store_true", help="say how many, forget none")


def _purge(call: Call) -> int:
    with call.store() as store:
        before = max(0, store.now() - micros(call.args.older_than))
        dead = matching(store, Query(state=State.DEAD))
        found = sum(1 for job in dead if job.finished_at is not None and job.finished_at < before)
        words = f"{many(found, 'dead letter')} of all queues, older than {in_words(call.args.older_than)},"
        if call.args.dry_run:
            if call.screen.as_json:
                call.screen.emit({"would_purge": found})
            else:
                call.screen.say(f"{words} would be forgotten; nothing was done")
            return OK
        if found and not call.args.yes:
            _ask(f"{words} will be forgotten for ever. Go on? [y/N] ")
        purged = _purged(call, store, before, found)
        noted(store, "dlq purge", "dead letters", purged=purged, before=before)
    if call.screen.as_json:
        call.screen.emit({"purged": purged})
    else:
        call.screen.say(f"forgotten: {many(purged, 'dead letter')}")
    return OK


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise CommandFailed("purge forgets for ever and nobody is here to ask; say --yes, or try --dry-run", USAGE)
    sys.stderr.write(question)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("nothing was forgotten")


def _purged(call: Call, store: Store, before: Instant, found: int) -> int:
    progress = Progress(call.screen, "purge", found)
    total = 0
    try:
        while gone := store.purge(State.DEAD, before, BATCH_MOST):
            total += gone
            progress.show(total, f"{total:,}")
    finally:
        progress.close()
    return total


COMMANDS = (
    Group(
        "dlq",
        "look at dead letters, give them their lives back, or forget them",
        (
            Command(
                "ls",
                "list dead letters, or their causes",
                _ls,
                """
forebay dlq ls --queue mail
forebay dlq ls --group
forebay dlq ls --where timeout --json
""",
                _ls_arguments,
            ),
            Command(
                "show",
                "show one dead letter with the traces of its errors",
                _show,
                "forebay dlq show 41",
                _show_arguments,
            ),
            Command(
                "redrive",
                "give dead letters all their lives back",
                _redrive,
                """
forebay dlq redrive 41 42
forebay dlq redrive --where SMTPAuth --rate 20/s --dry-run
forebay dlq redrive --queue mail --limit 1000
forebay dlq redrive --all
""",
                _redrive_arguments,
            ),
            Command(
                "purge",
                "forget old dead letters for ever",
                _purge,
                """
forebay dlq purge --older-than 30d --dry-run
forebay dlq purge --older-than 30d --yes
""",
                _purge_arguments,
            ),
        ),
    ),
)
