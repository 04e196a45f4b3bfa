"""Jobs as rows: drafts encoded as runs, rows decoded as jobs, and the leases of packs. Pure.

Jobs are alike if they are the same to a claim: same queue, class, due time, rank, attempts allowed and cost. Only
neighbours of a call share a run, so that ids remain in the order of acceptance. All other differences are in `facts`,
an object for each job. A pack is what one claim took from one queue, as one row. Its members are runs, and the
positions of its jobs never change. So a lease that has its position needs no look-up to be settled.
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
from forebay.store.postgres.connect import JsonParameter

BEHIND, READY, RUNNING, LATER = range(4)
"""States of a run in its table. `BEHIND`: behind the head of its line."""

_STATES: Final = (State.WAITING, State.READY, State.RUNNING, State.WAITING)

ENDED: Final = {3: State.DONE, 4: State.DEAD, 5: State.CANCELLED}
"""States of a finished job in its table."""


class RareFields(Struct, omit_defaults=True):
    """What most jobs do not have."""

    kind: str | None = None
    tenant: str | None = None
    subject: str | None = None
    key: str | None = None
    priority: int = 0
    deadline: Instant | None = None
    meta: dict[str, str] | None = None
    cost: int = 1


NO_FACTS: Final = RareFields()

_encode: Final = msgspec.json.Encoder().encode
_bodies: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_facts: Final = msgspec.json.Decoder(list[RareFields | None]).decode
_one_facts: Final = msgspec.json.Decoder(RareFields | None).decode
_errors: Final = msgspec.json.Decoder(tuple[Failure, ...]).decode


class Stamp(NamedTuple):
    """The columns that the spec of its queue determines for a draft; the server adds the time."""

    rule: RankRule
    max_attempts: int
    cls: str
    cost: int
    gates: tuple[str, ...] = ()

    @property
    def lane(self) -> str:
        return lane_key(self.cls, self.gates)


class DraftRun(Struct):
    """Alike jobs of one call, with consecutive ids."""

    stamp: Stamp
    drafts: list[Draft]

    def columns(self) -> tuple[Any, ...]:
        """The columns of `forebay.draft_run` from `n` on, then facts and payloads."""
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
            stamp.max_attempts,
            draft.expires_at,
            facts_json(self.drafts, draft.kind),
            JsonParameter(b"[" + b",".join([each.body for each in self.drafts]) + b"]"),
        )


def group(drafts: Iterable[Draft], stamp: Callable[[Draft], Stamp]) -> list[DraftRun]:
    """Runs, in the order of the drafts. A job that has gates or may expire is alone."""
    runs: list[DraftRun] = []
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
            runs.append(DraftRun(own, [draft]))
    return runs


def facts_of(draft: Draft | Entry, kind: str) -> RareFields | None:
    """What a row keeps of a draft besides its kind and payload."""
    facts = RareFields(
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


def facts_json(drafts: Sequence[Draft | Entry], kind: str) -> JsonParameter | None:
    """An object or null for each job; None if no job has facts."""
    if all(_plain(draft, kind) for draft in drafts):
        return None
    return JsonParameter(_encode([facts_of(draft, kind) for draft in drafts]))


def one_facts(text: Any) -> RareFields | None:
    """The facts of a run of one job."""
    return None if text is None else _facts(text)[-1]


def merged_facts(
    own: RareFields, priority: int, deadline: Instant | None, meta: dict[str, str] | None
) -> JsonParameter | None:
    """The facts of a waiting job after a merge: tenant, subject and key stay, urgency is that of the newer draft."""
    facts = msgspec.structs.replace(own, kind=None, priority=priority, deadline=deadline, meta=meta)
    return None if facts == NO_FACTS else JsonParameter(_encode([facts]))


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
    """The columns `{run}` of an unclaimed run, or `{running}` of a member of a pack; only the latter has a pack."""

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
    cancel_requested: str | None
    settled: str | None
    claimed_at: Instant | None
    lease_until: Instant | None
    owner: str | None
    by_heartbeat: bool
    pack: int
    jobs: int
    number: int
    base: int


def jobs_of_run(row: RunRow) -> Iterator[Job]:
    """Every job that is still in it."""
    state, past = _STATES[row.state], errors_of(row.errors)
    first, skip, settled, requests = row.last_id - row.n + 1, row.size - row.n, row.settled, row.cancel_requested
    bodies = _bodies(row.bodies)[skip:]
    facts = _facts(row.facts)[skip:] if row.facts is not None else [None] * row.n
    for offset, (body, own) in enumerate(zip(bodies, facts, strict=True)):
        if settled is None or settled[offset] == "0":
            requested = requests is not None and requests[offset] == "1"
            leased = (row.owner, row.claimed_at, row.lease_until)
            yield _job(row, first + offset, own or NO_FACTS, state, bytes(body), requested, past, leased)


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
        state, requested, past = ENDED[self.state], self.cancel_requested, errors_of(self.errors)
        ended = (self.finished_at, self.result, self.home)
        return _job(self, self.id, own, state, self.body, requested, past, ended=ended)


def _job(
    row: RunRow | EndedRow,
    job_id: int,
    own: RareFields,
    state: State,
    body: bytes,
    cancel_requested: bool,
    errors: tuple[Failure, ...],
    leased: tuple[str | None, Instant | None, Instant | None] = (None, None, None),
    ended: tuple[Instant | None, bytes | None, str | None] = (None, None, None),
) -> Job:
    """`leased`: owner, claimed at, lease until; `ended`: finished at, result, home."""
    finished_at, result, home = ended
    return Job(
        job_id,
        row.queue,
        own.kind or row.kind,
        body,
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
        *leased,
        finished_at,
        cancel_requested,
        errors,
        result,
        own.cost,
        home,
    )


def failures_with(job: Job, failure: Failure, kept: int) -> str:
    """The job's failures including this one, as JSON that is cut before the instant of the last one."""
    newest = msgspec.structs.replace(failure, attempt=job.attempt, at=1)
    past = job.errors[-kept + 1 :] if kept > 1 else ()
    return _encode((*past, newest)).decode().removesuffix("1]]")


