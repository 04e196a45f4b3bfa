"""`queues`, `pause`, `resume` and `drain`: list and configure queues, and stop or start claims from them."""

import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from forebay.cli.actions import record_action
from forebay.cli.argtypes import duration, moment
from forebay.cli.command import Command, CommandGroup, Invocation
from forebay.cli.exits import FAILED, OK, CommandFailed
from forebay.cli.json_views import backlog_json
from forebay.cli.stats import backlogs_of, blocked_words
from forebay.core.errors import Invalid
from forebay.core.humanize import iso, many, when
from forebay.core.limits import MAX_BATCH, MAX_INSTANT
from forebay.core.names import check_name, is_reserved
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Backlog, Store

_POLL_SECONDS = 0.1
_REPORT_EVERY = 5.0


def spec_json(spec: QueueSpec) -> dict[str, Any]:
    return {"vector": spec.vector(), "commit_point": spec.commit_point, "spec": msgspec.to_builtins(spec)}


def _ls(call: Invocation) -> int:
    with call.store() as store:
        declared = {spec.name: spec for spec in store.specs() if not is_reserved(spec.name)}
        names = sorted({*declared, *(backlog.queue for backlog in backlogs_of(store))})
    specs = [declared.get(name, QueueSpec(name=name)) for name in names]
    for spec in specs:
        if call.screen.as_json:
            call.screen.emit({"name": spec.name, "declared": spec.name in declared, **spec_json(spec)})
        else:
            call.screen.say(spec.vector() + ("" if spec.name in declared else "  (default)"))
    if not specs:
        call.screen.note("no queues yet; forebay queues put or forebay enqueue creates one")
    return OK


def _show_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="the queue's name")


def _show(call: Invocation) -> int:
    name = check_name("queue", call.args.queue)
    with call.store() as store:
        spec = next((spec for spec in store.specs() if spec.name == name), None)
        known = name in {backlog.queue for backlog in store.backlog()}
        if spec is None and not known:
            raise CommandFailed(f"queue {name!r} is unknown; see `forebay queues ls`")
        spec = spec or QueueSpec(name=name)
        backlog = None if spec.is_log else store.backlog([name])[0]
        now = store.now()
    if call.screen.as_json:
        numbers = None if backlog is None else backlog_json(backlog)
        call.screen.emit({"name": name, **spec_json(spec), "backlog": numbers})
        return OK
    call.screen.say(spec.vector())
    pairs: list[tuple[str, object]] = [("commit point", spec.commit_point)]
    if backlog is not None:
        counts = f"{backlog.waiting} waiting, {backlog.ready} ready, {backlog.running} running, {backlog.dead} dead"
        pairs += [("now", counts), ("paused until", _pause_words(backlog, now))]
        pairs += [("held", f"{many(backlog.held, 'ready job')} behind a closed gate" if backlog.held else None)]
        pairs += [("blocked", blocked_words(backlog) if backlog.blocked else None)]
    call.screen.facts(pairs)
    call.screen.say(msgspec.json.format(spec.to_json(), indent=2).decode())
    return OK


def _pause_words(backlog: Backlog, now: int) -> str | None:
    if backlog.paused_until is None:
        return None
    return "it is resumed" if backlog.paused_until >= MAX_INSTANT else when(backlog.paused_until, now)


def _put_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a spec as JSON, or a list of specs; - reads stdin")


def _put(call: Invocation) -> int:
    try:
        text = sys.stdin.buffer.read() if call.args.file == "-" else Path(call.args.file).read_bytes()
    except OSError as error:
        raise CommandFailed(f"{call.args.file}: {error.strerror}; give a readable file") from error
    specs = _specs(text)
    with call.store(create=True) as store:
        for spec in specs:
            store.put_spec(spec)
            record_action(store, "queues put", spec.name, vector=spec.vector())
            if call.screen.as_json:
                call.screen.emit({"name": spec.name, **spec_json(spec)})
            else:
                call.screen.say(spec.vector())
    return OK


def _specs(text: bytes) -> list[QueueSpec]:
    """One spec or a list of specs; all are checked before the first is written."""
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Invalid("queue spec", str(error), "see `forebay queues show` or `forebay design` for the shape") from None
    parts = raw if isinstance(raw, list) else [raw]
    return [QueueSpec.from_json(msgspec.json.encode(part)) for part in parts]


def _pause_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("queues", metavar="QUEUE", nargs="+", help="the queues")
    parser.add_argument("--until", metavar="TIME", help="2030-01-31T10:30:00Z, 10:30 or +5m (default: until resumed)")


