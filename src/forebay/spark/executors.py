"""What executors of a cluster need of this machine: a Python that has Forebay, and the app of the working directory.

Spark starts `PYSPARK_PYTHON` on every worker. That is the Python of the user's choice, one that was shipped as an
archive, or, by default, the path of this one. Before a command does anything, one small job checks whether
it is there and imports what is needed: what is missing is one error that names it and the way out.
"""

import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Final

from pyspark.sql import SparkSession

from forebay.core.errors import Invalid

NEEDED: Final = ("forebay", "msgspec", "pyarrow", "pandas", "numpy", "deltalake")
WAY_OUT: Final = (
    "name a Python that has forebay[spark] on every worker by PYSPARK_PYTHON, or ship one by spark.archives "
    "(docs/guides/lake.md, On a cluster)"
)
_MAX_PACKAGE_BYTES: Final = 64 * 2**20
_ARRIVAL_SECONDS: Final = 10.0
_QUIET_SECONDS: Final = 1.0
_STARTS: Final = (
    (r'Cannot run program "([^"]+)"', "there is no {0} on them"),
    (r"\[PYTHON_VERSION_MISMATCH\] .*?version: ([\d.]+) than that in driver: ([\d.]+)", "Python {0} there, {1} here"),
    (r"No module named '?([\w.]+)", "their Python has no {0}"),
)


def is_local(master: str | None) -> bool:
    """Whether tasks run on this machine, in processes of the driver."""
    return master is not None and master.startswith("local") and not master.startswith("local-cluster")


def check_executors(spark: SparkSession) -> None:
    """`Invalid` if a package is missing. Returns when no further executor has registered for a moment."""
    context = spark.sparkContext
    slots = context.defaultParallelism
    try:
        seen = context.parallelize(range(slots), slots).map(_probe(NEEDED)).collect()
    except Exception as error:
        reason = start_failure(str(error))
        if reason is None:
            raise
        raise Invalid(f"executors of {context.master}", reason, WAY_OUT) from None
    for host, python, missing in sorted(set(seen)):
        if missing:
            reason = f"{python} on {host} has no {', '.join(missing)}"
            raise Invalid(f"executors of {context.master}", reason, WAY_OUT)
    _wait_for_others(spark)


def start_failure(message: str) -> str | None:
    """Why Python did not start on an executor; None if the message is about something else."""
    for pattern, words in _STARTS:
        found = re.search(pattern, message)
        if found:
            return words.format(*found.groups())
    return None


def _probe(needed: tuple[str, ...]) -> Callable[[int], tuple[str, str, tuple[str, ...]]]:
    """A function that Spark pickles by value: Forebay may not be installed where it runs."""

    def installed(_: int) -> tuple[str, str, tuple[str, ...]]:
        import platform
        import sys
        from importlib.util import find_spec

        return platform.node(), sys.executable, tuple(name for name in needed if find_spec(name) is None)

    return installed


def _wait_for_others(spark: SparkSession) -> None:
    """The number of tasks follows from the executors that are registered; the first one has answered."""
    until = monotonic() + _ARRIVAL_SECONDS
    slots, since = 0, monotonic()
    while monotonic() < until and monotonic() - since < _QUIET_SECONDS:
        now = spark.sparkContext.defaultParallelism
        if now != slots:
            slots, since = now, monotonic()
        Event().wait(0.1)


@contextmanager
def shipped(spark: SparkSession, module: str) -> Iterator[list[str]]:
    """Make this module, and those it imported, importable on the executors if they are in the working directory. Yields
    their names."""
    if is_local(spark.sparkContext.master):
        yield []
        return
    own = sorted({name.partition(".")[0] for name in [*sys.modules, module]})
    with tempfile.TemporaryDirectory(prefix="forebay-app-") as scratch:
        sent = [name for name in own if (file := own_file(name, Path(scratch))) and _send(spark, file)]
        yield sent


def _send(spark: SparkSession, file: Path) -> bool:
    spark.sparkContext.addPyFile(str(file))
    return True


def own_file(name: str, scratch: Path) -> Path | None:
    """The module's file in the working directory, or its package as an archive; None: it is installed elsewhere."""
    loaded: Any = sys.modules.get(name)
    here = Path.cwd().resolve()
    if name == "__main__" or loaded is None:
        return None
    if getattr(loaded, "__file__", None) and Path(loaded.__file__).resolve() == here / f"{name}.py":
        return here / f"{name}.py"
    if here / name in (Path(path).resolve() for path in getattr(loaded, "__path__", ())):
        return _packed(here / name, scratch / f"{name}.zip")
    return None


def _packed(package: Path, archive: Path) -> Path:
    files = [file for file in sorted(package.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]
    size = sum(file.stat().st_size for file in files)
    if size > _MAX_PACKAGE_BYTES:
        reason = f"it has {size / 2**20:.0f} MiB, {_MAX_PACKAGE_BYTES // 2**20} MiB are sent along at most"
        raise Invalid(f"package {package}", reason, "install it on the workers, and start this from another directory")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for file in files:
            out.write(file, file.relative_to(package.parent))
    return archive
