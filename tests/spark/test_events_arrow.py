"""Records as columns: the same rows as a naive loop gives, whatever the records hold."""

from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any

import pytest

from forebay.core.errors import Invalid
from forebay.core.ledger import Change, JobRange, LedgerEntry, Record, Trait
from forebay.spark.arrow import arrow_schema, event_batches, flatten, narrowed
from forebay.spark.schemas import EVENTS, schema_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(value: int) -> datetime | None:
    return EPOCH + timedelta(microseconds=value) if value else None


def naive(entries: list[LedgerEntry]) -> list[dict[str, Any]]:
    """One dict an event, by the words of the schema alone."""
    rows = []
    for entry in entries:
        record = entry.record
        common = dict.fromkeys(EVENTS.names)
        common |= {"offset": entry.offset, "event_at": instant(record.at), "verb": record.verb}
        common |= {"owner": record.owner, "name": record.name, "tick": instant(record.tick or 0)}
        common["day"] = date(1970, 1, 1) + timedelta(days=record.at // 86_400_000_000)
        jobs = [(job_range, number) for job_range in record.ranges for number in range(job_range.n)]
        common["places"] = max(1, len(jobs))
        if not jobs:
            rows.append(common | {"place": 0})
        for place, (job_range, number) in enumerate(jobs):
            trait = (job_range.traits[number] if job_range.traits else None) or Trait()
            born = job_range.change == Change.ACCEPTED
            until = instant(job_range.until)
            rows.append(
                common
                | {
                    "place": place,
                    "change": job_range.change,
                    "job_id": job_range.first + number,
                    "queue": job_range.queue,
                    "kind": trait.kind or job_range.kind,
                    "delivery": job_range.delivery or None,
                    "attempt": job_range.attempt or None,
                    "max_attempts": job_range.max_attempts or None,
                    "priority": trait.priority if born else None,
                    "enqueued_at": instant(job_range.enqueued_at or (record.at if born else 0)),
                    "due_at": instant(job_range.due_at),
                    "claimed_at": instant(job_range.claimed_at),
                    "lease_until": until if job_range.change in ("claimed", "extended") else None,
                    "next_at": until if job_range.change in ("retried", "released", "redriven") else None,
                    "kept_until": until if job_range.change in ("acked", "discarded", "cancelled") else None,
                    "tenant": trait.tenant,
                    "subject": trait.subject,
                    "key": trait.key,
                    "error_kind": trait.error_kind,
                    "error": trait.error,
                }
            )
    return rows


def random_entries(seed: int, count: int) -> list[LedgerEntry]:
    draw = Random(seed)
    changes = list(Change)

    def some(value: Any) -> Any:
        return value if draw.random() < 0.5 else None

    def trait() -> Trait | None:
        own = Trait(some("other"), some("t1"), some("s"), some("k"), draw.choice([0, 7, -3]), some("E"), some("it é"))
        return own if draw.random() < 0.5 else None

    def job_range() -> JobRange:
        n = draw.choice([1, 1, 2, 5])
        times: list[Any] = [draw.choice([0, 1_700_000_000_000_000 + draw.randrange(10**9)]) for _ in range(4)]
        counts: list[Any] = [draw.choice([0, 1, 2]) for _ in range(3)]
        traits = [trait() for _ in range(n)] if draw.random() < 0.4 else None
        fields = [draw.choice(changes), draw.randrange(1, 10**9), n, draw.choice("qr"), draw.choice("kl"), *counts]
        fields += [*times, traits]
        return JobRange(*fields)

    def record() -> Record:
        ranges = [job_range() for _ in range(draw.choice([0, 1, 1, 3]))]
        tick = some(1_700_000_000_000_000)
        return Record(1_700_000_000_000_000 + draw.randrange(10**12), "verb", ranges, some("w"), some("name"), tick)

    return [LedgerEntry(offset, record()) for offset in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_columns_agree_with_the_records(seed: int) -> None:
    entries = random_entries(seed, 60)
    table = flatten(entries, EVENTS)
    assert table.schema.equals(arrow_schema(EVENTS))
    table.validate(full=True)
    assert table.to_pylist() == naive(entries)


def test_batches_never_cut_a_record_and_leave_nothing_out() -> None:
    entries = random_entries(1, 200)
    batches = list(event_batches(iter(entries), EVENTS, rows=10))
    assert len(batches) > 10
    assert [row for batch in batches for row in batch.to_pylist()] == naive(entries)
    offsets = [set(batch.column("offset").to_pylist()) for batch in batches]
    assert sum(map(len, offsets)) == len(entries)


def test_only_requested_columns_are_built() -> None:
    narrow = narrowed(schema_of("job_id long\nchange string\noffset long!"), EVENTS, "events")
    table = flatten(random_entries(2, 10), narrow)
    assert table.schema.names == ["job_id", "change", "offset"]


def test_a_schema_that_is_no_part_of_the_whole_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match="schema of events: it has no job_id int, speed double; choose among offset"):
        narrowed(schema_of("job_id int\nspeed double\nverb string"), EVENTS, "events")
