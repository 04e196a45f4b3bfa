"""`ledger`: the store's own record of every state change.

A journal directory can be read while another process owns it; only the owner can change the ledger's settings. Each
cell has a ledger of its own: records and states have the name of theirs, and settings are made in all of them.
"""

import re
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import asdict, replace

from forebay.cli.argtypes import count, duration, size
from forebay.cli.command import Command, CommandGroup, Invocation
from forebay.cli.exits import OK, USAGE, CommandFailed
from forebay.cli.resolve_store import connecting, store_path
from forebay.core.humanize import format_duration, iso
from forebay.core.instant import micros
from forebay.core.ledger import JobRange, LedgerEntry, LedgerRule, Trait
from forebay.core.limits import MAX_BATCH
from forebay.ledger_reader import ledgers
from forebay.store.open import LedgerReader, cell_ledgers, open_cell_ledger, open_ledger

_POLL_SECONDS = 0.2
_INSTANTS = ("enqueued_at", "due_at", "claimed_at", "until")


def entry_json(entry: LedgerEntry) -> dict[str, Any]:
    """A record as JSON: absent fields are left out, instants are ISO times."""
    record = entry.record
    shown: dict[str, Any] = {"offset": entry.offset, "at": iso(record.at), "verb": record.verb, "owner": record.owner}
    shown |= {"name": record.name, "tick": iso(record.tick), "ranges": [_range_json(one) for one in record.ranges]}
    return {field: value for field, value in shown.items() if value is not None}


def _range_json(one: JobRange) -> dict[str, Any]:
    shown = {field: value for field, value in asdict(one).items() if value}
    shown |= {field: iso(shown[field]) for field in _INSTANTS if field in shown}
    if one.traits is not None:
        shown["traits"] = [None if trait is None else _trait_json(trait) for trait in one.traits]
    return shown


def _trait_json(trait: Trait) -> dict[str, Any]:
    return {field: value for field, value in asdict(trait).items() if value}


@contextmanager
def _readers(call: Invocation) -> Iterator[dict[str, LedgerReader]]:
    """By cell, or one with the name "". A cell that does not answer is named, and left out.

    An existing journal is read without opening its store.
    """
    with connecting(call.url):
        cells = cell_ledgers(call.url)
    only = getattr(call.args, "cell", None)
    if only is not None and only not in (names := [cell.name for cell in cells]):
        raise CommandFailed(f"--cell: there is no cell {only!r}; the cells are {', '.join(names) or 'none'}", USAGE)
    readers: dict[str, LedgerReader] = {}
    failed: CommandFailed | None = None
    with ExitStack() as stack:
        for cell in cells:
            if only in (None, cell.name):
                try:
                    with connecting(cell.url):
                        readers[cell.name] = open_cell_ledger(cell)
                except CommandFailed as error:
                    failed = CommandFailed(f"cell {cell.name}: {error}", error.code)
                    call.screen.note(str(failed))
        if not cells:
            readers[""] = _reader(call)
        for reader in readers.values():
            stack.callback(reader.close)
        if failed is not None and not readers:
            raise failed
        yield readers


def _reader(call: Invocation) -> LedgerReader:
    file = store_path(call.url)
    if call.url == "memory://":
        raise CommandFailed("memory:// keeps no ledger; use a store that does, such as sqlite:///jobs.db", USAGE)
    if urlsplit(call.url).scheme == "memory" and file is not None and file.exists():
        with connecting(call.url):
            return open_ledger(call.url)
    return call.open()


def _status(call: Invocation) -> int:
    with _readers(call) as readers:
        for name, reader in readers.items():
            _show_status(call, name, reader)
    return OK


