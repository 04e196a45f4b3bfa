"""The exit codes, which scripts may rely on, and the exception that ends a command with one of them."""

from typing import Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141

MEANINGS: Final = {
    OK: "success",
    FAILED: "the command failed: an unknown id, a full queue, a failed check of `doctor`",
    USAGE: "invalid arguments; nothing was done",
    UNREACHABLE: "the store cannot be opened, or failed during the command",
    INTERRUPTED: "interrupted by ctrl-c",
    PIPE_CLOSED: "the reader of the output closed the pipe, as `head` does",
}


class CommandFailed(Exception):
    """Ends the command with one line on stderr and this exit code."""

    def __init__(self, reason: str, code: int = FAILED) -> None:
        super().__init__(reason)
        self.code = code
