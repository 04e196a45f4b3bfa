"""The ledger of a store, whatever store it is: offsets without a gap, and a legal life of every job.

    from forebay_proof.checkers import ledger

    assert ledger(store.ledger(-1, 1_000)) == []

Spans are read as the changes that the other checkers judge, so conservation, owners, attempts and early judge them too.
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
    """Entries as change sets, one a span, each with the offset that it comes from."""

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
        for span in record.spans:
            places = [place for place in range(span.n) if self._knows(offset, record, span, place)]
            if places:
                self.changes.append(_change(record, span, places))
                self.offsets.append(offset)

    def _knows(self, offset: int, record: Record, span: JobRange, place: int) -> bool:
        """Whether the job is to be checked; what only the ledger's spans show is checked here."""
        job_id = span.first + place
        if span.change == Change.ACCEPTED:
            self._deliveries[job_id] = 0
        if job_id not in self._deliveries:
            return False
        if record.at < self._last.get(job_id, 0):
            self._report(
                offset, job_id, f"{span.change} {self._last[job_id] - record.at} µs before what came before it"
            )
        if span.change != Change.EXTENDED:
            self._last[job_id] = record.at
        if span.change == Change.CLAIMED:
            if span.delivery != self._deliveries[job_id] + 1:
                self._report(offset, job_id, f"delivery {span.delivery} after {self._deliveries[job_id]}")
            self._deliveries[job_id] = span.delivery
            self._turns[job_id] = _turn_of(span, place)
        elif span.change in _OF_A_TURN:
            output = _turn_of(span, place)
            claimed = self._turns.get(job_id, output)
            if output != claimed:
                self._report(offset, job_id, f"{span.change} says {output}, its claim said {claimed}")
        return True

    def _report(self, offset: int, job_id: int | None, message: str) -> None:
        self.found.append(Violation("ledger", offset, job_id, message))


def kind_of(span: JobRange, place: int) -> str:
    """The kind of one of the jobs of a span, which may be another than its neighbours'."""
    trait = _trait(span, place)
    return span.kind if trait is None or trait.kind is None else trait.kind


def _turn_of(span: JobRange, place: int) -> tuple[object, ...]:
    return span.queue, kind_of(span, place), span.delivery, span.attempt, span.enqueued_at, span.due_at, span.claimed_at


def _change(record: Record, span: JobRange, places: list[int]) -> ChangeSet:
    at, ids = record.at, [span.first + place for place in places]
    match span.change:
        case Change.ACCEPTED:
            born = (span.queue, span.kind, b"", span.due_at, span.due_at <= at, span.max_attempts)
            return ChangeSet(at, entries=[Entry(job_id, *born) for job_id in ids])
        case Change.MERGED:
            newer = Replaced(due_at=span.due_at) if span.due_at else None
            return ChangeSet(at, merges=[Merge(job_id, span.kind, b"", newer=newer) for job_id in ids])
        case _:
            jobs = JobChanges()
            for job_id, place in zip(ids, places, strict=True):
                trait = _trait(span, place)
                dies = span.change == Change.DIED
                error = Failure("" if trait is None else trait.error_kind or "") if dies else None
                jobs.add(job_id, span.delivery, Change(span.change), span.until, error)
            return ChangeSet(at, jobs=jobs.jobs, owner=record.owner)


def _trait(span: JobRange, place: int) -> Trait | None:
    return None if span.traits is None else span.traits[place]