def text_of(value: object) -> str:
    """A value as the JSON that a column holds."""
    return _encode(value).decode()


def errors_of(text: str | None) -> tuple[Failure, ...]:
    return () if text is None else _errors(text)


_positions: Final = msgspec.json.Decoder(list[list[int]]).decode


class MemberRef:
    """One member of a pack. `base`: the position of its first job; `jobs`: how many jobs the whole pack has.

    `by_heartbeat`: the heartbeat of its holder extends the pack.
    """

    __slots__ = ("base", "by_heartbeat", "delivery", "jobs", "last_id", "n", "number", "pack")

    def __init__(
        self, pack: int, jobs: int, number: int, base: int, last_id: int, n: int, delivery: int, by_heartbeat: bool
    ) -> None:
        self.pack = pack
        self.jobs = jobs
        self.number = number
        self.base = base
        self.last_id = last_id
        self.n = n
        self.delivery = delivery
        self.by_heartbeat = by_heartbeat

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemberRef) and (self.pack, self.number) == (other.pack, other.number)

    def __hash__(self) -> int:
        return hash((self.pack, self.number))

    def offset(self, job_id: int) -> int:
        """The position of a job in its member."""
        return job_id - self.last_id + self.n - 1

    def position(self, job_id: int) -> int:
        """The position of a job in its pack."""
        return self.base + self.offset(job_id)


class PackLease(Lease, frozen=True):
    """A lease with its member of a pack."""

    ref: MemberRef


def ref_of(lease: Lease) -> MemberRef | None:
    """The member of a leased job, if the lease has one that is valid."""
    if not isinstance(lease, PackLease):
        return None
    ref = lease.ref
    return ref if ref.delivery == lease.job.delivery and 0 <= ref.offset(lease.job.id) < ref.n else None


