"""The commands on Spark, in this process and its session: what they print, what they leave, how they end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.command_result import Run
from tests.spark.sample_stores import opened, worked

SRC = Path(__file__).parents[2] / "src"
JOBS = 50


def test_from_a_store_to_a_verdict_and_a_page(run: Run, tmp_path: Path) -> None:
    worked(f"sqlite:///{tmp_path}/forebay.db", tmp_path, JOBS)
    first = run("pipeline", "run", "--lake", "lake")
    assert first.code == 0
    assert f"3 records, {3 * JOBS} events in " in first.out
    assert "offsets 0 … " in first.err
    (status,) = run("pipeline", "status", "--lake", "lake", "--json").json
    assert (status["whole"], status["events"], status["tables"]["jobs"]) == (
        "yes",
        3 * JOBS,
        {"rows": JOBS, "behind": 0},
    )
    missing = json.dumps({"seq": JOBS, "job_id": 999_999, "answer": "accepted"})
    with open("receipts.ndjson", "a") as file:
        file.write(missing + "\n" + missing[:20])
    evidence = ("--receipts", "receipts.ndjson", "--effects", "effects.ndjson", "--drained")
    failed = run("audit", "--lake", "lake", *evidence, "--json")
    (verdict,) = failed.json
    assert (failed.code, verdict["answer"]) == (1, "FAIL")
    kept = json.loads(Path("lake/verdict.json").read_text())
    assert (kept["answer"], kept["reasons"][0].partition(":")[0]) == ("FAIL", "lost")
    assert "1 files end in the middle of a line" in failed.err
    (lost,) = [result for result in verdict["results"] if result["count"]]
    assert (lost["check"], lost["count"], lost["offenders"][0]["seq"]) == ("lost", 1, JOBS)
    unsure = run("audit", "--lake", "lake")
    assert (unsure.code, unsure.out.splitlines()[-1]) == (2, "INVALID")
    assert run("report", "--lake", "lake", "--out", "page.html").code == 0
    page = Path("page.html").read_text()
    assert "not audited" in page
    assert page.count("<svg") >= 6


def test_an_evidence_file_that_is_doubled_or_missing_is_named(run: Run, tmp_path: Path) -> None:
    worked(f"sqlite:///{tmp_path}/forebay.db", tmp_path, JOBS)
    Path("effects").mkdir()
    Path("effects.ndjson").rename("effects/1.ndjson")
    copy = Path("effects/2.ndjson")
    copy.write_bytes(Path("effects/1.ndjson").read_bytes())
    words = ("audit", "--lake", "lake", "--store", f"sqlite:///{tmp_path}/forebay.db", "--effects", "effects", "--json")
    doubled = run(*words, "--receipts", "receipts.ndjson", "--receipts", "receipts.ndjson")
    (verdict,) = doubled.json
    assert (doubled.code, verdict["answer"], verdict["facts"]["effects"]) == (2, "INVALID", JOBS)
    assert verdict["reasons"] == [
        f"receipts: {tmp_path}/receipts.ndjson was given twice",
        f"effects: {tmp_path}/effects/2.ndjson is a copy of {tmp_path}/effects/1.ndjson",
    ]
    copy.unlink()
    lines = Path("receipts.ndjson").read_text().splitlines(keepends=True)
    for number in range(4):
        Path(f"{number}.ndjson").write_text("".join(lines[number::4]))
    files = [word for number in range(4) for word in ("--receipts", f"{number}.ndjson")]
    assert run(*words, *files).code == 0
    assert run(*words, *files[2:]).code == 0, "the lake has what an earlier audit was given"
    missing = run(*words, *files[2:], "--coverage", "0.5", "--whole")
    assert (missing.code, missing.json[0]["answer"]) == (2, "INVALID")
    (reason,) = missing.json[0]["reasons"]
    assert "effects (seqs 0 … 48) have no receipt, and the ledger accepted their jobs" in reason
    assert f"{tmp_path}/0.ndjson" in reason


def test_an_audit_that_cannot_run_does_not_look_like_a_broken_promise(run: Run, tmp_path: Path) -> None:
    from forebay.spark.lake import Lake

    worked(f"sqlite:///{tmp_path}/forebay.db", tmp_path, JOBS)
    Lake.of("lake", f"sqlite:///{tmp_path}/forebay.db")
    (tmp_path / "lake" / "events" / "_delta_log" / f"{1:020}.json").write_text("{torn")
    answer = run("audit", "--lake", "lake", "--store", f"sqlite:///{tmp_path}/forebay.db")
    assert (answer.code, answer.out) == (3, "")
    assert "lake/events cannot be read" in answer.err


def test_jobs_are_made_into_a_store_or_into_files(run: Run, spark: SparkSession, tmp_path: Path) -> None:
    made = run("gen", "--jobs", "1_000", "--seed", "3", "--to", "sqlite:///gen.db", "--write-id", "a", "--json")
    assert (made.code, made.json[0]["jobs"]) == (0, 1000)
    again = run("gen", "--jobs", "1_000", "--seed", "3", "--to", "sqlite:///gen.db", "--write-id", "a", "--json")
    assert again.code == 0
    with opened(f"sqlite:///{tmp_path}/gen.db") as store:
        assert store.backlog(["default"])[0].depth == 1000
    assert run("gen", "--jobs", "1_000", "--to", "jobs.parquet").code == 0
    assert spark.read.parquet(str(tmp_path / "jobs.parquet")).select("seq").distinct().count() == 1000
    refused = run("gen", "--jobs", "1", "--to", "jobs.parquet")
    assert (refused.code, "exists; name a directory that does not" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("audit", "--lake", "nowhere"), 2, "there is no Delta table events"),
        (("report", "--lake", "nowhere"), 2, "there is no Delta table events"),
        (("pipeline", "run", "--lake", "ftp://bucket/lake"), 2, "lakes on ftp: are not supported"),
        (("audit", "--lake", "file:/no/such/lake"), 2, "lake /no/such/lake: there is no Delta table events"),
        (("report", "--lake", "x", "--out", "no/such/page.html"), 2, "name a file in a directory that exists"),
        (("pipeline", "run", "--lake", "lake", "--store", "sqlite:///none.db"), 2, "none.db"),
        (("pipeline", "run", "--lake", "lake", "--store", "memory://"), 2, "memory"),
        (("audit", "--lake", "x", "--log", "trail"), 2, "name that by --store"),
        (("audit", "--lake", "x", "--ordered", "mail"), 2, "write QUEUE:subject"),
        (("audit", "--lake", "x", "--schedule", "nightly"), 2, "write NAME=LENGTH"),
        (("gen", "--jobs", "0", "--to", "x"), 2, "is not a number of at least 1"),
        (("gen", "--jobs", "5", "--to", "x", "--write-id", "a"), 2, "it applies to stores only"),
        (("worker", "app:fb", "--tasks", "2"), 2, "--on-spark"),
    ],
)
def test_bad_input_is_one_line(run: Run, words: tuple[str, ...], code: int, said: str) -> None:
    Path("app.py").write_text("from forebay import Forebay\nfb = Forebay()\n")
    answer = run(*words)
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"seq": 1, "answer": "perhaps"}\n', "line 1: a line cannot be read: Invalid enum value 'perhaps'"),
        ('{"seq": 1}\n', "missing required field `answer`"),
        ('{"seq": "one", "answer": "accepted"}\n', "a line cannot be read"),
        ("dear ada\n{}\n", "a line cannot be read"),
        ("", "there is nothing in it"),
    ],
)
def test_receipts_without_an_answer_are_refused(run: Run, tmp_path: Path, lines: str, said: str) -> None:
    from forebay.spark.lake import Lake

    Lake.of(tmp_path / "lake", "sqlite:////srv/jobs.db")
    Path("receipts").write_text(lines)
    answer = run("audit", "--lake", "lake", "--receipts", "receipts")
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def outside(program: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh process that has something missing."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_without_pyspark_the_way_out_is_named(tmp_path: Path) -> None:
    from forebay.spark.lake import Lake

    program = """
import sys
sys.modules["pyspark"] = None
from forebay.cli import main
assert main(["pipeline", "status", "--lake", "lake"]) == 0
sys.exit(main(["audit", "--lake", "lake"]))
"""
    Lake.of(tmp_path / "lake", "sqlite:///jobs.db")
    said = outside(program, tmp_path)
    assert said.returncode == 3
    assert said.stderr == "forebay: pyspark is not installed; pip install 'forebay[spark]'\n"


def test_a_java_that_does_not_run_is_named(tmp_path: Path) -> None:
    program = """
import sys
from forebay.cli import main
from forebay.spark.lake import Lake
Lake.of("lake", "sqlite:///jobs.db")
sys.exit(main(["audit", "--lake", "lake", "--master", "local[1]"]))
"""
    said = outside(program, tmp_path, JAVA_HOME=str(tmp_path))
    assert said.returncode == 2
    assert "forebay: JAVA_HOME: " in said.stderr
    assert "Traceback" not in said.stderr
