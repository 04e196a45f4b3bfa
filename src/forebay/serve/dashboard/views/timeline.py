"""The timeline of one job from the ledger: every acceptance, lease, renewal, failure and end, in order.

When at most `MAX_READ` records were written in the job's lifetime and they are read in time, all of them are read.
Otherwise only the records around the instants that the job itself holds are read, and around those that each found
record adds; the page says that the rest is not shown. A removed job is found by its id, because ids grow with the
ledger.
"""

from collections.abc import Iterable
from time import monotonic
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.humanize import format_duration as length
from forebay.core.instant import Instant
from forebay.core.job import Job
from forebay.core.ledger import Change, JobRange, LedgerEntry
from forebay.ledger_reader import SLACK, ledger_of, offset_at, read_range
from forebay.store.protocol import Query, Store

MAX_READ: Final = 5_000
READ_SECONDS: Final = 0.05
"""For the whole timeline; and again for the known instants, when that was not enough."""

MAX_NEAR: Final = 32
"""Records read around one instant."""

MAX_AROUND: Final = 128
"""Records read around the acceptance of a removed job."""

FIND_SECONDS: Final = 0.2
"""For finding that acceptance in a ledger of any length."""

MAX_SHOWN: Final = 200
_PROBE: Final = 16
_ENDS: Final = frozenset((Change.ACKED, Change.DISCARDED, Change.CANCELLED, Change.PURGED))
"""The last changes of a removed job."""


class TimelineEntry(Struct, frozen=True):
    """One change. `change` is a value of `core.ledger.Change`; `note` describes it; `owner`: the worker of a claim."""

    at: Instant
    offset: int
    change: str
    delivery: int
    attempt: int
    note: str
    error_kind: str | None = None
    error: str | None = None
    owner: str | None = None


class Timeline(Struct, frozen=True):
    """`cut`: why it may be incomplete, as a sentence; empty when it is complete."""

    moments: list[TimelineEntry]
    cut: str = ""
    queue: str | None = None
    kind: str | None = None
    tenant: str | None = None


NO_LEDGER: Final = "This store keeps no ledger, so the job has no timeline."
FORGOTTEN: Final = "The ledger has no record of it, or is too long to be searched here."
ENDED: Final[dict[str, str]] = {
    Change.ACKED: "done",
    Change.DISCARDED: "cancelled",
    Change.CANCELLED: "cancelled",
    Change.DIED: "dead",
    Change.EXPIRED: "dead",
    Change.SHED: "dead",
    Change.PURGED: "purged",
}
"""The state that the last change of a removed job means."""

OFF: Final = "The ledger is off or was trimmed: it has no record of this job."


def timeline_of(store: Store, job: Job) -> Timeline:
    """The timeline of a stored job."""
    store = ledger_of(store, job.id)
    extent, until = store.ledger_extent(), monotonic() + READ_SECONDS
    if not extent[1]:
        return Timeline([], NO_LEDGER)
    first = offset_at(store, job.enqueued_at - SLACK, extent)
    end = offset_at(store, job.finished_at + SLACK, extent) if job.finished_at else extent[1]
    found, whole = _within(store, first, end, job.id, until) if end - first <= MAX_READ else ([], False)
    if whole:
        cut = "" if found and found[0].change == Change.ACCEPTED else OFF if not found else _trimmed(store)
        return _timeline(found, cut, job.queue, job.kind, job.tenant)
    moments = [job.enqueued_at, job.claimed_at, job.finished_at, *(error.at for error in job.errors)]
    found = _around(store, [at for at in moments if at], job.id, extent)
    cut = f"The ledger holds {end - first:,} records of that time; shown is what happened at the known moments."
    return _timeline(found, cut, job.queue, job.kind, job.tenant)


def _within(store: Store, first: int, end: int, job_id: int, until: float) -> tuple[list[TimelineEntry], bool]:
    """The job's changes in a range of the ledger, and whether there was time to read all of it."""
    found: list[TimelineEntry] = []
    for entry in read_range(store, first, end - first):
        found += _of_job([entry], job_id)
        if monotonic() >= until:
            return found, entry.offset + 1 >= end
    return found, True


def timeline_of_gone(store: Store, job_id: int) -> Timeline | None:
    """The timeline of a removed job; None when the ledger has no record of it."""
    store = ledger_of(store, job_id)
    accepted = _acceptance(store, job_id)
    if accepted is None:
        return None
    entry, job_range = accepted
    found, until = [], monotonic() + READ_SECONDS
    for later in read_range(store, entry.offset, MAX_READ):
        found += _of_job([later], job_id)
        if monotonic() >= until or (found and found[-1].change in _ENDS):
            break
    ended = bool(found) and found[-1].change in _ENDS
    cut = "" if ended else "The record of its end is too far away in the ledger to be searched here."
    trait = job_range.traits[job_id - job_range.first] if job_range.traits else None
    return _timeline(
        found, cut, job_range.queue, (trait and trait.kind) or job_range.kind, trait.tenant if trait else None
    )


def _timeline(found: list[TimelineEntry], cut: str, queue: str, kind: str, tenant: str | None) -> Timeline:
    if len(found) > MAX_SHOWN:
        half = MAX_SHOWN // 2
        cut = f"Of {len(found):,} records about this job the first and last {half} are shown. {cut}".strip()
        found = [*found[:half], *found[-half:]]
    return Timeline(found, cut, queue, kind, tenant)


def _trimmed(store: Store) -> str:
    first, _ = store.ledger_extent()
    return f"The ledger begins at record {first:,}; what happened before it was trimmed." if first else ""


