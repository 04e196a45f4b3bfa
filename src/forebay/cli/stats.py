"""`stats` and `top`: every queue in one line, once or live.

`oldest`: how long the oldest ready job has been due. `held`: ready jobs behind a closed gate.

Rates are differences between two samples: `net/s` is the change of the depth, `dead/s` the dead letters, `done/s` the
completed jobs, where the queue keeps them. A store keeps no totals, so what arrived and left between two samples is not
counted. Below the queues, `top` shows running jobs that report progress.
"""

import time
from argparse import ArgumentParser
from functools import partial
from itertools import chain
from typing import Any, Final

from msgspec import Struct

from forebay.cli.argtypes import count, duration
from forebay.cli.command import Command, Invocation
from forebay.cli.exits import OK
from forebay.cli.inspect import progress_words
from forebay.cli.json_views import backlog_json
from forebay.cli.resolve_store import masked
from forebay.cli.screen import Screen, watch
from forebay.core.humanize import SECOND, format_duration, iso, many
from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import MAX_BLOCKED, MAX_INSTANT
from forebay.core.names import is_reserved
from forebay.serve.security.redact import redact_job
from forebay.store.protocol import Backlog, Query, Store

_HEADS = "queue waiting ready running done dead cancelled oldest held".split()
_TOP_HEADS = "queue depth net/s ready running waiting oldest held done/s dead dead/s".split()


def backlogs_of(store: Store, queues: list[str] | None = None) -> list[Backlog]:
    """The backlogs of these queues, or of all but reserved ones."""
    return store.backlog(queues) if queues else [each for each in store.backlog() if not is_reserved(each.queue)]


def _stats_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("queues", metavar="QUEUE", nargs="*", help="only these queues")
    parser.add_argument(
        "--watch",
        type=duration,
        nargs="?",
        const=duration("2s"),
        metavar="DURATION",
        help="repeat at this interval (default: 2s)",
    )


def _stats(call: Invocation) -> int:
    with call.store() as store:
        frame = partial(_stats_frame, call, store)
        if call.args.watch is not None:
            watch(call.screen, max(0.1, call.args.watch.total_seconds()), frame)
        else:
            for line in frame():
                call.screen.say(line)
    return OK


def _stats_frame(call: Invocation, store: Store) -> list[str]:
    backlogs = backlogs_of(store, call.args.queues)
    if call.screen.as_json:
        for backlog in backlogs:
            call.screen.emit(backlog_json(backlog))
        return []
    if not backlogs:
        return ["no queues yet; forebay enqueue creates one"]
    rows = [_stats_row(backlog) for backlog in backlogs]
    if len(rows) > 1:
        rows.append(["(all)", *(sum(int(row[place]) for row in rows) for place in range(1, 7)), "", ""])
    lines = call.screen.table_lines(_HEADS, rows, " ".join(_HEADS[1:]))
    return lines + _warnings(call.screen, backlogs, store.now())


def _stats_row(backlog: Backlog) -> list[Any]:
    return [
        backlog.queue,
        backlog.waiting,
        backlog.ready,
        backlog.running,
        backlog.done,
        backlog.dead,
        backlog.cancelled,
        format_duration(backlog.oldest_age) if backlog.ready else "",
        backlog.held or "",
    ]


def _warnings(screen: Screen, backlogs: list[Backlog], now: Instant) -> list[str]:
    """Blocked lines and paused queues."""
    lines = []
    for backlog in backlogs:
        if backlog.blocked:
            lines.append(screen.paint(blocked_words(backlog), "yellow"))
        if backlog.paused_until is not None:
            until = backlog.paused_until
            how_long = "until `forebay resume`" if until >= MAX_INSTANT else f"for {format_duration(until - now)}"
            lines.append(screen.paint(f"{backlog.queue} is paused {how_long}", "yellow"))
    return lines


def blocked_words(backlog: Backlog) -> str:
    more = " or more" if backlog.blocked >= MAX_BLOCKED else ""
    verb = "is" if backlog.blocked == 1 else "are"
    return f"{backlog.queue}: {many(backlog.blocked, 'line')}{more} {verb} blocked by a dead job at the head"


class StatsSample(Struct, frozen=True):
    """All queues at one instant."""

    at: Instant
    backlogs: dict[str, Backlog]


def take_sample(store: Store, queues: list[str] | None) -> StatsSample:
    backlogs = backlogs_of(store, queues)
    return StatsSample(store.now(), {backlog.queue: backlog for backlog in backlogs})


