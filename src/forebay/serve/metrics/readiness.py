"""Whether work goes through: the store is claimed from and written to, and what is ready gets claimed.

The probe claims from a queue that nobody uses, and moves the place of a reader of a log of one entry to and fro: a real
write, which leaves nothing that was not there before. At most one probe runs, at most once a second, whoever asks and
however often; while one gets no answer, everybody is told so at once.
"""

import asyncio
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final

from forebay.core.errors import ForebayError
from forebay.core.instant import days, seconds
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.serve.metrics.watch import Watch
from forebay.store.protocol import Store, Want

PROBE: Final = "forebay.ready"
STALLED_SECONDS: Final = 15.0
PATIENCE: Final = 2.0
_KEPT: Final = 1.0
_LOOK_EVERY: Final = 0.01
_UNSEEN_SECONDS: Final = 60.0
_GROUP: Final = "probe"
_LEASE: Final = seconds(1)


def probe(store: Store) -> None:
    """Claim nothing, and write something that makes no difference."""
    store.claim([Want(f"{PROBE}.queue", 1)], PROBE, _LEASE)
    if not any(spec.name == PROBE for spec in store.specs()):
        store.put_spec(QueueSpec(name=PROBE, retention=Retained(partitions=1, window=days(1))))
    if store.extent(PROBE)[0][1] == 0:
        store.append(PROBE, [b"0"])
    here = store.position(PROBE, _GROUP, 0)
    store.commit(PROBE, _GROUP, 0, 0 if here < 0 else -1, rewind=True)


class Probe:
    """One thread that asks the store, when somebody wants to know and nobody asks already."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._guard = Lock()
        self._asked_at: float | None = None
        self._answered_at = float("-inf")
        self._reason: str | None = None

    async def reason(self) -> str | None:
        """Why the store cannot be worked with, or None."""
        self._ask()
        while (asked_at := self._asked_at) is not None:
            if monotonic() - asked_at > PATIENCE:
                return "store-silent"
            await asyncio.sleep(_LOOK_EVERY)
        return self._reason

    def _ask(self) -> None:
        with self._guard:
            if self._asked_at is None and monotonic() - self._answered_at >= _KEPT:
                self._asked_at = monotonic()
                Thread(target=self._run, name="forebay-ready", daemon=True).start()

    def _run(self) -> None:
        reason: str | None = "store-failed"
        try:
            probe(self._store)
            reason = None
        except ForebayError:
            pass
        finally:
            self._reason, self._answered_at = reason, monotonic()
            self._asked_at = None


class Readiness:
    """What `/ready` answers from."""

    def __init__(self, store: Store, watch: Watch) -> None:
        self._store = store
        self._watch = watch
        self._probe = Probe(store)
        self._began = monotonic()

    async def reasons(self) -> list[str]:
        """Why work does not go through, by name; empty when it does."""
        found = await self._probe.reason()
        unsafe = ["unsafe-settings"] if self._store.capabilities.unsafe else []
        return [*([] if found is None else [found]), *unsafe, *self._unwritten(), *self._stalled()]

    def facts(self) -> dict[str, Any]:
        """The store, and how durable it is."""
        able, vitals = self._store.capabilities, self._watch.vitals
        return {"store": able.name, "durable": able.durable} | ({} if vitals is None else {"settings": vitals.settings})

    def _unwritten(self) -> list[str]:
        vitals = self._watch.vitals
        return [] if vitals is None or vitals.writable else ["read-only"]

    def _stalled(self) -> list[str]:
        seen = self._watch.seen
        unseen = monotonic() - self._began if seen is None else seen.age
        if unseen > max(_UNSEEN_SECONDS, 2 * self._watch.every):
            return ["not-watched"]
        stalled = {} if seen is None else seen.stalled
        return ["no-progress"] if any(each >= STALLED_SECONDS for each in stalled.values()) else []
