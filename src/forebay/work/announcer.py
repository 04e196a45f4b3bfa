"""The announcer: says every few seconds that this process is there, so that operators see it also while it is idle."""

import os
import socket
from collections.abc import Collection
from typing import Final

from forebay.core.instant import seconds
from forebay.core.limits import BATCH_MOST
from forebay.core.presence import MAX_KINDS, MAX_QUEUES, Presence, unhandled_kinds
from forebay.store.protocol import Store
from forebay.work.options import Options
from forebay.work.pool import Pool

ANNOUNCE_EVERY: Final = 5.0
ANNOUNCED_FOR: Final = seconds(30)
"""A worker that was silent for so long is no longer shown."""


class Announcer:
    """Keeps the presence of one worker in the store."""

    name = "announcer"

    def __init__(self, store: Store, pool: Pool, options: Options, owner: str, kinds: Collection[str]) -> None:
        self._store = store
        self._pool = pool
        self._options = options
        self._owner = owner
        self._kinds = tuple(sorted(kinds)) if len(kinds) <= MAX_KINDS else ()
        self._host = socket.gethostname()[:60] or "localhost"

    def step(self) -> float:
        unhandled = self._pool.unhandled()
        presence = Presence(
            self._owner,
            self._host,
            os.getpid(),
            self._options.queues[:MAX_QUEUES],
            self._kinds,
            self._options.concurrency,
            self._pool.running,
            unhandled=unhandled,
        )
        self._store.announce(presence, ANNOUNCED_FOR)
        if unhandled:
            nobody = unhandled_kinds(self._store.workers("", BATCH_MOST))
            self._pool.handled_elsewhere = frozenset(unhandled).difference(nobody)
        return ANNOUNCE_EVERY

    def withdraw(self) -> None:
        """The worker ends; nobody should wait for its time to be up."""
        self._store.withdraw(self._owner)
