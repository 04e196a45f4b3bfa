"""The reference of all commands as Markdown, generated from the parsers: docs/reference/cli.md, between two markers.

`python -m forebay.cli.reference docs/reference/cli.md` updates it; a test compares the two.
"""

import sys
from argparse import SUPPRESS, Action, ArgumentParser
from pathlib import Path

from forebay.cli.command import Command, CommandGroup
from forebay.cli.exits import MEANINGS
from forebay.cli.parser import fill
from forebay.cli.plugins import all_commands

BEGIN = "<!-- reference: begin -->\n"
END = "<!-- reference: end -->\n"


def reference() -> str:
    """Every command with its summary, arguments and examples."""
    parts = ["| exit code | meaning |\n|---|---|\n"]
    parts += [f"| {code} | {meaning} |\n" for code, meaning in MEANINGS.items()]
    for entry in all_commands():
        if isinstance(entry, CommandGroup):
            parts.append(f"\n### forebay {entry.name}\n\n{_sentence(entry.summary)}\n")
            parts += [_section(command, f"forebay {entry.name} {command.name}", "####") for command in entry.commands]
        else:
            parts.append(_section(entry, f"forebay {entry.name}", "###"))
    return "".join(parts)


def _section(command: Command, name: str, level: str) -> str:
    parser = ArgumentParser(prog=name)
    fill(parser, command)
    actions = [action for action in parser._actions if action.help is not SUPPRESS]
    shared = [*["--store"] * command.takes_store, *["--json"] * command.takes_json]
    own = [action for action in actions if not {*shared, "--help"} & set(action.option_strings)]
    rows = [f"| `{_escaped(_written(action))}` | {_escaped(action.help or '')} |\n" for action in own]
    table = f"\n| argument | meaning |\n|---|---|\n{''.join(rows)}" if rows else ""
    also = f"\nAlso {' and '.join(f'`{option}`' for option in shared)}.\n" if shared else ""
    return (
        f"\n{level} {name}\n\n{_sentence(command.summary)}\n{table}{also}\n```console\n"
        + "".join(f"$ {line}\n" for line in command.examples.strip().splitlines())
        + "```\n"
    )


def _written(action: Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else "/".join(action.choices or [action.dest.upper()])
    if not action.option_strings:
        repeated = {"*": f"[{name} …]", "+": f"{name} …", "?": f"[{name}]"}
        return repeated.get(str(action.nargs), name)
    if action.nargs == 0:
        return action.option_strings[0]
    return f"{action.option_strings[0]} {f'[{name}]' if action.nargs == '?' else name}"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


def renewed(page: str) -> str:
    """The page with an up-to-date reference."""
    head, _, rest = page.partition(BEGIN)
    return head + BEGIN + "\n" + reference() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text("utf-8")), "utf-8")
