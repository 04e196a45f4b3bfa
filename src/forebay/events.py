"""Events: what happened to jobs, one by one, read from the ledger of a store.

    for event in fb.events(queue="mail", changes=["acked", "died"]): ...
    async for event in fb.events(since=last_id): ...

The ledger is authoritative (`core.ledger`): an event is one job of one record, in the order of commits, and its `id` is
its place there. A reader that passes the last id it has handled as `since` continues behind it, without a gap and
without a repetition. Nothing is kept for a reader but its position, so a slow one costs no memory; one that is behind
the first record that the store still keeps gets `OffsetGone`. New records are polled for: soon after the last ones, at
most `MAX_PAUSE` seconds apart.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from datetime import datetime
from itertools import islice
from threading import Event as Signal
from typing import Final

from msgspec import Struct

from forebay.core.errors import ForebayError, Invalid, Unsupported
from forebay.core.instant import Instant, from_datetime
from forebay.core.ledger import Change, JobRange, LedgerEntry, Record, Trait
from forebay.core.limits import MAX_BATCH, MAX_ID
from forebay.core.names import check_name
from forebay.ledger_reader import offset_at
from forebay.store.protocol import Store

MAX_FILTERED: Final = 100
"""Names in one filter."""

MIN_PAUSE: Final = 0.02
MAX_PAUSE: Final = 0.5
_PAUSE_GROWTH: Final = 1.5
_PAGE: Final = 100
_MAX_PAGES: Final = 20
"""Pages of records that one read scans before it returns, whether it found anything or not."""

START: Final = "start"
_PLAIN: Final = Trait()
_QUIET: Final = frozenset({Change.EXTENDED.value})
"""Left out by default: heartbeats, which some stores write without naming jobs."""

Since = int | str | datetime | None


class Event(Struct, frozen=True, omit_defaults=True):
    """One change of one job.

    id      its place in the ledger: pass it as `since` to continue behind it
    change  accepted, claimed, acked, retried, died, …: the changes of `core.ledger`
    until   what the change says: the end of a lease, the next due time, how long the job stays readable; 0: nothing
    tenant, subject, key, priority
            where the record has them: that of the acceptance does
    error_kind, error
            of a job that failed
    """

    id: str
    at: Instant
    change: str
    job_id: int
    queue: str
    kind: str
    delivery: int = 0
    attempt: int = 0
    max_attempts: int = 0
    enqueued_at: Instant = 0
    due_at: Instant = 0
    claimed_at: Instant = 0
    until: Instant = 0
    owner: str | None = None
    tenant: str | None = None
    subject: str | None = None
    key: str | None = None
    priority: int = 0
    error_kind: str | None = None
    error: str | None = None


class EventFilter(Struct, frozen=True):
    """Which events; an empty set is no condition."""

    queues: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, queue: str | Collection[str] | None, kinds: str | Collection[str] | None, changes: str | Collection[str]
    ) -> "EventFilter":
        wanted = _names("changes", changes)
        if unknown := sorted(wanted - set(Change)):
            raise Invalid("changes", f"{unknown[0]!r} is not a change", f"use {', '.join(Change)}")
        return cls(_names("queue", queue), _names("kinds", kinds), wanted)

    def takes(self, span: JobRange) -> bool:
        """Whether jobs of this range may match. The kind is compared job by job."""
        if self.queues and span.queue not in self.queues:
            return False
        return span.change in self.changes if self.changes else span.change not in _QUIET


class Position(Struct, frozen=True):
    """Behind the job `index` of the record at `offset`; -1: before its first job."""

    offset: int
    index: int

    @classmethod
    def parse(cls, text: str) -> "Position":
        """An event's id: `41-7`."""
        parts = text.split("-")
        if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
            raise Invalid("since", f"{text!r:.40} is not the id of an event", "pass an event's id, such as 41-7")
        offset, index = map(int, parts)
        if offset > MAX_ID:
            raise Invalid("since", f"{offset} is not an offset in 0 … {MAX_ID}", "pass an event's id")
        return cls(offset, index)

    def __str__(self) -> str:
        return f"{self.offset}-{self.index}"


