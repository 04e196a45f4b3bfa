"""`forebay audit` as a command, cold: from a lake and NDJSON evidence to the verdict, beside DuckDB on the same files.

forebay bench run audit                         2M jobs, and a tenth of them for the growth
forebay bench run audit --jobs 12000000         this many jobs (and a tenth of them)
python -m forebay_proof.bench.audit --directory /tmp/histories   keep the histories for the next run
forebay bench run audit --json                  one object a figure

A history has three events a job, 1 % retries and 0.05 % redeliveries, receipts and effects of all jobs (see
`audit_data`). Each run is a process of its own on a lake that has never been audited, so that the evidence is read,
too. The incremental run is the second one of a lake: the first proved 99 % of it (at least a period of the history is
left); after it comes one that finds nothing new. `seconds` are those from Spark's start to its end by its event log:
the start of Java is not in it. `cpu` is that of the executors' tasks by the same log, `all_cpu` that of all processes:
driver, planning, compiling and the Python of tasks. A run that needs no Spark has no event log: its `seconds` are
those of the command. "spark alone" is a session that does next to nothing. DuckDB reads
the same files and runs the core of it: sets of jobs and seqs, and each event beside the one before it. "growth" is how
many times the CPU of all processes is that of the smaller history, beside how many times its jobs are. The figures of
--json are CPU seconds of all processes, but for `growth` and for `executors` and its parts by the stages of Spark.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb

from forebay.spark.session import DESCRIPTION, spark_session
from forebay_proof.bench.audit_data import whole_periods, write
from forebay_proof.bench.audit_figures import figures_of, growth_of
from forebay_proof.processes import cpu_seconds

_DUCK = """
CREATE TABLE proof AS
WITH born AS (SELECT job_id FROM events WHERE change = 'accepted'),
  over AS (SELECT job_id FROM events WHERE change IN ('acked', 'died', 'discarded', 'cancelled', 'expired', 'shed')),
  confirmed AS (SELECT job_id FROM receipts WHERE answer IN ('accepted', 'duplicate', 'merged'))
SELECT (SELECT count(*) FROM confirmed ANTI JOIN born USING (job_id)) AS lost,
  (SELECT count(*) FROM born ANTI JOIN over USING (job_id)) AS unfinished,
  (SELECT count(*) - count(DISTINCT job_id) FROM over) AS ended_twice,
  (SELECT count(*) - count(DISTINCT (seq, delivery)) FROM effects) AS repeated,
  (SELECT count(*) FROM effects ANTI JOIN receipts USING (seq)) AS unexpected,
  (SELECT max("offset") - min("offset") + 1 - count(DISTINCT "offset") FROM events) AS gaps;
SELECT proof.*, (SELECT count(*) FROM (
  SELECT change, delivery, event_at, lag(change) OVER life AS was, lag(delivery) OVER life AS was_delivery,
    lag(coalesce(next_at, due_at)) OVER life AS was_due, lag(lease_until) OVER life AS was_until
  FROM events WINDOW life AS (PARTITION BY job_id ORDER BY "offset", place))
WHERE (change = 'claimed' AND (event_at < was_due OR delivery <> coalesce(was_delivery, 0) + 1 OR event_at < was_until))
  OR (change IN ('acked', 'retried', 'died') AND (was <> 'claimed' OR was_delivery <> delivery))) AS broken FROM proof
