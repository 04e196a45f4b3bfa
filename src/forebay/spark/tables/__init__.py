"""The tables: pure functions from events to rows, each with a schema that it keeps. Nothing here reads or writes.

`TABLES` are kept up to date: rows of new events, put under the rows that are there with the same keys, go through
`merge`, and the result takes the place of both. Parts may be merged in any grouping, each event in one part only.
`VIEWS` are worked out from all events whenever they are read.

Every table has `day`, its partition.
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
from forebay.spark.tables.redeliveries import REDELIVERIES, merge_redeliveries, redeliveries
from forebay.spark.tables.retry_spread import RETRY_SPREAD, retry_spread
from forebay.spark.tables.service_levels import SERVICE_LEVELS, merge_service_levels, service_levels


class Table(Struct, frozen=True):
    """`source`: events, or the table that it is made from. `keys`: what is one row. `merge`: how two become one.

    by    what tells which files a row that changes may be in: the job's number, its day, or its day and all later ones
    """

    name: str
    source: Literal["events", "jobs"]
    build: Callable[[DataFrame], DataFrame]
    schema: StructType
    keys: tuple[str, ...]
    by: Literal["job", "day", "later days"]
    merge: Callable[[DataFrame], DataFrame]

    def updated(self, old: DataFrame, new: DataFrame) -> DataFrame:
        """The rows that take the place of `old` once `new` rows of the source are in."""
        return self.merge(old.select(*self.schema.names).unionAll(self.build(new)))


class View(Struct, frozen=True):
    name: str
    build: Callable[[DataFrame], DataFrame]
    schema: StructType
    keys: tuple[str, ...]


_MINUTE: Final = ("minute", "queue")
_CAUSE: Final = ("day", "queue", "kind", "fingerprint")
_TIMES: Final = ("day", "queue", "deliveries")
_ALL: Final = (
    Table("jobs", "events", jobs, JOBS, ("job_id",), "job", merge_jobs),
    Table("attempts", "events", attempts, ATTEMPTS, ("job_id", "delivery"), "job", merge_attempts),
    Table("service_levels", "events", service_levels, SERVICE_LEVELS, _MINUTE, "later days", merge_service_levels),
    Table("redeliveries", "jobs", redeliveries, REDELIVERIES, _TIMES, "day", merge_redeliveries),
    Table("dead_letters", "events", dead_letters, DEAD_LETTERS, _CAUSE, "day", merge_dead_letters),
)
TABLES: Final = {table.name: table for table in _ALL}
"""By name, in an order in which each comes after its source."""

VIEWS: Final = {
    view.name: view
    for view in (
        View("fairness", fairness, FAIRNESS, _MINUTE),
        View("retry_spread", retry_spread, RETRY_SPREAD, ("day", "queue", "attempt")),
    )
}

__all__ = ["TABLES", "VIEWS", "Table", "View"]