def rates(backlog: Backlog, before: StatsSample | None, at: Instant) -> tuple[float, float, float] | None:
    """Changes of depth, done and dead per second since the last sample; None when there was none."""
    was = None if before is None else before.backlogs.get(backlog.queue)
    if before is None or was is None or at <= before.at:
        return None
    seconds = (at - before.at) / SECOND
    return (
        (backlog.depth - was.depth) / seconds,
        max(0, backlog.done - was.done) / seconds,
        max(0, backlog.dead - was.dead) / seconds,
    )


def _top_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("queues", metavar="QUEUE", nargs="*", help="only these queues")
    parser.add_argument(
        "--every", type=duration, default=duration("1s"), metavar="DURATION", help="how often (default: 1s)"
    )
    parser.add_argument("--once", action="store_true", help="two samples, one frame, then exit: for scripts")
    parser.add_argument("--rows", type=count, default=30, metavar="N", help="at most N queues (default: 30)")


_MAX_RUNNING: Final = 500
_MAX_PROGRESS: Final = 10
"""Running jobs that are read, and how many of them are shown with their progress."""


class Top:
    """Keeps the last sample, to compute rates for the next."""

    def __init__(self, call: Invocation, store: Store) -> None:
        self._call = call
        self._store = store
        self._before: StatsSample | None = None

    def refresh(self) -> None:
        self._before = take_sample(self._store, self._call.args.queues)

    def frame(self) -> list[str]:
        before, now = self._before, take_sample(self._store, self._call.args.queues)
        self._before = now
        busiest = sorted(now.backlogs.values(), key=lambda backlog: (-backlog.depth, backlog.queue))
        if self._call.screen.as_json:
            for backlog in busiest:
                self._emit(backlog, before, now.at)
            return []
        total = sum(backlog.depth for backlog in busiest)
        dead = sum(backlog.dead for backlog in busiest)
        head = f"{masked(self._call.url)} · {many(len(busiest), 'queue')} · depth {total:,} · dead {dead:,}"
        shown = busiest[: self._call.args.rows]
        rows = [_top_row(backlog, rates(backlog, before, now.at)) for backlog in shown]
        table = self._call.screen.table_lines(_TOP_HEADS, rows, " ".join(_TOP_HEADS[1:])) if rows else []
        return list(chain([head], table, _warnings(self._call.screen, shown, now.at), self._progress(now.at)))

    def _progress(self, now: Instant) -> list[str]:
        """Running jobs that report progress, longest running first."""
        queues = self._call.args.queues
        running = self._store.browse(Query(state=State.RUNNING), 0, _MAX_RUNNING).jobs
        ids = [job.id for job in running if not queues or job.queue in queues]
        jobs = [redact_job(job) for job in self._store.get(ids) if job is not None and job.progress is not None]
        jobs.sort(key=lambda job: (job.claimed_at or 0, job.id))
        rows = [
            (job.id, job.queue, job.kind, format_duration(now - (job.claimed_at or now)), progress_words(job.progress))
            for job in jobs[:_MAX_PROGRESS]
            if job.progress is not None
        ]
        heads = ("job", "queue", "kind", "for", "progress")
        return ["", *self._call.screen.table_lines(heads, rows, "job for")] if rows else []

    def _emit(self, backlog: Backlog, before: StatsSample | None, at: Instant) -> None:
        found = rates(backlog, before, at)
        net, done, dead = found or (None, None, None)
        self._call.screen.emit(
            {**backlog_json(backlog), "at": iso(at), "net_rate": net, "done_rate": done, "dead_rate": dead}
        )


def _top_row(backlog: Backlog, found: tuple[float, float, float] | None) -> list[Any]:
    net, done, dead = "–", "–", "–"
    if found is not None:
        net, done, dead = (format(rate, spec) for rate, spec in zip(found, ("+.1f", ".1f", ".1f"), strict=True))
    return [
        backlog.queue,
        backlog.depth,
        net,
        backlog.ready,
        backlog.running,
        backlog.waiting,
        format_duration(backlog.oldest_age) if backlog.ready else "",
        backlog.held or "",
        done,
        backlog.dead,
        dead,
    ]


def _top(call: Invocation) -> int:
    every = max(0.1, call.args.every.total_seconds())
    with call.store() as store:
        top = Top(call, store)
        if not call.args.once:
            watch(call.screen, every, top.frame)
            return OK
        top.refresh()
        time.sleep(every)
        for line in top.frame():
            call.screen.say(line)
    return OK


COMMANDS = (
    Command(
        "stats",
        "show the counts of every queue",
        _stats,
        """
forebay stats
forebay stats mail media --watch
forebay stats --json | jq 'select(.dead > 0)'
""",
        _stats_arguments,
    ),
    Command(
        "top",
        "watch all queues live: depth, rates, ages, dead letters",
        _top,
        """
forebay top
forebay top mail --every 5s
forebay top --once --json
""",
        _top_arguments,
    ),
)
