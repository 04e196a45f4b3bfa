"""`cancel`: jobs by id, or all that match a filter and have not ended.

With a filter it first shows how many jobs match and asks for confirmation, unless `--yes` is given. It cancels exactly
the jobs that it counted.
"""

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from forebay.cli.actions import record_action
from forebay.cli.argtypes import count, job_id
from forebay.cli.command import Command, Invocation, raw_argument
from forebay.cli.exits import FAILED, OK
from forebay.cli.inspect import checked_names, job_table
from forebay.cli.screen import ProgressBar, confirm
from forebay.core.errors import Invalid
from forebay.core.humanize import many
from forebay.core.job import Job, State
from forebay.core.limits import MAX_BATCH
from forebay.core.names import check_text
from forebay.store.protocol import CancelAnswer, Query, Store, matching

MAX_JOBS: Final = 100_000
"""The default limit of jobs that one command cancels."""

_SHOWN: Final = 20
_OPEN: Final = [state.value for state in State if not state.terminal]
_MEANINGS: Final = {
    CancelAnswer.CANCELLED: "cancelled, it will not run",
    CancelAnswer.REQUESTED: "running, cancel requested",
    CancelAnswer.GONE: "unknown, or already ended",
}


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", type=job_id, nargs="*", help="job ids; else give filters, or --all")
    parser.add_argument("--queue", help="only of this queue")
    parser.add_argument("--state", choices=_OPEN, help="only in this state")
    parser.add_argument("--kind", help="only of this kind")
    parser.add_argument("--tenant", help="only of this tenant")
    parser.add_argument("--subject", help="only of this subject")
    parser.add_argument("--all", action="store_true", help="every job that has not ended")
    limit = f"at most N jobs, lowest ids first (default: {MAX_JOBS:,})"
    parser.add_argument("--limit", type=count, default=MAX_JOBS, metavar="N", help=limit)
    parser.add_argument("--dry-run", action="store_true", help="show how many and some of them, cancel none")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    raw_argument(parser)


def _cancel(call: Invocation) -> int:
    args = call.args
    query = _query(args)
    if bool(args.ids) + (query != Query()) + args.all != 1:
        way_out = "give ids, a filter such as --queue, or --all"
        raise Invalid("cancel", "it needs exactly one of ids, a filter, --all", way_out)
    with call.store() as store:
        jobs = _named(store, args.ids) if args.ids else matching(store, query)
        if args.dry_run:
            return _would(call, store, list(islice(_open(jobs), args.limit)))
        return _cancel_ids(call, store) if args.ids else _cancel_matching(call, store, query)


def _query(args: Any) -> Query:
    queue, kind, tenant = checked_names(queue=args.queue, kind=args.kind, tenant=args.tenant)
    subject = None if args.subject is None else check_text("subject", args.subject)
    return Query(queue, State(args.state) if args.state else None, kind, tenant, subject)


def _cancel_ids(call: Invocation, store: Store) -> int:
    ids: list[int] = call.args.ids
    answers = [answer for part in _batches(ids) for answer in store.cancel(part)]
    record_action(store, "cancel", "jobs", ids=ids[:100], count=len(ids))
    for number, answer in zip(ids, answers, strict=True):
        if call.screen.as_json:
            call.screen.emit({"id": number, "answer": answer.value})
        else:
            call.screen.say(f"{number}  {_MEANINGS[answer]}")
    return FAILED if CancelAnswer.GONE in answers else OK


def _cancel_matching(call: Invocation, store: Store, query: Query) -> int:
    args = call.args
    ids = [job.id for job in islice(_open(matching(store, query)), args.limit)]
    if ids and not args.yes:
        confirm(f"{many(len(ids), 'job')} will be cancelled. Continue? [y/N] ", "cancel", "nothing was cancelled")
    answers: Counter[CancelAnswer] = Counter()
    progress = ProgressBar(call.screen, "cancel", len(ids))
    try:
        for part in _batches(ids):
            answers.update(store.cancel(part))
            progress.show(answers.total(), f"{answers.total():,} of {len(ids):,}")
    finally:
        progress.close()
        counts = {answer.value: answers[answer] for answer in CancelAnswer}
        if ids:
            given = {name: getattr(args, name) for name in ("queue", "state", "kind", "tenant", "subject")}
            wanted = {name: value for name, value in given.items() if value is not None}
            record_action(store, "cancel many", many(len(ids), "job"), filter=wanted, ids=ids[:100], answers=counts)
    _report(call, counts)
    if len(ids) == args.limit:
        call.screen.note(f"stopped at --limit {args.limit}; run it again for the rest")
    return OK


def _report(call: Invocation, counts: dict[str, int]) -> None:
    if call.screen.as_json:
        call.screen.emit(counts)
        return
    call.screen.say(f"cancelled: {many(counts['cancelled'], 'job')}")
    if counts["requested"]:
        call.screen.say(f"running, cancel requested: {many(counts['requested'], 'job')}")
    if counts["gone"]:
        call.screen.say(f"ended meanwhile: {many(counts['gone'], 'job')}")


def _would(call: Invocation, store: Store, jobs: list[Job]) -> int:
    if call.screen.as_json:
        call.screen.emit({"would_cancel": len(jobs), "ids": [job.id for job in jobs]})
        return OK
    job_table(call.screen, [call.shown(job) for job in jobs[:_SHOWN]], store.now())
    call.screen.say(f"would cancel {many(len(jobs), 'job')}; nothing was done")
    return OK


def _named(store: Store, ids: list[int]) -> Iterator[Job]:
    return (job for part in _batches(ids) for job in store.get(part) if job is not None)


def _open(jobs: Iterator[Job]) -> Iterator[Job]:
    return (job for job in jobs if not job.state.terminal)


def _batches(ids: list[int]) -> Iterator[list[int]]:
    return (ids[start : start + MAX_BATCH] for start in range(0, len(ids), MAX_BATCH))


COMMANDS = (
    Command(
        "cancel",
        "cancel jobs by their ids or by a filter; a running job gets a cancel request",
        _cancel,
        """
forebay cancel 41
forebay cancel 41 42 43 --json
forebay cancel --queue mail --kind newsletter --dry-run
forebay cancel --queue mail --state waiting --yes
""",
        _arguments,
    ),
)
