"""`logs`: list retained logs and their groups with their lag; read, append, and move a group's position."""

from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import groupby

import msgspec

from forebay.cli.actions import record_action
from forebay.cli.argtypes import count, moment, payload_of
from forebay.cli.command import Command, CommandGroup, Invocation, raw_argument
from forebay.cli.exits import OK, CommandFailed
from forebay.core.entries import LogEntry
from forebay.core.errors import Invalid
from forebay.core.humanize import iso, when
from forebay.core.limits import MAX_BATCH
from forebay.core.names import check_name, is_reserved
from forebay.core.payload import Json, encode_payload
from forebay.serve.security.redact import redact
from forebay.store.log import Standing
from forebay.store.protocol import Store


def standings_of(store: Store, log: str) -> list[Standing]:
    """Every group of a log, in every partition."""
    found: list[Standing] = []
    after = ""
    while page := store.groups(log, after, MAX_BATCH):
        found += page
        after = page[-1].group
    return found


def _ls(call: Invocation) -> int:
    with call.store() as store:
        specs = sorted((spec for spec in store.specs() if spec.is_log), key=lambda spec: spec.name)
        logs = [(spec, store.extent(spec.name)) for spec in specs if not is_reserved(spec.name)]
    for spec, extent in logs:
        held, written = sum(end - first for first, end in extent), sum(end for _, end in extent)
        if call.screen.as_json:
            call.screen.emit({"name": spec.name, "vector": spec.vector(), "extent": extent, "held": held})
        else:
            call.screen.say(f"{spec.vector()}  holds {held:,} of {written:,}")
    if not logs:
        call.screen.note("no logs yet; `forebay design --retention log` prints the spec of one")
    return OK


def _log_argument(parser: ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="the log's name")


def _groups(call: Invocation) -> int:
    log = check_name("log", call.args.log)
    with call.store() as store:
        standings = standings_of(store, log)
        now = store.now()
    for one in standings if call.screen.as_json else ():
        call.screen.emit(
            {
                "group": one.group,
                "partition": one.partition,
                "position": one.position,
                "lag": one.lag,
                "lost": one.lost,
                "loses_at": iso(one.loses_at),
                "seen_at": iso(one.seen_at),
                "member": one.member,
                "epoch": one.epoch,
                "until": iso(one.until),
            }
        )
    if call.screen.as_json:
        return OK
    for name, some in groupby(standings, key=lambda one: one.group):
        rows = list(some)
        call.screen.say(f"{name}: {sum(one.lag for one in rows):,} behind, {sum(one.lost for one in rows):,} lost")
        call.screen.table(
            ["partition", "position", "lag", "lost", "loses next", "owner"],
            [
                (one.partition, one.position, one.lag, one.lost, when(one.loses_at, now), one.member or "–")
                for one in rows
            ],
            "partition position lag lost",
        )
    if not standings:
        call.screen.note("no group has read it yet")
    return OK