"""


def audited(place: Path, *more: str) -> dict[str, Any]:
    """One cold run of the command on a lake that was never audited."""
    for left in ("receipts", "effects", "proof"):
        shutil.rmtree(place / "lake" / left, ignore_errors=True)
    return _command(place / "lake", place / "receipts", place / "effects", *more)


def audited_again(place: Path) -> dict[str, Any]:
    """The command on the last 1 %, after it has proven all that was before."""
    lake, log = place / "growing", Path("events", "_delta_log", f"{2:020}.json")
    shutil.rmtree(lake, ignore_errors=True)
    shutil.copytree(place / "lake", lake, ignore=shutil.ignore_patterns("receipts", "effects", "proof"))
    (lake / log).unlink()
    _command(lake, place / "receipts" / "before", place / "effects" / "before")
    shutil.copy(place / "lake" / log, lake / log)
    run = _command(lake, place / "receipts", place / "effects")
    assert run["earlier"] is not None, run
    return run


def started() -> dict[str, Any]:
    """What a session costs that does next to nothing."""
    program = "from forebay.spark.session import spark_session as s; s(short=True).range(1).count(); s().stop()"
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL, start_new_session=True) as run:
        cpu = _cpu_of_tree(run)
    assert run.returncode == 0
    return {"seconds": time.perf_counter() - began, "cpu": cpu}


def _command(lake: Path, receipts: Path, effects: Path, *more: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as log:
        words = [sys.executable, "-m", "forebay", "audit", "--lake", str(lake), "--drained", "--json", *more]
        words += ["--receipts", str(receipts), "--effects", str(effects)]
        conf = "--conf spark.eventLog.enabled=true"
        conf += f" --conf spark.eventLog.compress=false --conf spark.eventLog.dir={log} pyspark-shell"
        environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": conf}
        began = time.perf_counter()
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, start_new_session=True) as command:
            cpu = _cpu_of_tree(command)
            output = command.stdout.read() if command.stdout is not None else b""
        took = time.perf_counter() - began
        assert command.returncode == 0, output.decode()
        verdict = json.loads(output)
        noted = {each["check"]: each["count"] for each in verdict["results"] if each["count"]}
        files = [file for file in Path(log).rglob("*") if file.is_file()]
        lines = [json.loads(line) for file in files for line in file.open() if line.startswith("{")]
    facts = {"noted": noted, "earlier": verdict["earlier"], "load": os.getloadavg()[1]}
    bill = _bill(lines) if lines else {"seconds": took, "cpu": 0.0, "stages": {}}
    return {"all_seconds": took, "all_cpu": cpu} | facts | bill


def _cpu_of_tree(command: subprocess.Popen[bytes]) -> float:
    """CPU seconds of all processes that it starts, sampled until it ends."""
    used = 0.0
    while command.poll() is None:
        used = max(used, cpu_seconds([command.pid]))
        time.sleep(0.2)
    return used


def _bill(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Seconds from Spark's start to its end, CPU of the tasks, and the same by the name of their stage."""
    started = next(line["Timestamp"] for line in lines if line["Event"] == "SparkListenerApplicationStart")
    ended = next(line["Timestamp"] for line in lines if line["Event"] == "SparkListenerApplicationEnd")
    names = {
        line["Stage Info"]["Stage ID"]: line["Properties"].get(DESCRIPTION, "unnamed")
        for line in lines
        if line["Event"] == "SparkListenerStageSubmitted"
    }
    stages: Counter[str] = Counter()
    for line in lines:
        if line["Event"] == "SparkListenerTaskEnd" and "Task Metrics" in line:
            name = names[line["Stage ID"]]
            # Spark's own name has the paths, also those of this machine.
            name = "listing files" if name.startswith("Listing leaf files") else name
            stages[name] += line["Task Metrics"]["Executor CPU Time"]
    bill = {name: round(cpu / 1e9, 2) for name, cpu in stages.most_common()}
    return {"seconds": (ended - started) / 1000, "cpu": sum(stages.values()) / 1e9, "stages": bill}


def by_duckdb(place: Path) -> dict[str, Any]:
    with duckdb.connect() as db:
        began, before = time.perf_counter(), time.process_time()
        db.execute(
            f"CREATE VIEW events AS FROM read_parquet('{place}/lake/events/*/*.parquet', hive_partitioning = true)"
        )
        for name in ("receipts", "effects"):
            db.execute(
                f"CREATE TABLE {name} AS FROM read_json('{place}/{name}/*/*.json', format = 'newline_delimited')"
            )
        (found,) = db.execute(_DUCK).fetchall()
        took, cpu = time.perf_counter() - began, time.process_time() - before
    assert not any(found), found
    return {"seconds": took, "cpu": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the jobs")
    parser.add_argument("--json", action="store_true", help="one JSON object a figure instead of the table")
    parser.add_argument("--jobs", type=int, default=2_000_000, help="jobs of the larger history")
    parser.add_argument("--directory", type=Path, help="keep the histories here and use those that are there")
    given = parser.parse_args()
    jobs = given.jobs // (100 if given.quick else 1)
    sizes = sorted({whole_periods(jobs // 10), whole_periods(jobs)})
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        histories = given.directory or Path(directory)
        missing = [size for size in sizes if not (histories / str(size) / "effects" / "last" / "_SUCCESS").exists()]
        if missing:
            spark = spark_session()
            for size in missing:
                write(spark, histories / str(size), size)
            spark.stop()
        done: dict[int, dict[str, dict[str, Any]]] = {}
        for size in sizes:
            done[size] = _measured(histories / str(size), size, show=not given.json)
            for figure in figures_of(size, done[size]) if given.json else ():
                print(json.dumps(figure), flush=True)
        for figure in growth_of({size: runs["audit"]["all_cpu"] for size, runs in done.items()}):
            print(json.dumps(figure) if given.json else f"{figure['name']}: {figure['value']:.1f} ×", flush=True)


def _measured(place: Path, jobs: int, *, show: bool) -> dict[str, dict[str, Any]]:
    """All runs of one history."""
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "audit": partial(audited, place),
        "audit --quick": partial(audited, place, "--quick"),
        "the last 1 %": partial(audited_again, place),
        "nothing new": partial(_command, place / "growing", place / "receipts", place / "effects"),
        "spark alone": started,
        "duckdb": partial(by_duckdb, place),
    }
    runs: dict[str, dict[str, Any]] = {}
    for name, measure in measures.items():
        runs[name] = measure()
        if show:
            _show(name, jobs, runs[name])
    return runs


def _show(name: str, size: int, run: dict[str, Any]) -> None:
    every = f", {run['all_cpu']:.1f} of all processes; load {run['load']:.0f}" if "all_cpu" in run else ""
    print(f"{size:>12,} jobs  {name:14} {run['seconds']:7.1f} s {run['cpu']:7.1f} CPU-s{every}", flush=True)
    for stage, cpu in run.get("stages", {}).items():
        print(f"{'':>18} {stage:24} {cpu:7.2f}", flush=True)


if __name__ == "__main__":
    main()
