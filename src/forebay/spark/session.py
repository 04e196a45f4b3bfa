"""One Spark session, ready for Forebay: on this machine by default.

The caller's `conf` takes precedence, then the usual Spark configuration (`spark-submit`, PYSPARK_SUBMIT_ARGS,
spark-defaults.conf), then the settings here. A session that is already running is used as it is. On a cluster the
executors run `PYSPARK_PYTHON` (or `spark.pyspark.python`), else the path of this Python; whether it exists and has
`forebay[spark]` is checked at the start (`executors`).
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from forebay.spark.executors import check_executors, is_local
from forebay.spark.java import java_home
from forebay.spark.source import register

_MAX_FAILURES: Final = 3
"""Attempts of a task on this machine; Spark's default there is one."""

_MAX_MEMORY: Final = 6 * 1024
_MIN_MEMORY: Final = 1024

_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
_HERE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_SHORT: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC"}
"""A process that ends within a minute or two spends more on the optimizing compiler than its code gives back."""

_INTERPRETED: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
_QUICK: Final = _INTERPRETED | {
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
}

_INITIAL: Final = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
_PARTITION_ROWS: Final = 2_000_000

FEW: Final = 100_000
"""Rows."""

DESCRIPTION: Final = "spark.job.description"


def spark_session(
    master: str | None = None, *, conf: Mapping[str, str] | None = None, quick: bool = False, short: bool = False
) -> SparkSession:
    """The session of this process with the data source `forebay`. `quick`: starts sooner, for tests and small data.
    `short`: of a process that ends soon."""
    session = SparkSession.getActiveSession()
    if session is None:
        settings = _settings(master, conf or {}, quick, short)
        with _environment(settings["spark.master"], _configured() | settings):
            builder = SparkSession.builder.appName("forebay")
            for name, value in settings.items():
                builder = builder.config(name, value)
            session = builder.getOrCreate()
        if not is_local(settings["spark.master"]):
            try:
                check_executors(session)
            except BaseException:
                session.stop()
                raise
    register(session)
    return session


@contextmanager
def tuned(spark: SparkSession, rows: int, *, few: bool | None = None) -> Iterator[None]:
    """Settings for queries over so many rows. For `few`, by default up to FEW, compiling code takes longer than reading
    them. Many are shuffled into partitions of a bounded size; Spark joins those that turn out to be small."""
    few = rows <= FEW if few is None else few
    wanted = _INTERPRETED if few else _partitioned(spark, rows)
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


def _partitioned(spark: SparkSession, rows: int) -> dict[str, str]:
    """Not fewer partitions than are configured, and none of ours where the first number is."""
    if spark.conf.get(_INITIAL, None) is not None:
        return {}
    configured = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return {_INITIAL: str(max(configured, -(-rows // _PARTITION_ROWS)))}


@contextmanager
def stage(spark: SparkSession, name: str) -> Iterator[None]:
    """Name the jobs of Spark in its UI and its event log."""
    context = spark.sparkContext
    before = context.getLocalProperty(DESCRIPTION)
    context.setLocalProperty(DESCRIPTION, name)
    try:
        yield
    finally:
        context.setLocalProperty(DESCRIPTION, before)  # type: ignore[arg-type]


def _settings(master: str | None, conf: Mapping[str, str], quick: bool, short: bool = False) -> dict[str, str]:
    configured = _configured()
    cores = os.cpu_count() or 1
    default = f"local[{cores},{_MAX_FAILURES}]"
    master = master or conf.get("spark.master") or configured.get("spark.master") or default
    ours = dict(_ALWAYS)
    if is_local(master):
        ours |= _HERE | {"spark.sql.shuffle.partitions": str(cores), "spark.driver.memory": f"{_memory()}m"}
        ours |= _SHORT if short else {}
    if quick:
        ours |= _QUICK
    kept = {name: value for name, value in ours.items() if name not in configured}
    return kept | dict(conf) | {"spark.master": master}


def _configured() -> dict[str, str]:
    """Spark's own configuration of this machine, before a session exists."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    return _defaults_file() | _submit_args()


def _defaults_file() -> dict[str, str]:
    home = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    path = Path(home, "spark-defaults.conf")
    if not path.is_file():
        return {}
    found = (re.match(r"\s*(spark\.[^\s=:]+)[\s=:]+(.*\S)", line) for line in path.read_text().splitlines())
    return {each[1]: each[2] for each in found if each}


def _submit_args() -> dict[str, str]:
    text = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    settings = dict(re.findall(r"--conf[\s=]+[\"']?(spark\.[^\s=]+)=([^\s\"']+)", text))
    master = re.search(r"--master[\s=]+(\S+)", text)
    return settings | ({"spark.master": master[1]} if master else {})


def _memory() -> int:
    """Half of the machine, within bounds, in MiB."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return max(_MIN_MEMORY, min(_MAX_MEMORY, machine // 2))


@contextmanager
def _environment(master: str, settings: Mapping[str, str]) -> Iterator[None]:
    """While the session starts. Workers on this machine run this Python with this Forebay."""
    own: dict[str, str] = {}
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        home = java_home()
        if home is not None:
            own["JAVA_HOME"] = home
    chosen = os.environ.get("PYSPARK_PYTHON") or settings.get("spark.pyspark.python")
    own["PYSPARK_PYTHON"] = chosen or sys.executable
    if is_local(master):
        own["PYSPARK_DRIVER_PYTHON"] = own["PYSPARK_PYTHON"]
        own["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
        here = str(Path(__file__).parents[2])
        own["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
