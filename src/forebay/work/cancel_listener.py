"""The cancel listener: a request to end a running job reaches the pool when it is made, not with the next heartbeat.

It sleeps in the store while jobs run here. Notifications may get lost: the store looks once a second, and the renewer
sees requests as well. So a request is a second late at most while the store answers.
"""

from datetime import timedelta
from typing import Final

from forebay.core.lease import Fence
from forebay.store.protocol import Store
from forebay.work.renewer import Held

_WAIT: Final = timedelta(seconds=2)
_IDLE: Final = 0.25
"""Seconds until it looks again whether anything runs."""


class CancelListener:
    """Asks the pool to end what others want to end."""

    name = "cancel listener"

    def __init__(self, store: Store, held: Held, owner: str) -> None:
        self._store = store
        self._held = held
        self._owner = owner
        self._asked: set[Fence] = set()

    def step(self) -> float:
        held = {lease.fence for lease in self._held.held()}
        self._asked &= held
        if not held:
            return _IDLE
        requests = self._store.wait_cancel_requests(self._owner, _WAIT, self._asked)
        self._held.ask_to_end(requests)
        self._asked.update(requests)
        return 0
