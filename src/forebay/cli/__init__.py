"""The command line, `forebay`: inspect a store, run workers, repair what failed. Commands are thin: they call the
store's protocol and format its answers.

Exit codes: 0 ok · 1 failed · 2 usage · 3 store unavailable · 130 interrupted. Bad input is one line on stderr, never a
traceback. Colours and redrawing are used on a terminal only, and not when NO_COLOR is set.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from forebay.cli.command import Invocation
from forebay.cli.exits import FAILED, INTERRUPTED, PIPE_CLOSED, UNREACHABLE, USAGE, CommandFailed
from forebay.cli.parser import build
from forebay.cli.plugins import commands_for
from forebay.cli.screen import Screen
from forebay.core.errors import ForebayError, Invalid, JournalDamaged, StoreFailed, StoreLocked
from forebay.work.console import clean

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else USAGE
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe; the flush of what is buffered must not fail at exit.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except CommandFailed as failed:
        return _refused(str(failed), failed.code)
    except (StoreFailed, StoreLocked, JournalDamaged) as error:
        return _refused(str(error), UNREACHABLE)
    except Invalid as error:
        return _refused(str(error), USAGE)
    except (UnicodeError, RecursionError) as error:
        return _refused(f"the input cannot be read: {error}; give UTF-8 text with less nesting", USAGE)
    except (ForebayError, OSError) as error:
        return _refused(str(error), FAILED)


def _run(arguments: list[str]) -> int:
    arguments = ["version" if word == "--version" else word for word in arguments[:1]] + arguments[1:]
    chosen, left = build(commands_for(arguments), next(iter(arguments), "")).parse_known_args(arguments)
    # argparse does not accept positionals after an option, which is the natural order for a payload.
    if left and hasattr(chosen, "payload") and not any(word.startswith("-") for word in left):
        chosen.payload, left = [*chosen.payload, *left], []
    if left:
        chosen.parser.error(f"unrecognized arguments: {' '.join(left)}")
    if chosen.command is None:
        chosen.parser.print_help(sys.stderr)
        return USAGE
    code: int = chosen.command.run(Invocation(chosen, Screen(as_json=getattr(chosen, "json", False))))
    sys.stdout.flush()
    return code


def _refused(reason: str, code: int) -> int:
    sys.stderr.write(f"forebay: {clean(reason)}\n")
    return code
