"""Jobs and events between Forebay and Spark: reading, seeding, streaming.

    make setup && .venv/bin/python -m bench.spark_io --quick

    read/postgres      jobs a second from Postgres into Spark, all columns
    seed/postgres      generated jobs a second into Postgres through the sink, all in
    stream/catch-up    events a second from the ledger into Parquet, AvailableNow
    stream/steady      seconds a micro-batch, 95th percentile, while 10,000 events a second happen

A session is started and warmed up before; the server is one of our own on this machine.
"""

import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread

from pyspark.sql import SparkSession

from bench.measure import Figure, arguments, run
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.spark.generate import jobs, seed_store
from forebay.spark.session import spark_session
from forebay.store.open import open_store
from forebay.store.protocol import Want
from forebay.testing.servers.postgres import PostgresServer

STEADY_RATE = 10_000
STEADY_SECONDS = 20


class Ground:
    """One server, one session, fresh databases."""

    def __init__(self, server: PostgresServer, spark: SparkSession, folder: Path, count: int) -> None:
        self.server = server
        self.spark = spark
        self.folder = folder
        self.count = count
        self._full: str | None = None
        self._lived: str | None = None
        self._runs = 0

    def fresh(self) -> Path:
        self._runs += 1
        return self.folder / f"run{self._runs}"

    def full(self) -> str:
        """A database with that many jobs that wait."""
        if self._full is None:
            self._full = self.server.create_database()
            seed_store(jobs(self.spark, self.count, 7), self._full)
        return self._full

    def lived(self) -> str:
        """A database whose jobs have been claimed and done: three events a job."""
        if self._lived is None:
            self._lived = self.server.create_database()
            seed_store(jobs(self.spark, self.count // 2, 7), self._lived)
            store = open_store(self._lived)
            while leases := store.claim([Want("default", 1_000)], "bench", timedelta(minutes=5)):
                store.settle([(lease, Ack()) for lease in leases])
            store.close()
        return self._lived

    def read(self) -> float:
        url = self.full()
        began = time.perf_counter()
        self.spark.read.format("forebay").options(url=url).load().write.format("noop").mode("overwrite").save()
        return self.count / (time.perf_counter() - began)

    def seed(self) -> float:
        url = self.server.create_database()
        seeded = seed_store(jobs(self.spark, self.count, 7), url)
        self.server.drop_database(url)
        assert seeded.jobs == self.count
        return seeded.jobs / seeded.seconds

    def catch_up(self) -> float:
        url, ground = self.lived(), self.fresh()
        events = self.spark.readStream.format("forebay").options(url=url, table="events").load()
        began = time.perf_counter()
        query = events.writeStream.format("parquet").options(
            path=str(ground / "t"), checkpointLocation=str(ground / "c")
        )
        started = query.trigger(availableNow=True).start()
        started.awaitTermination()
        took = time.perf_counter() - began
        seen: int = sum(progress["numInputRows"] for progress in started.recentProgress)
        return seen / took

    def steady(self) -> float:
        url, ground = self.server.create_database(), self.fresh()
        events = self.spark.readStream.format("forebay").options(url=url, table="events").load()
        writer = events.writeStream.format("parquet").options(
            path=str(ground / "t"), checkpointLocation=str(ground / "c")
        )
        stop, made = Event(), [0]
        producer = Thread(target=lambda: made.__setitem__(0, _produce(url, stop)), daemon=True)
        query = writer.start()
        producer.start()
        time.sleep(STEADY_SECONDS)
        stop.set()
        producer.join()
        query.processAllAvailable()
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        query.stop()
        seen = sum(progress["numInputRows"] for progress in batches)
        assert seen == made[0], f"{seen} events of {made[0]}"
        assert seen >= 0.9 * STEADY_RATE * STEADY_SECONDS, f"only {seen} events were made"
        lengths: list[float] = [progress["durationMs"]["triggerExecution"] / 1e3 for progress in batches[3:]]
        return statistics.quantiles(lengths, n=20)[-1]


def _produce(url: str, stop: Event) -> int:
    """Jobs that are enqueued, claimed and done, so that about so many events a second happen."""
    store = open_store(url)
    made, began = 0, time.perf_counter()
    while not stop.is_set():
        store.enqueue([Draft("k", {"seq": number}) for number in range(200)])
        leases = store.claim([Want("default", 200)], "bench", timedelta(minutes=1))
        store.settle([(lease, Ack()) for lease in leases])
        made += 600
        stop.wait(max(0.0, made / STEADY_RATE - (time.perf_counter() - began)))
    store.close()
    return made


def main() -> None:
    given = arguments(__doc__)
    count = 200_000 if given.quick else 2_000_000
    with PostgresServer() as server, tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        spark = spark_session(conf={"spark.local.dir": folder, "spark.sql.streaming.numRecentProgressUpdates": "10000"})
        ground = Ground(server, spark, Path(folder), count)
        warm = Ground(server, spark, Path(folder, "warm"), 20_000)
        for work in (warm.seed, warm.read, warm.catch_up):
            work()
        figures = [
            Figure("read/postgres", "jobs/s", ground.read, goal=">= 250,000"),
            Figure("seed/postgres", "jobs/s", ground.seed, goal=">= 80,000"),
            Figure("stream/catch-up", "events/s", ground.catch_up, goal=">= 400,000"),
            Figure("stream/steady", "s", ground.steady, goal="<= 1"),
        ]
        run(figures, rounds=2 if given.quick else 3, only=given.only, as_json=given.json)
        spark.stop()


if __name__ == "__main__":
    main()
