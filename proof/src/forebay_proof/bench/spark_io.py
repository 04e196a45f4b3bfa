"""Jobs and events between Forebay and Spark: reading, seeding, streaming.

    make setup && .venv/bin/python -m forebay_proof.bench.spark_io --quick
    .venv/bin/python -m forebay_proof.bench.spark_io --jobs 5000000 --rounds 1 --only seed

    read/postgres      jobs a second from Postgres into Spark, all columns
    seed/postgres      generated jobs a second into Postgres through the sink, all in
    seed/python        MiB of the Python processes of the last seeding at their peak, driver and tasks
    seed/java          MiB of the JVM, likewise; most of it is heap that Java has not given back
    stream/catch-up    events a second from the ledger into the events of a lake, as `forebay pipeline run` brings them
    stream/task        µs of CPU an event of what a task does there: read records, make columns, write files
    stream/parquet     events a second from the ledger through the data source into Spark's Parquet sink, AvailableNow
    stream/steady      seconds a micro-batch of `forebay pipeline stream`, 95th percentile, while 10,000 events a second
                       happen; then its parts, likewise: the ledger's bounds, the tasks, the commit
    stream/sink        seconds a micro-batch of the Parquet sink under the same load

A session is started and warmed up before; the server is one of our own on this machine.
"""

import os
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event, Thread

import psutil
from pyspark.sql import SparkSession

from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.spark.generate import jobs, seed_store
from forebay.spark.lake import Lake
from forebay.spark.landing import land
from forebay.spark.options import Reading
from forebay.spark.pipeline import BatchTimes, Pipeline
from forebay.spark.reading import ReadRange
from forebay.spark.sections import check_ledger
from forebay.spark.session import spark_session
from forebay.store.open import open_store
from forebay.store.protocol import Want
from forebay_proof.bench.measure import Figure, bench_parser, run
from forebay_proof.histogram import percentile
from forebay_proof.processes import tree_of
from forebay_proof.servers.postgres import PostgresServer

FULL = 2_000_000
"""Jobs that the goals are about, but for that of micro-batches, which has its own rate."""

STEADY_RATE = 10_000
STEADY_SECONDS = 20
STEADY_PAUSE = 0.5
WARM_BATCHES = 3
"""That are not measured."""

NEVER = 1e9
LOOK_SECONDS = 0.5


PARTS = BatchTimes.__struct_fields__


class Memory:
    """How much this process and those that it started hold, sampled: the maximum, in MiB."""

    def __init__(self) -> None:
        self.python = self.java = 0.0
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            held = {"python": 0.0, "java": 0.0}
            for process in tree_of([os.getpid()]):
                with suppress(psutil.NoSuchProcess):
                    if (name := process.name()) != "postgres":
                        held["java" if name == "java" else "python"] += process.memory_full_info().pss / 2**20
            self.python, self.java = max(self.python, held["python"]), max(self.java, held["java"])


