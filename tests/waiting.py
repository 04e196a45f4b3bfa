"""`eventually`: how a test waits for what another thread or process does. No test has a polling loop of its own."""

import time
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 120.0
"""Seconds before a wait fails. On an idle machine every one of these conditions holds at once."""

STEP: Final = 0.01


def eventually(
    holds: Callable[[], object],
    what: str = "the condition",
    timeout: float = PATIENCE,
    details: Callable[[], object] = lambda: "",
    step: float = STEP,
) -> None:
    """Return as soon as `holds` does. After `timeout` seconds it fails with `what` and `details`."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}\n{details()}"
        time.sleep(step)
