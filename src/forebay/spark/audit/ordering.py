"""The exact checks of what is ordered: lines of jobs that run one after another, and the slots of schedules."""

from datetime import timedelta
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.ledger import Change
from forebay.core.policy import Field
from forebay.spark.audit.exact_checks import ENDED
from forebay.spark.audit.findings import finding

_SETTLED: Final = (Change.ACKED, Change.RETRIED, Change.DIED, Change.RELEASED, Change.DISCARDED)


def out_of_turn(events: DataFrame, ordered: dict[str, Field], since: dict[str, int]) -> DataFrame:
    """A job's first claim is after the first end of every older one of its line; and no two run concurrently. Jobs that
    were accepted before `since` of their queue are not of a line.

    Older is the smaller id, among jobs that had been accepted by then. A redriven job returns to its position and may
    have to wait for a younger one that started meanwhile: after a redrive only the second rule applies.
    """
    own = events.filter(F.col("queue").isin(*ordered))
    born = own.filter(F.col("change") == Change.ACCEPTED)
    for queue, first in since.items():
        born = born.filter((F.col("queue") != queue) | (F.col("offset") >= first))
    line = F.coalesce(*(F.when(F.col("queue") == queue, F.col(by)) for queue, by in ordered.items()))
    members = born.select("job_id", "queue", line.alias("line"), _at().alias("born")).filter(F.col("line").isNotNull())
    rows = _too_soon(own, members).unionAll(_at_once(own, members))
    once = rows.groupBy("job_id", "delivery", "offset", "place").agg(F.min("note").alias("note"))
    return finding(once, "out_of_turn", F.col("note"))


def _too_soon(own: DataFrame, members: DataFrame) -> DataFrame:
    change = F.col("change")
    turns = own.groupBy("job_id").agg(
        F.min(F.when(change == Change.CLAIMED, _at())).alias("claimed"),
        F.min(F.when(change.isin(*ENDED), _at())).alias("ended"),
        F.min(F.when(change == Change.CLAIMED, F.struct("offset", "place", "delivery"))).alias("first"),
    )
    jobs = members.join(turns, "job_id")
    before = Window.partitionBy("queue", "line").orderBy("job_id").rowsBetween(Window.unboundedPreceding, -1)
    latest = F.max(F.coalesce("ended", _never())).over(before)
    late = jobs.withColumn("latest", latest).filter(F.col("latest") > F.col("claimed")).drop("born", "ended", "latest")
    older = jobs.select("queue", "line", F.col("job_id").alias("older"), "born", "ended")
    blocked = late.join(older, ["queue", "line"]).filter(
        (F.col("older") < F.col("job_id"))
        & (F.col("born") < F.col("claimed"))
        & (F.coalesce("ended", _never()) > F.col("claimed"))
    )
    first = blocked.groupBy("job_id", "first").agg(F.min("older").alias("older"))
    note = F.concat(F.lit("claimed before job "), F.col("older"), F.lit(" had ended"))
    return first.select("job_id", "first.delivery", "first.offset", "first.place", note.alias("note"))


def _at_once(own: DataFrame, members: DataFrame) -> DataFrame:
    change = F.col("change")
    turns = (
        own.filter(change.isin(Change.CLAIMED, *_SETTLED))
        .groupBy("job_id", "delivery")
        .agg(
            F.min(F.when(change == Change.CLAIMED, _at())).alias("claimed"),
            F.min(F.when(change.isin(*_SETTLED), _at())).alias("ended"),
        )
    )
    again = Window.partitionBy("job_id").orderBy("claimed")
    turns = turns.filter(F.col("claimed").isNotNull()).withColumn(
        "ended", F.coalesce("ended", F.lead("claimed").over(again), _never())
    )
    before = Window.partitionBy("queue", "line").orderBy("claimed").rowsBetween(Window.unboundedPreceding, -1)
    beside = F.max(F.struct("ended", "job_id")).over(before)
    rows = turns.join(members, "job_id").withColumn("beside", beside)
    rows = rows.filter((F.col("beside.ended") > F.col("claimed")) & (F.col("beside.job_id") != F.col("job_id")))
    note = F.concat(F.lit("ran beside job "), F.col("beside.job_id"))
    return rows.select("job_id", "delivery", "claimed.offset", "claimed.place", note.alias("note"))


def slots_twice(events: DataFrame) -> DataFrame:
    """(schedule, tick) is taken, or given up, in one record and never again."""
    slot = (
        _slots(events)
        .groupBy("name", "tick")
        .agg(F.count("*").alias("n"), F.max("offset").alias("offset"), F.max_by("job_id", "offset").alias("job_id"))
    )
    note = F.concat(F.col("name"), F.lit(" at "), F.col("tick"), F.lit(", "), F.col("n"), F.lit(" times"))
    return finding(slot.filter(F.col("n") > 1), "slot_twice", note)


def slots_missing(events: DataFrame, schedules: dict[str, timedelta]) -> DataFrame:
    """Between the first slot and the last one of each of these, none is left out."""
    slot = _slots(events).groupBy("name", "tick").agg(F.max("offset").alias("offset"))
    line = Window.partitionBy("name").orderBy("tick")
    rows = slot.withColumn("before", F.lag("tick").over(line))
    apart = F.unix_micros("tick") - F.unix_micros("before")
    wrong = [
        (F.col("name") == name) & (apart != every // timedelta(microseconds=1)) for name, every in schedules.items()
    ]
    note = F.concat(F.col("name"), F.lit(": between "), F.col("before"), F.lit(" and "), F.col("tick"))
    holes = finding(rows.filter(reduce(or_, wrong)), "slot_missing", note)
    names = events.sparkSession.createDataFrame([(name,) for name in schedules], "name string")
    never = names.join(slot, "name", "left_anti")
    return holes.unionAll(finding(never, "slot_missing", F.concat(F.col("name"), F.lit(": it never fired"))))


def _slots(events: DataFrame) -> DataFrame:
    """One row a record of `fire`."""
    fired = events.filter((F.col("verb") == "fire") & F.col("tick").isNotNull())
    return fired.groupBy("name", "tick", "offset").agg(F.max("job_id").alias("job_id"))


def _at() -> Column:
    return F.struct("offset", "place")


def _never() -> Column:
    return F.struct(F.lit(2**62).alias("offset"), F.lit(0).alias("place"))
