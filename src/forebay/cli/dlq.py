"""`dlq`: list dead letters, group them by cause, redrive or purge them.

`redrive` and `purge` take ids or a filter, and `purge` asks for confirmation.
"""

import re
from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from forebay.cli.argtypes import count, job_id
from forebay.cli.command import Command, CommandGroup, Invocation, raw_argument
from forebay.cli.exits import OK, CommandFailed
from forebay.cli.inspect import job_table, one_job, show_job
from forebay.cli.json_views import job_json
from forebay.cli.purge import purge, purge_arguments
from forebay.cli.redrive import filtered, filters, redrive, redrive_arguments
from forebay.core.fingerprint import cause_of, fingerprint
from forebay.core.humanize import iso, when
from forebay.core.instant import Instant
from forebay.core.job import Job, State
from forebay.redrive import RedrivePlan
from forebay.store.protocol import Store, matching

_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


def _ls_arguments(parser: ArgumentParser) -> None:
    filters(parser)
    only = "only jobs whose last worker died while running them; redrive skips them by default"
    parser.add_argument("--quarantined", action="store_true", help=only)
    parser.add_argument("--group", action="store_true", help="group by cause, most frequent first")
    parser.add_argument("--limit", type=count, default=50, metavar="N", help="at most N (default: 50)")
    raw_argument(parser)


def _ls(call: Invocation) -> int:
    with call.store() as store:
        now = store.now()
        found = _listed(store, call.args, now)
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


def _listed(store: Store, args: Any, now: Instant) -> Iterator[Job]:
    """The dead letters that match the filters, quarantined or not."""
    plan = RedrivePlan(**filtered(args, now), quarantined=True)
    query = replace(plan.query, suspect=args.quarantined or None)
    return (job for job in matching(store, query) if plan.fits(job))


class CauseRow(Struct):
    """Dead letters of one queue and kind with the same error, apart from its variable parts."""

    fingerprint: str
    queue: str
    kind: str
    error: str
    message: str
    place: str
    example: int
    first: Instant
    last: Instant
    count: int = 0


def grouped(jobs: Iterator[Job]) -> list[CauseRow]:
    causes: dict[str, CauseRow] = {}
    for job in jobs:
        at, parts = job.finished_at or job.enqueued_at, cause_of(job)
        name = fingerprint(*parts)
        cause = causes.get(name)
        if cause is None:
            queue, kind, error, message = parts
            place = _place(job.errors[-1].trace) if job.errors else ""
            cause = CauseRow(name, queue, kind, error or "(no error)", message, place, job.id, at, at)
            causes[name] = cause
        cause.count += 1
        cause.first, cause.last = min(cause.first, at), max(cause.last, at)
    return sorted(causes.values(), key=lambda cause: -cause.count)


def _place(trace: str) -> str:
    """The last file and line of a trace: where the error was raised."""
    places = _PLACE.findall(trace)
    return f"{places[-1][0].rsplit('/', 1)[-1]}:{places[-1][1]}" if places else ""


def _show_groups(call: Invocation, causes: list[CauseRow], now: Instant) -> int:
    if call.screen.as_json:
        for cause in causes:
            times = {"first_at": iso(cause.first), "last_at": iso(cause.last)}
            call.screen.emit(
                {
                    "fingerprint": cause.fingerprint,
                    "count": cause.count,
                    "queue": cause.queue,
                    "kind": cause.kind,
                    "error": cause.error,
                    "message": cause.message,
                    "place": cause.place or None,
                    "example": cause.example,
                    **times,
                }
            )
        return OK
    if not causes:
        call.screen.note("no dead letters match")
        return OK
    rows = [
        (c.count, c.error, c.place, c.queue, c.kind, c.example, when(c.first, now), c.fingerprint, c.message[:60])
        for c in causes
    ]
    headings = ("count", "error", "at", "queue", "kind", "example", "first", "fingerprint", "message")
    call.screen.table(headings, rows, "count example")
    return OK


def _show_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=job_id, help="the job's id")
    raw_argument(parser)


def _show(call: Invocation) -> int:
    with call.store() as store:
        job, now = call.shown(one_job(store, call.args.id)), store.now()
    if job.state is not State.DEAD:
        raise CommandFailed(f"job {job.id} is {job.state.value}, not dead; see `forebay show {job.id}`")
    if call.screen.as_json:
        call.screen.emit(job_json(job))
    else:
        show_job(call.screen, job, now, trace=True)
    return OK


COMMANDS = (
    CommandGroup(
        "dlq",
        "list, redrive and purge dead letters",
        (
            Command(
                "ls",
                "list dead letters, or their causes",
                _ls,
                """
forebay dlq ls --queue mail
forebay dlq ls --group
forebay dlq ls --where timeout --json
forebay dlq ls --quarantined
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
                "redrive dead letters: they get all their attempts back",
                redrive,
                """
forebay dlq redrive 41 42
forebay dlq redrive --where SMTPAuth --rate 20/s --dry-run
forebay dlq redrive --queue mail --sample 20
forebay dlq redrive --fingerprint 6f1d3c0a9b2e --rate 20/s --stop-at 0.1
forebay dlq redrive --kind send --patch '{"from": "post@example.org"}'
forebay dlq redrive --all
""",
                redrive_arguments,
            ),
            Command(
                "purge",
                "purge dead letters by id, by a filter, or by age",
                purge,
                """
forebay dlq purge 41 42
forebay dlq purge --older-than 30d --dry-run
forebay dlq purge --older-than 7d --queue mail
forebay dlq purge --kind newsletter --where BadAddress --yes
""",
                purge_arguments,
            ),
        ),
    ),
)
