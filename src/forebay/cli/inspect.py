"""`ls`, `show` and `explain`: jobs, and the reasons for their state."""

from argparse import ArgumentParser
from heapq import nsmallest
from itertools import islice
from typing import Final

import msgspec

from forebay.cli.argtypes import count, job_id
from forebay.cli.command import Command, Invocation, raw_argument
from forebay.cli.exits import OK, CommandFailed
from forebay.cli.json_views import job_json
from forebay.cli.screen import Screen
from forebay.core.content import parse_condition
from forebay.core.errors import Invalid
from forebay.core.humanize import format_duration, when
from forebay.core.instant import Instant
from forebay.core.job import Job, Progress, State
from forebay.core.limits import CONTENT_SCAN, MAX_BATCH
from forebay.core.names import check_name, check_text
from forebay.explain import explain
from forebay.store.protocol import Query, Store, matching
from forebay.work.console import clean

MAX_SCAN: Final = 200_000
"""Jobs that are scanned to find the longest waiting ones, or those that carry something."""


def checked_names(**names: str | None) -> list[str | None]:
    """Refuse a name that no job can have, instead of finding nothing."""
    return [None if name is None else check_name(field, name) for field, name in names.items()]


def one_job(store: Store, number: int) -> Job:
    job = store.get([number])[0]
    if job is None:
        raise CommandFailed(f"job {number} is unknown: it never existed, or it was done and removed, or purged")
    return job


def _ls_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", nargs="?", help="only of this queue")
    parser.add_argument("--state", choices=[state.value for state in State], help="only in this state")
    parser.add_argument("--kind", help="only of this kind")
    parser.add_argument("--tenant", help="only of this tenant")
    parser.add_argument("--subject", help="only of this subject")
    parser.add_argument("--meta", action="append", default=[], metavar="NAME=TEXT", help="only with this meta")
    parser.add_argument(
        "--payload", action="append", default=[], metavar="PATH=VALUE", help="only with this field: customer.id=7"
    )
    parser.add_argument("--limit", type=count, default=50, metavar="N", help="at most N (default: 50)")
    parser.add_argument("--after", type=int, default=0, metavar="ID", help="continue after this id")
    parser.add_argument("--oldest", action="store_true", help="by due time, longest due first, instead of by id")
    raw_argument(parser)


def _ls(call: Invocation) -> int:
    args = call.args
    queue, kind, tenant = checked_names(queue=args.queue, kind=args.kind, tenant=args.tenant)
    subject = None if args.subject is None else check_text("subject", args.subject)
    meta = tuple(parse_condition("--meta", each) for each in args.meta)
    payload = tuple(parse_condition("--payload", each) for each in args.payload)
    query = Query(queue, State(args.state) if args.state else None, kind, tenant, subject, None, meta, payload)
    with call.store() as store:
        if (meta or payload) and args.oldest:
            raise Invalid("--oldest", "a search by content goes by id", "leave out --oldest")
        found = matching(store, query, max(0, args.after))
        if meta or payload:
            jobs, after = _searched(store, query, max(0, args.after), args.limit)
            more, remark = after is not None, f"the search stopped at id {after}: continue with --after {after}"
        elif args.oldest:
            jobs = nsmallest(args.limit, islice(found, MAX_SCAN), key=lambda job: (job.due_at, job.id))
            more = next(found, None) is not None
            remark = f"only the first {MAX_SCAN:,} jobs were scanned; narrow it by a queue or --state"
        else:
            jobs = list(islice(found, args.limit))
            more = next(found, None) is not None
            remark = f"there are more: --limit {args.limit * 10}, or --after {jobs[-1].id if jobs else 0}"
        jobs, now = [call.shown(job) for job in jobs], store.now()
    if call.screen.as_json:
        for job in jobs:
            call.screen.emit(job_json(job))
        return OK
    job_table(call.screen, jobs, now)
    if more:
        call.screen.note(remark)
    return OK


