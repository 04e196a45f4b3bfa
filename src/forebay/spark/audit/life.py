"""The life of every job, event by event, each beside the one before it: one shuffle, one sort, one pass.

Events that change neither state nor lease (`merged`, `asked`) are left out. What a redrive, an expiry or a cancel do
not carry (the delivery, the lives) is taken from the events before them. Jobs that were born before the evidence
begins are judged from their second event on.
"""

from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.ledger import Change
from forebay.core.outcome import ABANDONED
from forebay.spark.audit.checks import Options
from forebay.spark.audit.findings import finding

_OPEN: Final = (Change.ACCEPTED, Change.RETRIED, Change.RELEASED, Change.REDRIVEN)
_RUNNING: Final = (Change.CLAIMED, Change.EXTENDED)
ENDED: Final = (Change.ACKED, Change.DIED, Change.DISMISSED, Change.CANCELLED, Change.EXPIRED, Change.SHED)
_DEAD: Final = (Change.DIED, Change.EXPIRED, Change.SHED)
_FENCED: Final = (Change.ACKED, Change.RETRIED, Change.DIED, Change.RELEASED, Change.DISMISSED, Change.EXTENDED)
MOVES: Final = (*_OPEN, *_RUNNING, *ENDED, Change.PURGED)
"""In an order of its own: a change is its place here while it is shuffled."""


COLUMNS: Final = (
    *("job_id", "offset", "place", "change", "queue", "delivery", "attempt", "max_attempts"),
    *("event_at", "due_at", "next_at", "lease_until", "error_kind"),
)
"""What the checks of jobs need of an event."""


def life_faults(events: DataFrame, options: Options) -> DataFrame:
    """All offenders of the checks that follow one job through its life."""
    rows = _side_by_side(_narrow(events, options))
    faults = _faults(whole=options.from_offset == 0)
    broken = rows.filter(reduce(or_, faults.values()))
    named = F.array_compact(F.array(*(F.when(wrong, name) for name, wrong in faults.items())))
    exploded = broken.withColumn("check", F.explode(named))
    return finding(exploded, F.col("check"), _note())


def _narrow(events: DataFrame, options: Options) -> DataFrame:
    """Only what the pass needs, as small as it can be: all of it is shuffled."""
    change = F.col("change")
    gave_up = change.eqNullSafe(Change.DIED) & F.col("error_kind").isin(*(options.dropped or ()))
    return events.filter(change.isin(*MOVES)).select(
        "job_id",
        "offset",
        "place",
        _code(change).alias("code"),
        F.coalesce("delivery", F.lit(0)).alias("delivery"),
        "attempt",
        "max_attempts",
        "event_at",
        F.when(change == Change.ACCEPTED, F.col("due_at")).otherwise(F.col("next_at")).alias("due"),
        (F.col("event_at") < F.col("due_at")).alias("soon"),
        "lease_until",
        F.coalesce(gave_up, F.lit(False)).alias("gave_up"),
        F.col("error_kind").eqNullSafe(ABANDONED).alias("abandoned"),
    )


def _side_by_side(rows: DataFrame) -> DataFrame:
    line = Window.partitionBy("job_id").orderBy("offset", "place")
    before = line.rowsBetween(Window.unboundedPreceding, -1)
    was = [
        F.lag(name).over(line).alias(f"was_{name}")
        for name in ("code", "delivery", "attempt", "due", "lease_until", "abandoned")
    ]
    return rows.select(
        "*",
        *was,
        F.max("delivery").over(before).alias("last_delivery"),
        F.max("max_attempts").over(before).alias("lives"),
        F.last("lease_until", ignorenulls=True).over(before).alias("last_until"),
    )


def _faults(*, whole: bool) -> dict[str, Column]:
    """By check: whether an event breaks it. Null is no."""
    was_running, was_open = _was(*_RUNNING), _was(*_OPEN)
    over = _was(*ENDED, Change.PURGED)
    known = F.col("was_code").isNotNull()
    claimed, died = _now(Change.CLAIMED), _now(Change.DIED)
    attempt, lives = F.col("attempt"), F.col("lives")
    current = was_running & (F.col("was_delivery") == F.col("delivery"))
    ended_twice = _now(*ENDED) & over
    # Long, and 0 where an event has none: a count at the end of its range, or without a value, is a finding.
    was_attempt = F.coalesce("was_attempt", F.lit(0)).cast("long")
    expected = (
        F.when(_was(Change.ACCEPTED, Change.REDRIVEN), 1)
        .when(_was(Change.RELEASED), was_attempt)
        .when(_was(Change.RETRIED, *_RUNNING), was_attempt + 1)
    )
    faults = {
        "unborn": F.lit(whole) & ~known & ~_now(Change.ACCEPTED),
        "born_twice": _now(Change.ACCEPTED) & known,
        "ended_twice": ended_twice,
        "resurrected": claimed & over,
        "stale_settle": _now(*_FENCED) & known & ~ended_twice & ~current,
        "lease_overlap": claimed & was_running & (F.col("was_lease_until") > F.col("event_at")),
        "early_take_back": claimed & F.col("was_abandoned") & (F.col("last_until") > F.col("event_at")),
        "early_claim": claimed & (F.col("soon") | (was_open & (F.col("event_at") < F.col("was_due")))),
        "delivery_step": claimed & known & (F.col("delivery") != F.col("last_delivery").cast("long") + 1),
        "too_many_lives": (claimed | died) & (attempt > lives),
        "miscounted_lives": claimed & (F.coalesce(attempt, F.lit(0)) != expected),
        "died_early": died & (attempt < lives) & ~F.col("gave_up"),
        "illegal": (_now(Change.CANCELLED, Change.EXPIRED, Change.SHED) & was_running)
        | (_now(Change.REDRIVEN) & known & ~_was(*_DEAD))
        | (_now(Change.PURGED) & known & ~_was(*ENDED)),
    }
    return {name: F.coalesce(wrong, F.lit(False)) for name, wrong in faults.items()}


def _note() -> Column:
    before = F.coalesce(_word(F.col("was_code")), F.lit("nothing"))
    lives = F.concat(F.lit(", life "), F.col("attempt"), F.lit(" of "), F.col("lives"))
    return F.concat(
        *(_word(F.col("code")), F.lit(" by delivery "), F.col("delivery"), F.coalesce(lives, F.lit(""))),
        *(F.lit(", after "), before, F.lit(" by delivery "), F.coalesce(F.col("was_delivery"), F.lit(0))),
    )


def _code(change: Column) -> Column:
    code = F.when(change == MOVES[0], 0)
    for place, move in enumerate(MOVES[1:], 1):
        code = code.when(change == move, place)
    return code.cast("tinyint")


def _word(code: Column) -> Column:
    return F.get(F.array(*(F.lit(str(move)) for move in MOVES)), code)


def _now(*changes: Change) -> Column:
    return F.col("code").isin(*(MOVES.index(change) for change in changes))


def _was(*changes: Change) -> Column:
    return F.coalesce(F.col("was_code").isin(*(MOVES.index(change) for change in changes)), F.lit(False))
