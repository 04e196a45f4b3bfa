"""A redrive as a plan: which dead letters go back, changed how, how fast, and when to stop.

A plan is a value; the command line, the HTTP side, the dashboard and Spark read it and carry it out alike. What is to
move is chosen before the first one moves, so a job that dies again at once is not moved twice. Who took its holder
along is quarantined: such dead letters stay where they are unless the plan names them.

    course = Course(plan, [job.id for job in chosen(store, plan)])
    carry_out(store, course)
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
from forebay.core.limits import BATCH_MOST
from forebay.core.patch import patched
from forebay.core.payload import Json, encode_payload
from forebay.store.feeding import successor
from forebay.store.protocol import Query, Store

RATE_MOST: Final = 1_000_000.0
_STEPS_A_SECOND: Final = 5
_encode: Final = msgspec.json.Encoder().encode
_in_order: Final = msgspec.json.Encoder(order="deterministic").encode


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters go back, and how.

    queue … subject  as a `Query` has them; a queue is where they lie
    where            a text that the last error holds, in any case
    fingerprint      what killed them, as `dlq ls --group` names it
    died_from        those that died at that instant or later;  died_before: or earlier
    quarantined      also those whose last holder died with them
    limit            at most so many, the smallest ids first
    sample           so many of those that match, chosen by `seed`: the same seed, the same ones
    patch            their payloads are changed alike, by a JSON merge patch; each gives way to a new job
    rate             so many a second
    stop_at          stop when more than this share of those that ended again have died again …
    stop_after       … and at least so many have ended
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
        if self.rate is not None and not 0 < self.rate <= RATE_MOST:
            raise Invalid("rate", f"{self.rate!r} is not in 0 … {RATE_MOST:,.0f} a second", "leave it out for no rate")
        if self.stop_at is not None:
            if not 0 <= self.stop_at <= 1:
                raise Invalid("stop_at", f"{self.stop_at!r} is not a share", "give 0.1 for a tenth")
            if self.rate is None:
                raise Invalid("stop_at", "without a rate all have moved before the first one ends", "give a rate too")
        if self.patch is not None:
            encode_payload(self.patch)
            if not self.patch:
                raise Invalid("patch", "it changes nothing", 'write it like {"to": "ada@example.org"}')

    @property
    def query(self) -> Query:
        """What the store can tell apart; the rest is `fits`."""
        return Query(self.queue, State.DEAD, self.kind, self.tenant, self.subject, None if self.quarantined else False)

    def fits(self, job: Job) -> bool:
        """Whether a dead letter is meant."""
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
        """Whether anything but the pace is said: a plan for all of them should be meant."""
        said = (self.queue, self.kind, self.tenant, self.subject, self.where, self.fingerprint)
        return any(said) or self.died_from is not None or self.died_before is not None

    @property
    def step(self) -> int:
        """How many move at a time."""
        return BATCH_MOST if self.rate is None else max(1, min(BATCH_MOST, int(self.rate / _STEPS_A_SECOND)))


def last_error(job: Job) -> str:
    return f"{job.errors[-1].kind}: {job.errors[-1].message}" if job.errors else ""


def matching(store: Store, query: Query) -> Iterator[Job]:
    """Every job that the query finds, page by page."""
    after: int | None = 0
    while after is not None:
        page = store.browse(query, after, BATCH_MOST)
        yield from page.jobs
        after = page.next


def chosen(store: Store, plan: Plan) -> list[Job]:
    """What the plan would move now, in the order of the ids."""
    found = (job for job in matching(store, plan.query) if plan.fits(job))
    return picked(found, plan)


def picked(found: Iterator[Job], plan: Plan) -> list[Job]:
    """Of those that fit: the sample, or the first ones."""
    if plan.sample is None:
        return [job for _, job in zip(range(plan.limit), found, strict=False)] if plan.limit else list(found)
    # A job's lot depends on the seed and its id alone, so a dry run shows what the real one will move.
    lots = ((blake2b(b"%d/%d" % (plan.seed, job.id), digest_size=8).digest(), job.id, job) for job in found)
    sample = [job for _, _, job in nsmallest(min(plan.sample, plan.limit or plan.sample), lots)]
    return sorted(sample, key=lambda job: job.id)


class Step(Struct, frozen=True):
    """How far a redrive has come. `tried` were chosen and are behind, `moved` of them went back under these `ids`."""

    tried: int
    moved: int
    ids: list[int]


class Course:
    """A redrive under way: its steps, its pace, and what became of those that it moved.

    `stopped` says why it ended early. With a patch `ids` of a step are those of the new jobs.
    """

    def __init__(self, plan: Plan, ids: list[int]) -> None:
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

    def step(self, store: Store) -> Step:
        """Move the next ones, unless too many of those before have died again."""
        if self.plan.stop_at is not None:
            self._look(store)
        if self.over:
            return Step(self.tried, len(self.moved), [])
        part = self.chosen[self.tried : self.tried + self.plan.step]
        ids = move(store, self.plan, part)
        self.tried += len(part)
        self.moved += ids
        if self.plan.stop_at is not None:
            self._watched += ids
        return Step(self.tried, len(self.moved), ids)

    def _look(self, store: Store) -> None:
        """What became of the longest moved ones; who is still about is looked at again."""
        assert self.plan.stop_at is not None
        looked, rest = self._watched[:BATCH_MOST], self._watched[BATCH_MOST:]
        open_still: list[int] = []
        for job_id, job in zip(looked, store.get(looked), strict=True):
            if job is not None and not job.state.terminal:
                open_still.append(job_id)
                continue
            self.ended += 1
            self.died += job is not None and job.state is State.DEAD
        self._watched = rest + open_still
        if self.ended >= self.plan.stop_after and self.died > self.plan.stop_at * self.ended:
            self.stopped = f"{self.died} of {self.ended} that ended had died again"


def move(store: Store, plan: Plan, ids: list[int]) -> list[int]:
    """Those of these that were dead go back in one step, changed as the plan says; the ids under which they live."""
    if plan.patch is None:
        return store.redrive(ids)
    dead = [job for job in store.get(ids) if job is not None and job.state is State.DEAD]
    return mend(store, [(job, patched(job.payload, plan.patch)) for job in dead])


def divided(payloads: Iterable[tuple[Job, Json]]) -> tuple[list[int], list[tuple[int, Draft]]]:
    """Dead jobs with the payloads that they should have: who has it already, and who has to give way to a new job."""
    alike: list[int] = []
    others: list[tuple[int, Draft]] = []
    for job, payload in payloads:
        if _in_order(payload) == _in_order(job.payload):
            alike.append(job.id)
        else:
            others.append((job.id, successor(job, _encode(payload))))
    return alike, others


def mend(store: Store, payloads: Iterable[tuple[Job, Json]]) -> list[int]:
    """Dead jobs live again with these payloads; the ids under which they do."""
    alike, others = divided(payloads)
    ids = store.redrive(alike) if alike else []
    if others:
        ids += [receipt.id for receipt in store.mend(others) if receipt is not None]
    return ids


def carry_out(
    store: Store,
    course: Course,
    told: Callable[[Step], object] = lambda _: None,
    *,
    clock: Callable[[], float] = monotonic,
    wait: Callable[[float], object] = sleep,
) -> Course:
    """To the end, at the plan's pace."""
    while not course.over:
        wait(course.due_in(clock()))
        told(course.step(store))
    return course
