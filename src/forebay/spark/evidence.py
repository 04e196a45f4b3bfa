"""Receipts and effects from files into tables of a lake: each file is read once, however often it is audited.

Files are NDJSON or Parquet, told apart by what is in them, one or a directory of them. NDJSON is decoded by tasks of
Spark, in chunks of whole lines, and kept as Parquet below `evidence/NAME/` under the digest of the file; Parquet is
read where it is. A file with the contents of another one is read once, and named.

A process that was killed may have left half a line at the end of its file; such ends are left out and counted. Any
other line that cannot be read is refused by file and number: an audit must not overlook what it was given.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from forebay.core.errors import Invalid
from forebay.spark.arrow import arrow_schema
from forebay.spark.schemas import EFFECTS, RECEIPTS, conform

_PARQUET: Final = b"PAR1"
_CHUNK_BYTES: Final = 16 * 2**20


_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class ReceiptLine(Struct, frozen=True):
    """What a producer wrote down of one enqueue."""

    seq: _Long
    answer: Literal["accepted", "duplicate", "merged", "refused", "unknown"]
    job_id: _Long | None = None
    sent_at: datetime | None = None


class EffectLine(Struct, frozen=True):
    """What a handler wrote down of one run."""

    seq: _Long
    job_id: _Long
    delivery: _Int
    effect_at: datetime | None = None
    worker: str | None = None


_LINES: Final[dict[str, tuple[type[Struct], StructType]]] = {
    "receipts": (ReceiptLine, RECEIPTS),
    "effects": (EffectLine, EFFECTS),
}


class Chunk(Struct, frozen=True):
    """The lines of a file that begin at `start` … `end` - 1, and the Parquet file that they become."""

    name: str
    file: str
    start: int
    end: int
    target: str


class Decoded(Struct, frozen=True):
    """`torn`: the file ends in the middle of a line. `fault`: what is wrong with which line."""

    rows: int
    torn: bool = False
    fault: str | None = None


class KeptFile(Struct, frozen=True):
    """What the lake knows of a file that it has taken in."""

    file: str
    rows: int
    torn: bool


class Evidence(Struct, frozen=True):
    """`torn`: files whose last line was cut off. `doubled`: files that are copies of another one, each with it.
    `absent`: files that an earlier audit was given, and this one is not."""

    rows: DataFrame
    torn: int
    doubled: list[str]
    absent: list[str]


def read_receipts(spark: SparkSession, paths: Sequence[str], keep: Path) -> Evidence:
    """What producers were told, as RECEIPTS. `keep`: where decoded files are kept for the next time."""
    return _read(spark, paths, keep, "receipts")


def read_effects(spark: SparkSession, paths: Sequence[str], keep: Path) -> Evidence:
    """What handlers did, as EFFECTS."""
    return _read(spark, paths, keep, "effects")


def _read(spark: SparkSession, paths: Sequence[str], keep: Path, name: str) -> Evidence:
    schema = _LINES[name][1]
    files, doubled = _once(file for path in paths for file in _files(path, name))
    parquet = [str(file) for file in files.values() if _begins_with(file, _PARQUET)]
    lines = {digest: file for digest, file in files.items() if str(file) not in set(parquet)}
    kept = _take_in(spark, lines, keep / name, name)
    parts = []
    if parquet:
        rows = conform(spark.read.parquet(*parquet), schema, f"{name} {' '.join(paths)}")
        _check_rows(rows, schema, f"{name} {' '.join(paths)}")
        parts.append(rows)
    if any(each.rows for each in kept):
        folders = [str(keep / name / digest) for digest, each in zip(lines, kept, strict=True) if each.rows]
        parts.append(spark.read.schema(schema).parquet(*folders))
    rows = spark.createDataFrame([], schema) if not parts else parts[0]
    for more in parts[1:]:
        rows = rows.unionAll(more)
    given = {str(file) for file in files.values()}
    absent = sorted({each.file for each in _kept_files(keep / name)} - given)
    return Evidence(rows, sum(each.torn for each in kept), doubled, absent)


def _once(files: Iterable[Path]) -> tuple[dict[str, Path], list[str]]:
    """Files by their digests, and those that repeat one of them."""
    kept: dict[str, Path] = {}
    doubled = []
    for file in files:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=20)).hexdigest()
        if digest in kept:
            first = kept[digest]
            doubled.append(f"{file} was given twice" if first == file else f"{file} is a copy of {first}")
        kept.setdefault(digest, file)
    return kept, doubled


def _files(path: str, name: str) -> list[Path]:
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
        raise Invalid(f"{name} {path}", reason, "name NDJSON or Parquet: a file, or a directory of files")
    return files


def _take_in(spark: SparkSession, files: dict[str, Path], keep: Path, name: str) -> list[KeptFile]:
    """Decode those that are not kept yet. A file counts from the moment that its own JSON is there."""
    new = {digest: file for digest, file in files.items() if not (keep / f"{digest}.json").exists()}
    chunks = {digest: _chunks(file, keep / digest, name) for digest, file in new.items()}
    every = [chunk for own in chunks.values() for chunk in own]
    for digest in new:
        (keep / digest).mkdir(parents=True, exist_ok=True)
    done: dict[str, Decoded] = {}
    if every:
        found = spark.sparkContext.parallelize(every, len(every)).map(decode_chunk).collect()
        done = {chunk.target: each for chunk, each in zip(every, found, strict=True)}
    for digest, file in new.items():
        parts = [done[chunk.target] for chunk in chunks[digest]]
        for part in parts:
            if part.fault is not None:
                raise _unreadable(name, file, part.fault)
        kept = KeptFile(str(file), sum(part.rows for part in parts), any(part.torn for part in parts))
        draft = keep / f".{digest}.{os.getpid()}"
        draft.write_bytes(msgspec.json.encode(kept))
        draft.replace(keep / f"{digest}.json")
    return [_kept_file(keep / f"{digest}.json") for digest in files]


def _kept_files(keep: Path) -> Iterator[KeptFile]:
    """All that were ever taken in."""
    return (_kept_file(index) for index in keep.glob("*.json"))


def _kept_file(index: Path) -> KeptFile:
    return msgspec.json.decode(index.read_bytes(), type=KeptFile)


def _chunks(file: Path, folder: Path, name: str) -> list[Chunk]:
    size = file.stat().st_size
    starts = range(0, size, _CHUNK_BYTES)
    return [
        Chunk(name, str(file), start, min(size, start + _CHUNK_BYTES), str(folder / f"{start}.parquet"))
        for start in starts
    ]


def decode_chunk(chunk: Chunk) -> Decoded:
    """In a task of Spark."""
    line, schema = _LINES[chunk.name]
    begin, text = _whole_lines(chunk)
    try:
        rows = msgspec.json.Decoder(line).decode_lines(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        number, fault = next(_faults(line, text))
        if number < text.count(b"\n"):
            return Decoded(0, fault=f"line {_lines_before(chunk.file, begin) + number + 1}: {fault}")
        rows = msgspec.json.Decoder(line).decode_lines(text[: text.rfind(b"\n") + 1])
        return Decoded(_written(rows, schema, chunk.target), torn=True)
    return Decoded(_written(rows, schema, chunk.target))


def _written(rows: Sequence[Struct], schema: StructType, target: str) -> int:
    """As Parquet, whole or not at all."""
    wanted = arrow_schema(schema)
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in wanted]
    draft = f"{target}.{os.getpid()}.new"
    pq.write_table(pa.table(columns, schema=wanted), draft, compression="zstd")
    os.replace(draft, target)
    return len(rows)


def _whole_lines(chunk: Chunk) -> tuple[int, bytes]:
    """Where the first line is that begins in the chunk, and all that do."""
    with open(chunk.file, "rb") as file:
        file.seek(max(0, chunk.start - 1))
        if chunk.start and file.read(1) != b"\n":
            file.readline()
        begin = file.tell()
        text = file.read(max(0, chunk.end - begin))
        if text and not text.endswith(b"\n"):
            text += file.readline()
    return begin, text


def _faults(line: type[Struct], text: bytes) -> Iterator[tuple[int, str]]:
    """Lines that cannot be read, by their number from 0 on."""
    decoder = msgspec.json.Decoder(line)
    for number, each in enumerate(text.split(b"\n")):
        try:
            if each.strip():
                decoder.decode(each)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            yield number, f"a line cannot be read: {error} in {each[:80].decode(errors='replace')!r}"


def _lines_before(path: str, begin: int) -> int:
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(min(2**20, begin - file.tell())), b""))


def _unreadable(name: str, file: Path, fault: str) -> Invalid:
    fields = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in _LINES[name][1])
    return Invalid(
        f"{name} {file}", fault, f"write one JSON object a line with {fields}; times like 2030-01-31T10:30:00Z"
    )


def _check_rows(rows: DataFrame, schema: StructType, what: str) -> None:
    """Of Parquet, whose columns may be null."""
    needed = [field.name for field in schema if not field.nullable]
    wrong = " or ".join(f"{name} is null" for name in needed)
    if "answer" in needed:
        answers = ", ".join(f"'{answer}'" for answer in _ANSWERS)
        wrong += f" or answer not in ({answers})"
    bad = rows.filter(wrong).take(1)
    if bad:
        raise Invalid(what, f"a row cannot be: {bad[0].asDict()}", f"every row has {', '.join(needed)}")


_ANSWERS: Final = ("accepted", "duplicate", "merged", "refused", "unknown")


def _begins_with(file: Path, magic: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(magic)) == magic
