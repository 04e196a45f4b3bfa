"""Where a line begins: claims of a FIFO queue with a backlog do not walk over what is long gone.

An old snapshot, somebody's transaction that is held for minutes, keeps the index entries of jobs that are gone, and a
claim from the very front walks over all of them. So, while a line has more than is asked for, claims begin a second
before the last one; a claim from the front comes every 50 ms, or less often where it takes long, for those who came
late or came back. Where workers keep up, claims are from the front as long as that is quick: then nobody is missed.
"""

from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Final

from forebay.core.instant import Instant

_LOOK_EVERY: Final = 0.05
_LOOK_SHARE: Final = 20
"""Claims from the very front take at most this part of the time."""

_LOOK_MOST: Final = 1.0
"""Seconds for which somebody who came back may be overlooked."""

_SLOW: Final = 0.01
_SLACK: Final = 1_000_000
_TRUSTED: Final = 60.0
"""Seconds for which leases are looked for behind a floor; then from the start, whatever that takes."""

_SLOW_PAST: Final = 0.002
"""Seconds. Those who wait look as well, and far more often than the reaper, by whose looks this is measured."""

_BEGINNING: Final = -(2**63)


class Front:
    """The front of one line, as one process knows it."""

    def __init__(self) -> None:
        self._whole = True
        self._slow = False
        self._look_at = 0.0
        self._lead: int | None = None
        self._floor: int | None = None

    def floors(self) -> tuple[int | None, int | None]:
        """Where to begin among those who lead, and among the others; None: at the very front."""
        self._whole = self._floor is None or monotonic() >= self._look_at
        return (None, None) if self._whole else (self._lead, self._floor)

    @property
    def known(self) -> tuple[int | None, int | None]:
        """The same for one who only looks."""
        return (None, None) if self._floor is None or monotonic() >= self._look_at else (self._lead, self._floor)

    def moved(self, took: float, asked: int, found: Sequence[tuple[int, int]]) -> None:
        """A claim took so many seconds, asked for so many jobs, and found runs of these ranks and sizes."""
        if self._whole:
            self._slow = took > _SLOW
            self._look_at = monotonic() + min(_LOOK_MOST, max(_LOOK_EVERY, took * _LOOK_SHARE))
        leaders = [rank for rank, _ in found if rank < 0]
        others = [rank for rank, _ in found if rank >= 0]
        if leaders:
            self._lead = min(leaders) - _SLACK
        enough = sum(size for _, size in found) >= asked
        if not enough and not self._slow:
            self._floor = None
        elif others:
            self._floor = max(0, min(others) - _SLACK)


class Past:
    """Up to where leases were looked through in vain, as one process knows it; the same for those that ran out.

    Whoever claims later has a lease that ends later. So where nothing was overdue at an instant, no lease that ends
    before it will ever be: not of a holder whose heart did not beat then, and not of a lease that follows no heart.
    It matters under an old snapshot alone; while looking from the start is quick, every look is from the start.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._silent: dict[int, Instant] = {}
        self._alone: Instant = _BEGINNING

    @property
    def known(self) -> bool:
        return monotonic() < self._until

    def floors(self) -> tuple[list[int], list[Instant], Instant]:
        """Holders, from where to look for the leases of each, and for those that follow no heart."""
        if not self.known:
            return [], [], _BEGINNING
        return list(self._silent), list(self._silent.values()), self._alone

    def worth_knowing(self, took: float) -> bool:
        """Whether a look that took so many seconds should be remembered, if it found nothing."""
        return self.known or took > _SLOW_PAST

    def nothing_at(self, now: Instant, silent: Iterable[int]) -> None:
        """Nothing was overdue at this instant, at which the hearts of these did not beat."""
        if not self.known:
            self._until = monotonic() + _TRUSTED
            self._silent = {}
        self._silent.update(dict.fromkeys(silent, now - _SLACK))
        self._alone = now - _SLACK
