"""One Spark session for all tests of the pipeline. All of them run in one worker of xdist (see ../conftest.py).

Commands run in it, too: `run("audit", …)` is what `forebay audit …` is, but for the start of Java.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Final
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from pyspark.sql import SparkSession

from tests.answer import Answer, Run
from tests.spark.cluster import free_port

ROOT: Final = Path(__file__).parents[2]
CHEAP: Final = {
    "spark.python.daemon.module": "tests.spark.daemon",
    # The one that Spark would choose starts a `readlink` or a `chmod` for most of what it does: forty a query.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


S3: Final = {
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}
"""Where the tests' own S3 is, if a test has started it. Spark's Python processes have it from their start."""


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URI of an empty bucket on a real S3 API on loopback, and the environment to reach it."""
    _, host, port = S3["AWS_ENDPOINT_URL"].split(":")
    words = [sys.executable, "-m", "moto.server", "-H", host.strip("/"), "-p", port]
    with (
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
        pytest.MonkeyPatch.context() as environment,
    ):
        for name, value in S3.items():
            environment.setenv(name, value)
        try:
            until = monotonic() + 120
            while True:
                try:
                    urlopen(Request(f"{S3['AWS_ENDPOINT_URL']}/lakes", method="PUT"), timeout=60).close()
                    break
                except URLError:
                    assert monotonic() < until, "the S3 server did not start"
                    Event().wait(0.1)
            yield "s3://lakes"
        finally:
            server.terminate()


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from forebay.spark.session import spark_session

    ground = tmp_path_factory.mktemp("spark")
    if request.config.getoption("loadgroup", default=False):
        # Fails in a second worker that would start a Java of its own.
        (tmp_path_factory.getbasetemp().parent / "spark-has-started").touch(exist_ok=False)
    own = {"spark.sql.warehouse.dir": str(ground / "warehouse"), "spark.local.dir": str(ground)}
    with pytest.MonkeyPatch.context() as start:
        start.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        for name, value in S3.items():
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

    def call(*arguments: str) -> Answer:
        capfd.readouterr()
        code = main(arguments)
        said = capfd.readouterr()
        assert "Traceback (most" not in said.err
        return Answer(code, said.out, said.err)

    return call
