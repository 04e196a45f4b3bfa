"""Where a line begins, when finding its front takes long.

An old snapshot, somebody's transaction that is held for minutes, keeps the index entries of jobs that are long gone,
and a claim walks over all of them. While that is so, claims of a FIFO queue begin a second before the last ones; once a
second one begins at the very front, for those who came late or came back. Otherwise every claim begins at the front.
"""

from collections.abc import Sequence
from time import monotonic
from typing import Final

_SLOW: Final = 0.02
_LOOK_EVERY: Final = 1.0
_SLACK: Final = 1_000_000


class Front:
    """The front of one line, as one process knows it."""

    def __init__(self) -> None:
        self._slow = False
        self._whole = True
        self._look_at = 0.0
        self._lead: int | None = None
        self._floor: int | None = None

    def floors(self) -> tuple[int | None, int | None]:
        """Where to begin among those who lead, and among the others; None: at the very front."""
        now = monotonic()
        self._whole = not self._slow or self._floor is None or now >= self._look_at
        if self._whole:
            self._look_at = now + _LOOK_EVERY
            return None, None
        return self._lead, self._floor

    def moved(self, took: float, asked: int, found: Sequence[tuple[int, int]]) -> None:
        """A claim took so many seconds, asked for so many jobs, and found runs of these ranks and sizes."""
        if self._whole:
            self._slow = took > _SLOW
        leaders = [rank for rank, _ in found if rank < 0]
        others = [rank for rank, _ in found if rank >= 0]
        if leaders:
            self._lead = min(leaders) - _SLACK
        enough = sum(size for _, size in found) >= asked
        self._floor = max(0, min(others) - _SLACK) if others and enough else None
