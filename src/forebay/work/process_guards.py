"""Two checks after every handler: it has not closed the worker's file descriptors, and this is not a forked copy."""

import os

from forebay.work.exit_status import BROKEN


class DescriptorGuard:
    """Detects a handler that closed file descriptors of its worker, by a pipe that no other code uses.

    The store connection may then refer to any file opened since, so the process exits before it writes another verdict,
    and its supervisor replaces it. `isolate=True` keeps such a handler out of the worker. A check takes about a
    microsecond.
    """

    def __init__(self) -> None:
        self._descriptor, self._other = os.pipe()
        self._identity = self._stat()

    def check(self) -> None:
        """Exit the process if the descriptor is closed or refers to another file."""
        if self._stat() != self._identity:
            os.write(2, b"forebay: a handler closed file descriptors of its worker; the worker exits\n")
            os._exit(BROKEN)

    def close(self) -> None:
        os.close(self._descriptor)
        os.close(self._other)

    def _stat(self) -> tuple[int, int] | None:
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return None
        return status.st_dev, status.st_ino


class ForkCounter:
    """`count` increases in each forked child; reading it is cheaper than a getpid call."""

    count = 0

    @classmethod
    def forked(cls) -> None:
        cls.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ForkCounter.forked)
