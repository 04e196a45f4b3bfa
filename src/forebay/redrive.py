"""Redriving dead letters by a plan: which ones, with what change, at what rate, and when to stop.

A plan is a value that the command line, the HTTP API, the dashboard and Spark share. The jobs are chosen before the
first one is redriven, so that a job that dies again at once is not redriven twice. A job whose worker died while
running it is quarantined: it is redriven only if the plan says so.

    run = RedriveRun(plan, [job.id for job in chosen(store, plan)])
    run_redrive(store, run)
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from heapq import nsmallest
from time import monotonic, sleep
from typing import Any, Final

import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.fingerprint import fingerprint_of
from forebay.core.instant import Instant, checked_instant
from forebay.core.job import Draft, Job, State
from forebay.core.limits import MAX_BATCH
from forebay.core.payload import Json, encode_payload, patched
from forebay.store.protocol import Query, Store, matching

MAX_RATE: Final = 1_000_000.0
_STEPS_A_SECOND: Final = 5
_encode: Final = msgspec.json.Encoder().encode
_in_order: Final = msgspec.json.Encoder(order="deterministic").encode


class RedrivePlan(Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters to redrive, and how.

    queue … subject  as in `Query`; the queue is the one that holds them
    where            a text in the last error, ignoring case
    fingerprint      the cause, as shown by `dlq ls --group`
    died_from        those that died at this instant or later;  died_before: earlier
    quarantined      include jobs whose last worker died while running them
    limit            at most this many, lowest ids first
    sample           this many of those that match, drawn by `seed`; the same seed draws the same jobs
    patch            a JSON merge patch for the payloads; each job is replaced by a new one
    rate             jobs per second
    stop_at          stop when more than this fraction of the redriven jobs that ended have died again …
    stop_after       … and at least this many have ended
    """

    queue: str | None = None
    kind: str | None = None
    tenant: str | None = None
    subject: str | None = None
    where: str | None = None
    fingerprint: str | None = None
    died_from: Instant | None = None
    died_before: Instant | None = None
    quarantined: bool = False
    limit: int | None = None
    sample: int | None = None
    seed: int = 0
    patch: dict[str, Any] | None = None
    rate: float | None = None
    stop_at: float | None = None
    stop_after: int = 20

    def __post_init__(self) -> None:
        _ = self.query
        for name, number in (("limit", self.limit), ("sample", self.sample), ("stop_after", self.stop_after)):
            if number is not None and (type(number) is not int or number < 1):
                raise Invalid(name, f"{number!r} is not a positive integer", "give at least 1")
        for name, instant in (("died_from", self.died_from), ("died_before", self.died_before)):
            if instant is not None:
                checked_instant(name, instant)
        if self.rate is not None and not 0 < self.rate <= MAX_RATE:
            raise Invalid(
                "rate", f"{self.rate!r} is not in 0 … {MAX_RATE:,.0f} per second", "leave it out for no limit"
            )
        if self.stop_at is not None:
            if not 0 <= self.stop_at <= 1:
                raise Invalid("stop_at", f"{self.stop_at!r} is not in 0 … 1", "give a fraction, such as 0.1")
            if self.rate is None:
                raise Invalid("stop_at", "without a rate all are redriven before the first one ends", "give a rate too")
        if self.patch is not None:
            encode_payload(self.patch)
            if not self.patch:
                raise Invalid("patch", "it changes nothing", 'write it like {"to": "ada@example.org"}')

    @property
    def query(self) -> Query:
        """The part of the filter that the store applies; `fits` applies the rest."""
        return Query(self.queue, State.DEAD, self.kind, self.tenant, self.subject, None if self.quarantined else False)

    def fits(self, job: Job) -> bool:
        """Whether the plan selects this dead letter."""
        at = job.finished_at or 0
        return (
            job.state is State.DEAD
            and (self.quarantined or not job.suspect)
            and (self.died_from is None or at >= self.died_from)
            and (self.died_before is None or at < self.died_before)
            and (not self.where or self.where.lower() in last_error(job).lower())
            and (self.fingerprint is None or self.fingerprint == fingerprint_of(job))
        )

    @property
    def filtered(self) -> bool:
        """Whether the plan has a filter; one without selects every dead letter, which callers ask to be explicit."""
        said = (self.queue, self.kind, self.tenant, self.subject, self.where, self.fingerprint)
        return any(said) or self.died_from is not None or self.died_before is not None

    @property
    def step(self) -> int:
        """How many jobs one step redrives."""
        return MAX_BATCH if self.rate is None else max(1, min(MAX_BATCH, int(self.rate / _STEPS_A_SECOND)))


def last_error(job: Job) -> str:
    return f"{job.errors[-1].kind}: {job.errors[-1].message}" if job.errors else ""


def chosen(store: Store, plan: RedrivePlan) -> list[Job]:
    """The jobs that the plan selects now, by id."""
    found = (job for job in matching(store, plan.query) if plan.fits(job))
    return picked(found, plan)


