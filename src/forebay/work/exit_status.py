"""How a process ended, in words for dead letters and logs."""

import signal
from typing import Final

CANNOT_START: Final = 3
"""A worker whose store cannot be opened: on a full disk, say."""


def describe_exit(code: int | None) -> str:
    """A predicate, such as "died with SIGSEGV"; None: nobody saw its end."""
    if code is None:
        return "died"
    if code == CANNOT_START:
        return f"exited with code {code}: it could not open its store"
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed ({name})" if -code == signal.SIGKILL else f"died with {name}"
