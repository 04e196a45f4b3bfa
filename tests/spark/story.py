"""Histories by hand: jobs from acceptance to end, written step by step, mixed by time into records of the ledger and
flattened.

A `Life` is one or more neighbours that go through the same. Its verbs keep count (delivery, attempt, due time, clock)
as a store would; a test that wants a broken life overrides what it likes. `Story` also keeps the receipts of producers
and the effects of handlers. Everything follows from the calls: no clock, no randomness of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from forebay.core.ledger import Change, JobRange, LedgerEntry, Record, Trait
from forebay.spark.arrow import arrow_schema, flatten
from forebay.spark.schemas import EFFECTS, EVENTS, RECEIPTS
from tests.ranges import joined

START = 1_900_000_000_000_000
SECOND = 1_000_000
LEASE = 30 * SECOND


@dataclass(frozen=True)
class Step:
    at: int
    verb: str
    job_range: JobRange | None = None
    owner: str | None = None
    name: str | None = None
    tick: int | None = None


@dataclass
class Story:
    steps: list[Step] = field(default_factory=list)
    receipts: list[tuple[int, int | None, str, int]] = field(default_factory=list)
    effects: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    next_id: int = 1
    next_seq: int = 0
    id_step: int = 0

    def seq(self) -> int:
        self.next_seq += 1
        return self.next_seq - 1

    def ids(self, n: int) -> int:
        first = self.next_id
        self.next_id += n + self.id_step
        return first

    def receipt(self, seq: int, job_id: int | None, answer: str = "accepted", at: int = START) -> None:
        self.receipts.append((seq, job_id, answer, at))

    def effect(self, seq: int, job_id: int, delivery: int, at: int) -> None:
        self.effects.append((seq, job_id, delivery, at, "w1"))

    def record(self, at: int, verb: str, name: str, tick: int | None = None) -> None:
        """One that moves no job."""
        self.steps.append(Step(at, verb, name=name, tick=tick))

    def entries(self) -> list[LedgerEntry]:
        """Steps of one verb, moment and owner are one record."""
        batches: dict[tuple[object, ...], list[Step]] = {}
        for step in sorted(self.steps, key=lambda step: step.at):
            alone = len(batches) if step.job_range is None or step.name else 0
            batches.setdefault((step.at, step.verb, step.owner, step.name, step.tick, alone), []).append(step)
        entries = []
        for offset, (key, steps) in enumerate(batches.items()):
            ranges = joined(
                sorted(
                    (step.job_range for step in steps if step.job_range is not None),
                    key=lambda duration: duration.first,
                )
            )
            first = steps[0]
            record = Record(first.at, first.verb, ranges, first.owner, first.name, first.tick)
            assert key[0] == record.at
            entries.append(LedgerEntry(offset, record))
        return entries

    def table(self) -> pa.Table:
        return pa.Table.from_batches([flatten(self.entries(), EVENTS)])

    def evidence(self) -> tuple[pa.Table, pa.Table]:
        """Receipts and effects."""
        return _table(self.receipts, RECEIPTS), _table(self.effects, EFFECTS)

    def frames(self, spark: SparkSession) -> tuple[DataFrame, DataFrame, DataFrame]:
        """Events, receipts and effects."""
        events, receipts, effects = (spark.createDataFrame(each) for each in (self.table(), *self.evidence()))
        return events, receipts, effects


def _table(rows: Sequence[tuple[Any, ...]], schema: StructType) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    wanted = arrow_schema(schema)
    return pa.table(
        [
            pa.array(values, pa.int64() if field.name.endswith("_at") else field.type).cast(field.type)
            for values, field in zip(columns, wanted, strict=True)
        ],
        schema=wanted,
    )


class Life:
    """Jobs with consecutive ids and the same history, from acceptance on. `seqs`: what their producer counts them
    by."""

    def __init__(
        self,
        story: Story,
        at: int,
        *,
        n: int = 1,
        queue: str = "mail",
        kind: str = "send",
        max_attempts: int = 3,
        delay: int = 0,
    ) -> None:
        self.story, self.at, self.n, self.queue, self.kind, self.max_attempts = story, at, n, queue, kind, max_attempts
        self.first = story.ids(n)
        self.accepted_at = at
        self.due = at + delay
        self.delivery = self.attempt = self.claimed = 0
        self.seqs: list[int] = []

    @property
    def ids(self) -> range:
        return range(self.first, self.first + self.n)

    def accept(self, *, receipt: bool = True, traits: list[Trait | None] | None = None, **fire: Any) -> "Life":
        """`fire`: name and tick of the schedule that fires it."""
        job_range = JobRange(Change.ACCEPTED, self.first, self.n, self.queue, self.kind, max_attempts=self.max_attempts)
        job_range = replace(job_range, enqueued_at=self.accepted_at, due_at=self.due, traits=traits)
        self.story.steps.append(Step(self.at, "fire" if fire else "enqueue", job_range, **fire))
        if receipt and not fire:
            for job_id in self.ids:
                self.seqs.append(self.story.seq())
                self.story.receipt(self.seqs[-1], job_id, at=self.at)
        return self

    def after(self, length: int) -> "Life":
        self.at += length
        return self

    def claim(self, **other: Any) -> "Life":
        """When it is due, unless `at` says otherwise."""
        self.at = other.pop("at", max(self.at, self.due))
        self.delivery = other.pop("delivery", self.delivery + 1)
        self.attempt = other.pop("attempt", self.attempt + 1)
        self.claimed = self.at
        return self._leased(Change.CLAIMED, "claim", owner=f"w{self.delivery % 3}", until=self.at + LEASE)

    def extend(self, **other: Any) -> "Life":
        return self._leased(Change.EXTENDED, "extend", until=self.at + LEASE, **other)

    def ack(self, *, effect: bool = True, **other: Any) -> "Life":
        if effect:
            self.effect(other.get("delivery", self.delivery))
        return self._leased(Change.ACKED, "settle", **other)

    def retry(self, delay: int = SECOND, error: str = "no answer", kind: str = "Timeout", **other: Any) -> "Life":
        self._leased(Change.RETRIED, "settle", until=self.at + delay, traits=self._failed(kind, error), **other)
        self.due = self.at + delay
        return self

    def release(self, delay: int = 0, **other: Any) -> "Life":
        self._leased(Change.RELEASED, "settle", until=self.at + delay, **other)
        self.due, self.attempt = self.at + delay, self.attempt - 1
        return self

    def die(self, kind: str = "Timeout", error: str = "no answer", **other: Any) -> "Life":
        return self._leased(Change.DIED, "settle", traits=self._failed(kind, error), **other)

    def discard(self, **other: Any) -> "Life":
        return self._leased(Change.CANCEL_REQUESTED, "cancel")._leased(Change.DISCARDED, "settle", **other)

    def redrive(self, delay: int = 0) -> "Life":
        self.due, self.attempt = self.at + delay, 0
        return self._bare(Change.REDRIVEN, "redrive", until=self.due)

    def cancel(self) -> "Life":
        return self._bare(Change.CANCELLED, "cancel", until=self.at + SECOND)

    def expire(self) -> "Life":
        return self._bare(Change.EXPIRED, "maintain")

    def shed(self) -> "Life":
        return self._bare(Change.SHED, "enqueue")

    def purge(self) -> "Life":
        return self._bare(Change.PURGED, "purge")

    def effect(self, delivery: int, at: int | None = None) -> "Life":
        for seq, job_id in zip(self.seqs, self.ids, strict=False):
            self.story.effect(seq, job_id, delivery, self.at if at is None else at)
        return self

    def _failed(self, kind: str, error: str) -> list[Trait | None]:
        return [Trait(error_kind=kind, error=error) for _ in self.ids]

    def _leased(self, change: Change, verb: str, *, owner: str | None = None, **other: Any) -> "Life":
        """A change of a running job carries what its lease said."""
        job_range = JobRange(change, self.first, self.n, self.queue, self.kind, self.delivery, self.attempt)
        job_range = replace(job_range, enqueued_at=self.accepted_at, due_at=self.due, claimed_at=self.claimed, **other)
        self.story.steps.append(Step(self.at, verb, job_range, owner))
        return self

    def _bare(self, change: Change, verb: str, **other: Any) -> "Life":
        job_range = replace(JobRange(change, self.first, self.n, self.queue, self.kind), **other)
        self.story.steps.append(Step(self.at, verb, job_range))
        return self