def _searched(store: Store, query: Query, after: int, limit: int) -> tuple[list[Job], int | None]:
    """Up to `limit` jobs among the next `MAX_SCAN`, and the id to continue after; None at the end."""
    found: list[Job] = []
    for _ in range(MAX_SCAN // CONTENT_SCAN):
        page = store.browse(query, after, min(limit - len(found), MAX_BATCH))
        found += page.jobs
        if page.next is None or len(found) == limit:
            return found, page.next
        after = page.next
    return found, after


def job_table(screen: Screen, jobs: list[Job], now: Instant) -> None:
    if not jobs:
        screen.note("no jobs match")
        return
    rows = [
        (
            job.id,
            job.queue,
            job.kind,
            job.state.value,
            f"{job.attempt}/{job.max_attempts}",
            format_duration(now - job.enqueued_at),
            f"in {format_duration(job.due_at - now)}" if job.due_at > now and not job.state.terminal else "",
            job.tenant or "",
            f"{job.errors[-1].kind}: {job.errors[-1].message}" if job.errors else "",
        )
        for job in jobs
    ]
    heads = ("id", "queue", "kind", "state", "attempt", "age", "due", "tenant", "last error")
    keep = [place for place, head in enumerate(heads) if place < 6 or any(row[place] for row in rows)]
    screen.table([heads[place] for place in keep], [[row[place] for place in keep] for row in rows], "id attempt age")


def _show_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=job_id, help="the job's id")
    parser.add_argument("--trace", action="store_true", help="with the traces of its errors")
    raw_argument(parser)


def _show(call: Invocation) -> int:
    with call.store() as store:
        job, now = call.shown(one_job(store, call.args.id)), store.now()
    if call.screen.as_json:
        call.screen.emit(job_json(job))
    else:
        show_job(call.screen, job, now, call.args.trace)
    return OK


def progress_words(progress: Progress) -> str:
    """The percentage and the note."""
    return f"{progress.portion:.0%}" + (f" {progress.note}" if progress.note else "")


def show_job(screen: Screen, job: Job, now: Instant, trace: bool) -> None:
    screen.facts(
        [
            ("id", job.id),
            ("queue", job.queue),
            ("died in", job.home),
            ("kind", job.kind),
            ("state", job.state.value),
            ("attempt", f"{job.attempt} of {job.max_attempts}, delivery {job.delivery}"),
            ("priority", job.priority or None),
            ("key", job.key),
            ("tenant", job.tenant),
            ("subject", job.subject),
            ("enqueued", when(job.enqueued_at, now)),
            ("due", None if job.state.terminal else when(job.due_at, now)),
            ("deadline", None if job.deadline is None else when(job.deadline, now)),
            ("expires", None if job.expires_at is None else when(job.expires_at, now)),
            ("owner", job.owner),
            ("lease until", None if job.lease_until is None else when(job.lease_until, now)),
            (
                "progress",
                None if job.progress is None else f"{progress_words(job.progress)}, {when(job.progress.at, now)}",
            ),
            ("cancel", "requested" if job.cancel_requested else None),
            ("ended", None if job.finished_at is None else when(job.finished_at, now)),
            ("meta", None if job.meta is None else msgspec.json.encode(job.meta).decode()),
        ]
    )
    for title, body in (("payload", job.body), ("result", job.result_body)):
        if body is not None:
            screen.say(screen.paint(title, "dim"))
            for line in msgspec.json.format(body, indent=2).decode().splitlines():
                screen.say(f"  {clean(line)}")
    for failure in job.errors:
        heading = f"attempt {failure.attempt} failed, {when(failure.at, now)}"
        screen.say(f"{screen.paint(heading, 'dim')}\n  {clean(failure.kind)}: {clean(failure.message)}")
        for line in failure.trace.splitlines() if trace else ():
            screen.say(f"  {clean(line)}")


def _explain_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=job_id, help="the job's id")


def _explain(call: Invocation) -> int:
    with call.store() as store:
        one_job(store, call.args.id)
        sentences = explain(store, call.args.id)
    if call.screen.as_json:
        call.screen.emit({"id": call.args.id, "sentences": sentences})
        return OK
    for place, sentence in enumerate(sentences):
        call.screen.say(call.screen.paint(clean(sentence), None if place else "bold"))
    return OK


COMMANDS = (
    Command(
        "ls",
        "list jobs",
        _ls,
        """
forebay ls
forebay ls mail --state waiting --oldest
forebay ls --state dead --kind resize --json | jq .id
forebay ls mail --payload customer.id=7 --meta trace=4bf9
""",
        _ls_arguments,
    ),
    Command(
        "show",
        "show one job: its state, payload, errors and result",
        _show,
        """
forebay show 41
forebay show 41 --trace
forebay show 41 --json | jq .payload
""",
        _show_arguments,
    ),
    Command(
        "explain",
        "explain why a job is in its state, and when that may change",
        _explain,
        """
forebay explain 41
forebay explain 41 --json
""",
        _explain_arguments,
    ),
)
