"""Jobs by the million, made from a seed: the same jobs on one partition or two hundred, on one machine or many.

Everything about a job is a pure function of (seed, seq). The mix of a busy day:

    70 %  fast      1 … 5 ms                                5 %  flapping  fails `fails` times, then works; 1 … 5 ms
    20 %  slow      200 ms … 2 s: a lease of less than      5 %  poison    never works
                    2 s must be renewed to outlast it                       dies after three attempts
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import Final
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.errors import ForebayError, Invalid
from forebay.spark.retries import source_of
from forebay.store.open import open_store

MAX_COUNT: Final = 2**48
_POLL_SECONDS: Final = 1.0
POISON_ATTEMPTS: Final = 3
FAST, SLOW, FLAPPING = 70, 90, 95
"""Of a hundred jobs, those below are of this kind or one before it."""


def jobs(spark: SparkSession, count: int, seed: int, *, start: int = 0, queue: str = "default") -> DataFrame:
    """Jobs `start` … `start + count - 1` of the seed: seq, kind, payload, queue and max_attempts, which is null but for
    poison. Each payload has its `seq`."""
    for name, value in (("count", count), ("start", start)):
        if type(value) is not int or not 0 <= value <= MAX_COUNT:
            raise Invalid(name, f"{value!r} is not an integer in 0 … {MAX_COUNT}", "choose one inside these bounds")
    seq = F.col("id")

    def draw(purpose: str, sides: int) -> Column:
        return F.pmod(F.xxhash64(F.lit(seed), F.lit(purpose), seq), F.lit(sides)).cast("int")

    of_mix = draw("kind", 100)
    kind = (
        F.when(of_mix < FAST, "fast")
        .when(of_mix < SLOW, "slow")
        .when(of_mix < FLAPPING, "flapping")
        .otherwise("poison")
    )
    length = F.when(kind == "slow", 200 + draw("ms", 1_801)).otherwise(1 + draw("ms", 5))
    fails = F.when(kind == "flapping", F.concat(F.lit(',"fails":'), 1 + draw("fails", 3))).otherwise("")
    payload = F.concat(F.lit('{"seq":'), seq, F.lit(',"ms":'), length, fails, F.lit("}"))
    made = spark.range(start, start + count)
    attempts = F.when(kind == "poison", POISON_ATTEMPTS).cast("int")
    return made.select(
        *(seq.alias("seq"), kind.alias("kind"), payload.alias("payload"), F.lit(queue).alias("queue")),
        attempts.alias("max_attempts"),
    )


@dataclass(frozen=True)
class Seeded:
    """How many jobs are in by this write, and in how many seconds."""

    jobs: int
    seconds: float


def seed_store(
    made: DataFrame, url: str, *, write_id: str | None = None, progress: Callable[[Seeded], object] | None = None
) -> Seeded:
    """Put generated jobs into a store through the sink. Repeated with the same `write_id` it continues, or adds
    nothing.

    `progress` is called about once a second with the number of jobs that the store has.
    """
    write_id = write_id or uuid4().hex
    sources = [source_of(write_id, number) for number in range(made.rdd.getNumPartitions())]
    began = monotonic()
    store = open_store(url)
    stop = Event()

    def seen() -> Seeded:
        places = [store.ingested(source) for source in sources]
        return Seeded(sum(place.taken for place in places if place is not None), monotonic() - began)

    def report(progress: Callable[[Seeded], object]) -> None:
        while not stop.wait(_POLL_SECONDS):
            with suppress(ForebayError):
                progress(seen())

    watcher = Thread(target=report, args=(progress,), daemon=True) if progress is not None else None
    try:
        seen()
        if watcher is not None:
            watcher.start()
        writer = made.drop("seq").write.format("forebay").mode("append")
        writer.option("url", url).option("write_id", write_id).save()
        return seen()
    finally:
        stop.set()
        if watcher is not None and watcher.ident is not None:
            watcher.join()
        store.close()
