"""The commands on a real cluster: they run on its executors, and a copy of a slow task does no harm."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.core.job import Draft
from forebay.demo.proof import SMALL_DATA
from forebay.spark.lake import Lake
from tests.answer import Run
from tests.spark.cluster import Cluster
from tests.spark.fleets import an_app
from tests.spark.ground import opened, told, worked

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
JOBS = 200
EVIDENCE = ("--receipts", "receipts.ndjson", "--effects", "effects.ndjson", "--drained")
SPECULATING = (
    "--conf spark.speculation=true --conf spark.speculation.task.duration.threshold=2s "
    "--conf spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def forebay(cluster: Cluster, cwd: Path, *words: str, submit: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forebay", *words],
        cwd=cwd,
        env=cluster.environment | {"PYSPARK_SUBMIT_ARGS": f"{submit} {SPECULATING} {SMALL_DATA}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


def test_a_lake_is_made_and_proved_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    worked(f"sqlite:///{tmp_path}/forebay.db", tmp_path, JOBS)
    before = len(cluster.finished())
    made = forebay(cluster, tmp_path, "pipeline", "run", "--lake", "lake", "--master", cluster.url)
    assert made.returncode == 0, made.stderr
    assert f"3 records, {3 * JOBS} events" in made.stdout
    assert Lake.at(tmp_path / "lake").contents().tables["jobs"].rows == JOBS
    proved = forebay(cluster, tmp_path, "audit", "--lake", "lake", *EVIDENCE, "--json", "--master", cluster.url)
    assert (proved.returncode, json.loads(proved.stdout)["answer"]) == (0, "PASS"), proved.stdout + proved.stderr
    assert cluster.finished()[before:] == ["FINISHED"] * 2


def test_a_slow_task_that_spark_runs_twice_is_one_worker_more(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    """One task was asked for. Its copy on the other machine works beside it, by leases of its own."""
    url = f"sqlite:///{tmp_path}/forebay.db"
    app = an_app(tmp_path, "time.sleep(0.1)")
    with opened(url) as store:
        told(store, [Draft("work", {"seq": seq}, "burst") for seq in range(JOBS)], tmp_path)
    words = ["--on-spark", cluster.url, "--tasks", "1", "--concurrency", "2", "--for", "3m", "--json"]
    along = f"--py-files {app.partition(':')[0]}.py"
    drained = forebay(cluster, tmp_path, "worker", app, *words, "--store", url, submit=along)
    assert drained.returncode == 0, drained.stderr
    facts = json.loads(drained.stdout.splitlines()[-1])
    assert (facts["before"], facts["after"], len(facts["tasks"])) == (JOBS, 0, 1)
    assert len(list((tmp_path / "effects").iterdir())) == 2, "nothing was run twice: the test shows nothing"
    evidence = ("--receipts", "receipts.ndjson", "--effects", "effects", "--drained", "--exactly-once")
    verdict = run("audit", "--lake", "lake", "--store", url, *evidence)
    assert (verdict.code, verdict.out.splitlines()[-1]) == (0, "PASS"), verdict.out
