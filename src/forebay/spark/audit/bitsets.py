"""The proof: sets of jobs as 64-bit words, compared word by word, so that ten million jobs are 160,000 rows.

A job's bit is in the word `id >> 6`. Words are plain long integers: they are built, joined and counted inside one
generated loop, and cost less than binary bitmaps of 32,768 bits. Ids with large steps between them (a call a job on
Postgres) fill their words badly; the worst is one word a job, the price of grouping by job, and never a large bitmap
with one bit set. A bit twice is seen by counting: more rows than bits.

The sums are exact where they are 0, however often a file is read: copies change no bit, and the counts that do are
then explained by the exact checks. Where one is not 0, those run and name the offenders.
"""

from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.ledger import Change
from forebay.spark.audit.exact_checks import ENDED, NAMED
from forebay.spark.audit.findings import single_row

_ENDED_UNRUN = tuple(change for change in ENDED if change not in {Change.ACKED, Change.DIED})


class JobSums(Struct, frozen=True):
    """Counts over all jobs; the suspicions are 0 in a clean history.

    lost            named by a receipt, and not accepted in the ledger
    accepted_twice  receipts that say accepted beyond the first
    unfinished      accepted, and no end
    undone          named by a receipt and acked, and no effect
    unborn          ended, and not accepted
    born_twice      acceptances beyond the first
    ended_twice     ends beyond the first, in words without a redrive
    redriven        redrives: ends may come twice, so the exact checks decide
    effect_of_dead  died and not acked, and an effect
    unaccepted      an effect, and not accepted in the ledger
    unreceipted     an effect, and no receipt names the job
    """

    jobs: int
    ended: int
    acked: int
    enqueued: int
    receipted: int
    lost: int
    accepted_twice: int
    unfinished: int
    undone: int
    unborn: int
    born_twice: int
    ended_twice: int
    redriven: int
    effect_of_dead: int
    unaccepted: int
    unreceipted: int

    @property
    def suspicions(self) -> int:
        return sum(getattr(self, name) for name in self.__struct_fields__[5:])


class SeqSums(Struct, frozen=True):
    """Likewise by the producers' numbers.

    duplicated  acceptances of a seq beyond the first      again      effects of a seq beyond the first
    unexpected  an effect, and the seq was not sent        recovered  an effect, and the reply was lost
    """

    sent: int
    effects: int
    duplicated: int
    again: int
    unexpected: int
    recovered: int

    @property
    def suspicions(self) -> int:
        return self.duplicated + self.again + self.unexpected + self.recovered


