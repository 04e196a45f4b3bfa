"""The courier: verdicts ride on the next claim, where the store can do both in one step.

It takes what waits with the settler, and brings it back there when the step failed: settling twice is harmless.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from forebay.core.lease import Lease
from forebay.store.protocol import Exchanging, Want
from forebay.work.settler import Settler


class Carrying(Exchanging, Protocol):
    """A store that can do both."""

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]: ...


class Courier:
    """Claims for the claimer, and carries the settler's verdicts along."""

    def __init__(self, store: Carrying, settler: Settler) -> None:
        self._store = store
        self._settler = settler

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        verdicts = self._settler.lend()
        if not verdicts:
            return self._store.claim(wants, owner, lease_for)
        try:
            answers, leases = self._store.exchange(verdicts, wants, owner, lease_for)
        except BaseException:
            self._settler.give_back(verdicts)
            raise
        self._settler.written(verdicts, answers)
        return leases
