"""The extent of the ledger: how much of it was read, whether it is whole, and each event once.

Files may be read twice, in any order and in any parts. An event is identified by (offset, place): copies are one event,
and two different events at one place are a finding; the smaller one is used from then on, so that the answer does not
depend on the order of reading. `survey` is one cheap aggregate; the exact functions run when it finds something wrong.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.instant import Instant
from forebay.spark.audit.findings import finding, single_row
from forebay.spark.schemas import EVENTS

_PLACE: Final = ["offset", "place"]


class LedgerExtent(Struct, frozen=True):
    """`ragged`: records whose places are not 0, 1, … once each, as many as they should be. `silences`: how often the
    ledger was switched off. `fires`: events of schedules. `largest`: the largest place. `since`, `until`: when
    the first event and the last one happened."""

    records: int
    events: int
    first: int
    last: int
    ragged: int
    silences: int
    fires: int
    largest: int
    since: Instant | None
    until: Instant | None

    @property
    def missing(self) -> int:
        return self.last - self.first + 1 - self.records if self.records else 0

    def followed_by(self, later: "LedgerExtent") -> "LedgerExtent":
        """The extent of a proven part together with the part that follows it."""
        if not self.records:
            return later
        if not later.records:
            return replace(self, ragged=0, silences=0, fires=0)
        return replace(
            later,
            records=self.records + later.records,
            events=self.events + later.events,
            first=self.first,
            largest=max(self.largest, later.largest),
            since=self.since,
        )


EMPTY: Final = LedgerExtent(0, 0, 0, 0, 0, 0, 0, 0, None, None)


def survey(events: DataFrame) -> LedgerExtent:
    """Places are compared by their count, sum, sum of squares and largest: cheaper than telling them apart."""
    place = F.col("place").cast("long")
    off = (F.col("verb") == "put_ledger_rule") & (F.col("name") == "off")
    record = events.groupBy("offset").agg(
        F.count("*").alias("n"),
        F.max(place).alias("most"),
        F.sum(place).alias("total"),
        F.sum(place * place).alias("squares"),
        F.max("places").alias("size"),
        F.max(off.cast("int")).alias("off"),
        F.count("tick").alias("fires"),
        F.min(F.unix_micros("event_at")).alias("at"),
    )
    n = F.col("n")
    even = (F.col("most") + 1 == n) & (F.col("total") * 2 == n * (n - 1))
    even &= F.col("squares") * 6 == n * (n - 1) * (n * 2 - 1)
    even &= F.coalesce(F.col("size"), n) == n
    found = record.agg(
        F.count("*").alias("records"),
        F.coalesce(F.sum("n"), F.lit(0)).alias("events"),
        F.coalesce(F.min("offset"), F.lit(0)).alias("first"),
        F.coalesce(F.max("offset"), F.lit(0)).alias("last"),
        F.count_if(~even).alias("ragged"),
        F.coalesce(F.sum("off"), F.lit(0)).alias("silences"),
        F.coalesce(F.sum("fires"), F.lit(0)).alias("fires"),
        F.coalesce(F.max("most"), F.lit(0)).alias("largest"),
        F.min("at").alias("since"),
        F.max("at").alias("until"),
    )
    return LedgerExtent(**single_row(found).asDict())


def distinct_events(events: DataFrame) -> DataFrame:
    """Each (offset, place) once."""
    return _contents(events).select("first.*", "places").select(*EVENTS.names)


def conflicts(events: DataFrame) -> DataFrame:
    """Places with more than one content."""
    rows = _contents(events).filter(F.col("first") != F.col("last"))
    note = F.concat(_described(F.col("first")), F.lit(" and "), _described(F.col("last")))
    return finding(rows.select("offset", "place", F.col("first.job_id"), "first", "last"), "conflict", note)


def gaps(events: DataFrame, extent: LedgerExtent, begin: int | None = None) -> DataFrame:
    """The first missing offset of each gap, and records that are not whole. The events are there once.

    `begin`: the offset at which they should begin."""
    size = F.greatest(F.max("place") + 1, F.max("places"))
    record = events.groupBy("offset").agg(F.count("*").alias("n"), size.alias("size"), F.max("places").alias("places"))
    after = record.select((F.col("offset") + 1).alias("offset"))
    if begin is not None:
        after = after.unionAll(events.sparkSession.range(begin, begin + 1).toDF("offset"))
    missing = after.filter(F.col("offset") <= extent.last).join(record, "offset", "left_anti")
    torn = record.filter(F.col("n") != F.col("size"))
    holes = F.concat(F.col("n"), F.when(F.col("places").isNull(), " jobs of at least ").otherwise(" jobs of "), "size")
    return finding(missing, "ledger_gap", "records are missing from this offset on").unionAll(
        finding(torn, "ledger_gap", holes)
    )


def log_gaps(name: str, entries: DataFrame) -> DataFrame:
    """Likewise for a retained log: rows of (partition, offset, …)."""
    held = entries.select("partition", "offset").distinct()
    last = held.groupBy("partition").agg(F.max("offset").alias("last"))
    after = held.select("partition", (F.col("offset") + 1).alias("offset"))
    missing = after.join(held, ["partition", "offset"], "left_anti").join(last, "partition")
    note = F.concat(F.lit(f"log {name}, partition "), F.col("partition"), F.lit(": entries are missing from here on"))
    return finding(missing.filter(F.col("offset") <= F.col("last")), "log_gap", note)


def with_sizes(events: DataFrame) -> DataFrame:
    """With the columns that events lacked before records carried their sizes, and those of cells."""
    absent = [field for field in EVENTS.fields[-3:] if field.name not in events.columns]
    return events.withColumns({field.name: F.lit(None).cast(field.dataType) for field in absent}) if absent else events


def _contents(events: DataFrame) -> DataFrame:
    """Copies of one event may differ in whether they have the size of its record."""
    whole = F.struct(*(name for name in EVENTS.names if name != "places"))
    return events.groupBy(*_PLACE).agg(
        F.min(whole).alias("first"), F.max(whole).alias("last"), F.max("places").alias("places")
    )


def _described(event: Column) -> Column:
    change = F.coalesce(event["change"], event["verb"])
    return F.concat(change, F.lit(" of job "), F.coalesce(event["job_id"].cast("string"), F.lit("none")))
