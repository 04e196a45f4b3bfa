"""Receipts and effects from files: NDJSON or Parquet, a file or a directory of them, told apart by what is in them.

A process that was killed may have left half a line at the end of its file; such ends are left out and counted. Any
other line that cannot be read, or that says nothing, is refused: an audit must not overlook what it was given. A file
with the contents of another one is read once, and named.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from forebay.core.errors import Invalid
from forebay.spark.schemas import EFFECTS, RECEIPTS, conform

ANSWERS: Final = ("accepted", "duplicate", "merged", "refused", "unknown")
_BAD: Final = "_bad_line"
_PARQUET: Final = b"PAR1"


class Testimony(Struct, frozen=True):
    """`torn`: files whose last line was cut off. `doubled`: files that are copies of another one, each with it."""

    rows: DataFrame
    torn: int
    doubled: list[str]


def read_receipts(spark: SparkSession, paths: Sequence[str]) -> Testimony:
    """What producers were told, as RECEIPTS."""
    found = _read(spark, paths, RECEIPTS, "receipts")
    strange = found.rows.filter(~F.col("answer").isin(*ANSWERS)).select("answer").distinct().take(1)
    if strange:
        raise Invalid(f"receipts {' '.join(paths)}", f"{strange[0][0]!r} is no answer", f"use {', '.join(ANSWERS)}")
    return found


def read_effects(spark: SparkSession, paths: Sequence[str]) -> Testimony:
    """What handlers did, as EFFECTS."""
    return _read(spark, paths, EFFECTS, "effects")


def _read(spark: SparkSession, paths: Sequence[str], schema: StructType, what: str) -> Testimony:
    files, doubled = _once(file for path in paths for file in _files(path, what))
    parquet = [file for file in files if _begins_with(file, _PARQUET)]
    lines = [file for file in files if file not in set(parquet)]
    path = " ".join(paths)
    parts = []
    torn = 0
    if parquet:
        parts.append(conform(spark.read.parquet(*map(str, parquet)), schema, f"{what} {path}"))
    if lines:
        torn = sum(not _ends_well(file) for file in lines)
        parts.append(_lines(spark, lines, schema, what, torn))
    rows = parts[0] if len(parts) == 1 else parts[0].unionAll(parts[1])
    needed = [field.name for field in schema if not field.nullable]
    if not rows.filter(" or ".join(f"{name} is null" for name in needed)).isEmpty():
        raise Invalid(f"{what} {path}", f"a row has no {' or no '.join(needed)}", "every row has them")
    return Testimony(rows, torn, doubled)


def _once(files: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """Files with different contents, and those that repeat one of them."""
    kept: dict[tuple[int, str], Path] = {}
    doubled = []
    for file in files:
        with file.open("rb") as opened:
            key = (file.stat().st_size, hashlib.file_digest(opened, "blake2b").hexdigest())
        first = kept.setdefault(key, file)
        if first is not file:
            doubled.append(f"{file} was given twice" if first == file else f"{file} is a copy of {first}")
    return list(kept.values()), doubled


def _files(path: str, what: str) -> list[Path]:
    """Empty ones say nothing."""
    place = Path(path).resolve()
    if place.is_dir():
        every = (file for file in sorted(place.rglob("*")) if file.is_file())
        every = (file for file in every if not any(part[0] in "._" for part in file.relative_to(place).parts))
    else:
        every = (file for file in [place] if file.is_file())
    files = [file for file in every if file.stat().st_size]
    if not files:
        reason = "there is nothing in it" if place.exists() else "there is no such file or directory"
        raise Invalid(f"{what} {path}", reason, "name NDJSON or Parquet: a file, or a directory of files")
    return files


def _lines(spark: SparkSession, files: list[Path], schema: StructType, what: str, torn: int) -> DataFrame:
    wide = StructType([*schema.fields, StructField(_BAD, StringType())])
    text = spark.read.text([str(file) for file in files]).filter(F.trim("value") != "")
    parsed = text.select(F.from_json("value", wide, {"columnNameOfCorruptRecord": _BAD}).alias("row")).select("row.*")
    bad = [row[0] for row in parsed.filter(F.col(_BAD).isNotNull()).select(_BAD).take(torn + 1)]
    if len(bad) > torn:
        reason = f"a line cannot be read: {bad[-1][:80]!r}"
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
        raise Invalid(what, reason, f"write one JSON object a line with {columns}; times like 2030-01-31T10:30:00Z")
    return parsed.filter(F.col(_BAD).isNull()).select(*schema.names)


def _begins_with(file: Path, magic: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(magic)) == magic


def _ends_well(file: Path) -> bool:
    with file.open("rb") as opened:
        opened.seek(-1, 2)
        return opened.read(1) == b"\n"
