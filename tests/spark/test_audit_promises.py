"""An audit that is given the store asks about the order and the slots that it promises, from when it promises them."""

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from forebay.core.job import Draft
from forebay.core.ledger import LedgerRule
from forebay.core.outcome import Ack
from forebay.core.policy import AtMost, InOrder, KeepFor
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.spark.audit.slots import ScheduleRule, left_out
from forebay.spark.lake import Lake
from forebay.spark.landing import write_files
from forebay.spark.promises import LINES, SLOTS, Promises, last_changes, promises_of
from forebay.store.protocol import Want
from tests.command_result import Run
from tests.spark.lakes import brought
from tests.spark.sample_stores import enqueue_with_receipts, opened
from tests.spark.story import START

ORDERED = QueueSpec(name="lines", eligibility=InOrder())


def run_jobs(store: Any, place: Path, first: int, *, at_once: int = 1) -> None:
    """Two jobs of one line, claimed one after the other, or both at once."""
    enqueue_with_receipts(
        store, [Draft("k", {"seq": first + n}, queue="lines", subject="ada") for n in range(2)], place
    )
    for _ in range(2 // at_once):
        leases = store.claim([Want("lines", 2)], "w", timedelta(seconds=30))
        assert len(leases) == at_once
        store.settle([(lease, Ack()) for lease in leases])


def swap(lake: Lake, ids: tuple[int, int]) -> None:
    """What happened to one of these jobs after its acceptance is said to have happened to the other one."""
    table = lake.table("events")
    for file in table.files:
        rows = pq.ParquetFile(f"{lake.uri}/events/{file.path}").read()
        job, later = rows["job_id"], pc.not_equal(rows["change"], "accepted")
        for one, other in (ids, ids[::-1]):
            job = pc.if_else(pc.and_(later, pc.equal(rows["job_id"], one)), other, job)
        rows = rows.set_column(rows.column_names.index("job_id"), rows.schema.field("job_id"), job)
        days = pa.array([file.partition["day"]] * len(rows)).cast(pa.date32())
        lake.table("events").commit(write_files(lake, "events", rows.append_column("day", days)), removed=[file])


def test_the_order_that_a_store_promises_is_checked_unasked(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    words = ("audit", "--lake", "lake", "--store", url, "--receipts", "receipts.ndjson", "--json")

    def outcome(*more: str) -> tuple[int, str, bool]:
        answer = run(*words, *more)
        (verdict,) = answer.json
        (found,) = [each for each in verdict["results"] if each["check"] == "out_of_turn"]
        assert [each["check"] for each in verdict["results"] if each["outcome"] == "failed"] in ([], ["out_of_turn"])
        assert ("the store promises --ordered lines:subject" in answer.err) == (not more or more == ("--whole",))
        return answer.code, found["outcome"], verdict["earlier"] is not None

    with opened(url) as store:
        store.put_spec(QueueSpec(name="lines"))
        run_jobs(store, tmp_path, 0, at_once=2)
        store.put_spec(ORDERED)
        run_jobs(store, tmp_path, 2)
    assert outcome("--ordered", "lines:subject") == (1, "failed", False), "before it was promised, two ran at once"
    assert outcome() == (0, "ok", False)
    with opened(url) as store:
        run_jobs(store, tmp_path, 4)
    assert outcome() == (0, "ok", True)
    swap(Lake.at("lake"), (5, 6))
    assert outcome("--whole") == (1, "failed", False)
    with opened(url) as store:
        store.put_spec(QueueSpec(name="lines", eligibility=InOrder(), retention=KeepFor(timedelta(days=1))))
    changed = run(*words)
    assert (changed.code, changed.json[0]["earlier"]) == (0, None)
    assert "is not used: the spec of a queue that runs in order has changed" in changed.err


def test_since_when_a_store_promises_what_it_does(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    lake = Lake.of(tmp_path / "lake", url)

    def since(end: int = 0, line: int = 0) -> tuple[int, int]:
        with opened(url) as store:
            brought(lake, url, store.ledger_extent()[1])
        known = {(LINES, "same"): line, (SLOTS, "same"): 0}
        found = last_changes(lake, lake.table("events"), known, end)
        assert found.keys() == known.keys()
        return found[LINES, "same"], found[SLOTS, "same"]

    with opened(url) as store:
        store.put_spec(QueueSpec(name="same"))
        store.put_spec(QueueSpec(name="capped", eligibility=AtMost(1) & InOrder("tenant")))
        store.put_spec(QueueSpec(name="same", eligibility=InOrder()))
        store.put_spec(QueueSpec(name="mail"))
        store.put_schedule(Schedule("same", "@every 60s", store.now(), Draft("k")))
        store.put_spec(QueueSpec(name="same", eligibility=InOrder()))
    found = promises_of(url)
    assert (found.lines, found.rules) == (
        {"same": "subject", "capped": "tenant"},
        {"same": ScheduleRule("@every 60s", "UTC")},
    )
    assert since() == (3, 5)
    assert since(end=3, line=1) == (1, 5), "earlier events are not read again"
    with opened(url) as store:
        store.put_ledger_rule(LedgerRule(keep=10**12))
        assert since() == (3, 5)
        store.put_ledger_rule(LedgerRule(on=False))
        store.put_ledger_rule(LedgerRule())
    assert min(since(end=5, line=3)) > 5, "while it was off, a change had left no record"


@pytest.mark.parametrize("url", ["memory:///srv/jobs", "cells:///srv/cells.toml"])
def test_stores_that_are_not_asked(url: str) -> None:
    assert promises_of(url) == Promises()


HOUR = 3_600_000_000


@pytest.mark.parametrize(
    ("rule", "ticks", "holes"),
    [
        (ScheduleRule("@every 1h", "UTC"), [0, 1, 2, 4, 5, 9], [4, 9]),
        (ScheduleRule("0 * * * *", "UTC"), [0, 1, 3], [3]),
        (ScheduleRule("0 */2 * * *", "UTC"), [0, 1, 2, 4], []),
        (ScheduleRule("@every 1h", "UTC", since=5), [0, 1, 4, 5, 9], [9]),
        (ScheduleRule("0 * * * *", "No/Where"), [0, 9], []),
    ],
)
def test_a_slot_that_a_rule_has_between_two_was_left_out(
    rule: ScheduleRule, ticks: list[int], holes: list[int]
) -> None:
    """The offset of a slot is its hour; extra slots, and those of an earlier rule, are not left out."""
    base = START // (24 * HOUR) * 24 * HOUR
    slots = [("report", base + tick * HOUR, tick) for tick in ticks] + [
        ("other", base, 0),
        ("other", base + 9 * HOUR, 9),
    ]
    found = list(left_out(slots, {"report": rule}))
    assert [(each.check, each.offset) for each in found] == [("slot_missing", hole) for hole in holes]


def test_a_slot_that_was_left_out_is_a_note_unless_asked_for(run: Run, tmp_path: Path) -> None:
    """With Spark and without it, in a whole audit and in one that relies on an earlier one; not across an edit."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    words = ("audit", "--lake", "lake", "--store", url, "--receipts", "receipts.ndjson", "--json")

    def outcome(*more: str) -> tuple[int, str, int]:
        answer = run(*words, *more)
        (verdict,) = answer.json
        (found,) = [each for each in verdict["results"] if each["check"] == "slot_missing"]
        return answer.code, found["outcome"], found["count"]

    def fire(*hours: int) -> None:
        """The slots of these hours but the last one, each of which leads to the next."""
        with opened(url) as store:
            for hour, following in pairwise(hours):
                assert store.fire("tick", start + hour * HOUR, start + following * HOUR, Draft("k"))

    with opened(url) as store:
        start = store.now() // (24 * HOUR) * 24 * HOUR - 240 * HOUR
        store.put_schedule(Schedule("tick", "@every 1h", start, Draft("k")))
        enqueue_with_receipts(store, [Draft("k", {"seq": 0})], tmp_path)
    fire(0, 1, 3)
    assert outcome() == (0, "ok", 0)
    fire(3, 4)
    assert outcome() == (0, "noted", 1)
    assert outcome("--master", "local[2]", "--whole") == (0, "noted", 1)
    assert outcome("--schedule", "tick=1h") == (1, "failed", 1)
    fire(4, 6)
    with opened(url) as store:
        (schedule,) = store.schedules()
        store.put_schedule(replace(schedule, rule="@every 3h", next_at=start + 9 * HOUR))
    fire(9, 12, 15)
    assert outcome() == (0, "ok", 0)
    assert outcome("--whole") == (0, "ok", 0)