def job_sums(events: DataFrame, receipts: DataFrame | None, effects: DataFrame | None) -> JobSums:
    """`lost`, `undone` and the coverage say something if their evidence was given."""
    change = F.col("change")
    enqueued, fired, acked, ended, redriven, named, effect, accepted, died = range(9)
    role = (
        F.when(change == Change.ACKED, acked).when(change == Change.DIED, died).when(change.isin(*_ENDED_UNRUN), ended)
    )
    role = role.when(change == Change.REDRIVEN, redriven).when(F.col("verb") == "fire", fired).otherwise(enqueued)
    rows = _bits(events.filter(change.isin(Change.ACCEPTED, Change.REDRIVEN, *ENDED)), "job_id", role)
    if receipts is not None:
        own = receipts.filter(F.col("answer").isin(*NAMED) & F.col("job_id").isNotNull())
        rows = rows.unionAll(_bits(own, "job_id", F.when(F.col("answer") == "accepted", accepted).otherwise(named)))
    if effects is not None:
        rows = rows.unionAll(_bits(effects, "job_id", F.lit(effect)))
    word = (
        rows.groupBy("word")
        .agg(
            *(_set(number, name) for number, name in enumerate(["enqueued", "fired", "acked", "ended"])),
            *(_set(named, "named"), _set(accepted, "accepted"), _set(effect, "effect"), _set(died, "died")),
            *(_rows("births", enqueued, fired), _rows("ends", acked, ended, died), _rows("redriven", redriven)),
            _rows("acceptances", accepted),
        )
        .withColumn("receipted", F.col("named").bitwiseOR(F.col("accepted")))
    )
    born = F.col("enqueued").bitwiseOR(F.col("fired"))
    over = F.col("acked").bitwiseOR(F.col("ended")).bitwiseOR(F.col("died"))
    found = word.agg(
        _sum(F.bit_count(born), "jobs"),
        _sum(F.bit_count(over), "ended"),
        _sum(F.bit_count("acked"), "acked"),
        _sum(F.bit_count("enqueued"), "enqueued"),
        _sum(F.bit_count(F.col("enqueued").bitwiseAND(F.col("receipted"))), "receipted"),
        _sum(_without(F.col("receipted"), born), "lost"),
        _sum(F.col("acceptances") - F.bit_count("accepted"), "accepted_twice"),
        _sum(_without(born, over), "unfinished"),
        _sum(_without(F.col("receipted").bitwiseAND(F.col("acked")), F.col("effect")), "undone"),
        _sum(_without(over, born), "unborn"),
        _sum(F.col("births") - F.bit_count(born), "born_twice"),
        _sum(F.when(F.col("redriven") == 0, F.col("ends") - F.bit_count(over)).otherwise(0), "ended_twice"),
        _sum(F.col("redriven"), "redriven"),
        _sum(_without(F.col("effect").bitwiseAND(F.col("died")), F.col("acked")), "effect_of_dead"),
        _sum(_without(F.col("effect"), born), "unaccepted"),
        _sum(_without(F.col("effect"), F.col("receipted")), "unreceipted"),
    )
    return JobSums(**single_row(found).asDict())


def seq_sums(receipts: DataFrame, effects: DataFrame | None) -> SeqSums:
    answer = F.col("answer")
    accepted, sent, unknown, effect = range(4)
    role = F.when(answer == "accepted", accepted).when(answer == "unknown", unknown).otherwise(sent)
    rows = _bits(receipts.filter(answer != "refused"), "seq", role)
    if effects is not None:
        rows = rows.unionAll(_bits(effects, "seq", F.lit(effect)))
    word = rows.groupBy("word").agg(
        *(_set(number, name) for number, name in enumerate(["accepted", "sent", "unknown", "effect"])),
        _rows("acceptances", accepted),
        _rows("effects", effect),
    )
    answered = F.col("accepted").bitwiseOR(F.col("sent"))
    tried = answered.bitwiseOR(F.col("unknown"))
    found = word.agg(
        _sum(F.bit_count(tried), "sent"),
        _sum(F.col("effects"), "effects"),
        _sum(F.col("acceptances") - F.bit_count("accepted"), "duplicated"),
        _sum(F.col("effects") - F.bit_count("effect"), "again"),
        _sum(_without(F.col("effect"), tried), "unexpected"),
        _sum(_without(F.col("effect").bitwiseAND(F.col("unknown")), answered), "recovered"),
    )
    return SeqSums(**single_row(found).asDict())


def accepted_again(receipts: DataFrame) -> DataFrame:
    """Seqs that were accepted more than once."""
    own = receipts.filter(F.col("answer") == "accepted").groupBy("seq").agg(F.count("*").alias("n"))
    return own.filter(F.col("n") > 1).select("seq")


def _bits(rows: DataFrame, number: str, role: Column) -> DataFrame:
    bit = F.expr(f"shiftleft(1L, cast({number} & 63 as int))")
    return rows.select(F.shiftright(number, 6).alias("word"), bit.alias("bit"), role.alias("role"))


def _set(role: int, name: str) -> Column:
    """The bits of all rows of a role."""
    return F.bit_or(F.when(F.col("role") == role, F.col("bit")).otherwise(0)).alias(name)


def _rows(name: str, *roles: int) -> Column:
    return F.sum(F.when(F.col("role").isin(*roles), 1).otherwise(0)).alias(name)


def _without(one: Column, other: Column) -> Column:
    return F.bit_count(one.bitwiseAND(F.bitwise_not(other)))


def _sum(value: Column, name: str) -> Column:
    return F.coalesce(F.sum(value), F.lit(0)).alias(name)
