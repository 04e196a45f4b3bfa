"""Jobs in runs: grouping alike entries on the way in, pictures of jobs on the way out. Pure.

Alike is what a claim looks at: queue, class, due time, rank, lives, cost. Only neighbours of a call share a run, so
that ids, and with them the order of acceptance, stay what they are. What else differs travels in `facts`, an object a
job.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from forebay.core.event import Entry
from forebay.core.gate import lane_key
from forebay.core.instant import Instant, Span
from forebay.core.job import Draft, Job, State
from forebay.core.lease import Lease
from forebay.core.outcome import Failure
from forebay.core.rank import RankRule
from forebay.core.stamp import Stamper
from forebay.store.postgres.connect import Json

BEHIND, READY, RUNNING, LATER = range(4)
"""States of a run in its table. `BEHIND` the head of its line."""

_STATES: Final = (State.WAITING, State.READY, State.RUNNING, State.WAITING)

ENDED: Final = {3: State.DONE, 4: State.DEAD, 5: State.CANCELLED}
"""States of a finished job in its table."""


class Facts(Struct, omit_defaults=True):
    """What most jobs do not have."""

    kind: str | None = None
    tenant: str | None = None
    subject: str | None = None
    key: str | None = None
    priority: int = 0
    deadline: Instant | None = None
    meta: dict[str, str] | None = None
    cost: int = 1


_NONE: Final = Facts()
_encode: Final = msgspec.json.Encoder().encode
_bodies: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_facts: Final = msgspec.json.Decoder(list[Facts | None]).decode
_one_facts: Final = msgspec.json.Decoder(Facts | None).decode
_errors: Final = msgspec.json.Decoder(tuple[Failure, ...]).decode


class Stamp(NamedTuple):
    """What its queue's spec makes of a draft; the server adds the time."""

    rule: RankRule
    lives: int
    cls: str
    cost: int
    gates: tuple[str, ...] = ()

    @property
    def lane(self) -> str:
        return lane_key(self.cls, self.gates)


class Run(Struct):
    """Alike neighbours of one call."""

    stamp: Stamp
    drafts: list[Draft]

    def columns(self) -> tuple[Any, ...]:
        """As `forebay.put` takes them; payloads and facts come last."""
        stamp, draft = self.stamp, self.drafts[0]
        return (
            len(self.drafts),
            draft.queue,
            stamp.cls,
            stamp.lane,
            text_of(stamp.gates) if stamp.gates else None,
            stamp.cost,
            draft.kind,
            draft.delay,
            draft.run_at,
            stamp.rule.base,
            stamp.rule.timed,
            stamp.lives,
            draft.expires_at,
            facts_json(self.drafts, draft.kind),
            Json(b"[" + b",".join([each.body for each in self.drafts]) + b"]"),
        )


def group(drafts: Iterable[Draft], stamp: Callable[[Draft], Stamp]) -> list[Run]:
    """Runs, in the order of the drafts. A job that has gates or may expire is alone."""
    runs: list[Run] = []
    head: Draft | None = None
    last: Stamp | None = None
    for draft in drafts:
        own = stamp(draft)
        if (
            head is not None
            and (own is last or own == last)
            and not own.gates
            and draft.queue == head.queue
            and draft.delay == head.delay
            and draft.run_at == head.run_at
            and draft.expires_at is None
            and head.expires_at is None
        ):
            runs[-1].drafts.append(draft)
        else:
            head, last = draft, own
            runs.append(Run(own, [draft]))
    return runs


def facts_of(draft: Draft | Entry, kind: str) -> Facts | None:
    """What is to be kept of a draft beside its kind and payload."""
    facts = Facts(
        None if draft.kind == kind else draft.kind,
        draft.tenant,
        draft.subject,
        draft.key,
        draft.priority,
        draft.deadline,
        draft.meta,
        draft.cost,
    )
    return None if facts == _NONE else facts


def facts_json(drafts: Sequence[Draft | Entry], kind: str) -> Json | None:
    """An object or null a job; None when no job has anything to keep."""
    if all(_plain(draft, kind) for draft in drafts):
        return None
    return Json(_encode([facts_of(draft, kind) for draft in drafts]))


def one_facts(text: Any) -> Facts | None:
    """Those of a job that is on its own."""
    return None if text is None else _facts(text)[-1]


def merged_facts(own: Facts, priority: int, deadline: Instant | None, meta: dict[str, str] | None) -> Json | None:
    """Of a job on its own that took over newer work: whose it is stays, how urgent it is does not."""
    facts = msgspec.structs.replace(own, kind=None, priority=priority, deadline=deadline, meta=meta)
    return None if facts == _NONE else Json(_encode([facts]))


