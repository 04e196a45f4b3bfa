"""Lies by the thousand: rounds of one history and one audit each, with every kind of `lies` planted a few times.

    python -m tests.spark.lie_rounds --lies 1000 --seed 7

Every lie has to be named by its seq and its job, nothing else may be named, and DuckDB has to come to the same answer
and the same offenders. Rounds differ in what must not matter: how many parts the events are in, their order, copies,
and how far apart ids are. What is wrong is printed, and the exit code is 1.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from forebay.spark.audit import AuditVerdict, audit
from forebay.spark.audit.verdict import OFFENDERS
from tests.spark.lies import KINDS, lawful
from tests.spark.oracle import Row, oracle
from tests.spark.planted import PlantedStory, clean, events_of

PARTITIONS = (3, 1, 200, 2, 64, 17)
EACH = 2
"""Of every kind in a round: no check may find more than an audit names."""

LIVES = 100
UNPLACED = ("ledger_gap", "slot_missing")
"""Checks that are about no job: they name an offset or a schedule."""


class Round(NamedTuple):
    planted_story: PlantedStory
    partitions: int
    lies: int
    gaps: set[int]
    verdict: AuditVerdict
    answer: str
    offenders: Counter[Row]


def grown(
    seed: int, kinds: Sequence[Callable[[PlantedStory], None]], each: int = EACH, *, id_step: int = 0
) -> PlantedStory:
    """A clean history with these lies, and with what resembles some."""
    planted_story = clean(seed, LIVES, id_step=id_step)
    plants = [*kinds] * each + [lawful] * each
    planted_story.rng.shuffle(plants)
    for plant in plants:
        plant(planted_story)
    return planted_story


def played(spark: SparkSession, planted_story: PlantedStory, partitions: int, lies: int) -> Round:
    read, gaps = events_of(planted_story)
    receipts, effects = planted_story.story.evidence()
    frames = [_scattered(spark, table, planted_story.rng, partitions) for table in (read, receipts, effects)]
    verdict = audit(*frames, options=planted_story.options)
    answer, rows = oracle(read, receipts, effects, planted_story.options)
    return Round(planted_story, partitions, lies, gaps, verdict, answer, Counter(rows))


def _scattered(spark: SparkSession, table: pa.Table, rng: random.Random, partitions: int) -> DataFrame:
    """In any order, with some rows twice, in so many parts."""
    rows = [*range(len(table)), *rng.choices(range(len(table)), k=len(table) // 20)]
    rng.shuffle(rows)
    return spark.createDataFrame(table.take(pa.array(rows))).repartition(partitions)


def faults(played: Round) -> Iterator[str]:
    """What is wrong with an audit, in words."""
    verdict, planted_story = played.verdict, played.planted_story
    if verdict.answer != played.answer:
        yield f"the answer is {verdict.answer}, DuckDB's is {played.answer}"
    named = {(each.check, offender.seq, offender.job_id) for each in verdict.results for offender in each.offenders}
    named = {row for row in named if row[0] not in UNPLACED}
    yield from (f"missed: {row}" for row in sorted(planted_story.found - named, key=str))
    yield from (f"invented: {row}" for row in sorted(named - planted_story.found, key=str))
    gaps = {offender.offset for offender in verdict.result("ledger_gap").offenders}
    if gaps != played.gaps:
        yield f"gaps at {sorted(map(str, gaps ^ played.gaps))} are missed or invented"
    slots = Counter(str(offender.note).partition(":")[0] for offender in verdict.result("slot_missing").offenders)
    if slots != Counter(planted_story.schedules) - Counter():
        yield f"slots of {slots}, not of {planted_story.schedules}"
    yield from compared(verdict, played.offenders)


def compared(verdict: AuditVerdict, theirs: Counter[Row]) -> Iterator[str]:
    """To the row. Seqs of checks that only have jobs are added for the reader; DuckDB has none there."""
    by_seq = {row[0] for row in theirs if row[1] is not None}
    ours: Counter[Row] = Counter(
        (
            each.check,
            offender.seq if each.check in by_seq else None,
            offender.job_id,
            offender.delivery,
            offender.offset,
            offender.place,
        )
        for each in verdict.results
        for offender in each.offenders
    )
    yield from (f"DuckDB alone: {row}" for row in sorted((theirs - ours).elements(), key=str))
    yield from (f"Spark alone: {row}" for row in sorted((ours - theirs).elements(), key=str))
    counts = {each.check: each.count for each in verdict.results if each.count}
    if counts != Counter(row[0] for row in theirs.elements()):
        yield f"{counts} are counted"
    if max(counts.values(), default=0) > OFFENDERS:
        yield f"more of a check than the {OFFENDERS} that are named: plant fewer in a round"


def rounds(spark: SparkSession, lies: int, seed: int) -> Iterator[Round]:
    """As many as are needed for so many lies."""
    number = planted = 0
    while planted < lies:
        planted_story = grown(seed + number, KINDS, id_step=1_000 * (number % 2))
        yield played(spark, planted_story, PARTITIONS[number % len(PARTITIONS)], EACH * len(KINDS))
        planted += EACH * len(KINDS)
        number += 1


def main(words: Sequence[str] | None = None) -> int:
    from forebay.spark.session import spark_session

    parser = argparse.ArgumentParser(prog="lie_rounds", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lies", type=int, default=1_000, metavar="N", help="at least so many (default: 1000)")
    parser.add_argument("--seed", type=int, default=7, metavar="S", help="the same seed plants the same (default: 7)")
    args = parser.parse_args(words)
    spark = spark_session("local[2]", quick=True)
    planted = wrong = 0
    for number, each in enumerate(rounds(spark, args.lies, args.seed)):
        found = list(faults(each))
        planted += each.lies
        wrong += len(found)
        seen = sum(result.count for result in each.verdict.results)
        head = f"round {number}, seed {args.seed + number}: {each.lies} lies in {each.partitions} parts"
        _say(f"{head}, {seen} offenders, {each.verdict.answer}, {len(found)} faults", *found)
    _say(f"{planted} lies of {len(KINDS)} kinds: " + (f"{wrong} faults" if wrong else "each was named, none invented"))
    spark.stop()
    return 1 if wrong else 0


def _say(*lines: str) -> None:
    sys.stdout.write("\n  ".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
