"""`eventually`: how a test waits for what another process does."""

import time
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 120.0
"""How long a test waits, in seconds, for what happens at once on a machine that has nothing else to do."""

_STEP: Final = 0.01


def eventually(
    holds: Callable[[], object],
    what: str = "the condition",
    patience: float = PATIENCE,
    said: Callable[[], str] = lambda: "",
) -> None:
    """Return as soon as it holds. After `patience` seconds it fails, with what was waited for and what was said."""
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline, f"not within {patience:g} s: {what}\n{said()}"
        time.sleep(_STEP)
