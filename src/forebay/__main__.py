"""The command `forebay`, also as `python -m forebay`.

Commands that run until a signal comes end with code 0 from the first moment on. Until they have handlers of their own,
nothing has been claimed or accepted, so there is nothing to drain, and every store outlives a process that just ends.
"""

import os
import signal
import sys

_SERVICES = ("dev", "serve", "worker")


def main() -> int:
    """Run one command; the exit code."""
    if sys.argv[1:2] and sys.argv[1] in _SERVICES:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave)
    from forebay.cli import main as run

    return run()


def _leave(*_: object) -> None:
    # An exception would end in whatever the application's own import catches.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