class SparkBench:
    """One server, one session, fresh databases."""

    def __init__(self, server: PostgresServer, spark: SparkSession, folder: Path, count: int) -> None:
        self.server = server
        self.spark = spark
        self.folder = folder
        self.count = count
        self._full: str | None = None
        self._finished: str | None = None
        self._runs = 0
        self.memory = Memory()
        self.batches: list[BatchTimes] = []

    def fresh(self) -> Path:
        self._runs += 1
        return self.folder / f"run{self._runs}"

    def full(self) -> str:
        """A database with that many jobs that wait."""
        if self._full is None:
            self._full = self.server.create_database()
            seed_store(jobs(self.spark, self.count, 7), self._full)
        return self._full

    def finished(self) -> str:
        """A database whose jobs have been claimed and done: three events a job."""
        if self._finished is None:
            self._finished = self.server.create_database()
            seed_store(jobs(self.spark, self.count // 2, 7), self._finished)
            store = open_store(self._finished)
            while leases := store.claim([Want("default", 1_000)], "bench", timedelta(minutes=5)):
                store.settle([(lease, Ack()) for lease in leases])
            store.close()
        return self._finished

    def read(self) -> float:
        url = self.full()
        began = time.perf_counter()
        self.spark.read.format("forebay").options(url=url).load().write.format("noop").mode("overwrite").save()
        return self.count / (time.perf_counter() - began)

    def seed(self) -> float:
        url = self.server.create_database()
        with Memory() as self.memory:
            seeded = seed_store(jobs(self.spark, self.count, 7), url)
        self.server.drop_database(url)
        assert seeded.jobs == self.count
        return seeded.jobs / seeded.seconds

    def catch_up(self) -> float:
        url = self.finished()
        lake = Lake.of(self.fresh(), url)
        began = time.perf_counter()
        done = Pipeline(self.spark, lake, url).run(tables=False)
        return done.events / (time.perf_counter() - began)

    def task(self) -> float:
        url = self.finished()
        lake = Lake.of(self.fresh(), url)
        reading = Reading.of({"url": url, "table": "events"})
        (held,) = check_ledger(url, lake.contents()).known
        began = time.process_time()
        files = land(lake, reading, ReadRange(0, held.first, held.following))
        took = time.process_time() - began
        return 1e6 * took / sum(file.rows for file in files)

    def parquet(self) -> float:
        url, directory = self.finished(), self.fresh()
        events = self.spark.readStream.format("forebay").options(url=url, table="events").load()
        began = time.perf_counter()
        query = events.writeStream.format("parquet").options(
            path=str(directory / "t"), checkpointLocation=str(directory / "c")
        )
        started = query.trigger(availableNow=True).start()
        started.awaitTermination()
        took = time.perf_counter() - began
        seen: int = sum(progress["numInputRows"] for progress in started.recentProgress)
        return seen / took

    def steady(self) -> float:
        url = self.server.create_database()
        lake, stop, batches = Lake.of(self.fresh(), url), Event(), list[BatchTimes]()
        pipeline = Pipeline(self.spark, lake, url, lambda line: _note_batch(pipeline, line, batches))
        stream = Thread(target=pipeline.stream, args=(STEADY_PAUSE, stop, NEVER), daemon=True)
        stream.start()
        made = _produce_steadily(url)
        while lake.table("events").rows < made:
            time.sleep(STEADY_PAUSE)
        stop.set()
        stream.join()
        assert lake.table("events").rows == made
        self.batches = batches[WARM_BATCHES:]
        return percentile([each.total for each in self.batches], 95)

    def steady_part(self, name: str) -> float:
        return 1e3 * percentile([getattr(each, name) for each in self.batches], 95)

    def sink(self) -> float:
        url, directory = self.server.create_database(), self.fresh()
        events = self.spark.readStream.format("forebay").options(url=url, table="events").load()
        writer = events.writeStream.format("parquet").options(
            path=str(directory / "t"), checkpointLocation=str(directory / "c")
        )
        query = writer.start()
        made = _produce_steadily(url)
        query.processAllAvailable()
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        query.stop()
        seen = sum(progress["numInputRows"] for progress in batches)
        assert seen == made, f"{seen} events of {made}"
        lengths: list[float] = [progress["durationMs"]["triggerExecution"] / 1e3 for progress in batches[WARM_BATCHES:]]
        return percentile(lengths, 95)


def _note_batch(pipeline: Pipeline, line: str, batches: list[BatchTimes]) -> None:
    if line.startswith("offsets") and pipeline.last_batch is not None:
        batches.append(pipeline.last_batch)


def _produce_steadily(url: str) -> int:
    """For so many seconds; how many events there are."""
    stop, made = Event(), [0]
    producer = Thread(target=lambda: made.__setitem__(0, _produce(url, stop)), daemon=True)
    producer.start()
    time.sleep(STEADY_SECONDS)
    stop.set()
    producer.join()
    assert made[0] >= 0.9 * STEADY_RATE * STEADY_SECONDS, f"only {made[0]} events were made"
    return made[0]


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
    parser = bench_parser(__doc__)
    parser.add_argument("--jobs", type=int, default=FULL, help="to read and to seed; half of them live for streams")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    count = given.jobs // (10 if given.quick else 1)
    with PostgresServer() as server, tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        spark = spark_session(conf={"spark.local.dir": folder, "spark.sql.streaming.numRecentProgressUpdates": "10000"})
        bench = SparkBench(server, spark, Path(folder), count)
        warm = SparkBench(server, spark, Path(folder, "warm"), 20_000)
        for work in (warm.seed, warm.read, warm.catch_up, warm.task, warm.parquet):
            work()
        full = count >= FULL
        figures = [
            Figure("read/postgres", "jobs/s", bench.read, goal=">= 250,000" if full else ""),
            Figure("seed/postgres", "jobs/s", bench.seed, goal=">= 80,000" if full else ""),
            Figure("seed/python", "MiB", lambda: bench.memory.python),
            Figure("seed/java", "MiB", lambda: bench.memory.java),
            Figure("stream/catch-up", "events/s", bench.catch_up, goal=">= 500,000" if full else ""),
            Figure("stream/task", "µs", bench.task),
            Figure("stream/parquet", "events/s", bench.parquet),
            Figure("stream/steady", "s", bench.steady, goal="<= 1"),
            *(Figure(f"stream/steady/{name}", "ms", partial(bench.steady_part, name)) for name in PARTS),
            Figure("stream/sink", "s", bench.sink),
        ]
        run(figures, rounds=2 if given.quick else given.rounds, only=given.only, as_json=given.json)
        spark.stop()


if __name__ == "__main__":
    main()
