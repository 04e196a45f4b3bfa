"""`cron`: schedules. A schedule that an app declares is overwritten when the app starts with another rule.

A resumed schedule fires from now on; what it missed while paused is not made up for.
"""

from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from forebay.cli.actions import record_action
from forebay.cli.argtypes import count, payload_of
from forebay.cli.command import Command, CommandGroup, Invocation
from forebay.cli.exits import FAILED, OK, CommandFailed
from forebay.cli.json_views import schedule_json
from forebay.core.humanize import format_duration, iso, when
from forebay.core.instant import Instant, to_datetime
from forebay.core.job import Draft
from forebay.core.schedule import Schedule
from forebay.store.clock import SystemClock
from forebay.store.protocol import Store
from forebay.work.cron import NEVER, OVERLAPS, CatchUp, Cron, Timetable, describe, describe_schedule
from forebay.work.ticker import run_now


def one_schedule(store: Store, name: str) -> Schedule:
    schedules = store.schedules()
    for schedule in schedules:
        if schedule.name == name:
            return schedule
    known = ", ".join(schedule.name for schedule in schedules[:10]) or "none yet"
    raise CommandFailed(f"schedule {name!r} is unknown; known: {known}")


def _ls(call: Invocation) -> int:
    with call.store() as store:
        schedules, now = sorted(store.schedules(), key=lambda schedule: schedule.name), store.now()
    if call.screen.as_json:
        for schedule in schedules:
            call.screen.emit(schedule_json(schedule, describe_schedule(schedule, now)))
        return OK
    if not schedules:
        call.screen.note("no schedules yet; see forebay cron put --help")
        return OK
    rows = [
        (
            schedule.name,
            schedule.draft.kind,
            schedule.draft.queue,
            "paused" if schedule.paused else when(schedule.next_at, now),
            when(schedule.last_at, now),
            f"{schedule.rule}  {describe_schedule(schedule, now).partition(';')[0]}",
        )
        for schedule in schedules
    ]
    call.screen.table(("name", "kind", "queue", "next", "last", "rule"), rows)
    return OK


def _put_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the schedule's name; an existing one is edited")
    parser.add_argument("rule", metavar="RULE", help="'30 1 * * *', six fields with seconds, @daily, '@every 90s'")
    parser.add_argument("kind", metavar="KIND", help="the kind of job to enqueue")
    parser.add_argument("payload", metavar="PAYLOAD", nargs="*", help="one JSON text, or key=value pairs")
    parser.add_argument("--queue", default="default", help="the queue (default: default)")
    parser.add_argument("--tz", default="UTC", metavar="ZONE", help="time zone, such as Europe/Berlin (default: UTC)")
    parser.add_argument("--dst", default="once", choices=["once", "skip", "wall"], help="how clock changes are handled")
    parser.add_argument("--catch-up", default="last", metavar="RULE", help="missed ticks: none, last or 'all(24)'")
    parser.add_argument("--overlap", default="allow", choices=OVERLAPS, help="while the last job has not ended")
    parser.add_argument("--jitter", type=int, default=0, metavar="SECONDS", help="spread the jobs of one tick")


def _put(call: Invocation) -> int:
    args = call.args
    timetable = Timetable(Cron(args.rule, args.tz, args.dst), CatchUp.parse(args.catch_up), args.overlap, args.jitter)
    draft = Draft(args.kind, payload_of(args.payload), args.queue)
    with call.store(create=True) as store:
        now = store.now()
        first = timetable.cron.next_after(now) or NEVER
        store.put_schedule(Schedule(args.name, timetable.rule, first, draft, args.tz))
        schedule = one_schedule(store, args.name)
        record_action(store, "cron put", args.name, rule=schedule.rule, zone=args.tz, kind=args.kind)
    if call.screen.as_json:
        call.screen.emit(schedule_json(schedule, describe_schedule(schedule, now)))
    else:
        call.screen.say(f"{args.name}: {describe_schedule(schedule, now)}")
    return OK


def _names(parser: ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="+", help="names, as `forebay cron ls` shows them")


def _rm(call: Invocation) -> int:
    with call.store() as store:
        gone = {name: store.drop_schedule(name) for name in call.args.names}
        record_action(store, "cron rm", ", ".join(call.args.names))
    for name, was_there in gone.items():
        if call.screen.as_json:
            call.screen.emit({"name": name, "removed": was_there})
        elif was_there:
            call.screen.say(f"{name} is removed")
        else:
            call.screen.note(f"schedule {name!r} is unknown")
    return OK if all(gone.values()) else FAILED