def _around(store: Store, seeds: list[Instant], job_id: int, extent: tuple[int, int]) -> list[TimelineEntry]:
    """The job's changes at these instants, and at those that the found records mention."""
    found: dict[tuple[int, int], TimelineEntry] = {}
    searched: set[Instant] = set()
    until = monotonic() + READ_SECONDS
    while seeds and monotonic() < until:
        at = seeds.pop()
        if at in searched:
            continue
        searched.add(at)
        seen = False
        for entry in read_range(store, max(0, offset_at(store, at, extent) - 1), MAX_NEAR):
            for index, job_range in enumerate(_ranges_of(entry, job_id)):
                found[entry.offset, index] = _moment(entry, job_range, job_id)
                seeds += [moment for moment in (job_range.claimed_at, job_range.enqueued_at) if moment]
                seen = seen or entry.record.at >= at
            if monotonic() >= until or (seen and entry.record.at > at):
                break
    return [found[key] for key in sorted(found)]


def _acceptance(store: Store, job_id: int) -> tuple[LedgerEntry, JobRange] | None:
    """The record that accepted the job.

    Ids grow with the ledger, so the record is found by bisection over the ids that are accepted around an offset. Where
    many records in a row accept nothing (a backlog was drained), the ids that they mention decide on which side to
    search first; the other side is searched next, while there is time.
    """
    first, end = store.ledger_extent()
    sides, until = [(first, end)], monotonic() + FIND_SECONDS
    while sides and monotonic() < until:
        low, high = sides.pop()
        while high - low > MAX_AROUND:
            middle = (low + high) // 2
            accepted, mentioned = _ids_from(store, middle)
            if accepted is not None and accepted < job_id:
                low = middle
            elif accepted is not None or mentioned >= job_id:
                high = middle
            else:
                sides.append((low, middle))
                low = min(high, middle + MAX_AROUND)
        for entry in read_range(store, max(first, low - MAX_AROUND), high - low + 2 * MAX_AROUND):
            for job_range in entry.record.ranges:
                if job_range.change == Change.ACCEPTED and job_range.first <= job_id < job_range.first + job_range.n:
                    return entry, job_range
    return None


def _ids_from(store: Store, offset: int) -> tuple[int | None, int]:
    """The smallest id of the next record that accepts jobs, if one of the next few does; the largest id mentioned."""
    largest = 0
    for limit in (_PROBE, MAX_AROUND):
        for entry in read_range(store, offset, limit):
            largest = max([largest, *(job_range.first + job_range.n - 1 for job_range in entry.record.ranges)])
            if ids := [job_range.first for job_range in entry.record.ranges if job_range.change == Change.ACCEPTED]:
                return min(ids), largest
    return None, largest


def was_given(store: Store, job_id: int) -> bool:
    """Whether the id was ever assigned: a later job exists, or the end of the ledger mentions it or a later one."""
    store = ledger_of(store, job_id)
    page = store.browse(Query(), job_id - 1, 1)
    if page.jobs or page.next is not None:
        return True
    _, end = store.ledger_extent()
    return any(
        job_range.first + job_range.n > job_id
        for entry in read_range(store, max(0, end - MAX_READ), MAX_READ)
        for job_range in entry.record.ranges
    )


def _of_job(entries: Iterable[LedgerEntry], job_id: int) -> list[TimelineEntry]:
    return [_moment(entry, job_range, job_id) for entry in entries for job_range in _ranges_of(entry, job_id)]


def _ranges_of(entry: LedgerEntry, job_id: int) -> list[JobRange]:
    """Usually one; a job that is shed on arrival is accepted and dies in one record."""
    return [job_range for job_range in entry.record.ranges if job_range.first <= job_id < job_range.first + job_range.n]


def _moment(entry: LedgerEntry, job_range: JobRange, job_id: int) -> TimelineEntry:
    trait = job_range.traits[job_id - job_range.first] if job_range.traits else None
    return TimelineEntry(
        entry.record.at,
        entry.offset,
        job_range.change,
        job_range.delivery,
        job_range.attempt,
        _note(entry, job_range),
        trait.error_kind if trait else None,
        trait.error if trait else None,
        entry.record.owner if job_range.change == Change.CLAIMED else None,
    )


def without_owners(timeline: Timeline) -> Timeline:
    """The timeline without workers' names, for a tenant."""
    return replace(timeline, moments=[replace(moment, owner=None) for moment in timeline.moments])


def _note(entry: LedgerEntry, job_range: JobRange) -> str:
    record, at = entry.record, entry.record.at
    match job_range.change:
        case Change.ACCEPTED:
            due = f", due {length(job_range.due_at - at)} later" if job_range.due_at > at else ""
            attempts = "1 attempt" if job_range.max_attempts == 1 else f"{job_range.max_attempts:,} attempts"
            return (f"by schedule {record.name}, " if record.name else "") + attempts + due
        case Change.CLAIMED:
            return f"{length(at - job_range.due_at)} after it was due"
        case Change.EXTENDED:
            return f"the lease lasts {length(job_range.until - at)} from here"
        case Change.RETRIED:
            return f"failed after {length(at - job_range.claimed_at)}, due again {length(job_range.until - at)} later"
        case Change.ACKED | Change.DIED | Change.DISCARDED:
            return f"after {length(at - job_range.claimed_at)} of work, {length(at - job_range.enqueued_at)} in all"
        case Change.RELEASED:
            return f"handed back uncharged, due {length(job_range.until - at)} later"
        case _:
            return _NOTES.get(job_range.change, "")


_NOTES: Final[dict[str, str]] = {
    Change.MERGED: "a newer payload took its place",
    Change.CANCELLED: "before it ran",
    Change.CANCEL_REQUESTED: "its worker is notified",
    Change.EXPIRED: "it was not claimed in time",
    Change.SHED: "it gave way to newer work in a full queue",
    Change.REDRIVEN: "with all its attempts again",
    Change.PURGED: "removed from the store",
}
