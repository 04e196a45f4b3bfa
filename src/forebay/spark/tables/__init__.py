"""The tables: pure functions from events to rows, each with a schema that it keeps. Nothing here reads or writes.

`TABLES` tells a runner all it needs. A table is kept up to date in one of two ways:

    merge   rows of new events, put under the rows that are there with the same keys, go through `merge`: the result
            takes the place of both. Parts may be merged in any grouping, each event in one part only
    day     the days that new events touch are made anew by `build` from everything of those days in the source

Every table has `day`, and all but a few rows a `queue`: they are the partitions.
"""

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from forebay.spark.tables.attempts import ATTEMPTS, attempts, merge_attempts
from forebay.spark.tables.dead_letters import DEAD_LETTERS, dead_letters, merge_dead_letters
from forebay.spark.tables.fairness import FAIRNESS, fairness
from forebay.spark.tables.jobs import JOBS, jobs, merge_jobs
from forebay.spark.tables.redeliveries import REDELIVERIES, redeliveries
from forebay.spark.tables.retry_spread import RETRY_SPREAD, retry_spread
from forebay.spark.tables.service_levels import SERVICE_LEVELS, merge_service_levels, service_levels

PARTITIONS: Final = ("day", "queue")


class Table(Struct, frozen=True):
    """`source`: events, or the table that it is made from. `keys`: what is one row. `merge`: how two become one.

    cumulative  a merged row depends on rows of earlier keys too: merge with the whole table, which is small
    """

    name: str
    source: Literal["events", "jobs"]
    build: Callable[[DataFrame], DataFrame]
    schema: StructType
    keys: tuple[str, ...]
    how: Literal["merge", "day"]
    merge: Callable[[DataFrame], DataFrame] | None = None
    cumulative: bool = False

    def updated(self, old: DataFrame, new: DataFrame) -> DataFrame:
        """The rows that take the place of `old` once `new` rows of the source are in; for tables that merge."""
        assert self.merge is not None
        return self.merge(old.select(*self.schema.names).unionAll(self.build(new)))


_MINUTE: Final = ("minute", "queue")
_WHOLE: Final = True
_CAUSE: Final = ("day", "queue", "kind", "fingerprint")
_ALL: Final = (
    Table("jobs", "events", jobs, JOBS, ("job_id",), "merge", merge_jobs),
    Table("attempts", "events", attempts, ATTEMPTS, ("job_id", "delivery"), "merge", merge_attempts),
    Table("service_levels", "events", service_levels, SERVICE_LEVELS, _MINUTE, "merge", merge_service_levels, _WHOLE),
    Table("redeliveries", "jobs", redeliveries, REDELIVERIES, ("day", "queue", "deliveries"), "day"),
    Table("dead_letters", "events", dead_letters, DEAD_LETTERS, _CAUSE, "merge", merge_dead_letters),
    Table("fairness", "events", fairness, FAIRNESS, _MINUTE, "day"),
    Table("retry_spread", "events", retry_spread, RETRY_SPREAD, ("day", "queue", "attempt"), "day"),
)
TABLES: Final = {table.name: table for table in _ALL}
"""By name, in an order in which each comes after its source."""

__all__ = ["PARTITIONS", "TABLES", "Table"]