def _show_status(call: Invocation, cell: str, reader: LedgerReader) -> None:
    first, following = reader.ledger_extent()
    rule = reader.ledger_rule()
    ends = [reader.ledger(after, 1)[0] for after in (first - 1, following - 2)] if first < following else []
    since, last = [iso(entry.record.at) for entry in ends] or (None, None)
    if call.screen.as_json:
        shown = {"on": rule.on, "first": first, "next": following, "since": since, "last": last}
        call.screen.emit(_in_cell(cell, {**shown, **_kept_json(rule)}))
        return
    kept = f"{following - first:,} records, offsets {first} to {following - 1}" if following > first else "no records"
    call.screen.facts(
        [
            *([("cell", cell)] if cell else []),
            ("ledger", "on" if rule.on else "off"),
            ("holds", kept),
            ("since", since),
            ("last", last),
            ("keeps", f"{format_duration(rule.keep)}, {rule.keep_bytes:,} bytes"),
        ]
    )


def _read_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--after", type=int, metavar="OFFSET", help="records after this offset (default: all that are kept)"
    )
    parser.add_argument("--cell", metavar="NAME", help="only the ledger of this cell (default: all cells in turn)")
    parser.add_argument("--limit", type=count, metavar="N", help="at most N")
    parser.add_argument("--follow", action="store_true", help="continue with new records until ctrl-c")


def _read(call: Invocation) -> int:
    """Of several cells page by page in turn; each record has the name of its cell."""
    args = call.args
    with _readers(call) as readers:
        if args.after is not None and len(readers) > 1:
            raise CommandFailed("--after is an offset in one ledger, and each cell has its own; add --cell NAME", USAGE)
        after = {
            name: reader.ledger_extent()[0] - 1 if args.after is None else args.after
            for name, reader in readers.items()
        }
        left = args.limit
        while left is None or left > 0:
            found = 0
            for name, reader in readers.items():
                page = reader.ledger(after[name], MAX_BATCH if left is None else min(left - found, MAX_BATCH))
                for entry in page:
                    call.screen.emit(_in_cell(name, entry_json(entry)))
                if page:
                    after[name], found = page[-1].offset, found + len(page)
                if found == left:
                    break
            left = None if left is None else left - found
            if found:
                continue
            if not args.follow:
                break
            call.screen.write("")
            time.sleep(_POLL_SECONDS)
    return OK


def _on(call: Invocation) -> int:
    return _put(call, on=True)


def _off(call: Invocation) -> int:
    return _put(call, on=False)


def _keep_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--days", type=_days, metavar="N", help="how long: 30, or a duration such as 12h")
    parser.add_argument("--bytes", type=size, metavar="N", help="how much: 500M or 2G")


def _keep(call: Invocation) -> int:
    changes = {"keep": call.args.days, "keep_bytes": call.args.bytes}
    wanted = {field: value for field, value in changes.items() if value is not None}
    if not wanted:
        raise CommandFailed("nothing to change; give --days, --bytes or both", USAGE)
    return _put(call, **wanted)


def _put(call: Invocation, **changes: Any) -> int:
    with call.store() as store:
        for cell, ledger in ledgers(store).items():
            rule = replace(ledger.ledger_rule(), **changes)
            ledger.put_ledger_rule(rule)
            if call.screen.as_json:
                call.screen.emit(_in_cell(cell, {"on": rule.on, **_kept_json(rule)}))
            else:
                call.screen.say(f"the ledger {f'of cell {cell} ' if cell else ''}is {_words(rule)}")
    return OK


def _in_cell(cell: str, shown: dict[str, Any]) -> dict[str, Any]:
    return {"cell": cell, **shown} if cell else shown


def _kept_json(rule: LedgerRule) -> dict[str, Any]:
    return {"keep_seconds": rule.keep / 1_000_000, "keep_bytes": rule.keep_bytes}


def _words(rule: LedgerRule) -> str:
    return f"{'on' if rule.on else 'off'}, it keeps {format_duration(rule.keep)} and {rule.keep_bytes:,} bytes"


def _days(text: str) -> int:
    return micros(duration(f"{text}d" if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else text))


COMMANDS = (
    CommandGroup(
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
forebay ledger read --cell a --after 41 --store cells:cells.toml
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
