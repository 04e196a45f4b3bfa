"""`ledger`: the store's own record of every state change.

A journal directory can be read while another process owns it; only the owner can change the ledger's settings.
"""

import re
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import asdict, replace

from forebay.cli.argtypes import count, duration, size
from forebay.cli.command import Call, Command, Group
from forebay.cli.exits import OK, USAGE, CommandFailed
from forebay.cli.resolve_store import connecting, store_path
from forebay.core.humanize import format_duration, iso
from forebay.core.instant import micros
from forebay.core.ledger import JobRange, LedgerEntry, LedgerRule, Trait
from forebay.core.limits import MAX_BATCH
from forebay.store.open import LedgerReader, open_ledger

_POLL_SECONDS = 0.2
_INSTANTS = ("enqueued_at", "due_at", "claimed_at", "until")


def entry_json(entry: LedgerEntry) -> dict[str, Any]:
    """A record as JSON: absent fields are left out, instants are ISO times."""
    record = entry.record
    shown: dict[str, Any] = {"offset": entry.offset, "at": iso(record.at), "verb": record.verb, "owner": record.owner}
    shown |= {"name": record.name, "tick": iso(record.tick), "spans": [_span_json(one) for one in record.spans]}
    return {field: value for field, value in shown.items() if value is not None}


def _span_json(one: JobRange) -> dict[str, Any]:
    shown = {field: value for field, value in asdict(one).items() if value}
    shown |= {field: iso(shown[field]) for field in _INSTANTS if field in shown}
    if one.traits is not None:
        shown["traits"] = [None if trait is None else _trait_json(trait) for trait in one.traits]
    return shown


def _trait_json(trait: Trait) -> dict[str, Any]:
    return {field: value for field, value in asdict(trait).items() if value}


@contextmanager
def _reader(call: Call) -> Iterator[LedgerReader]:
    """A reader of the ledger; an existing journal is read without opening its store, and cells have no common one."""
    file = store_path(call.url)
    if call.url == "memory://":
        raise CommandFailed("memory:// keeps no ledger; use a store that does, such as sqlite:///jobs.db", USAGE)
    scheme = urlsplit(call.url).scheme
    if scheme == "cells" or (scheme == "memory" and file is not None and file.exists()):
        with connecting(call.url):
            reader = open_ledger(call.url)
    else:
        reader = call.open()
    try:
        yield reader
    finally:
        reader.close()


def _status(call: Call) -> int:
    with _reader(call) as reader:
        first, following = reader.ledger_extent()
        rule = reader.ledger_rule()
        ends = [reader.ledger(after, 1)[0] for after in (first - 1, following - 2)] if first < following else []
    since, last = [iso(entry.record.at) for entry in ends] or (None, None)
    if call.screen.as_json:
        shown = {"on": rule.on, "first": first, "next": following, "since": since, "last": last}
        call.screen.emit({**shown, "keep_seconds": rule.keep / 1_000_000, "keep_bytes": rule.keep_bytes})
        return OK
    kept = f"{following - first:,} records, offsets {first} to {following - 1}" if following > first else "no records"
    call.screen.facts(
        [
            ("ledger", "on" if rule.on else "off"),
            ("holds", kept),
            ("since", since),
            ("last", last),
            ("keeps", f"{format_duration(rule.keep)}, {rule.keep_bytes:,} bytes"),
        ]
    )
    return OK


def _read_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--after", type=int, metavar="OFFSET", help="records after this offset (default: all that are kept)"
    )
    parser.add_argument("--limit", type=count, metavar="N", help="at most N")
    parser.add_argument("--follow", action="store_true", help="continue with new records until ctrl-c")


def _read(call: Call) -> int:
    args = call.args
    with _reader(call) as reader:
        after = reader.ledger_extent()[0] - 1 if args.after is None else args.after
        left = args.limit
        while left is None or left > 0:
            page = reader.ledger(after, min(left or MAX_BATCH, MAX_BATCH))
            for entry in page:
                call.screen.emit(entry_json(entry))
            if page:
                after, left = page[-1].offset, None if left is None else left - len(page)
            elif args.follow:
                call.screen.write("")
                time.sleep(_POLL_SECONDS)
            else:
                break
    return OK


def _on(call: Call) -> int:
    return _put(call, on=True)


def _off(call: Call) -> int:
    return _put(call, on=False)


def _keep_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--days", type=_days, metavar="N", help="how long: 30, or a duration such as 12h")
    parser.add_argument("--bytes", type=size, metavar="N", help="how much: 500M or 2G")


def _keep(call: Call) -> int:
    changes = {"keep": call.args.days, "keep_bytes": call.args.bytes}
    wanted = {field: value for field, value in changes.items() if value is not None}
    if not wanted:
        raise CommandFailed("nothing to change; give --days, --bytes or both", USAGE)
    return _put(call, **wanted)


def _put(call: Call, **changes: Any) -> int:
    with call.store() as store:
        rule = replace(store.ledger_rule(), **changes)
        store.put_ledger_rule(rule)
    if call.screen.as_json:
        call.screen.emit({"on": rule.on, "keep_seconds": rule.keep / 1_000_000, "keep_bytes": rule.keep_bytes})
    else:
        call.screen.say(f"the ledger is {_words(rule)}")
    return OK


def _words(rule: LedgerRule) -> str:
    return f"{'on' if rule.on else 'off'}, it keeps {format_duration(rule.keep)} and {rule.keep_bytes:,} bytes"


def _days(text: str) -> int:
    return micros(duration(f"{text}d" if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else text))


COMMANDS = (
    Group(
        "ledger",
        "read and configure the record of every state change",
        (
            Command(
                "status",
                "show what the ledger holds and how long it keeps records",
                _status,
                "forebay ledger status\nforebay ledger status --store memory:///srv/jobs --json",
            ),
            Command(
                "read",
                "print records, one JSON object per line",
                _read,
                """
forebay ledger read --limit 10
forebay ledger read --after 41 --follow
forebay ledger read | jq 'select(.verb == "settle")'
""",
                _read_arguments,
                takes_json=False,
            ),
            Command("on", "write records from now on", _on, "forebay ledger on"),
            Command("off", "write no records from now on; existing ones stay", _off, "forebay ledger off"),
            Command(
                "keep",
                "set how long and how much of the ledger is kept",
                _keep,
                "forebay ledger keep --days 30 --bytes 2G\nforebay ledger keep --days 12h",
                _keep_arguments,
            ),
        ),
    ),
)
