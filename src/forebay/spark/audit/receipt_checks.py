"""The exact checks of what producers were told and what handlers did, against the ledger: joins that name offenders.

Rows of receipts or effects that are alike in every column are one: a file that was read twice adds nothing. So an
effect needs its time, or a repeated effect could not be told from a repeated line.
"""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.ledger import Change
from forebay.spark.audit.findings import finding, together
from forebay.spark.audit.life import ENDED
from forebay.spark.audit.words import NAMED


def known_jobs(events: DataFrame) -> DataFrame:
    """One row a job of the ledger: its queue, whether its birth is in it, whether it is over, whether it was acked."""
    change, at = F.col("change"), F.struct("offset", "place")
    ended, redriven = (F.max(F.when(of, at)) for of in (change.isin(*ENDED), change == Change.REDRIVEN))
    over = (ended > redriven) | (ended.isNotNull() & redriven.isNull()) | (F.count_if(change == Change.PURGED) > 0)
    return (
        events.filter(F.col("job_id").isNotNull())
        .groupBy("job_id")
        .agg(
            F.coalesce(F.min(F.when(change == Change.ACCEPTED, F.col("queue"))), F.min("queue")).alias("queue"),
            (F.count_if(change == Change.ACCEPTED) > 0).alias("born"),
            F.coalesce(over, F.lit(False)).alias("over"),
            (F.count_if(change == Change.ACKED) > 0).alias("acked"),
            (F.count_if(change == Change.DIED) > 0).alias("died"),
        )
    )


def unfinished(jobs: DataFrame) -> DataFrame:
    return finding(jobs.filter(F.col("born") & ~F.col("over")), "unfinished", "accepted, and it has no end")


def receipt_faults(jobs: DataFrame, receipts: DataFrame, *, whole: bool, since: datetime | None) -> DataFrame:
    """lost: the job is not in the ledger, or is somebody else's there. Where that is not whole, what was sent before is
    skipped."""
    told = receipts.filter(F.col("answer").isin(*NAMED) & F.col("job_id").isNotNull())
    if whole:
        jobs = jobs.filter("born")
    else:
        told = told.filter(F.col("sent_at") >= F.lit(since))
    lost = told.join(jobs, "job_id", "left_anti").groupBy("job_id").agg(F.min("seq").alias("seq"))
    absent = finding(lost, "lost", "a producer was told of it, and it is not in the ledger")
    replaced = finding(
        _replaced(told, jobs), "lost", "its id was given to another one later: the store had forgotten it"
    )
    return absent.unionAll(replaced)


def duplicated(jobs: DataFrame, receipts: DataFrame, effects: DataFrame | None) -> DataFrame:
    """By what producers were told and by what handlers found in the payload. A broker makes a copy in each queue; of a
    job that the ledger does not have the queue is not known."""
    pairs = receipts.filter(F.col("answer").isin("accepted", "duplicate")).select("seq", "job_id")
    if effects is not None:
        pairs = pairs.unionAll(effects.select("seq", "job_id"))
    placed = pairs.filter(F.col("job_id").isNotNull()).join(jobs.select("job_id", "queue"), "job_id")
    alike = placed.groupBy("seq", "queue").agg(F.array_sort(F.collect_set("job_id")).alias("j"))
    twice = alike.filter(F.size("j") > 1).withColumn("job_id", F.get("j", F.size("j") - 1))
    return finding(twice, "duplicated", F.concat(F.lit("jobs "), F.array_join("j", ", ")))


def accepted_again(receipts: DataFrame) -> DataFrame:
    """Seqs that were accepted more than once."""
    own = receipts.filter(F.col("answer") == "accepted").groupBy("seq").agg(F.count("*").alias("n"))
    return own.filter(F.col("n") > 1).select("seq")


def effect_faults(jobs: DataFrame, receipts: DataFrame | None, effects: DataFrame, *, whole: bool) -> DataFrame:
    """undone, unexpected, unreceipted, foreign_effect, recovered, repeated_effect, redelivered and effect_of_dead."""
    parts = [*_several(effects), _of_dead(jobs, effects)]
    born = jobs.filter("born") if whole else jobs
    unknown = effects.join(born, "job_id", "left_anti") if whole else effects.limit(0)
    strange = [unknown.select("seq", "job_id", F.lit("the ledger has no such job").alias("why"))]
    if receipts is not None:
        sent = receipts.filter(F.col("answer") != "refused").select("seq").distinct()
        unsent = effects.join(sent, "seq", "left_anti").select("seq", "job_id").distinct()
        absent = _unreceipted(born, receipts, unsent)
        unsent = unsent.join(absent, ["seq", "job_id"], "left_anti")
        strange.append(unsent.select("seq", "job_id", F.lit("nobody sent it").alias("why")))
        parts.append(_foreign(receipts, effects.join(sent, "seq", "left_semi")))
        parts += [_undone(jobs, receipts, effects), _recovered(receipts, effects)]
        parts.append(finding(absent, "unreceipted", "the ledger accepted the job, and there is no receipt of it"))
    rows = together(strange).groupBy("seq", "job_id").agg(F.array_sort(F.collect_set("why")).alias("why"))
    return together([*parts, finding(rows, "unexpected", F.array_join("why", "; "))])