class RunningRow(NamedTuple):
    """A row of `running_jobs`: a running job, the end of its lease, and whether its cancellation is requested."""

    id: int
    until: Instant
    cancel_requested: bool
    pack: int
    jobs: int
    number: int
    base: int
    last_id: int
    n: int
    delivery: int
    by_heartbeat: bool

    @property
    def fence(self) -> Fence:
        return (self.id, self.delivery)

    @property
    def ref(self) -> MemberRef:
        return MemberRef(
            self.pack, self.jobs, self.number, self.base, self.last_id, self.n, self.delivery, self.by_heartbeat
        )


def member_ref(row: RunRow) -> MemberRef:
    return MemberRef(row.pack, row.jobs, row.number, row.base, row.last_id, row.n, row.delivery, row.by_heartbeat)


def leases_of(row: RunRow) -> Iterator[PackLease]:
    """The leases of a member."""
    ref = member_ref(row)
    return (PackLease(job, row.owner or "", row.lease_until or 0, ref) for job in jobs_of_run(row))


class _MemberRange(Struct, array_like=True):
    """A member as a range of the ledger."""

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
    """What a range of the ledger does not have."""

    max_attempts: int
    size: int
    expires_at: Instant | None
    cancel_requested: bool


class _Traits(Struct, array_like=True):
    """What only few members have."""

    number: int
    facts: list[RareFields | None] | None
    errors: tuple[Failure, ...]


_NO_TRAITS: Final = _Traits(0, None, ())
_member_ranges: Final = msgspec.json.Decoder(list[_MemberRange]).decode
_extents: Final = msgspec.json.Decoder(list[_Extent]).decode
_traits: Final = msgspec.json.Decoder(list[_Traits]).decode
_pack_bodies: Final = msgspec.json.Decoder(list[list[msgspec.Raw]]).decode


class PackRow(NamedTuple):
    """A row of `forebay.claimed`. `flag`: if not 0, why the claim was refused."""

    flag: int
    stamp: Instant
    want: int
    pack: int
    n: int
    by_heartbeat: bool
    lead: int | None
    floor: int | None
    ranges: str
    extents: str
    traits: str | None
    bodies: str
    positions: str | None

    def leases(self, owner: str) -> list[PackLease]:
        """In the order in which the jobs were claimed."""
        found: list[PackLease] = []
        base = 0
        traits = {} if self.traits is None else {own.number: own for own in _traits(f"[{self.traits}]")}
        members = zip(
            _member_ranges(f"[{self.ranges}]"),
            _extents(f"[{self.extents}]"),
            _pack_bodies(f"[{self.bodies}]"),
            strict=True,
        )
        for number, (job_range, extent, bodies) in enumerate(members, 1):
            last_id = job_range.first + job_range.n - 1
            ref = MemberRef(
                self.pack, self.n, number, base, last_id, job_range.n, job_range.delivery, self.by_heartbeat
            )
            skip, own = extent.size - job_range.n, traits.get(number, _NO_TRAITS)
            for offset in range(job_range.n):
                facts = NO_FACTS if own.facts is None else own.facts[skip + offset] or NO_FACTS
                job = Job(
                    job_range.first + offset,
                    job_range.queue,
                    facts.kind or job_range.kind,
                    bytes(bodies[skip + offset]),
                    State.RUNNING,
                    facts.priority,
                    job_range.enqueued_at,
                    job_range.due_at,
                    job_range.attempt,
                    extent.max_attempts,
                    job_range.delivery,
                    facts.key,
                    facts.tenant,
                    facts.subject,
                    facts.deadline,
                    extent.expires_at,
                    facts.meta,
                    owner,
                    job_range.claimed_at,
                    job_range.until,
                    None,
                    extent.cancel_requested,
                    own.errors,
                    None,
                    facts.cost,
                )
                found.append(PackLease(job, owner, job_range.until, ref))
            base += job_range.n
        if self.positions is None:
            return found
        order = [position for each in _positions(f"[{self.positions}]") for position in each]
        return [lease for _, lease in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]
