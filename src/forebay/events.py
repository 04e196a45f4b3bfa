"""Events: what happened to jobs, one by one, read from the ledger of a store.

    for event in fb.events(queue="mail", changes=["acked", "died"]): ...
    async for event in fb.events(since=last_id): ...

The ledger is authoritative (`core.ledger`): an event is one job of one record, in the order of commits, and its `id` is
its place there. A reader that passes the last id it has handled as `since` continues behind it, without a gap and
without a repetition. Nothing is kept for a reader but its position, so a slow one costs no memory; one that is behind
the first record that the store still keeps gets `OffsetGone`. New records are polled for: soon after the last ones, at
most `MAX_PAUSE` seconds apart.

Several cells have a ledger each. Their events are merged, those of a cell in its order, and an id has the position in
every cell (`a:41-7,b:57`). A cell that does not answer is left out, and read from the same position when it is back.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from datetime import datetime
from heapq import merge
from itertools import islice
from threading import Event as Signal
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.errors import ForebayError, Invalid, OffsetGone, StoreFailed, Unsupported
from forebay.core.instant import Instant, from_datetime, to_datetime
from forebay.core.ledger import Change, JobRange, LedgerEntry, Record, Trait
from forebay.core.limits import MAX_BATCH, MAX_ID
from forebay.core.names import check_name
from forebay.ledger_reader import ledgers, offset_at
from forebay.store.protocol import Store

T = TypeVar("T")
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

    def takes(self, job_range: JobRange) -> bool:
        """Whether jobs of this range may match. The kind is compared job by job."""
        if self.queues and job_range.queue not in self.queues:
            return False
        return job_range.change in self.changes if self.changes else job_range.change not in _QUIET


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
        """As in an id of several cells, `41` is before the first job of a record."""
        return f"{self.offset}-{self.index}" if self.index >= 0 else str(self.offset)


class LedgerEvents:
    """Reads the events of one ledger forward from a position."""

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
        for job_range in entry.record.ranges:
            if index + job_range.n > first and self._wanted.takes(job_range):
                for place in range(max(0, first - index), job_range.n):
                    at = Position(entry.offset, index + place)
                    if (event := self._event(entry.record, job_range, place, at)) is not None:
                        self.position = at
                        yield event
            index += job_range.n
        self.position = Position(entry.offset, max(index, first) - 1)

    def _event(self, record: Record, job_range: JobRange, place: int, at: Position) -> Event | None:
        trait = (job_range.traits[place] if job_range.traits else None) or _PLAIN
        kind = trait.kind or job_range.kind
        if self._wanted.kinds and kind not in self._wanted.kinds:
            return None
        return Event(
            str(at),
            record.at,
            job_range.change,
            job_range.first + place,
            job_range.queue,
            kind,
            job_range.delivery,
            job_range.attempt,
            job_range.max_attempts,
            job_range.enqueued_at,
            job_range.due_at,
            job_range.claimed_at,
            job_range.until,
            record.owner,
            trait.tenant,
            trait.subject,
            trait.key,
            trait.priority,
            trait.error_kind,
            trait.error,
        )


class EventReader:
    """Reads the events of a store, or of all its cells, forward. It blocks; it is for one thread at a time.

    caught_up  whether all that was there has been read
    left_out   cells that did not answer the last read
    """

    def __init__(self, store: Store, wanted: EventFilter, since: Since = None) -> None:
        self._wanted = wanted
        self._ledgers: Final = ledgers(store)
        self._waiting = _since_by_ledger(since, self._ledgers.keys())
        self._opened: dict[str, LedgerEvents] = {}
        self._failure: ForebayError | None = None
        self.left_out: list[str] = []
        self._each(self._open)
        if since is None and self._waiting:
            self._waiting = dict.fromkeys(self._waiting, to_datetime(store.now()))

    @property
    def caught_up(self) -> bool:
        return all(events.caught_up for name, events in self._opened.items() if name not in self.left_out)

    @property
    def offsets(self) -> dict[str, int]:
        """By ledger: the record that is read next; -1 for a cell that has not answered yet."""
        return {name: self._opened[name].position.offset if name in self._opened else -1 for name in self._ledgers}

    def read(self, limit: int = MAX_BATCH) -> list[Event]:
        """Up to `limit` events. None of them: see `caught_up`, which is False if there may be more to scan."""
        share = max(1, limit // len(self._ledgers))
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        before = {name: _since_text(since) for name, since in self._waiting.items()}
        before |= {name: str(events.position) for name, events in self._opened.items()}
        found = self._each(lambda name: self._open(name).read(share))
        if "" in found:
            return found[""]
        merged = merge(*([(name, event) for event in page] for name, page in found.items()), key=lambda one: one[1].at)
        return [_placed(name, event, before) for name, event in merged]

    def _open(self, name: str) -> LedgerEvents:
        if name not in self._opened:
            self._opened[name] = LedgerEvents(self._ledgers[name], self._wanted, self._waiting[name])
            del self._waiting[name]
        elif name:
            # Within the deadline of the cell, unlike its ledger: a cell that hangs is left out here.
            self._ledgers[name].ledger_extent()
        return self._opened[name]

    def _each(self, call: Callable[[str], T]) -> dict[str, T]:
        """By ledger, without the cells that do not answer. Another error is kept until what was found is returned."""
        found: dict[str, T] = {}
        down: dict[str, StoreFailed] = {}
        for name in self._ledgers:
            try:
                found[name] = call(name)
            except StoreFailed as error:
                down[name] = error
            except ForebayError as error:
                self._failure = _named(name, error)
                break
        self.left_out = list(down)
        if not found:
            failure, self._failure = self._failure or next(iter(down.values())), None
            raise failure
        return found


class EventStream:
    """Events from a position on, for `for` and for `async for`. `follow=False`: it ends where the ledger does."""

    def __init__(self, reader: EventReader, *, follow: bool = True) -> None:
        self._reader = reader
        self._follow = follow
        self._closed = Signal()

    @property
    def left_out(self) -> list[str]:
        """The cells that did not answer the last read; their events follow when they do."""
        return list(self._reader.left_out)

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


def _since_by_ledger(since: Since, names: Collection[str]) -> dict[str, Since]:
    """Where each ledger is read from. A cell that the id of an event lacks is newer than that event: from its start."""
    if "" in names or since is None or since == START or isinstance(since, datetime):
        return dict.fromkeys(names, since)
    remedy = "pass an event's id, a time or 'start'"
    if not isinstance(since, str):
        raise Invalid("since", f"{since!r:.40} is an offset, and each of {len(names)} cells has its own", remedy)
    parts = dict(part.rpartition(":")[::2] for part in since.split(","))
    if not parts.keys() & set(names):
        raise Invalid("since", f"{since!r:.40} has no position in the cells {', '.join(sorted(names)):.80}", remedy)
    return {name: _parse_since(parts[name]) if name in parts else START for name in names}


def _parse_since(text: str) -> Since:
    """The position in one cell: `41-7`, `41`, or `@` and the instant from which a cell is read that did not answer."""
    instant = text.startswith("@")
    if (digits := text.removeprefix("@")).isascii() and digits.isdigit() and len(digits) < 18:
        return to_datetime(int(digits)) if instant else int(digits) - 1
    return str(Position.parse(text))


def _since_text(since: Since) -> str:
    """As `_parse_since` reads it."""
    if isinstance(since, datetime):
        return f"@{from_datetime(since)}"
    return "@0" if since is None or since == START else str(since + 1 if isinstance(since, int) else since)


def _placed(name: str, event: Event, positions: dict[str, str]) -> Event:
    """With an id that has the positions in all cells; that of its own is moved behind it."""
    positions[name] = event.id
    return replace(event, id=",".join(f"{cell}:{position}" for cell, position in positions.items()))


def _named(cell: str, error: ForebayError) -> ForebayError:
    if cell and isinstance(error, OffsetGone):
        return OffsetGone(f"ledger of cell {cell}", error.partition, error.requested, error.first)
    return error


def _names(field: str, given: str | Collection[str] | None) -> frozenset[str]:
    names = frozenset((given,) if isinstance(given, str) else given or ())
    if len(names) > MAX_FILTERED:
        raise Invalid(field, f"{len(names)} names, the limit is {MAX_FILTERED}", "filter what you receive")
    return frozenset(check_name(field, name) for name in names)
