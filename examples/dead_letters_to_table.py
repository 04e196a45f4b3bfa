"""Dead letters stream into a table; a filtered set of them is mended and sent back. Needs `forebay[spark]`.

    python examples/dead_letters_to_table.py [--keep DIR]

A store gets thirty jobs. Ten die because their address has no @, five because a server was down. Spark follows the
ledger and keeps what died in a table. Of those, the first ten get another payload, the others go back as they are:
first as a dry run, then slowly. Nothing else is touched, and running it twice would move nothing twice.
"""

import argparse
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay import Draft, Want, open_store
from forebay.core.outcome import Ack, DeadLetter, Failure, Verdict
from forebay.spark.redrive import redrive
from forebay.spark.session import spark_session


def a_bad_day(url: str) -> None:
    store = open_store(url)
    addresses = [f"user-{n}" if n < 10 else f"user-{n}@example.com" for n in range(30)]
    store.enqueue([Draft("mail", {"to": address}) for address in addresses])
    leases = store.claim([Want("default", 30)], "worker", timedelta(seconds=30))
    store.settle([(lease, fate(n, lease.job.payload["to"])) for n, lease in enumerate(leases)])
    store.close()


def fate(number: int, address: str) -> Verdict:
    if "@" not in address:
        return DeadLetter(Failure("ValueError", f"{address!r} is no address"))
    return DeadLetter(Failure("SmtpError", "421 try again later")) if number >= 25 else Ack()


def stream(spark: SparkSession, url: str, table: Path) -> None:
    """All that died so far, and where it stopped: run it again, and it goes on there."""
    events = spark.readStream.format("forebay").option("url", url).option("table", "events").load()
    died = events.filter("change = 'died'").select("job_id", "queue", "kind", "error_kind", "error", "event_at")
    query = (
        died.writeStream.format("parquet")
        .option("path", str(table))
        .option("checkpointLocation", str(table.with_name("checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def mend(spark: SparkSession, url: str, table: Path) -> None:
    """By their error: a new address for some, another try for the others."""
    died = spark.read.parquet(str(table))
    died.groupBy("error_kind").count().orderBy("error_kind").show()
    dead = spark.read.format("forebay").option("url", url).option("table", "dead").load()
    chosen = dead.join(died.select(F.col("job_id").alias("id")), "id", "left_semi")
    to = F.get_json_object("payload", "$.to")
    mended = F.to_json(F.struct(F.concat(to, F.lit("@example.com")).alias("to")))
    letters = chosen.select("id", F.when(F.col("error_kind") == "ValueError", mended).alias("payload"))
    print("a dry run: ", redrive(letters, url, dry_run=True))
    print("for real:  ", redrive(letters, url, rate=50))
    print("once more: ", redrive(letters, url))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", metavar="DIR", help="leave the store and the table there (default: nothing is left)")
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(keep or scratch).resolve()
        home.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{home}/jobs.db"
        a_bad_day(url)
        spark = spark_session(quick=True)
        stream(spark, url, home / "dead")
        mend(spark, url, home / "dead")
        store = open_store(url)
        left = store.backlog(["default"])[0]
        store.close()
    print(f"in the end: {left.depth} jobs live again, {left.dead} are dead")
    return 0 if (left.depth, left.dead) == (15, 0) else 1


if __name__ == "__main__":
    sys.exit(main())
