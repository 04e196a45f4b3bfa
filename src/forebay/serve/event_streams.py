"""Event streams of one server: how many there are, when there is something to read, and what each caller sees.

One task polls the ends of the ledgers while there are streams and wakes those that have not read so far; each stream
then reads its own events on the thread pool. A stream holds its position and no events, so a slow reader costs no
memory. There are at most `max_event_streams`.

A record of the ledger names the tenant of a job when it is accepted, and not afterwards. A key with a tenant therefore
sees later changes of jobs that its stream has shown before, or that still exist.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from forebay.core.limits import MAX_BATCH
from forebay.events import MAX_PAUSE, MIN_PAUSE, Event, EventReader
from forebay.ledger_reader import of_each_ledger
from forebay.serve.actor import Actor
from forebay.serve.problems import Problem
from forebay.serve.security.redact import redact_text
from forebay.serve.security.visibility import sees_secrets
from forebay.store.protocol import Store

if TYPE_CHECKING:
    from forebay.serve.context import ServerContext

MAX_TENANTS_KNOWN: Final = 10_000
"""Jobs whose tenant one stream caches."""

READ_AT_ONCE: Final = 200


class EventStreams:
    """The streams of one event loop."""

    def __init__(self, context: "ServerContext") -> None:
        self._context = context
        self._ends: dict[str, int] = {}
        self._grown = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.streams = 0

    def check_room(self) -> None:
        """A 503 where there are as many streams as there may be."""
        limit = self._context.settings.max_event_streams
        if self.streams >= limit:
            detail = f"{self.streams} of {limit} are open: try again later"
            raise Problem(503, "busy", "Too many event streams", detail, {"Retry-After": "5"})

    def opened(self) -> None:
        self.streams += 1
        if self._task is None:
            self._task = asyncio.create_task(self._watch())

    def closed(self) -> None:
        self.streams -= 1

    async def wait_beyond(self, offsets: Mapping[str, int], seconds: float) -> None:
        """Returns once a ledger has a record at its offset, when the server stops, or after so many seconds."""
        ends = asyncio.get_running_loop().time() + seconds
        while (
            all(self._ends.get(name, -1) <= offset for name, offset in offsets.items())
            and not self._context.stopping.is_set()
        ):
            left = ends - asyncio.get_running_loop().time()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._grown.wait(), left)
            except TimeoutError:
                return

    async def _watch(self) -> None:
        pause = MIN_PAUSE
        try:
            while self.streams and not self._context.stopping.is_set():
                try:
                    found = await self._context.call(ledger_ends, self._context.store)
                except Exception as error:
                    # A failure of the store must not end the task: its streams would never be woken.
                    self._context.throttled_log.log_failure("events", error)
                    found = self._ends
                if found != self._ends:
                    self._ends, pause = found, MIN_PAUSE
                    self._wake()
                await asyncio.sleep(pause)
                pause = min(MAX_PAUSE, pause * 1.5)
        finally:
            self._task = None
            self._wake()

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def ledger_ends(store: Store) -> dict[str, int]:
    """The end of each ledger, without those of cells that do not answer."""
    return of_each_ledger(store, lambda _, ledger: ledger.ledger_extent()[1])


class VisibleEvents:
    """The events of a reader that one actor may see. It blocks."""

    def __init__(self, store: Store, actor: Actor, reader: EventReader) -> None:
        self._store = store
        self._actor = actor
        self.reader = reader
        self._tenants: OrderedDict[int, str | None] = OrderedDict()

    def read(self) -> list[Event]:
        events = [event for event in self.reader.read(READ_AT_ONCE) if self._actor.reaches(event.queue)]
        if self._actor.tenant is not None:
            self._learn(events)
            events = [
                # A worker serves whole queues and belongs to no tenant.
                replace(event, owner=None)
                for event in events
                if self._tenants.get(event.job_id) == self._actor.tenant
            ]
        return events if sees_secrets(self._actor) else list(map(_redacted, events))

    def _learn(self, events: Sequence[Event]) -> None:
        """Cache the tenants of these jobs, by their records or by the jobs themselves."""
        for event in events:
            if event.change == "accepted":
                self._tenants[event.job_id] = event.tenant
        unknown = list({event.job_id for event in events} - self._tenants.keys())
        for start in range(0, len(unknown), MAX_BATCH):
            ids = unknown[start : start + MAX_BATCH]
            for job_id, job in zip(ids, self._store.get(ids), strict=True):
                self._tenants[job_id] = None if job is None else job.tenant
        while len(self._tenants) > MAX_TENANTS_KNOWN:
            self._tenants.popitem(last=False)


def _redacted(event: Event) -> Event:
    if event.subject is None and event.key is None and event.error is None:
        return event
    shown = {field: text for field in ("subject", "key", "error") if (text := getattr(event, field)) is not None}
    return replace(event, **{field: redact_text(text) for field, text in shown.items()})