def _plain(draft: Draft | Entry, kind: str) -> bool:
    return (
        draft.tenant is None
        and draft.subject is None
        and not draft.priority
        and draft.meta is None
        and draft.key is None
        and draft.deadline is None
        and draft.cost == 1
        and draft.kind == kind
    )


class Ref:
    """Where running jobs are: what a settle needs to find their run. `beat`: the run follows its holder's heartbeat."""

    __slots__ = ("beat", "delivery", "last_id", "n", "single")

    def __init__(self, single: bool, last_id: int, n: int, delivery: int, beat: bool = True) -> None:
        self.single = single
        self.last_id = last_id
        self.n = n
        self.delivery = delivery
        self.beat = beat

    @property
    def key(self) -> tuple[bool, int]:
        return (self.single, self.last_id)

    def place(self, job_id: int) -> int:
        return job_id - self.last_id + self.n - 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and self.key == other.key and self.delivery == other.delivery

    def __hash__(self) -> int:
        return hash(self.key)


class Held(Lease, frozen=True):
    """A lease that knows its run."""

    ref: Ref


def ref_of(lease: Lease) -> Ref | None:
    """The run that a lease was taken from, if it can be that."""
    if not isinstance(lease, Held):
        return None
    ref = lease.ref
    return ref if ref.delivery == lease.job.delivery and 0 <= ref.place(lease.job.id) < ref.n else None


def leases_of(row: Sequence[Any], owner: str) -> list[Held]:
    """The leases of a running run."""
    return [Held(job, owner, job.lease_until or 0, ref) for job, ref in jobs_of_run(row, owner)]


def jobs_of_run(row: Sequence[Any], held_by: str | None = None) -> Iterator[tuple[Job, Ref]]:
    """Every job that is still in a run, from the columns `{run}`; `held_by` where the row does not tell."""
    (single, last_id, n, size, stored, queue, kind, due_at, enqueued_at, delivery, attempt, lives) = row[:12]
    claimed_at, until, expires_at, errors, facts, bodies, gone, asked, owner, beat = row[12:22]
    running = stored == RUNNING
    state = _STATES[stored]
    ref = Ref(single, last_id, n, delivery, beat)
    past = errors_of(errors)
    raws = _bodies(bodies)[size - n :]
    each = _facts(facts)[size - n :] if facts is not None else [None] * n
    for place, (raw, given) in enumerate(zip(raws, each, strict=True)):
        if gone is not None and gone[place] == "1":
            continue
        own = given or _NONE
        job = Job(
            last_id - n + 1 + place,
            queue,
            own.kind or kind,
            bytes(raw),
            state,
            own.priority,
            enqueued_at,
            due_at,
            attempt,
            lives,
            delivery,
            own.key,
            own.tenant,
            own.subject,
            own.deadline,
            expires_at,
            own.meta,
            (held_by or owner) if running else None,
            claimed_at if running else None,
            until if running else None,
            None,
            asked is not None and asked[place] == "1",
            past,
            None,
            own.cost,
        )
        yield job, ref


def ended_job(row: Sequence[Any]) -> Job:
    """A finished job, from the columns `{ended}`."""
    (job_id, state, queue, kind, due_at, enqueued_at, delivery, attempt, lives, expires_at) = row[:10]
    finished_at, cancel_requested, errors, facts, body, result, home = row[10:]
    own = (None if facts is None else _one_facts(facts)) or _NONE
    return Job(
        job_id,
        queue,
        own.kind or kind,
        body,
        ENDED[state],
        own.priority,
        enqueued_at,
        due_at,
        attempt,
        lives,
        delivery,
        own.key,
        own.tenant,
        own.subject,
        own.deadline,
        expires_at,
        own.meta,
        None,
        None,
        None,
        finished_at,
        cancel_requested,
        errors_of(errors),
        result,
        own.cost,
        home,
    )


def errors_before(job: Job, failure: Failure, kept: int) -> str:
    """The job's failures with this one, as JSON that ends where the instant of the last one belongs."""
    newest = msgspec.structs.replace(failure, attempt=job.attempt, at=1)
    past = job.errors[-kept + 1 :] if kept > 1 else ()
    return _encode((*past, newest)).decode().removesuffix("1]]")


def text_of(value: object) -> str:
    """A value as the JSON that a column holds."""
    return _encode(value).decode()


def errors_of(text: str | None) -> tuple[Failure, ...]:
    return () if text is None else _errors(text)


def span_kept(stamper: Stamper) -> Span:
    """How long a done or cancelled job stays readable."""
    return stamper.kept_until(0)
