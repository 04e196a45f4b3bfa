"""A file descriptor that nobody may touch. If it is gone, a handler has closed files that are not its own.

The process's way to its store may then lead anywhere, even into files that were opened since: it ends at once, before
another verdict is written, and its supervisor replaces it. `isolate=True` keeps such handlers away from all this.
"""

import os
from typing import Final

BROKEN: Final = 70


class Sentinel:
    """Looked at after every handler; a look costs about a microsecond."""

    def __init__(self) -> None:
        self._descriptor, self._other = os.pipe()
        self._identity = self._look()

    def check(self) -> None:
        """Returns, or ends the process."""
        if self._look() != self._identity:
            os.write(2, b"forebay: a handler closed files of its worker; the worker ends\n")
            os._exit(BROKEN)

    def close(self) -> None:
        os.close(self._descriptor)
        os.close(self._other)

    def _look(self) -> tuple[int, int] | None:
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return None
        return status.st_dev, status.st_ino
