"""`blobs sweep`: remove payloads from the blob store that no job refers to."""

from argparse import ArgumentParser

from forebay.blobs import GRACE
from forebay.cli.argtypes import duration
from forebay.cli.command import Command, CommandGroup, Invocation
from forebay.cli.exits import OK
from forebay.cli.target import load, opened_by
from forebay.core.errors import Invalid
from forebay.core.humanize import many


def _sweep_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("app", metavar="MODULE:NAME", help="the app whose blob store and job store are meant")
    parser.add_argument(
        "--older-than", type=duration, metavar="DURATION", default=GRACE, help="the youngest to remove (default: 24h)"
    )
    parser.add_argument("--dry-run", action="store_true", help="count, remove none")


def _sweep(call: Invocation) -> int:
    args = call.args
    app = load(args.app, args.store)
    try:
        blobs = app.codec.blobs
        if blobs is None:
            raise Invalid("blobs", f"{args.app} has no blob store", "give it one: Forebay(blobs=…)")
        swept = blobs.sweep(opened_by(app), args.older_than, dry_run=args.dry_run)
    finally:
        app.close()
    if call.screen.as_json:
        call.screen.emit({"examined": swept.examined, "removed": swept.removed, "dry_run": args.dry_run})
        return OK
    done = "would remove" if args.dry_run else "removed"
    call.screen.say(f"{done} {swept.removed:,} of {many(swept.examined, 'old blob')}")
    return OK


COMMANDS = (
    CommandGroup(
        "blobs",
        "large payloads in the blob store",
        (
            Command(
                "sweep",
                "remove blobs that no job refers to",
                _sweep,
                """
forebay blobs sweep app:fb                      # workers do this every hour
forebay blobs sweep app:fb --older-than 2h --dry-run
""",
                _sweep_arguments,
            ),
        ),
    ),
)