class EventReader:
    """Reads events forward from a position. It blocks; it is for one thread at a time."""

    def __init__(self, store: Store, wanted: EventFilter, since: Since = None) -> None:
        if not store.ledger_rule().on:
            raise Unsupported("a store without its ledger", "events", "switch it on: forebay ledger on")
        self._store = store
        self._wanted = wanted
        self.position = _resolve(store, since)
        self.caught_up = False
        self._found = self._scan()

    def read(self, limit: int = MAX_BATCH) -> list[Event]:
        """Up to `limit` events. None of them: see `caught_up`, which is False if there may be more to scan."""
        found: list[Event] = []
        try:
            found.extend(islice(self._found, limit))
        except ForebayError:
            # What was found before a failed call is returned; the next read repeats the call.
            if not found:
                raise
        finally:
            if len(found) < limit:
                self._found = self._scan()
        return found

    def _scan(self) -> Iterator[Event]:
        for _ in range(_MAX_PAGES):
            position = self.position
            page = self._store.ledger(position.offset - 1, _PAGE)
            begun = bool(page) and page[0].offset == position.offset
            for entry in page:
                yield from self._of_entry(entry, position.index + 1 if begun and entry is page[0] else 0)
            if page:
                self.position = Position(page[-1].offset + 1, -1)
            self.caught_up = len(page) < _PAGE
            if self.caught_up:
                return

    def _of_entry(self, entry: LedgerEntry, first: int) -> Iterator[Event]:
        """The events of one record from its job `first` on."""
        index = 0
        for span in entry.record.spans:
            if index + span.n > first and self._wanted.takes(span):
                for place in range(max(0, first - index), span.n):
                    at = Position(entry.offset, index + place)
                    if (event := self._event(entry.record, span, place, at)) is not None:
                        self.position = at
                        yield event
            index += span.n
        self.position = Position(entry.offset, max(index, first) - 1)

    def _event(self, record: Record, span: JobRange, place: int, at: Position) -> Event | None:
        trait = (span.traits[place] if span.traits else None) or _PLAIN
        kind = trait.kind or span.kind
        if self._wanted.kinds and kind not in self._wanted.kinds:
            return None
        return Event(
            str(at),
            record.at,
            span.change,
            span.first + place,
            span.queue,
            kind,
            span.delivery,
            span.attempt,
            span.max_attempts,
            span.enqueued_at,
            span.due_at,
            span.claimed_at,
            span.until,
            record.owner,
            trait.tenant,
            trait.subject,
            trait.key,
            trait.priority,
            trait.error_kind,
            trait.error,
        )


class EventStream:
    """Events from a position on, for `for` and for `async for`. `follow=False`: it ends where the ledger does."""

    def __init__(self, reader: EventReader, *, follow: bool = True) -> None:
        self._reader = reader
        self._follow = follow
        self._closed = Signal()

    def close(self) -> None:
        """End the iteration, from any thread, after the events that were read already."""
        self._closed.set()

    def __iter__(self) -> Iterator[Event]:
        pause = MIN_PAUSE
        while not self._closed.is_set():
            found = self._reader.read()
            yield from found
            if found or not self._reader.caught_up:
                pause = MIN_PAUSE
            elif not self._follow:
                return
            else:
                self._closed.wait(pause)
                pause = min(MAX_PAUSE, pause * _PAUSE_GROWTH)

    async def __aiter__(self) -> AsyncIterator[Event]:
        pause = MIN_PAUSE
        while not self._closed.is_set():
            found = await asyncio.to_thread(self._reader.read)
            for event in found:
                yield event
            if found or not self._reader.caught_up:
                pause = MIN_PAUSE
            elif not self._follow:
                return
            else:
                await asyncio.sleep(pause)
                pause = min(MAX_PAUSE, pause * _PAUSE_GROWTH)


def _resolve(store: Store, since: Since) -> Position:
    """None: behind all there is. A number: behind that record. A time: from its first record on."""
    if since is None:
        return Position(store.ledger_extent()[1], -1)
    if isinstance(since, datetime):
        return Position(offset_at(store, from_datetime(since)), -1)
    if since == START:
        return Position(store.ledger_extent()[0], -1)
    if isinstance(since, str):
        position = Position.parse(since)
    elif type(since) is int and -1 <= since < MAX_ID:
        position = Position(since + 1, -1)
    else:
        raise Invalid("since", f"{since!r:.40} is not an offset", "pass an event's id, an offset, a time or 'start'")
    if position.offset > (end := store.ledger_extent()[1]):
        raise Invalid("since", f"{since!r} is behind the end of this ledger, {end}", "is it the id of another store?")
    return position


def _names(field: str, given: str | Collection[str] | None) -> frozenset[str]:
    names = frozenset((given,) if isinstance(given, str) else given or ())
    if len(names) > MAX_FILTERED:
        raise Invalid(field, f"{len(names)} names, the limit is {MAX_FILTERED}", "filter what you receive")
    return frozenset(check_name(field, name) for name in names)