def unfenced(events: DataFrame, effects: DataFrame, *, whole: bool) -> DataFrame:
    """Of jobs that the ledger knows; a job that it does not know is unexpected as a whole."""
    claims = events.filter(F.col("change") == Change.CLAIMED).select("job_id", "delivery")
    born = events.filter(F.col("change") == Change.ACCEPTED) if whole else claims
    known = effects.join(born.select("job_id"), "job_id", "left_semi")
    rows = known.join(claims, ["job_id", "delivery"], "left_anti").groupBy("job_id", "delivery")
    return finding(rows.agg(F.min("seq").alias("seq")), "unfenced_effect", "this delivery was never handed out")


def _several(effects: DataFrame) -> list[DataFrame]:
    distinct = effects.distinct()
    fence = distinct.groupBy("seq", "job_id", "delivery").agg(F.count("*").alias("n"))
    repeated = fence.filter(F.col("n") > 1)
    job = fence.groupBy("seq", "job_id").agg(F.array_sort(F.collect_set("delivery")).alias("d"))
    several = job.filter(F.size("d") > 1).withColumn("delivery", F.get("d", F.size("d") - 1))
    return [
        finding(repeated, "repeated_effect", F.concat(F.col("n"), F.lit(" effects by one fence"))),
        finding(several, "redelivered", F.concat(F.lit("effects by deliveries "), F.array_join("d", ", "))),
    ]


def _unreceipted(born: DataFrame, receipts: DataFrame, unsent: DataFrame) -> DataFrame:
    """Effects that fit the ledger, and neither their seq nor their job is in any receipt: the evidence is incomplete,
    the store is not to blame."""
    unanswered = unsent.join(receipts.select("seq"), "seq", "left_anti")
    unnamed = unanswered.join(receipts.filter(F.col("job_id").isNotNull()), "job_id", "left_anti")
    return unnamed.join(born, "job_id", "left_semi").select("seq", "job_id")


def _foreign(receipts: DataFrame, effects: DataFrame) -> DataFrame:
    """Effects of a seq by a job that belongs to others, by the receipts. Where the seq's reply was lost, it may have
    been a duplicate of theirs."""
    unknown = receipts.filter(F.col("answer") == "unknown").select("seq")
    told = receipts.filter(F.col("job_id").isNotNull()).select("seq", "job_id")
    theirs = effects.join(told.select("job_id"), "job_id", "left_semi").join(unknown, "seq", "left_anti")
    rows = theirs.join(told, ["seq", "job_id"], "left_anti").select("seq", "job_id").distinct()
    return finding(rows, "foreign_effect", "the receipts name the job for other seqs")


def _of_dead(jobs: DataFrame, effects: DataFrame) -> DataFrame:
    dead = effects.join(jobs.filter("died AND NOT acked"), "job_id", "left_semi")
    rows = dead.groupBy("seq", "job_id").agg(F.max("delivery").alias("delivery"))
    return finding(rows, "effect_of_dead", "it died, and a handler left an effect")


def _replaced(told: DataFrame, jobs: DataFrame) -> DataFrame:
    """Acceptances of a job that the ledger has, but for the last one: a store that lost its last calls gives their ids
    again."""
    own = told.filter(F.col("answer") == "accepted").groupBy("job_id", "seq").agg(F.max("sent_at").alias("at"))
    last = own.groupBy("job_id").agg(F.max(F.struct("at", "seq")).getField("seq").alias("last"))
    return own.join(last, "job_id").filter(F.col("seq") != F.col("last")).join(jobs, "job_id", "left_semi")


def _undone(jobs: DataFrame, receipts: DataFrame, effects: DataFrame) -> DataFrame:
    told = receipts.filter(F.col("answer").isin(*NAMED)).groupBy("job_id").agg(F.min("seq").alias("seq"))
    acked = told.join(jobs.filter("acked"), "job_id").join(effects.select("job_id"), "job_id", "left_anti")
    return finding(acked, "undone", "acked, and no handler left an effect")


def _recovered(receipts: DataFrame, effects: DataFrame) -> DataFrame:
    answered = receipts.filter(~F.col("answer").isin("refused", "unknown")).select("seq")
    open_ = receipts.filter(F.col("answer") == "unknown").select("seq").distinct().join(answered, "seq", "left_anti")
    rows = effects.join(open_, "seq").groupBy("seq").agg(F.min("job_id").alias("job_id"))
    return finding(rows, "recovered", "the reply was lost, the job was done")
