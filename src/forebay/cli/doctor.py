"""`doctor`: checks a store. One line per check: ok, warn or fail, the fact, and the remedy. Exit code 1 on a fail.

It sets one gate and resets it, to check that writes work; every other check only reads.
"""

import os
import platform
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from msgspec.structs import replace

from forebay.cli.command import Command, Invocation
from forebay.cli.diagnosis import Diagnosis
from forebay.cli.exits import FAILED, OK, CommandFailed
from forebay.cli.logs import standings_of
from forebay.cli.resolve_store import connecting, error_text, is_postgres, is_redis, masked, store_path
from forebay.cli.schema import schema_of
from forebay.cli.stats import blocked_words
from forebay.core.errors import ForebayError, Invalid
from forebay.core.humanize import SECOND, format_duration, many, when
from forebay.core.instant import micros
from forebay.core.limits import MAX_BATCH, MAX_INSTANT
from forebay.core.names import is_reserved
from forebay.core.policy import Retained
from forebay.core.presence import unhandled_kinds
from forebay.store.open import cell_ledgers
from forebay.store.protocol import Backlog, Cellular, Store
from forebay.work.cron import NEVER, describe_schedule

_GATE = "until/forebay-doctor"
_OLD_SECONDS = 300
_LATE_SECONDS = 60
_SKEW_WARN, _SKEW_FAIL = 1.0, 60.0
_SLOW_WRITE = 0.25
_MIN_ROOM = 256 * 1024 * 1024
_KINDS_SHOWN = 20
_LAST_PART = 4
"""A group that loses an entry within this part of its window is reported."""


def examine(url: str, open_store: Callable[[], Store]) -> Iterator[Diagnosis]:
    """All checks, each as soon as it is known."""
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    yield Diagnosis("ok", "versions", versions)
    cells = _cells(url)
    unreachable = False
    for cell, part in cells.items():
        try:
            yield from _of_cell(cell, _server(part))
        except CommandFailed as error:
            unreachable = True
            yield from _of_cell(cell, _failed_to_open(error))
    if unreachable:
        return
    try:
        store = open_store()
    except CommandFailed as error:
        yield from _failed_to_open(error)
        return
    try:
        yield Diagnosis("ok", "opens", f"{masked(url)} ({store.capabilities.name})")
        for cell, part in cells.items():
            yield from _of_cell(cell, _disk(part))
        if not (is_postgres(url) or is_redis(url)):
            yield from _durable(store)
        yield from _writable(store)
        for cell, part_store in store.cells().items() if isinstance(store, Cellular) else [("", store)]:
            yield from _of_cell(cell, _clock(part_store))
        for check in (_ages, _kinds, _held, _lines, _dead, _leases, _pauses, _schedules, _logs):
            yield from check(store)
        for cell, part in cells.items():
            yield from _of_cell(cell, _schema(part))
    except (ForebayError, CommandFailed) as error:
        yield Diagnosis("fail", "answers", error_text(error, url), "fix the cause and run doctor again")
    finally:
        store.close()


def _cells(url: str) -> dict[str, str]:
    """The URLs of the cells by name; of another store its own URL, without a name."""
    with suppress(Invalid):
        return {cell.name: cell.url for cell in cell_ledgers(url)} or {"": url}
    return {}


def _of_cell(cell: str, found: Iterator[Diagnosis]) -> Iterator[Diagnosis]:
    return (replace(each, fact=f"cell {cell}: {each.fact}") for each in found) if cell else found


def _failed_to_open(error: CommandFailed) -> Iterator[Diagnosis]:
    yield Diagnosis("fail", "opens", str(error), "see above; FOREBAY_URL or --store selects the store")


def _server(url: str) -> Iterator[Diagnosis]:
    """The state of the server, whether its schema is current or not; none of a store without one."""
    if not (is_postgres(url) or is_redis(url)):
        return
    with connecting(url):
        if is_redis(url):
            from forebay.cli.redis import diagnoses
        else:
            from forebay.cli.postgres import diagnoses

        yield from diagnoses(url)


def _disk(url: str) -> Iterator[Diagnosis]:
    file = store_path(url)
    if file is None:
        return
    mode = stat.S_IMODE(os.stat(file).st_mode)
    if mode & 0o077:
        yield Diagnosis("warn", "private", f"others may read or write it (mode {mode:03o})", f"chmod go-rwx {file}")
    else:
        yield Diagnosis("ok", "private", f"only its owner may read it (mode {mode:03o})")
    room = shutil.disk_usage(file.parent if file.is_file() else file).free
    status = "warn" if room < _MIN_ROOM else "ok"
    remedy = "free some space: a full disk stops every write" if status == "warn" else ""
    yield Diagnosis(status, "disk", f"{room / 2**30:.1f} GiB free", remedy)


