"""The ledger of a store, whatever store it is: offsets without a gap, and a legal life of every job.

    from forebay_proof.checkers import ledger

    assert ledger(store.ledger(-1, 1_000)) == []

Ranges are read as the changes that the other checkers judge: conservation, owners, attempts and early judge them too.
Checked here besides: deliveries grow by one, time does not run backwards along a life, and what ends a turn says of it
what its claim said. (Instants of different jobs need not follow the offsets: a call may begin before another and be
committed after it. So may a holder's last word about a job before an extension of its lease.) Jobs that were accepted
before the first entry, or while the ledger was off, are not judged.
`Violation.event` is the offset.
"""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from forebay.core.changeset import ChangeSet, JobChanges
from forebay.core.entries import Entry, Merge, Replaced
from forebay.core.instant import Instant
from forebay.core.ledger import Change, JobRange, LedgerEntry, Record, Trait
from forebay.core.outcome import Failure
from forebay_proof.checkers.attempts import attempts
from forebay_proof.checkers.conservation import conservation
from forebay_proof.checkers.early import early
from forebay_proof.checkers.owners import owners
from forebay_proof.checkers.violation import Violation

_OF_A_TURN = (
    *(Change.EXTENDED, Change.CANCEL_REQUESTED),
    *(Change.ACKED, Change.RETRIED, Change.DIED, Change.RELEASED, Change.DISCARDED),
)


def ledger(
    entries: Sequence[LedgerEntry], *, drained: bool = False, dropped: Collection[str] | None = None
) -> list[Violation]:
    """As `check_all`; without `dropped` handlers may give up whenever they like."""
    history = _ChangeSets(entries)
    changes, offsets = history.changes, history.offsets
    if dropped is None:
        dropped = {each.error.kind for change in changes for each in change.jobs if each.error is not None}
    judged = [
        *conservation(changes, drained=drained),
        *owners(changes),
        *attempts(changes, dropped=dropped),
        *early(changes),
    ]
    places = [*offsets, offsets[-1] + 1 if offsets else 0]
    return [*history.found, *(replace(violation, event=places[violation.event]) for violation in judged)]


class _ChangeSets:
    """Entries as change sets, one a range, each with the offset that it comes from."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        self.changes: list[ChangeSet] = []
        self.offsets: list[int] = []
        self.found: list[Violation] = []
        self._deliveries: dict[int, int] = {}
        self._turns: dict[int, tuple[object, ...]] = {}
        self._last: dict[int, Instant] = {}
        following = None
        for entry in entries:
            if following is not None and entry.offset != following:
                self._report(entry.offset, None, f"offset {following} is missing")
            following = entry.offset + 1
            self._take(entry.offset, entry.record)

    def _take(self, offset: int, record: Record) -> None:
        if record.verb == "put_ledger_rule":
            self._deliveries.clear()
            self._turns.clear()
        for job_range in record.ranges:
            places = [place for place in range(job_range.n) if self._knows(offset, record, job_range, place)]
            if places:
                self.changes.append(_change(record, job_range, places))
                self.offsets.append(offset)

    def _knows(self, offset: int, record: Record, job_range: JobRange, place: int) -> bool:
        """Whether the job is to be checked; what only the ledger's ranges show is checked here."""
        job_id = job_range.first + place
        if job_range.change == Change.ACCEPTED:
            self._deliveries[job_id] = 0
        if job_id not in self._deliveries:
            return False
        if record.at < self._last.get(job_id, 0):
            self._report(
                offset, job_id, f"{job_range.change} {self._last[job_id] - record.at} µs before what came before it"
            )
        if job_range.change != Change.EXTENDED:
            self._last[job_id] = record.at
        if job_range.change == Change.CLAIMED:
            if job_range.delivery != self._deliveries[job_id] + 1:
                self._report(offset, job_id, f"delivery {job_range.delivery} after {self._deliveries[job_id]}")
            self._deliveries[job_id] = job_range.delivery
            self._turns[job_id] = _turn_of(job_range, place)
        elif job_range.change in _OF_A_TURN:
            output = _turn_of(job_range, place)
            claimed = self._turns.get(job_id, output)
            if output != claimed:
                self._report(offset, job_id, f"{job_range.change} says {output}, its claim said {claimed}")
        return True

    def _report(self, offset: int, job_id: int | None, message: str) -> None:
        self.found.append(Violation("ledger", offset, job_id, message))


def kind_of(job_range: JobRange, place: int) -> str:
    """The kind of one of the jobs of a range, which may be another than its neighbours'."""
    trait = _trait(job_range, place)
    return job_range.kind if trait is None or trait.kind is None else trait.kind


def _turn_of(job_range: JobRange, place: int) -> tuple[object, ...]:
    return (
        job_range.queue,
        kind_of(job_range, place),
        job_range.delivery,
        job_range.attempt,
        job_range.enqueued_at,
        job_range.due_at,
        job_range.claimed_at,
    )


def _change(record: Record, job_range: JobRange, places: list[int]) -> ChangeSet:
    at, ids = record.at, [job_range.first + place for place in places]
    match job_range.change:
        case Change.ACCEPTED:
            born = (
                job_range.queue,
                job_range.kind,
                b"",
                job_range.due_at,
                job_range.due_at <= at,
                job_range.max_attempts,
            )
            return ChangeSet(at, entries=[Entry(job_id, *born) for job_id in ids])
        case Change.MERGED:
            newer = Replaced(due_at=job_range.due_at) if job_range.due_at else None
            return ChangeSet(at, merges=[Merge(job_id, job_range.kind, b"", newer=newer) for job_id in ids])
        case _:
            jobs = JobChanges()
            for job_id, place in zip(ids, places, strict=True):
                trait = _trait(job_range, place)
                dies = job_range.change == Change.DIED
                error = Failure("" if trait is None else trait.error_kind or "") if dies else None
                jobs.add(job_id, job_range.delivery, Change(job_range.change), job_range.until, error)
            return ChangeSet(at, jobs=jobs.jobs, owner=record.owner)


def _trait(job_range: JobRange, place: int) -> Trait | None:
    return None if job_range.traits is None else job_range.traits[place]
