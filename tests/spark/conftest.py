"""One Spark session for all tests of the pipeline. All of them run in one worker of xdist (see ../conftest.py).

Commands run in it, too: `run("audit", …)` is what `forebay audit …` is, but for the start of Java.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from tests.command_result import CommandResult, Run
from tests.spark.object_stores import ENVIRONMENT, ROOT, serving

CHEAP: Final = {
    "spark.python.daemon.module": "tests.spark.daemon",
    # The one that Spark would choose starts a `readlink` or a `chmod` for most of what it does: forty a query.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    with serving("s3") as uri:
        yield uri


@pytest.fixture(scope="session")
def gs() -> Iterator[str]:
    with serving("gs") as uri:
        yield uri


@pytest.fixture(scope="session")
def abfss() -> Iterator[str]:
    with serving("abfss") as uri:
        yield uri


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from forebay.spark.session import spark_session

    directory = tmp_path_factory.mktemp("spark")
    if request.config.getoption("loadgroup", default=False):
        # Fails in a second worker that would start a Java of its own.
        (tmp_path_factory.getbasetemp().parent / "spark-has-started").touch(exist_ok=False)
    own = {"spark.sql.warehouse.dir": str(directory / "warehouse"), "spark.local.dir": str(directory)}
    with pytest.MonkeyPatch.context() as start:
        start.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        for name, value in ENVIRONMENT.items():
            start.setenv(name, value)
        session = spark_session("local[2,3]", conf=CHEAP | own, quick=True)
    yield session
    session.stop()


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """In an empty directory."""
    from forebay.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_URL", raising=False)

    def call(*arguments: str) -> CommandResult:
        capfd.readouterr()
        code = main(arguments)
        said = capfd.readouterr()
        assert "Traceback (most" not in said.err
        return CommandResult(code, said.out, said.err)

    return call
