"""Which jobs need the exact checks: one hash aggregate by job over events, receipts and effects finds the plain ones.

A plain job was accepted once, claimed once by delivery 1 when it was due, and acknowledged once by that delivery, in
this order; it has one receipt and one effect of the same seq, or neither. Or it is still open, where that is allowed.
Nothing in such a life can break a promise that is about one job. All others are suspects, and only they get the
exact checks.

Per job six numbers are kept: how many rows there are, the roles that they play as bits, the first and the last event,
and the exclusive or of due times and of seqs. As many rows as bits means that every role is played once, and then an
exclusive or of 0 means that two values are the same. None of it is a sum that could overflow.
"""

from functools import reduce
from typing import Final

from msgspec import Struct
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.ledger import Change
from forebay.spark.audit.exact_checks import ENDED, MOVES, NAMED
from forebay.spark.audit.survey import LedgerExtent

_ENQUEUED, _FIRED, _CLAIMED, _ACKED, _RECEIPT, _EFFECT = (1 << bit for bit in range(6))
"""Roles of a plain job."""

_ODD_ACK, _ENDED, _ODD, _ODD_RECEIPT, _ODD_EFFECT, _UNTIMED = (1 << bit for bit in range(6, 12))
"""Roles that make a suspect."""

_BORN: Final = _ENQUEUED | _FIRED
_OVER: Final = _ACKED | _ODD_ACK | _ENDED

_PLACE_BITS: Final = 20
_OFFSET_BITS: Final = 41
_BIRTH, _CLAIM, _ACK, _OTHER = range(4)
"""The lowest two bits of an event's position."""


class JobProfile(Struct, frozen=True):
    """Counts over all jobs. `untimed`: jobs with effects that have no time."""

    jobs: int
    ended: int
    enqueued: int
    receipted: int
    untimed: int
    suspects: int


def fits(extent: LedgerExtent) -> bool:
    """Whether positions in this ledger fit into one number."""
    return extent.last < 1 << _OFFSET_BITS and extent.largest < 1 << _PLACE_BITS


def profile(
    events: DataFrame, receipts: DataFrame | None, effects: DataFrame | None, *, drained: bool
) -> tuple[JobProfile, DataFrame]:
    """The counts, and the jobs that are not plain or not over: `job_id`, `plain`. Those are persisted, until the caller
    lets go of them."""
    parts = [_of_events(events)]
    if receipts is not None:
        parts.append(_of_receipts(receipts))
    if effects is not None:
        parts.append(_of_effects(effects))
    jobs = (
        reduce(DataFrame.unionAll, parts)
        .groupBy("job_id")
        .agg(
            F.count("*").alias("n"),
            F.bit_or("role").alias("roles"),
            F.min("position").alias("first"),
            F.max("position").alias("last"),
            F.bit_xor("due").alias("due"),
            F.bit_xor("seq").alias("seq"),
        )
    )
    plain = _is_plain(receipts is not None, effects is not None, drained=drained)
    seen = Observation()
    marked = jobs.select("job_id", "roles", F.coalesce(plain, F.lit(False)).alias("plain")).observe(
        seen,
        F.count_if(_plays(_BORN)).alias("jobs"),
        F.count_if(_plays(_OVER)).alias("ended"),
        F.count_if(_plays(_ENQUEUED)).alias("enqueued"),
        F.count_if(_plays(_ENQUEUED) & _plays(_RECEIPT | _ODD_RECEIPT)).alias("receipted"),
        F.count_if(_plays(_UNTIMED)).alias("untimed"),
    )
    noted = marked.filter(~F.col("plain") | ~_plays(_OVER)).select("job_id", "plain")
    noted = noted.persist(StorageLevel.MEMORY_AND_DISK)
    count = suspects(noted).count()
    return JobProfile(**seen.get, suspects=count), noted


def suspects(noted: DataFrame) -> DataFrame:
    """Their ids."""
    return noted.filter(~F.col("plain")).select("job_id")


def _of_events(events: DataFrame) -> DataFrame:
    change, attempt, delivery = F.col("change"), F.col("attempt"), F.col("delivery")
    first = (delivery == 1) & (attempt == 1)
    born, claimed, acked = (change == each for each in (Change.ACCEPTED, Change.CLAIMED, Change.ACKED))
    well_born = (F.col("max_attempts") >= 1) & (F.coalesce(delivery, F.lit(0)) == 0)
    birth = F.when(F.col("verb") == "fire", _FIRED).otherwise(_ENQUEUED)
    well_claimed = claimed & first & (F.col("event_at") >= F.col("due_at"))
    role = (
        F.when(born, F.when(well_born, birth).otherwise(birth.bitwiseOR(F.lit(_ODD))))
        .when(claimed, F.when(well_claimed, _CLAIMED).otherwise(_ODD))
        .when(acked, F.when(first, _ACKED).otherwise(_ODD_ACK))
        .when(change.isin(*ENDED), _ENDED)
        .otherwise(_ODD)
    )
    kind = F.when(born, _BIRTH).when(claimed, _CLAIM).when(acked, _ACK).otherwise(_OTHER)
    position = F.shiftleft(F.shiftleft("offset", _PLACE_BITS).bitwiseOR(F.col("place").cast("long")), 2)
    due = F.when(born | claimed, F.unix_micros("due_at")).otherwise(0)
    return events.filter(change.isin(*MOVES)).select(
        "job_id",
        role.alias("role"),
        position.bitwiseOR(kind.cast("long")).alias("position"),
        F.coalesce(due, F.lit(0)).cast("long").alias("due"),
        F.lit(0).cast("long").alias("seq"),
    )


def _of_receipts(receipts: DataFrame) -> DataFrame:
    accepted = F.col("answer") == "accepted"
    named = receipts.filter(F.col("answer").isin(*NAMED) & F.col("job_id").isNotNull())
    return _evidence(named, F.when(accepted, _RECEIPT).otherwise(_ODD_RECEIPT))


def _of_effects(effects: DataFrame) -> DataFrame:
    role = F.when(F.col("delivery") == 1, _EFFECT).otherwise(_ODD_EFFECT)
    return _evidence(effects, role.bitwiseOR(F.when(F.col("effect_at").isNull(), _UNTIMED).otherwise(0)))


def _evidence(rows: DataFrame, role: Column) -> DataFrame:
    none = F.lit(None).cast("long")
    return rows.select("job_id", role.alias("role"), none.alias("position"), F.lit(0).cast("long").alias("due"), "seq")


def _is_plain(receipts: bool, effects: bool, *, drained: bool) -> Column:
    once = F.col("n") == F.bit_count("roles")
    one_birth = F.bit_count(F.col("roles").bitwiseAND(_BORN)) == 1
    born_first = F.col("first").bitwiseAND(3) == _BIRTH
    as_due = F.col("due") == 0
    life = F.col("roles").bitwiseAND(~(_BORN | _RECEIPT | _EFFECT))
    last = F.col("last").bitwiseAND(3)
    acked = (life == (_CLAIMED | _ACKED)) & (last == _ACK) & as_due
    if receipts and effects:
        both = F.col("roles").bitwiseAND(_RECEIPT | _EFFECT)
        acked &= (both == 0) | ((both == (_RECEIPT | _EFFECT)) & (F.col("seq") == 0))
    waiting = (life == 0) | ((life == _CLAIMED) & (last == _CLAIM) & as_due)
    lawful = acked if drained else acked | (waiting & ~_plays(_EFFECT))
    return once & one_birth & born_first & lawful


def _plays(roles: int) -> Column:
    return F.col("roles").bitwiseAND(roles) != 0
