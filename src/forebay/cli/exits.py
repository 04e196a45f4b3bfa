"""The exit codes, which scripts may rely on, and the exception that ends a command with one."""

from typing import Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141

MEANINGS: Final = {
    OK: "it was done",
    FAILED: "what was asked for failed: an unknown id, a full queue, a check of `doctor`",
    USAGE: "the question made no sense; nothing was done",
    UNREACHABLE: "the store cannot be opened, or failed on the way",
    INTERRUPTED: "interrupted by ctrl-c",
    PIPE_CLOSED: "the reader of the output went away, when it was piped into `head`, say",
}


class CommandFailed(Exception):
    """The command ends here: one line on stderr, and this exit code."""

    def __init__(self, reason: str, code: int = FAILED) -> None:
        super().__init__(reason)
        self.code = code