def _read_arguments(parser: ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument("--partition", type=int, metavar="N", help="only this one (default: all)")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--after", type=int, metavar="OFFSET", help="after this offset (default: from the start)")
    start.add_argument("--since", metavar="TIME", help="appended at this time or later: 2030-01-31T10:30:00Z")
    parser.add_argument("--limit", type=count, default=20, metavar="N", help="at most N per partition (default: 20)")
    raw_argument(parser)


def _read(call: Invocation) -> int:
    log, args = check_name("log", call.args.log), call.args
    with call.store() as store:
        since = None if args.since is None else moment("since", args.since, store.now())
        for number in _partitions(store, log, args.partition):
            after = store.extent(log)[number][0] - 1 if args.after is None else args.after
            if since is not None:
                after = store.offset_at(log, number, since)
            for entry in _entries(store, log, number, after, args.limit):
                body = msgspec.json.decode(entry.body)
                _show(call, entry, body if args.raw else redact(log, body))
    return OK


def _entries(store: Store, log: str, number: int, after: int, limit: int) -> Iterator[LogEntry]:
    while limit > 0 and (entries := store.read(log, number, after, min(limit, MAX_BATCH))):
        yield from entries
        after, limit = entries[-1].offset, limit - len(entries)


def _show(call: Invocation, entry: LogEntry, body: Json) -> None:
    if call.screen.as_json:
        place = {"partition": entry.partition, "offset": entry.offset, "at": iso(entry.at), "key": entry.key}
        call.screen.emit({**place, "body": body})
    else:
        key = "" if entry.key is None else f"  {entry.key}"
        call.screen.say(f"{entry.partition}/{entry.offset}  {iso(entry.at)}{key}  {encode_payload(body).decode()}")


def _append_arguments(parser: ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument("body", metavar="BODY", nargs="+", help="one JSON text, or key=value pairs")
    parser.add_argument("--key", metavar="KEY", help="entries with the same key go to one partition, in order")


def _append(call: Invocation) -> int:
    log = check_name("log", call.args.log)
    with call.store() as store:
        (entry,) = store.append(log, [encode_payload(payload_of(call.args.body))], [call.args.key])
    if call.screen.as_json:
        call.screen.emit({"partition": entry.partition, "offset": entry.offset})
    else:
        call.screen.say(f"{log}: partition {entry.partition}, offset {entry.offset}")
    return OK


def _seek_arguments(parser: ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument("group", metavar="GROUP", help="the group to move")
    parser.add_argument("to", metavar="TO", help="start, end, an offset, or a time from which entries are read")
    parser.add_argument("--partition", type=int, metavar="N", help="only this one (default: all)")


def _seek(call: Invocation) -> int:
    log, group = check_name("log", call.args.log), check_name("group", call.args.group)
    with call.store() as store:
        numbers = _partitions(store, log, call.args.partition)
        places = [(number, _place(store, log, number, call.args.to)) for number in numbers]
        for number, place in places:
            store.commit(log, group, number, place, rewind=True)
        record_action(store, "logs seek", log, group=group, to=call.args.to, places=[place for _, place in places])
    for number, place in places:
        if call.screen.as_json:
            call.screen.emit({"group": group, "partition": number, "position": place})
        else:
            call.screen.say(f"{group} continues with {number}/{place + 1}")
    call.screen.note("members that are reading now continue from there when they next acquire their partitions")
    return OK


def _place(store: Store, log: str, number: int, to: str) -> int:
    """The offset to read after."""
    first, end = store.extent(log)[number]
    if to in ("start", "end"):
        return first - 1 if to == "start" else end - 1
    if to.isascii() and to.isdigit():
        if not first <= int(to) <= end:
            reason = f"{to} is not in {first} … {end} of partition {number}"
            raise Invalid("offset", reason, "choose an offset in that range, or start")
        return int(to) - 1
    return store.offset_at(log, number, moment("to", to, store.now()))


def _partitions(store: Store, log: str, wanted: int | None) -> list[int]:
    numbers = list(range(len(store.extent(log))))
    if wanted is not None and wanted not in numbers:
        raise CommandFailed(f"log {log!r} has no partition {wanted}; it has 0 … {numbers[-1]}")
    return numbers if wanted is None else [wanted]


COMMANDS = (
    CommandGroup(
        "logs",
        "list retained logs and their groups; read, append, replay",
        (
            Command("ls", "list logs, each as its vector", _ls, "forebay logs ls\nforebay logs ls --json"),
            Command(
                "groups",
                "show the groups of a log, their lag, and when the next entry is lost",
                _groups,
                "forebay logs groups clicks\nforebay logs groups clicks --json | jq .lag",
                _log_argument,
            ),
            Command(
                "read",
                "read entries without moving any group",
                _read,
                """
forebay logs read clicks --limit 5
forebay logs read clicks --partition 0 --after 41
forebay logs read clicks --since 2030-01-31T10:30:00Z --json
""",
                _read_arguments,
            ),
            Command(
                "append",
                "add an entry",
                _append,
                "forebay logs append clicks page=home --key ada",
                _append_arguments,
            ),
            Command(
                "seek",
                "move a group's position: replay from the start, an offset or a time, or skip to the end",
                _seek,
                """
forebay logs seek clicks billing start
forebay logs seek clicks billing 2030-01-31T10:30:00Z
forebay logs seek clicks billing 42 --partition 0
""",
                _seek_arguments,
            ),
        ),
    ),
)
