"""The parsers of all commands, built from their descriptions; `--help` of each ends with examples."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import Any

from forebay.cli.command import Command, Group
from forebay.cli.exits import MEANINGS

_WIDTH = 100
_ABOUT = """\
A durable job queue and scheduler. The store is chosen by --store, else FOREBAY_URL, else sqlite:///forebay.db.
`forebay COMMAND --help` shows the options of a command, with examples."""


class _Formatter(RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=_WIDTH)


def commands() -> tuple[Command | Group, ...]:
    """All there are, in the order of a user's day."""
    from forebay.cli import (
        about,
        audit,
        bench,
        cancel,
        chaos,
        cron,
        design,
        dlq,
        doctor,
        gates,
        gen,
        jobs,
        keys,
        lab,
        ledger,
        logs,
        look,
        migrate,
        numbers,
        pipeline,
        queues,
        report,
        run,
        serve,
    )

    return (
        *run.COMMANDS,
        *serve.COMMANDS,
        *jobs.COMMANDS,
        *cancel.COMMANDS,
        *look.COMMANDS,
        *numbers.COMMANDS,
        *dlq.COMMANDS,
        *cron.COMMANDS,
        *queues.COMMANDS,
        *gates.COMMANDS,
        *logs.COMMANDS,
        *keys.COMMANDS,
        *design.COMMANDS,
        *doctor.COMMANDS,
        *migrate.COMMANDS,
        *ledger.COMMANDS,
        *pipeline.COMMANDS,
        *audit.COMMANDS,
        *report.COMMANDS,
        *gen.COMMANDS,
        *lab.COMMANDS,
        *bench.COMMANDS,
        *chaos.COMMANDS,
        *about.COMMANDS,
    )


def build(all_commands: Sequence[Command | Group]) -> ArgumentParser:
    parser = ArgumentParser(prog="forebay", description=_ABOUT, formatter_class=_Formatter, epilog=_codes())
    parser.set_defaults(command=None, parser=parser)
    below = parser.add_subparsers(metavar="COMMAND", title="commands")
    for entry in all_commands:
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
    """The command's own arguments, then the ones that all share."""
    command.arguments(parser)
    if command.takes_store:
        parser.add_argument(
            "--store", metavar="URL", help="the store (default: FOREBAY_URL, else sqlite:///forebay.db)"
        )
    else:
        parser.set_defaults(store=None)
    if command.takes_json:
        parser.add_argument("--json", action="store_true", help="JSON instead of words: one document, or one a line")
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
