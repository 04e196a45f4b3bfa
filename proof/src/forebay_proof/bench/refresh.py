"""Ten new events and a lake of many jobs: `forebay pipeline run` as a command, and the tables alone.

    forebay bench run refresh --quick                       120,000 jobs
    python -m forebay_proof.bench.refresh --rounds 1        12M jobs
    python -m forebay_proof.bench.refresh --directory /tmp/lake-12m     keep the lake for the next run

    refresh/command   seconds of the whole command, with the start of Java: events, then all tables
    refresh/events    seconds of the same events in a session that runs: the ledger is read, the lake has them
    refresh/tables    seconds of all tables in that session
    refresh/written   rows of the tables that are written anew

The lake is a history of `audit_data` with its tables. Its store is a SQLite file whose ledger goes on where the lake
ends. The ten events are one call about jobs from the middle of the history, so that the files that hold these are
written anew, up to 100,000 rows each: events of new jobs alone would replace nothing.
"""

import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from forebay.core.job import Draft
from forebay.spark.lake import Lake
from forebay.spark.pipeline import Pipeline
from forebay.spark.refresh import refresh
from forebay.spark.session import spark_session
from forebay.store.open import open_store
from forebay_proof.bench.audit_data import SPACING, START, whole_periods, write_events
from forebay_proof.bench.measure import Figure, bench_parser, run

NEW = 10
FULL = 12_000_000
"""Jobs of the lake that the goals are about."""


class RefreshBench:
    """A lake of so many jobs, made unless it is there."""

    def __init__(self, spark: SparkSession, place: Path, jobs: int) -> None:
        self._spark = spark
        self._place = place
        self._url = f"sqlite:///{place.resolve()}/jobs.db"
        self._seconds = 0.0
        self._written = 0
        self.lake = Lake.of(place / "lake", self._url)
        if not self.lake.table("events").end:
            write_events(spark, self.lake, jobs)
            self._begin_store(jobs)
        refresh(spark, self.lake)

    def _begin_store(self, jobs: int) -> None:
        """Its next record and its clock are those after the history, its next job is one of the middle."""
        open_store(self._url).close()
        end = self.lake.table("events").end
        with sqlite3.connect(self._place / "jobs.db") as database:
            database.execute(
                "UPDATE head SET next_id = ?, ledger_first = ?, ledger_next = ?, last_at = ?",
                (jobs // 2, end, end, START + end * SPACING),
            )
        database.close()

    def enqueue(self) -> None:
        store = open_store(self._url)
        store.enqueue([Draft("work", {"number": number}) for number in range(NEW)])
        store.close()

    def command(self) -> float:
        self.enqueue()
        words = [sys.executable, "-m", "forebay", "pipeline", "run", "--store", self._url, "--lake", self.lake.uri]
        began = time.perf_counter()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    def events(self) -> float:
        self.enqueue()
        began = time.perf_counter()
        done = Pipeline(self._spark, self.lake, self._url).run(tables=False)
        took = time.perf_counter() - began
        assert done.events == NEW, done
        began = time.perf_counter()
        self._written = sum(each.written for each in refresh(self._spark, self.lake).values())
        self._seconds = time.perf_counter() - began
        return took

    def tables(self) -> float:
        return self._seconds

    def written(self) -> float:
        return self._written


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("--jobs", type=int, default=FULL, help="of the lake; a hundredth of them with --quick")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="keep the lake here, and use the one that is there")
    given = parser.parse_args()
    jobs = whole_periods(given.jobs // (100 if given.quick else 1))
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        place = (given.directory or Path(folder)) / str(jobs)
        place.mkdir(parents=True, exist_ok=True)
        spark = spark_session(conf={"spark.local.dir": folder})
        bench = RefreshBench(spark, place, jobs)
        full = jobs >= whole_periods(FULL)
        figures = [
            Figure("refresh/command", "s", bench.command, goal="<= 15" if full else ""),
            Figure("refresh/events", "s", bench.events),
            Figure("refresh/tables", "s", bench.tables, goal="<= 5" if full else ""),
            Figure("refresh/written", "rows", bench.written),
        ]
        run(figures, rounds=2 if given.quick else given.rounds, only=given.only, as_json=given.json)
        spark.stop()


if __name__ == "__main__":
    main()