def picked(found: Iterator[Job], plan: RedrivePlan) -> list[Job]:
    """The plan's sample of the matching jobs, or the first ones."""
    if plan.sample is None:
        return [job for _, job in zip(range(plan.limit), found, strict=False)] if plan.limit else list(found)
    # A job's draw depends only on the seed and its id, so that a dry run shows what the real run redrives.
    lots = ((blake2b(b"%d/%d" % (plan.seed, job.id), digest_size=8).digest(), job.id, job) for job in found)
    sample = [job for _, _, job in nsmallest(min(plan.sample, plan.limit or plan.sample), lots)]
    return sorted(sample, key=lambda job: job.id)


class RedriveStep(Struct, frozen=True):
    """Progress of a redrive: `tried` jobs were attempted, `moved` of them redriven; `ids`: those of this step."""

    tried: int
    moved: int
    ids: list[int]


class RedriveRun:
    """A redrive in progress: its steps, its rate, and the outcomes of the redriven jobs.

    `stopped`: why it ended early. With a patch, the `ids` of a step are those of the new jobs.
    """

    def __init__(self, plan: RedrivePlan, ids: list[int]) -> None:
        self.plan = plan
        self.chosen = ids
        self.moved: list[int] = []
        self.tried = 0
        self.ended = 0
        self.died = 0
        self.stopped: str | None = None
        self._watched: list[int] = []
        self._began: float | None = None

    @property
    def over(self) -> bool:
        return self.stopped is not None or self.tried >= len(self.chosen)

    def due_in(self, now: float) -> float:
        """Seconds until the next step may be taken."""
        if self._began is None:
            self._began = now
        return 0.0 if self.plan.rate is None else max(0.0, self._began + self.tried / self.plan.rate - now)

    def step(self, store: Store) -> RedriveStep:
        """Redrive the next jobs, unless too many of the previous ones have died again."""
        if self.plan.stop_at is not None:
            self._check_outcomes(store)
        if self.over:
            return RedriveStep(self.tried, len(self.moved), [])
        part = self.chosen[self.tried : self.tried + self.plan.step]
        ids = move(store, self.plan, part)
        self.tried += len(part)
        self.moved += ids
        if self.plan.stop_at is not None:
            self._watched += ids
        return RedriveStep(self.tried, len(self.moved), ids)

    def _check_outcomes(self, store: Store) -> None:
        """Count the outcomes of the jobs that were redriven first; those that have not ended are checked again."""
        assert self.plan.stop_at is not None
        checked, rest = self._watched[:MAX_BATCH], self._watched[MAX_BATCH:]
        still_open: list[int] = []
        for job_id, job in zip(checked, store.get(checked), strict=True):
            if job is not None and not job.state.terminal:
                still_open.append(job_id)
                continue
            self.ended += 1
            self.died += job is not None and job.state is State.DEAD
        self._watched = rest + still_open
        if self.ended >= self.plan.stop_after and self.died > self.plan.stop_at * self.ended:
            self.stopped = f"{self.died} of {self.ended} jobs that ended had died again"


def move(store: Store, plan: RedrivePlan, ids: list[int]) -> list[int]:
    """Redrive the dead ones of these jobs in one step, with the plan's patch; the ids that they have now."""
    if plan.patch is None:
        return store.redrive(ids)
    dead = [job for job in store.get(ids) if job is not None and job.state is State.DEAD]
    return redrive_patched(store, [(job, patched(job.payload, plan.patch)) for job in dead])


def successor(job: Job, body: bytes) -> Draft:
    """A job like the dead one, with another payload; it waits for nothing any more."""
    return Draft(
        job.kind,
        body=body,
        queue=job.home or job.queue,
        priority=job.priority,
        deadline=job.deadline,
        tenant=job.tenant,
        subject=job.subject,
        max_attempts=job.max_attempts,
        meta={**(job.meta or {}), "redriven_from": str(job.id)},
        cost=job.cost,
    )


def divided(payloads: Iterable[tuple[Job, Json]]) -> tuple[list[int], list[tuple[int, Draft]]]:
    """Dead jobs with their wanted payloads, divided into those that have it already and those that need a new job."""
    alike: list[int] = []
    others: list[tuple[int, Draft]] = []
    for job, payload in payloads:
        if _in_order(payload) == _in_order(job.payload):
            alike.append(job.id)
        else:
            others.append((job.id, successor(job, _encode(payload))))
    return alike, others


def redrive_patched(store: Store, payloads: Iterable[tuple[Job, Json]]) -> list[int]:
    """Redrive dead jobs with these payloads; the ids that they have now."""
    alike, others = divided(payloads)
    ids = store.redrive(alike) if alike else []
    if others:
        ids += [receipt.id for receipt in store.replace_dead(others) if receipt is not None]
    return ids


def run_redrive(
    store: Store,
    run: RedriveRun,
    on_step: Callable[[RedriveStep], object] = lambda _: None,
    *,
    clock: Callable[[], float] = monotonic,
    wait: Callable[[float], object] = sleep,
) -> RedriveRun:
    """Run it to the end, at the plan's rate."""
    while not run.over:
        wait(run.due_in(clock()))
        on_step(run.step(store))
    return run
