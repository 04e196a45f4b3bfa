"""The command line, `forebay`: look at a store, run workers, mend what failed. Commands are thin: all they do is calls
of the store's contract and words for the answers.

Exit codes: 0 ok · 1 what was asked for failed · 2 usage · 3 the store is out of reach · 130 interrupted. Bad input is
one line on stderr, never a traceback. Colours and redrawing only on a terminal, and not where NO_COLOR is set.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from forebay.cli.command import Call
from forebay.cli.exits import FAILED, INTERRUPTED, PIPE_CLOSED, UNREACHABLE, USAGE, CommandFailed
from forebay.cli.parser import build, commands
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
        # The reader has left; what is still buffered must not complain at exit.
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
        return _refused(f"what was given cannot be read: {error}; give UTF-8 text that is not nested so deeply", USAGE)
    except (ForebayError, OSError) as error:
        return _refused(str(error), FAILED)


def _run(arguments: list[str]) -> int:
    chosen, left = build(commands()).parse_known_args(arguments)
    # argparse gives up on positionals that follow an option; for a payload that is the natural way to write.
    if left and hasattr(chosen, "payload") and not any(word.startswith("-") for word in left):
        chosen.payload, left = [*chosen.payload, *left], []
    if left:
        chosen.parser.error(f"not understood: {' '.join(left)}")
    if chosen.command is None:
        chosen.parser.print_help(sys.stderr)
        return USAGE
    code: int = chosen.command.run(Call(chosen, Screen(as_json=getattr(chosen, "json", False))))
    sys.stdout.flush()
    return code


def _refused(reason: str, code: int) -> int:
    sys.stderr.write(f"forebay: {clean(reason)}\n")
    return code
