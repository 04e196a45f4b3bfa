"""The commands on a real cluster: they run on its executors, which get the app and are asked for all else they need,
and a copy of a slow task does no harm."""

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.core.job import Draft
from forebay.demo.proof import SMALL_DATA
from forebay.spark.lake import Lake
from tests.command_result import Run
from tests.spark.cluster import SLOTS, Cluster
from tests.spark.fleets import an_app
from tests.spark.sample_stores import enqueue_with_receipts, opened, worked
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(1_500)
JOBS = 200
WHOLE = (
    f"--conf spark.cores.max={SLOTS} --conf spark.scheduler.minRegisteredResourcesRatio=1.0 "
    "--conf spark.scheduler.maxRegisteredResourcesWaitingTime=300s "
    "--conf spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1"
)
"""The first task waits for all executors, however slow the machine is."""

HISTORY = """
import sys
from pathlib import Path
from forebay.spark.session import spark_session
from forebay_proof.bench.audit_data import write

write(spark_session(), Path(sys.argv[1]), 2_000_000)
"""

SPECULATING = "--conf spark.speculation=true --conf spark.speculation.task.duration.threshold=2s"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def forebay(
    cluster: Cluster, cwd: Path, *words: str, submit: str = SMALL_DATA, seconds: int | None = 900, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forebay", *words],
        cwd=cwd,
        env=cluster.environment | {"PYSPARK_SUBMIT_ARGS": f"{WHOLE} {submit}"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


APP = """
from app_lines import note
from forebay import Context, Forebay

fb = Forebay()


@fb.job(queue="burst")
def work(seq: int, ctx: Context | None = None) -> None:
    note(seq, *ctx.fence)
"""
LINES = """
import json, os
from datetime import UTC, datetime
from pathlib import Path


def note(seq, job, delivery):
    line = dict(seq=seq, job_id=job, delivery=delivery, effect_at=datetime.now(UTC).isoformat())
    with open(Path({home!r}) / "effects" / str(os.getpid()), "a") as out:
        out.write(json.dumps(line) + "\\n")
"""


def test_a_burst_and_its_proof_on_a_cluster_that_has_only_java(cluster: Cluster, tmp_path: Path) -> None:
    """The app is a module and a package of the working directory. No setting names the Python that the executors
    run."""
    url = f"sqlite:///{tmp_path}/forebay.db"
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "app_lines").mkdir()
    (tmp_path / "app_lines" / "__init__.py").write_text(LINES.format(home=str(tmp_path)))
    (tmp_path / "effects").mkdir()
    with opened(url) as store:
        enqueue_with_receipts(store, [Draft("work", {"seq": seq}, "burst") for seq in range(JOBS)], tmp_path)
    before = len(cluster.finished())
    burst = ("worker", "app:fb", "--on-spark", cluster.url, "--for", "15m", "--store", url, "--json")
    drained = forebay(cluster, tmp_path, *burst)
    assert drained.returncode == 0, drained.stderr
    facts = json.loads(drained.stdout.splitlines()[-1])
    assert (facts["before"], facts["after"], len(facts["tasks"])) == (JOBS, 0, SLOTS)
    evidence = ("--receipts", "receipts.ndjson", "--effects", "effects", "--drained")
    words = ("audit", "--lake", "lake", "--store", url, *evidence, "--json", "--master", cluster.url)
    proved = forebay(cluster, tmp_path, *words)
    assert (proved.returncode, json.loads(proved.stdout)["answer"]) == (0, "PASS"), proved.stdout + proved.stderr
    assert Lake.at(tmp_path / "lake").contents().tables["jobs"].rows == JOBS
    eventually(lambda: cluster.finished()[before:] == ["FINISHED"] * 2, "both applications ran there")


def test_what_the_executors_lack_is_named_with_the_way_out(cluster: Cluster, tmp_path: Path) -> None:
    """A Python of the right version, without the packages of this one."""
    worked(f"sqlite:///{tmp_path}/forebay.db", tmp_path, 1)
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    words = ("pipeline", "run", "--lake", "lake", "--master", cluster.url)
    one = f"--conf spark.cores.max=1 {SMALL_DATA}"
    lacking = forebay(cluster, tmp_path, *words, submit=one, PYSPARK_PYTHON=str(bare))
    assert (lacking.returncode, "Traceback" in lacking.stderr) == (2, False), lacking.stderr
    last = lacking.stderr.splitlines()[-1]
    assert last.startswith(f"forebay: executors of {cluster.url}: ")
    assert " has no forebay, msgspec, pyarrow, pandas, numpy, deltalake; " in last
    assert (
        "name a Python that has forebay[spark] on every worker by PYSPARK_PYTHON, or ship one by spark.archives" in last
    )


@pytest.mark.nightly
def test_a_python_that_is_not_there_is_named(cluster: Cluster, tmp_path: Path) -> None:
    worked(f"sqlite:///{tmp_path}/forebay.db", tmp_path, 1)
    words = ("pipeline", "run", "--lake", "lake", "--master", cluster.url)
    lacking = forebay(cluster, tmp_path, *words, PYSPARK_PYTHON="/no/such/python3")
    assert lacking.returncode == 2, lacking.stderr
    assert f"executors of {cluster.url}: there is no /no/such/python3 on them; " in lacking.stderr


@pytest.mark.nightly
def test_a_python_shipped_as_an_archive_is_used(cluster: Cluster, tmp_path: Path) -> None:
    worked(f"sqlite:///{tmp_path}/forebay.db", tmp_path, JOBS)
    (tmp_path / "python").write_text(f'#!/bin/sh\ntouch {tmp_path}/ran\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "python", "bin/python")
    along = f"--conf spark.archives={tmp_path}/env.tar.gz#env {SMALL_DATA}"
    words = ("pipeline", "run", "--lake", "lake", "--master", cluster.url)
    made = forebay(cluster, tmp_path, *words, submit=along, PYSPARK_PYTHON="./env/bin/python")
    assert made.returncode == 0, made.stderr
    assert f"3 records, {3 * JOBS} events" in made.stdout
    assert (tmp_path / "ran").exists()


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_two_million_jobs_are_proved_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """The history is written by a session of its own: that of the tests is set up for a few rows."""
    subprocess.run([sys.executable, "-c", HISTORY, tmp_path], env=cluster.environment, check=True)
    evidence = ("--receipts", "receipts", "--effects", "effects", "--drained", "--json")
    words = ("audit", "--lake", "lake", *evidence, "--master", cluster.url)
    proved = forebay(cluster, tmp_path, *words, submit="pyspark-shell", seconds=None)
    assert (proved.returncode, json.loads(proved.stdout)["answer"]) == (0, "PASS"), proved.stdout + proved.stderr


@pytest.mark.nightly
def test_a_slow_task_that_spark_runs_twice_is_one_worker_more(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    """One task was asked for. Its copy on the other machine works beside it, by leases of its own."""
    url = f"sqlite:///{tmp_path}/forebay.db"
    app = an_app(tmp_path, "time.sleep(0.1)")
    with opened(url) as store:
        enqueue_with_receipts(store, [Draft("work", {"seq": seq}, "burst") for seq in range(JOBS)], tmp_path)
    words = ["--on-spark", cluster.url, "--tasks", "1", "--concurrency", "2", "--for", "3m", "--json"]
    drained = forebay(cluster, tmp_path, "worker", app, *words, "--store", url, submit=f"{SPECULATING} {SMALL_DATA}")
    assert drained.returncode == 0, drained.stderr
    facts = json.loads(drained.stdout.splitlines()[-1])
    assert (facts["before"], facts["after"], len(facts["tasks"])) == (JOBS, 0, 1)
    assert len(list((tmp_path / "effects").iterdir())) == 2, "nothing was run twice: the test shows nothing"
    evidence = ("--receipts", "receipts.ndjson", "--effects", "effects", "--drained", "--exactly-once")
    verdict = run("audit", "--lake", "lake", "--store", url, *evidence)
    assert (verdict.code, verdict.out.splitlines()[-1]) == (0, "PASS"), verdict.out