def _durable(store: Store) -> Iterator[Diagnosis]:
    if store.capabilities.durable:
        yield Diagnosis("ok", "durable", "accepted jobs survive a crash of the machine")
    else:
        yield Diagnosis("warn", "durable", "a crash loses every job", "use sqlite:///jobs.db for anything that matters")


def _writable(store: Store) -> Iterator[Diagnosis]:
    started = time.monotonic()
    try:
        store.set_gate(_GATE, 1)
        store.set_gate(_GATE, None)
    except ForebayError as error:
        yield Diagnosis("fail", "writable", str(error), "check this user's permissions and the free disk space")
        return
    taken = (time.monotonic() - started) / 2
    slow = taken > _SLOW_WRITE
    remedy = "the disk is slow or another process holds the lock: enqueue in batches" if slow else ""
    yield Diagnosis(
        "warn" if slow else "ok", "writable", f"a durable write took {format_duration(int(taken * SECOND))}", remedy
    )


def _clock(store: Store) -> Iterator[Diagnosis]:
    ahead = store.now() / SECOND - time.time()
    status = "fail" if abs(ahead) > _SKEW_FAIL else "warn" if abs(ahead) > _SKEW_WARN else "ok"
    word = "ahead of" if ahead > 0 else "behind"
    fact = f"the store's clock is {format_duration(int(abs(ahead) * SECOND))} {word} this machine's"
    remedy = "synchronise the clocks by NTP; the store's clock never runs backwards, so it may have to wait"
    yield Diagnosis(status, "clock", fact, "" if status == "ok" else remedy)


def _ages(store: Store) -> Iterator[Diagnosis]:
    old = [
        backlog
        for backlog in store.backlog()
        if backlog.ready > backlog.held and backlog.oldest_age > _OLD_SECONDS * SECOND and backlog.paused_until is None
    ]
    for backlog in old:
        fact = f"{backlog.queue}: {backlog.ready:,} ready, the oldest for {format_duration(backlog.oldest_age)}"
        yield Diagnosis("warn", "ready", fact, f"start workers: forebay worker app:fb --queues {backlog.queue}")
    if not old:
        yield Diagnosis("ok", "ready", f"no job has been ready for more than {format_duration(_OLD_SECONDS * SECOND)}")


def _kinds(store: Store) -> Iterator[Diagnosis]:
    lacking = unhandled_kinds(store.workers("", MAX_BATCH))
    for queue, kind in lacking[:_KINDS_SHOWN]:
        fact = f"no worker has a handler for kind {kind} of queue {queue}: its jobs are released and wait"
        yield Diagnosis(
            "warn", "kinds", fact, "start a worker whose app has a handler for it; forebay explain ID of one"
        )
    if not lacking:
        yield Diagnosis("ok", "kinds", "workers have a handler for every kind that they claimed")


def _held(store: Store) -> Iterator[Diagnosis]:
    """Gates hold jobs by design; a warning only where the oldest ready job has waited too long."""
    held = [each for each in store.backlog() if each.held and each.oldest_age > _OLD_SECONDS * SECOND]
    for backlog in held:
        fact = f"{backlog.queue}: a closed gate holds {many(backlog.held, 'ready job')}"
        yield Diagnosis("warn", "gates", fact, "forebay gates ls shows which are full, forebay gates set opens one")
    if not held:
        yield Diagnosis("ok", "gates", f"no gate has held a job for more than {format_duration(_OLD_SECONDS * SECOND)}")


def _lines(store: Store) -> Iterator[Diagnosis]:
    """Reported only when there are blocked lines: few queues have lines."""
    for backlog in store.backlog():
        if backlog.blocked:
            remedy = f"forebay dlq ls --queue {backlog.queue}, then redrive or purge to unblock the line"
            yield Diagnosis("warn", "lines", blocked_words(backlog), remedy)


