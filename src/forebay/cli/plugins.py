"""Commands that other packages add to `forebay`: an entry point of the group `forebay.commands` names a tuple of them.

They are looked up only for the help and for a first word that is no command of this package, so that a worker starts
without a search through everything that is installed.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Final

from forebay.cli.command import Command, CommandGroup
from forebay.cli.exits import USAGE, CommandFailed
from forebay.cli.parser import commands

GROUP: Final = "forebay.commands"
PROOF: Final = ("bench", "chaos", "conformance", "evidence", "lab", "power-cuts", "sim")


def all_commands() -> tuple[Command | CommandGroup, ...]:
    """The commands of this package, then those of others; a name that is taken stays as it is."""
    found = {command.name: command for command in commands()}
    for entry_point in entry_points(group=GROUP):
        for command in entry_point.load():
            found.setdefault(command.name, command)
    return tuple(found.values())


def commands_for(arguments: Sequence[str]) -> tuple[Command | CommandGroup, ...]:
    """What these arguments may name; another first word is refused, one of the proof by the name of its package."""
    own, first = commands(), next(iter(arguments), None)
    if first in {command.name for command in own}:
        return own
    found = all_commands()
    if first in PROOF and first not in {command.name for command in found}:
        raise CommandFailed(
            f"`{first}` is in the package forebay-proof, which is not installed; pip install forebay-proof", USAGE
        )
    if first not in {None, "-h", "--help", *(command.name for command in found)}:
        raise CommandFailed(_unknown(str(first), [command.name for command in found]), USAGE)
    return found


def _unknown(word: str, names: Sequence[str]) -> str:
    if word.startswith("-"):
        return f"{word.partition('=')[0]} is given before the command; write forebay COMMAND {word} …"
    similar = get_close_matches(word, names)
    remedy = f"did you mean {' or '.join(similar)}?" if similar else "see forebay --help"
    return f"{word!r} is not a command; {remedy}"
