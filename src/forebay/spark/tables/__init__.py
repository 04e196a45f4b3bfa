"""The tables: pure functions from events to rows, each with a schema that it keeps. Nothing here reads or writes.

`TABLES` are refreshed incrementally: `merge` combines the rows of new events with existing rows of the same keys, and
the result replaces both. Parts may be merged in any grouping, each event in one part only. `VIEWS` are computed from
all events when they are read.

Every table has `day`, its partition.
"""

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from forebay.core.ledger import Change
from forebay.spark.tables.attempts import ATTEMPTS, CHANGES, attempts, merge_attempts
from forebay.spark.tables.columns import DEAD
from forebay.spark.tables.dead_letters import DEAD_LETTERS, dead_letters, merge_dead_letters
from forebay.spark.tables.fairness import FAIRNESS, fairness
from forebay.spark.tables.jobs import JOBS, jobs, merge_jobs
from forebay.spark.tables.redeliveries import REDELIVERIES, merge_redeliveries, redeliveries
from forebay.spark.tables.retry_spread import RETRY_SPREAD, retry_spread
from forebay.spark.tables.service_levels import SERVICE_LEVELS, merge_service_levels, service_levels


class Table(Struct, frozen=True):
    """`source`: events, or the table that it is built from. `keys`: identify a row. `merge`: combines rows.

    by       selects the files that a changed row may be in: by the job's id, by its day, or its day and all later ones
    changes  events of no other change alter a row; none named: any may
    """

    name: str
    source: Literal["events", "jobs"]
    build: Callable[[DataFrame], DataFrame]
    schema: StructType
    keys: tuple[str, ...]
    by: Literal["job", "day", "later days"]
    merge: Callable[[DataFrame], DataFrame]
    changes: tuple[Change, ...] = ()

    def updated(self, old: DataFrame, new: DataFrame) -> DataFrame:
        """The rows that replace `old` when `new` rows of the source are added."""
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
    Table("attempts", "events", attempts, ATTEMPTS, ("job_id", "delivery"), "job", merge_attempts, CHANGES),
    Table("service_levels", "events", service_levels, SERVICE_LEVELS, _MINUTE, "later days", merge_service_levels),
    Table("redeliveries", "jobs", redeliveries, REDELIVERIES, _TIMES, "day", merge_redeliveries),
    Table("dead_letters", "events", dead_letters, DEAD_LETTERS, _CAUSE, "day", merge_dead_letters, DEAD),
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