def _dead(store: Store) -> Iterator[Diagnosis]:
    dead = {backlog.queue: backlog.dead for backlog in store.backlog() if backlog.dead}
    if not dead:
        yield Diagnosis("ok", "dead", "no dead letters")
        return
    deepest = sorted(dead, key=lambda queue: -dead[queue])[:5]
    fact = f"{many(sum(dead.values()), 'dead letter')}: " + ", ".join(f"{queue} {dead[queue]:,}" for queue in deepest)
    yield Diagnosis("warn", "dead", fact, "forebay dlq ls --group shows the causes, forebay dlq redrive retries them")


def _logs(store: Store) -> Iterator[Diagnosis]:
    """Groups that will lose an entry within the last part of the window."""
    for spec in store.specs():
        retention = spec.retention
        if not isinstance(retention, Retained) or retention.window is None or is_reserved(spec.name):
            continue
        near = store.now() + micros(retention.window) // _LAST_PART
        behind = [one for one in standings_of(store, spec.name) if one.loses_at is not None and one.loses_at <= near]
        for group in dict.fromkeys(one.group for one in behind):
            lag = sum(one.lag for one in behind if one.group == group)
            soonest = min(one.loses_at for one in behind if one.group == group and one.loses_at is not None)
            fact = f"{spec.name}: group {group} is {lag:,} behind and loses the next {when(soonest, store.now())}"
            yield Diagnosis("warn", "log", fact, "run more readers, or increase the log's window")


def _leases(store: Store) -> Iterator[Diagnosis]:
    late = store.overdue(MAX_BATCH)
    if late:
        number = f"{len(late):,}{' or more' if len(late) == MAX_BATCH else ''}"
        fact = f"{number} leases have expired and their jobs were not reclaimed"
        yield Diagnosis("warn", "leases", fact, "workers reclaim jobs: start one, on any queue")
    else:
        yield Diagnosis("ok", "leases", "no lease has expired")


def _pauses(store: Store) -> Iterator[Diagnosis]:
    paused: list[Backlog] = [backlog for backlog in store.backlog() if backlog.paused_until is not None]
    for backlog in paused:
        until = backlog.paused_until or 0
        end = "until it is resumed" if until >= MAX_INSTANT else f"until {when(until, store.now())}"
        fact = f"{backlog.queue} is paused {end}"
        yield Diagnosis("warn", "paused", fact, f"forebay resume {backlog.queue}")
    if not paused:
        yield Diagnosis("ok", "paused", "no queue is paused")


def _schedules(store: Store) -> Iterator[Diagnosis]:
    now, sound = store.now(), 0
    for schedule in store.schedules():
        words = describe_schedule(schedule, now)
        if words.startswith("not understood"):
            yield Diagnosis("fail", "schedules", f"{schedule.name}: {words}", f"forebay cron put {schedule.name} …")
        elif schedule.paused:
            yield Diagnosis("warn", "schedules", f"{schedule.name} is paused", f"forebay cron resume {schedule.name}")
        elif schedule.next_at >= NEVER:
            yield Diagnosis(
                "warn", "schedules", f"{schedule.name} never fires again", f"forebay cron rm {schedule.name}"
            )
        elif schedule.next_at < now - _LATE_SECONDS * SECOND:
            fact = f"{schedule.name} should have fired {format_duration(now - schedule.next_at)} ago"
            yield Diagnosis("warn", "schedules", fact, "workers fire schedules: start one, on any queue")
        else:
            sound += 1
    yield Diagnosis("ok", "schedules", f"{sound} will fire")


def _schema(url: str) -> Iterator[Diagnosis]:
    schema = schema_of(url)
    yield Diagnosis("ok" if schema.current else "warn", "schema", schema.words, schema.remedy)


def _doctor(call: Invocation) -> int:
    worst = OK
    for diagnosis in examine(call.url, call.open):
        worst = FAILED if diagnosis.status == "fail" else worst
        if call.screen.as_json:
            call.screen.emit(diagnosis)
            continue
        mark = call.screen.paint(
            f"{diagnosis.status:<4}", {"ok": "green", "warn": "yellow", "fail": "red"}[diagnosis.status]
        )
        call.screen.say(f"{mark}  {diagnosis.check:<9}  {diagnosis.fact}")
        if diagnosis.remedy:
            call.screen.say(f"{'':<17}→ {diagnosis.remedy}")
    return worst


COMMANDS = (
    Command(
        "doctor",
        "check a store: server, durability, clock, ages, dead letters, schedules",
        _doctor,
        """
forebay doctor
forebay doctor --store sqlite:///jobs.db --json | jq 'select(.status != "ok")'
""",
    ),
)
