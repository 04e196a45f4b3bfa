"""Exit codes of a worker process, and descriptions of how a process ended for errors and logs."""

import signal
from typing import Final

CANNOT_START: Final = 3
"""The store cannot be opened, for example because the disk is full, or a start-up hook failed."""

BROKEN: Final = 70
"""The process can no longer work and must be replaced."""


def describe_exit(code: int | None) -> str:
    """A predicate such as "died with SIGSEGV"; None: the exit code is unknown."""
    if code is None:
        return "died"
    if code == CANNOT_START:
        return f"exited with code {code}: it could not open its store, or a start-up hook failed"
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed ({name})" if -code == signal.SIGKILL else f"died with {name}"