def _pause(call: Invocation) -> int:
    with call.store() as store:
        now = store.now()
        until = moment("until", call.args.until, now) if call.args.until else None
        if until is not None and until <= now:
            raise Invalid("until", f"{call.args.until!r} is in the past", "give a future time, such as +30m")
        names = _checked(call, store, call.args.queues)
        for name in names:
            store.pause(name, until)
            record_action(store, "pause", name, until=until)
            if call.screen.as_json:
                call.screen.emit({"queue": name, "paused": True, "paused_until": iso(until)})
            else:
                end = "`forebay resume`" if until is None else when(until, now)
                call.screen.say(f"{name} is paused until {end}; running jobs may finish")
    return OK


def _resume_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("queues", metavar="QUEUE", nargs="+", help="the queues")


def _resume(call: Invocation) -> int:
    with call.store() as store:
        for name in _checked(call, store, call.args.queues):
            store.resume(name)
            record_action(store, "resume", name)
            if call.screen.as_json:
                call.screen.emit({"queue": name, "paused": False})
            else:
                call.screen.say(f"{name} is resumed")
    return OK


def _checked(call: Invocation, store: Store, names: Sequence[str]) -> list[str]:
    """The names, each once; an unknown one gets a note, because it may be a typo."""
    known = {backlog.queue for backlog in backlogs_of(store)}
    wanted = [check_name("queue", name) for name in dict.fromkeys(names)]
    for name in wanted:
        if name not in known:
            call.screen.note(f"queue {name!r} has no jobs and no spec yet; known: {', '.join(sorted(known)) or 'none'}")
    return wanted


def _drain_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("queues", metavar="QUEUE", nargs="*", help="the queues (default: all)")
    parser.add_argument(
        "--deadline", type=duration, default=duration("60s"), metavar="DURATION", help="how long to wait (default: 60s)"
    )


def _drain(call: Invocation) -> int:
    deadline = time.monotonic() + call.args.deadline.total_seconds()
    with call.store() as store:
        every = [backlog.queue for backlog in backlogs_of(store)]
        names = _checked(call, store, call.args.queues) if call.args.queues else every
        for name in names:
            store.pause(name)
            record_action(store, "drain", name)
        reported = float("-inf")
        while (running := _running(store, names)) and time.monotonic() < deadline:
            if time.monotonic() - reported >= _REPORT_EVERY and not call.screen.as_json:
                call.screen.note(f"{running:,} still running")
                reported = time.monotonic()
            time.sleep(_POLL_SECONDS)
    if call.screen.as_json:
        call.screen.emit({"queues": names, "running": running, "drained": not running})
    elif running:
        call.screen.note(
            f"{running:,} still running at the deadline; the queues stay paused, see `forebay ls --state running`"
        )
    else:
        drained = ", ".join(names) or "any queue"
        call.screen.say(f"drained: nothing is running in {drained}; `forebay resume` resumes")
    return FAILED if running else OK


def _running(store: Store, names: list[str]) -> int:
    return sum(
        backlog.running
        for start in range(0, len(names), MAX_BATCH)
        for backlog in store.backlog(names[start : start + MAX_BATCH])
    )


COMMANDS = (
    Command(
        "pause",
        "pause queues: no job of them is claimed; running jobs may finish",
        _pause,
        """
forebay pause mail
forebay pause mail media --until 10:30
forebay pause mail --until +30m
""",
        _pause_arguments,
    ),
    Command("resume", "resume paused queues", _resume, "forebay resume mail", _resume_arguments),
    Command(
        "drain",
        "pause queues and wait until none of their jobs is running",
        _drain,
        """
forebay drain --deadline 25s
forebay drain mail && echo safe to deploy
""",
        _drain_arguments,
    ),
    CommandGroup(
        "queues",
        "list, show and configure queues",
        (
            Command("ls", "list queues with their specs", _ls, "forebay queues ls\nforebay queues ls --json"),
            Command(
                "show",
                "show one queue: spec, commit point, counts, JSON",
                _show,
                "forebay queues show mail\nforebay queues show mail --json | jq .spec",
                _show_arguments,
            ),
            Command(
                "put",
                "configure queues from JSON; jobs already accepted keep their stamps",
                _put,
                """
forebay queues put mail.json
forebay design --name mail --selection aging:1m --json | jq .spec | forebay queues put -
""",
                _put_arguments,
            ),
        ),
    ),
)
