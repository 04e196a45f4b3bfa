"""Jobs as rows: runs on the way in, pictures of jobs on the way out, and packs in the hands of a holder. Pure.

Alike is what a claim looks at: queue, class, due time, rank, lives, cost. Only neighbours of a call share a run, so
that ids, and with them the order of acceptance, stay what they are. What else differs travels in `facts`, an object a
job. A pack is what one claim took from one queue, as one row. Its members are runs, and its jobs have places in it,
which never change. So a lease that knows its place needs no look-up to be settled.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from forebay.core.entries import Entry
from forebay.core.gate import lane_key
from forebay.core.instant import Instant
from forebay.core.job import Draft, Job, State
from forebay.core.lease import Fence, Lease
from forebay.core.outcome import Failure
from forebay.core.stamp import RankRule
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


NO_FACTS: Final = Facts()
"""Those of most jobs."""

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
    return None if facts == NO_FACTS else facts


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
    return None if facts == NO_FACTS else Json(_encode([facts]))


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


class RunRow(NamedTuple):
    """The columns `{run}` of a run that nobody holds, or `{running}` of a member of a pack; only these have a pack."""

    last_id: int
    n: int
    size: int
    state: int
    queue: str
    kind: str
    due_at: Instant
    enqueued_at: Instant
    delivery: int
    attempt: int
    max_attempts: int
    expires_at: Instant | None
    errors: str | None
    facts: bytes | None
    bodies: bytes
    asked: str | None
    gone: str | None
    claimed_at: Instant | None
    lease_until: Instant | None
    owner: str | None
    beat: bool
    pack: int
    jobs: int
    number: int
    base: int


def jobs_of_run(row: RunRow) -> Iterator[Job]:
    """Every job that is still in it."""
    state = _STATES[row.state]
    past = errors_of(row.errors)
    first, skip, gone, asked = row.last_id - row.n + 1, row.size - row.n, row.gone, row.asked
    raws = _bodies(row.bodies)[skip:]
    each = _facts(row.facts)[skip:] if row.facts is not None else [None] * row.n
    for place, (raw, given) in enumerate(zip(raws, each, strict=True)):
        if gone is not None and gone[place] == "1":
            continue
        own = given or NO_FACTS
        yield Job(
            first + place,
            row.queue,
            own.kind or row.kind,
            bytes(raw),
            state,
            own.priority,
            row.enqueued_at,
            row.due_at,
            row.attempt,
            row.max_attempts,
            row.delivery,
            own.key,
            own.tenant,
            own.subject,
            own.deadline,
            row.expires_at,
            own.meta,
            row.owner,
            row.claimed_at,
            row.lease_until,
            None,
            asked is not None and asked[place] == "1",
            past,
            None,
            own.cost,
        )


class EndedRow(NamedTuple):
    """The columns `{ended}` of a finished job."""

    id: int
    state: int
    queue: str
    kind: str
    due_at: Instant
    enqueued_at: Instant
    delivery: int
    attempt: int
    max_attempts: int
    expires_at: Instant | None
    finished_at: Instant
    cancel_requested: bool
    errors: str | None
    facts: bytes | None
    body: bytes
    result: bytes | None
    home: str | None

    def job(self) -> Job:
        own = (None if self.facts is None else _one_facts(self.facts)) or NO_FACTS
        return Job(
            self.id,
            self.queue,
            own.kind or self.kind,
            self.body,
            ENDED[self.state],
            own.priority,
            self.enqueued_at,
            self.due_at,
            self.attempt,
            self.max_attempts,
            self.delivery,
            own.key,
            own.tenant,
            own.subject,
            own.deadline,
            self.expires_at,
            own.meta,
            None,
            None,
            None,
            self.finished_at,
            self.cancel_requested,
            errors_of(self.errors),
            self.result,
            own.cost,
            self.home,
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


_places: Final = msgspec.json.Decoder(list[list[int]]).decode


class Ref:
    """Where jobs of one member of a pack are. `base`: the place of the first; `jobs`: how many the whole pack has.

    `beat`: the pack follows its holder's heartbeat.
    """

    __slots__ = ("base", "beat", "delivery", "jobs", "last_id", "n", "number", "pack")

    def __init__(
        self, pack: int, jobs: int, number: int, base: int, last_id: int, n: int, delivery: int, beat: bool
    ) -> None:
        self.pack = pack
        self.jobs = jobs
        self.number = number
        self.base = base
        self.last_id = last_id
        self.n = n
        self.delivery = delivery
        self.beat = beat

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and (self.pack, self.number) == (other.pack, other.number)

    def __hash__(self) -> int:
        return hash((self.pack, self.number))

    def at(self, job_id: int) -> int:
        """The place of a job in its member."""
        return job_id - self.last_id + self.n - 1

    def place(self, job_id: int) -> int:
        """The place of a job in its pack."""
        return self.base + job_id - self.last_id + self.n - 1


class Held(Lease, frozen=True):
    """A lease that knows its pack."""

    ref: Ref


def ref_of(lease: Lease) -> Ref | None:
    """Where a leased job is, if that is known and can be right."""
    if not isinstance(lease, Held):
        return None
    ref = lease.ref
    return ref if ref.delivery == lease.job.delivery and 0 <= ref.at(lease.job.id) < ref.n else None


class Place(NamedTuple):
    """A row of `places`: a job that runs, until when it is leased, and whether its end is requested."""

    id: int
    until: Instant
    asked: bool
    pack: int
    jobs: int
    number: int
    base: int
    last_id: int
    n: int
    delivery: int
    beat: bool

    @property
    def fence(self) -> Fence:
        return (self.id, self.delivery)

    @property
    def ref(self) -> Ref:
        return Ref(*self[3:])


def ref_in(row: RunRow) -> Ref:
    """Where the jobs of a member are."""
    return Ref(row.pack, row.jobs, row.number, row.base, row.last_id, row.n, row.delivery, row.beat)


def leases_of(row: RunRow) -> Iterator[Held]:
    """The leases of a member."""
    ref = ref_in(row)
    return (Held(job, row.owner or "", row.lease_until or 0, ref) for job in jobs_of_run(row))


class _Span(Struct, array_like=True):
    """A member, as the ledger says it."""

    change: str
    first: int
    n: int
    queue: str
    kind: str
    delivery: int
    attempt: int
    none: int
    enqueued_at: Instant
    due_at: Instant
    claimed_at: Instant
    until: Instant


class _Extent(Struct, array_like=True):
    """What the ledger does not say of a member."""

    max_attempts: int
    size: int
    expires_at: Instant | None
    asked: bool


class _Traits(Struct, array_like=True):
    """What few members have."""

    number: int
    facts: list[Facts | None] | None
    errors: tuple[Failure, ...]


_NO_TRAITS: Final = _Traits(0, None, ())
_spans: Final = msgspec.json.Decoder(list[_Span]).decode
_extents: Final = msgspec.json.Decoder(list[_Extent]).decode
_traits: Final = msgspec.json.Decoder(list[_Traits]).decode
_pack_bodies: Final = msgspec.json.Decoder(list[list[msgspec.Raw]]).decode


class PackRow(NamedTuple):
    """A row of `forebay.claimed`. `flag`: why there is nothing else in it, if not 0."""

    flag: int
    stamp: Instant
    want: int
    pack: int
    n: int
    beat: bool
    lead: int | None
    floor: int | None
    spans: str
    extents: str
    traits: str | None
    bodies: str
    places: str | None

    def leases(self, owner: str) -> list[Held]:
        """In the order in which the jobs were handed out."""
        found: list[Held] = []
        base = 0
        traits = {} if self.traits is None else {own.number: own for own in _traits(f"[{self.traits}]")}
        members = zip(
            _spans(f"[{self.spans}]"), _extents(f"[{self.extents}]"), _pack_bodies(f"[{self.bodies}]"), strict=True
        )
        for number, (span, extent, bodies) in enumerate(members, 1):
            ref = Ref(self.pack, self.n, number, base, span.first + span.n - 1, span.n, span.delivery, self.beat)
            skip, own = extent.size - span.n, traits.get(number, _NO_TRAITS)
            for at in range(span.n):
                facts = NO_FACTS if own.facts is None else own.facts[skip + at] or NO_FACTS
                job = Job(
                    span.first + at,
                    span.queue,
                    facts.kind or span.kind,
                    bytes(bodies[skip + at]),
                    State.RUNNING,
                    facts.priority,
                    span.enqueued_at,
                    span.due_at,
                    span.attempt,
                    extent.max_attempts,
                    span.delivery,
                    facts.key,
                    facts.tenant,
                    facts.subject,
                    facts.deadline,
                    extent.expires_at,
                    facts.meta,
                    owner,
                    span.claimed_at,
                    span.until,
                    None,
                    extent.asked,
                    own.errors,
                    None,
                    facts.cost,
                )
                found.append(Held(job, owner, span.until, ref))
            base += span.n
        if self.places is None:
            return found
        order = [place for each in _places(f"[{self.places}]") for place in each]
        return [lease for _, lease in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]