def _pause(call: Invocation) -> int:
    with _edited(call) as (store, schedules):
        for schedule in schedules:
            store.put_schedule(replace(schedule, paused=True))
            record_action(store, "cron pause", schedule.name)
            _report(call, schedule.name, "paused", None)
    return OK


def _resume(call: Invocation) -> int:
    with _edited(call) as (store, schedules):
        now = store.now()
        for schedule in schedules:
            cron = Timetable.parse(schedule.rule, schedule.zone).cron
            following = cron.next_after(now) or NEVER
            store.put_schedule(replace(schedule, paused=False, next_at=following))
            record_action(store, "cron resume", schedule.name)
            _report(call, schedule.name, f"resumed, next {when(following, now)}", following)
    return OK


def _run(call: Invocation) -> int:
    with _edited(call) as (store, schedules):
        for schedule in schedules:
            receipt = run_now(store, schedule)
            record_action(store, "cron run", schedule.name, job=receipt.id)
            if call.screen.as_json:
                call.screen.emit({"name": schedule.name, "job_id": receipt.id, "duplicate": receipt.duplicate})
            else:
                words = "a duplicate of" if receipt.duplicate else "enqueued as"
                call.screen.say(f"{schedule.name} is {words} job {receipt.id}; see `forebay show {receipt.id}`")
    return OK


@contextmanager
def _edited(call: Invocation) -> Iterator[tuple[Store, list[Schedule]]]:
    """The named schedules; fails before any change if one of them does not exist."""
    with call.store() as store:
        yield store, [one_schedule(store, name) for name in call.args.names]


def _report(call: Invocation, name: str, words: str, next_at: Instant | None) -> None:
    if call.screen.as_json:
        call.screen.emit({"name": name, "paused": next_at is None, "next_at": iso(next_at)})
    else:
        call.screen.say(f"{name} is {words}")


def _next_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|RULE", help="a schedule's name, or a rule: '30 1 * * *'")
    parser.add_argument("--tz", metavar="ZONE", help="for a rule: its time zone (default: UTC)")
    parser.add_argument("--count", type=count, default=5, metavar="N", help="how many (default: 5, at most 1000)")


def _next(call: Invocation) -> int:
    args = call.args
    if " " in args.name.strip() or args.name.startswith("@"):
        timetable, now = Timetable.parse(args.name, args.tz or "UTC"), SystemClock().now()
    else:
        with call.store() as store:
            schedule, now = one_schedule(store, args.name), store.now()
        timetable = Timetable.parse(schedule.rule, schedule.zone)
    cron = timetable.cron
    fires = list(islice(cron.ticks(now, NEVER, min(args.count, 1_000)), args.count))
    if call.screen.as_json:
        call.screen.emit({"rule": timetable.rule, "zone": cron.zone, "next": [iso(fire) for fire in fires]})
        return OK
    call.screen.say(describe(cron, now).partition(";")[0])
    for fire in fires:
        there = to_datetime(fire).astimezone(ZoneInfo(cron.zone))
        call.screen.say(f"  {there:%a %Y-%m-%d %H:%M:%S %z}  in {format_duration(fire - now)}")
    return OK


COMMANDS = (
    CommandGroup(
        "cron",
        "list, edit, pause and run schedules",
        (
            Command("ls", "list schedules and their next fire times", _ls, "forebay cron ls\nforebay cron ls --json"),
            Command(
                "put",
                "create or edit a schedule",
                _put,
                """
forebay cron put nightly '30 1 * * *' report --tz Europe/Berlin --overlap skip
forebay cron put beat '@every 90s' heartbeat host=db1 --queue ops
""",
                _put_arguments,
            ),
            Command("rm", "remove schedules", _rm, "forebay cron rm nightly", _names),
            Command("pause", "pause schedules", _pause, "forebay cron pause nightly", _names),
            Command("resume", "resume schedules, from now on", _resume, "forebay cron resume nightly", _names),
            Command(
                "run",
                "enqueue the jobs of schedules now; their next fire times do not change",
                _run,
                "forebay cron run nightly",
                _names,
            ),
            Command(
                "next",
                "show when a schedule or a rule fires next",
                _next,
                """
forebay cron next nightly
forebay cron next '30 2 * * 1-5' --tz America/New_York --count 10
""",
                _next_arguments,
            ),
        ),
    ),
)
