"""What the tables share: which changes end a job, lengths of time, and percentiles that can be merged.

Lengths are whole microseconds inside sketches and seconds in columns for people. A sketch is a KLL sketch in a binary
column: sketches of any rows merge into the sketch of all their values, so a percentile over any range of minutes,
queues or days comes from the table alone. Its rank is off by about 1 %.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.ledger import Change

ENDED: Final = (Change.ACKED, Change.DIED, Change.DISCARDED, Change.CANCELLED, Change.EXPIRED, Change.SHED)
SETTLED: Final = (Change.ACKED, Change.RETRIED, Change.DIED, Change.RELEASED, Change.DISCARDED)
UNCLAIMED: Final = (Change.EXPIRED, Change.SHED)
DEAD: Final = (Change.DIED, *UNCLAIMED)
PERCENTILES: Final = (50, 95, 99)


def was(*changes: Change) -> Column:
    return F.col("change").isin(*changes)


def count_of(*changes: Change) -> Column:
    return F.count_if(was(*changes))


def micros_between(start: str, end: str) -> Column:
    return F.unix_micros(end) - F.unix_micros(start)


def seconds_between(start: str, end: str) -> Column:
    return micros_between(start, end) / 1e6


def sketch(micros: Column) -> Column:
    """Of the lengths that are there; null where there is none."""
    return F.when(F.count(micros) > 0, F.kll_sketch_agg_bigint(micros))


def merged(name: str) -> Column:
    return F.when(F.count(name) > 0, F.kll_merge_agg_bigint(name)).alias(name)


def percentile(name: str, percent: int) -> Column:
    """In seconds, of a sketch's column."""
    value = F.kll_sketch_get_quantile_bigint(F.col(name), F.lit(percent / 100)) / 1e6
    return F.when(F.col(name).isNotNull(), value)
