"""The argument parsers of all commands, built from their descriptions; each `--help` ends with examples."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from shutil import get_terminal_size
from typing import Any

from forebay.cli.command import Command, CommandGroup
from forebay.cli.exits import MEANINGS

_WIDTH = 100
_ABOUT = """\
A durable job queue and scheduler. The store is chosen by --store, else FOREBAY_URL, else sqlite:///forebay.db.
`forebay COMMAND --help` shows the options of a command, with examples."""


class _Formatter(RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        width = min(_WIDTH, get_terminal_size((_WIDTH, 0)).columns)
        super().__init__(prog, max_help_position=30, width=width)


def commands() -> tuple[Command | CommandGroup, ...]:
    """The commands of this package, in the order of their usual use."""
    from forebay.cli import (
        about,
        audit,
        blobs,
        cancel,
        capacity,
        cells,
        cron,
        design,
        dlq,
        doctor,
        enqueue,
        gates,
        gen,
        inspect,
        keys,
        ledger,
        logs,
        migrate,
        pipeline,
        queues,
        report,
        serve,
        stats,
        worker,
    )

    return (
        *worker.COMMANDS,
        *serve.COMMANDS,
        *enqueue.COMMANDS,
        *cancel.COMMANDS,
        *inspect.COMMANDS,
        *stats.COMMANDS,
        *dlq.COMMANDS,
        *cron.COMMANDS,
        *queues.COMMANDS,
        *gates.COMMANDS,
        *logs.COMMANDS,
        *blobs.COMMANDS,
        *cells.COMMANDS,
        *capacity.COMMANDS,
        *keys.COMMANDS,
        *design.COMMANDS,
        *doctor.COMMANDS,
        *migrate.COMMANDS,
        *ledger.COMMANDS,
        *pipeline.COMMANDS,
        *audit.COMMANDS,
        *report.COMMANDS,
        *gen.COMMANDS,
        *about.COMMANDS,
    )


def build(all_commands: Sequence[Command | CommandGroup], first: str | None = None) -> ArgumentParser:
    """`first`: the first argument of the call; only the command or group that it names gets its arguments."""
    parser = ArgumentParser(prog="forebay", description=_ABOUT, formatter_class=_Formatter, epilog=_codes())
    parser.set_defaults(command=None, parser=parser)
    below = parser.add_subparsers(metavar="COMMAND", title="commands")
    for entry in all_commands:
        if first not in (None, entry.name):
            below.add_parser(entry.name, help=entry.summary)
            continue
        if isinstance(entry, Command):
            fill(below.add_parser(entry.name, help=entry.summary, **_words(entry)), entry)
            continue
        group = below.add_parser(
            entry.name, help=entry.summary, description=_sentence(entry.summary), formatter_class=_Formatter
        )
        group.set_defaults(command=None, parser=group)
        inner = group.add_subparsers(metavar="COMMAND", title="commands")
        for command in entry.commands:
            fill(inner.add_parser(command.name, help=command.summary, **_words(command)), command)
    return parser


def fill(parser: ArgumentParser, command: Command) -> None:
    """Add the command's own arguments, then the shared ones."""
    command.arguments(parser)
    if command.takes_store:
        parser.add_argument(
            "--store", metavar="URL", help="the store (default: FOREBAY_URL, else sqlite:///forebay.db)"
        )
    else:
        parser.set_defaults(store=None)
    if command.takes_json:
        parser.add_argument("--json", action="store_true", help="JSON output: one document, or one per line")
    parser.set_defaults(command=command, parser=parser)


def _words(command: Command) -> dict[str, Any]:
    examples = "".join(f"  {line}\n" for line in command.examples.strip().splitlines())
    return {
        "description": _sentence(command.summary),
        "epilog": f"examples:\n{examples}",
        "formatter_class": _Formatter,
        "allow_abbrev": False,
    }


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


def _codes() -> str:
    lines = "".join(f"  {code:<4} {meaning}\n" for code, meaning in MEANINGS.items())
    return f"exit codes:\n{lines}"
