"""Readiness: the store accepts claims and writes, and ready jobs are claimed.

The probe claims from a reserved queue that is always empty, and moves a group's position in a log of one entry back and
forth: a real write that leaves nothing behind. At most one probe runs, at most once a second, however many requests
arrive; while it has no result, every request is answered at once with `store-timeout`.
"""

import asyncio
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final

from forebay.core.errors import ForebayError
from forebay.core.instant import days, seconds
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.serve.metrics.poller import StorePoller
from forebay.store.protocol import Store, Want

PROBE: Final = "forebay.ready"
STALLED_SECONDS: Final = 15.0
TIMEOUT_SECONDS: Final = 2.0
_KEPT: Final = 1.0
_POLL_SECONDS: Final = 0.01
_UNSEEN_SECONDS: Final = 60.0
_GROUP: Final = "probe"
_LEASE: Final = seconds(1)


def probe(store: Store) -> None:
    """Make an empty claim, and a write without effect."""
    store.claim([Want(f"{PROBE}.queue", 1)], PROBE, _LEASE)
    if not any(spec.name == PROBE for spec in store.specs()):
        store.put_spec(QueueSpec(name=PROBE, retention=Retained(partitions=1, window=days(1))))
    if store.extent(PROBE)[0][1] == 0:
        store.append(PROBE, [b"0"])
    here = store.position(PROBE, _GROUP, 0)
    store.commit(PROBE, _GROUP, 0, 0 if here < 0 else -1, rewind=True)


class Probe:
    """Runs the probe on a thread of its own, one at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._guard = Lock()
        self._started_at: float | None = None
        self._finished_at = float("-inf")
        self._reason: str | None = None

    async def reason(self) -> str | None:
        """Why the store is not ready, or None."""
        self._start()
        while (started_at := self._started_at) is not None:
            if monotonic() - started_at > TIMEOUT_SECONDS:
                return "store-timeout"
            await asyncio.sleep(_POLL_SECONDS)
        return self._reason

    def _start(self) -> None:
        with self._guard:
            if self._started_at is None and monotonic() - self._finished_at >= _KEPT:
                self._started_at = monotonic()
                Thread(target=self._run, name="forebay-ready", daemon=True).start()

    def _run(self) -> None:
        reason: str | None = "store-failed"
        try:
            probe(self._store)
            reason = None
        except ForebayError:
            pass
        finally:
            self._reason, self._finished_at = reason, monotonic()
            self._started_at = None


class Readiness:
    """The answer of `/ready`."""

    def __init__(self, store: Store, poller: StorePoller) -> None:
        self._store = store
        self._watch = poller
        self._probe = Probe(store)
        self._began = monotonic()

    async def reasons(self) -> list[str]:
        """Why the server is not ready, by name; empty when it is."""
        found = await self._probe.reason()
        unsafe = ["unsafe-settings"] if self._store.capabilities.unsafe else []
        return [*([] if found is None else [found]), *unsafe, *self._read_only(), *self._stalled()]

    def facts(self) -> dict[str, Any]:
        """The store, its durability and its settings."""
        able, vitals = self._store.capabilities, self._watch.vitals
        return {"store": able.name, "durable": able.durable} | ({} if vitals is None else {"settings": vitals.settings})

    def _read_only(self) -> list[str]:
        vitals = self._watch.vitals
        return [] if vitals is None or vitals.writable else ["read-only"]

    def _stalled(self) -> list[str]:
        snapshot = self._watch.snapshot
        unseen = monotonic() - self._began if snapshot is None else snapshot.age
        if unseen > max(_UNSEEN_SECONDS, 2 * self._watch.every):
            return ["stale-poll"]
        stalled = {} if snapshot is None else snapshot.stalled
        return ["no-progress"] if any(each >= STALLED_SECONDS for each in stalled.values()) else []
