"""The audit on Spark over generated histories of 1M and 10M jobs (3.76 events each), beside DuckDB on the same files.

python -m bench.audit                         all of it, about a quarter of an hour on two cores
python -m bench.audit --quick                 a hundredth of the jobs, for a first look
python -m bench.audit --jobs 10000000         this many jobs (and a tenth of them, for the growth)
python -m bench.audit --only proof --json     one object a figure
python -m bench.audit --ground /tmp/histories keep the histories for the next run

`proof` is the audit as it runs by default: the ledger is whole, nothing lost, undone or unfinished, no effect twice.
`every` looks at each job's life besides. Both take receipts and effects into account, read Parquet, and are warm: one
round is made before those that count. `sparse` is the proof with one id in ten used, as calls of 100 jobs leave them on
a store that hands out ids by the thousand. DuckDB answers `proof` by joining sets of ids, and the core of `every` (each
event beside the one before it) by a window.
"""

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path

import duckdb
from pyspark.sql import DataFrame, SparkSession

from bench.audit_data import write
from bench.measure import Figure, run
from forebay.spark.audit import Options, audit
from forebay.spark.session import spark_session

SPARSE = 1_000

_DUCK_PROOF = """
WITH born AS (SELECT job_id FROM events WHERE change = 'accepted'),
  over AS (SELECT job_id FROM events WHERE change IN ('acked', 'died', 'dismissed', 'cancelled', 'expired', 'shed')),
  told AS (SELECT job_id FROM receipts WHERE answer IN ('accepted', 'duplicate', 'merged'))
SELECT (SELECT count(*) FROM told ANTI JOIN born USING (job_id)),
  (SELECT count(*) FROM born ANTI JOIN over USING (job_id)),
  (SELECT count(*) - count(DISTINCT job_id) FROM over), (SELECT count(*) - count(DISTINCT seq) FROM effects),
  (SELECT max("offset") - min("offset") + 1 - count(DISTINCT "offset") FROM events)
"""
_DUCK_EVERY = """
SELECT count(*) FROM (
  SELECT change, delivery, event_at, lag(change) OVER life AS was, lag(delivery) OVER life AS was_delivery,
    lag(coalesce(next_at, due_at)) OVER life AS was_due, lag(lease_until) OVER life AS was_until
  FROM events WINDOW life AS (PARTITION BY job_id ORDER BY "offset", place))
WHERE (change = 'claimed' AND (event_at < was_due OR delivery <> coalesce(was_delivery, 0) + 1 OR event_at < was_until))
  OR (change IN ('acked', 'retried', 'died') AND (was <> 'claimed' OR was_delivery <> delivery))
"""


class Evidence:
    """One generated history."""

    def __init__(self, spark: SparkSession, place: Path, jobs: int, stride: int) -> None:
        self._place = place
        if not (place / "effects" / "_SUCCESS").exists():
            write(spark, place, jobs, stride)
        self.events, self.receipts, self.effects = (self._read(spark, name) for name in _NAMES)

    def _read(self, spark: SparkSession, name: str) -> DataFrame:
        return spark.read.parquet(str(self._place / name))

    def audited(self, *, quick: bool) -> float:
        began = time.perf_counter()
        options = Options(drained=True, quick=quick)
        verdict = audit(self.events, self.receipts, self.effects, options=options)
        took = time.perf_counter() - began
        assert verdict.answer == "PASS", verdict.text()
        return took

    def by_duckdb(self, query: str) -> float:
        with duckdb.connect() as db:
            for name in _NAMES:
                db.execute(f"CREATE VIEW {name} AS FROM read_parquet('{self._place / name}/*.parquet')")
            began = time.perf_counter()
            (found,) = db.execute(query).fetchall()
            took = time.perf_counter() - began
        assert not any(found), found
        return took


_NAMES = ("events", "receipts", "effects")


def figures(spark: SparkSession, ground: Path, jobs: int) -> list[Figure]:
    found = []
    for size in (jobs // 10, jobs):
        history = Evidence(spark, ground / str(size), size, 100)
        name = f"{size / 1_000_000:g}M"
        proof, every = partial(history.audited, quick=True), partial(history.audited, quick=False)
        found += [
            Figure(f"proof/{name}", "s", proof, f"proof-duckdb/{name}", "<= 15 at 10M"),
            Figure(f"proof-duckdb/{name}", "s", partial(history.by_duckdb, _DUCK_PROOF)),
            Figure(f"every/{name}", "s", every, f"every-duckdb/{name}", "<= 60 at 10M"),
            Figure(f"every-duckdb/{name}", "s", partial(history.by_duckdb, _DUCK_EVERY)),
        ]
    sparse = Evidence(spark, ground / "sparse", jobs // 10, SPARSE)
    return [*found, Figure(f"sparse/{jobs / 10_000_000:g}M", "s", partial(sparse.audited, quick=True))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the jobs")
    parser.add_argument("--json", action="store_true", help="one JSON object a figure instead of the table")
    parser.add_argument("--only", default="", help="only figures whose name contains this (and their baselines)")
    parser.add_argument("--jobs", type=int, default=10_000_000, help="jobs of the larger history")
    parser.add_argument("--rounds", type=int, default=2, help="rounds that count, after one that warms up")
    parser.add_argument("--ground", type=Path, help="keep the histories here and use those that are there")
    given = parser.parse_args()
    jobs = given.jobs // (100 if given.quick else 1)
    spark = spark_session()
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        measured = figures(spark, given.ground or Path(directory), jobs)
        warm = [figure for figure in measured if given.only in figure.name and "duckdb" not in figure.name]
        for figure in warm:
            figure.measure()
        run(measured, rounds=given.rounds, only=given.only, as_json=given.json)
    if given.json:
        print(json.dumps({"name": "jobs", "value": jobs, "unit": "jobs"}))


if __name__ == "__main__":
    main()
