"""`Results`: what was measured, as Parquet: a file of rows and one of samples for each finished case.

Promise. A case is written when it has ended, by a rename: its file is whole, or it is not there. `done` says which
cases are, so that a run that was broken off goes on with the first that is not. Rows carry the facts of the machine,
the command and the seed, so that a table says by itself where it comes from. `pyarrow` is needed, which the extra
`spark` brings.
"""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.core.errors import Invalid
from forebay.core.names import check_name

if TYPE_CHECKING:
    import pyarrow as pa

ROWS, SAMPLES = "rows", "samples"
_PACKAGES: Final = ("forebay", "msgspec", "psycopg", "redis", "pyspark", "pyarrow")

ResultKey = tuple[str, str, int]


class Results:
    """A directory of results. What is kept under the same experiment, case and round before is replaced at `finish`."""

    def __init__(self, directory: Path, *, seed: int | None = None, facts: Mapping[str, object] | None = None) -> None:
        self.directory = directory
        self._machine = msgspec.json.encode({**machine(), "seed": seed, **(facts or {})}).decode()
        self._rows: dict[ResultKey, list[dict[str, Any]]] = {}
        self._samples: dict[ResultKey, list[dict[str, Any]]] = {}

    def row(
        self,
        experiment: str,
        case: str,
        round: int,  # noqa: A002
        metric: str,
        value: float,
        unit: str,
        **facts: object,
    ) -> None:
        """One measured value of a case."""
        self._rows.setdefault((experiment, case, round), []).append(
            {
                "metric": metric,
                "value": float(value),
                "unit": unit,
                "facts": msgspec.json.encode(facts).decode(),
                "at": time.time_ns() // 1_000,
            }
        )

    def sample(self, experiment: str, case: str, round: int, at: float, **values: float | None) -> None:  # noqa: A002
        """What was seen `at` seconds after the beginning of a case; values that are not known are left out."""
        known = [
            {"at": at, "metric": name, "value": float(value)} for name, value in values.items() if value is not None
        ]
        self._samples.setdefault((experiment, case, round), []).extend(known)

    def finish(self, experiment: str, case: str, round: int) -> None:  # noqa: A002
        """Write down the case; it is done then."""
        key = (experiment, case, round)
        self._write(SAMPLES, key, self._samples.pop(key, []))
        self._write(ROWS, key, [{**row, "machine": self._machine} for row in self._rows.pop(key, [])])

    def drop(self, experiment: str, case: str, round: int) -> None:  # noqa: A002
        """Drop what was recorded of a case that did not end well."""
        self._rows.pop((experiment, case, round), None)
        self._samples.pop((experiment, case, round), None)

    def forget(self, experiment: str, case: str, round: int) -> None:  # noqa: A002
        """What was written down of a case is measured again."""
        for sort in (ROWS, SAMPLES):
            self._file(sort, (experiment, case, round)).unlink(missing_ok=True)

    def done(self, experiment: str, case: str, round: int) -> bool:  # noqa: A002
        return self._file(ROWS, (experiment, case, round)).exists()

    def rows(self, experiment: str | None = None) -> list[dict[str, Any]]:
        """All rows that were ever written here, of one experiment or of all."""
        parquet = _parquet()
        files = sorted((self.directory / ROWS).glob(f"{experiment or '*'}__*.parquet"))
        return [row for file in files for row in parquet.read_table(file).to_pylist()]

    def _file(self, sort: str, key: ResultKey) -> Path:
        experiment, case, number = key
        return (
            self.directory
            / sort
            / f"{check_name('experiment', experiment)}__{check_name('case', case)}__{number}.parquet"
        )

    def _write(self, sort: str, key: ResultKey, rows: list[dict[str, Any]]) -> None:
        parquet = _parquet()
        import pyarrow as pa

        experiment, case, number = key
        whole = [{"experiment": experiment, "case": case, "round": number, **row} for row in rows]
        file = self._file(sort, key)
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.new")
        parquet.write_table(pa.Table.from_pylist(whole, schema=_schema(sort)), draft)
        draft.replace(file)


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise Invalid("pyarrow", "it is not installed", "pip install 'forebay[spark]'") from None
    return parquet


def _schema(sort: str) -> "pa.Schema":
    import pyarrow as pa

    shared = [("experiment", pa.string()), ("case", pa.string()), ("round", pa.int32()), ("metric", pa.string())]
    if sort == SAMPLES:
        return pa.schema([*shared, ("value", pa.float64()), ("at", pa.float64())])
    instant = pa.timestamp("us", tz="UTC")
    text = [("unit", pa.string()), ("facts", pa.string()), ("machine", pa.string())]
    return pa.schema([*shared, ("value", pa.float64()), *text, ("at", instant)])


def machine() -> dict[str, object]:
    """The machine and the versions of this run, so that it can be repeated."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _processor(),
        "memory_bytes": memory,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "commit": _commit(),
        "command": " ".join(["forebay", *sys.argv[1:]]),
    }


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    """Of the checkout that this file is in; empty outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
