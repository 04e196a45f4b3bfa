"""Receipts and effects from files into tables of a lake: each line is read once, however often it is audited.

Files are NDJSON or Parquet, recognised by their first bytes, one or a directory of them. The lake's tables `receipts`
and `effects` store them in segments: a segment is the part of a file between two of its sizes, identified by the digest
of everything up to its end. A file that has grown since it was last read starts with segments that the table has, so
only its new lines are decoded. The digest is an application transaction of the commit that adds the segment, so it is
in the table once. A Parquet file is one segment. A copy of another file is read once, and reported.

A process that was killed may have left half a line at the end of its file; such ends are left out and counted. Any
other line that cannot be decoded is refused by file and number: an audit must not overlook evidence.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal, get_args
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from forebay.core.errors import Invalid
from forebay.spark.arrow import arrow_schema
from forebay.spark.lake import Conflict, DataFile, Lake, LakeTable
from forebay.spark.lake_reader import read_files
from forebay.spark.landing import MAX_ROWS, write_file, write_rows
from forebay.spark.schemas import EFFECTS, RECEIPTS, conform
from forebay.spark.session import stage

_PARQUET: Final = b"PAR1"
_CHUNK_BYTES: Final = 16 * 2**20
_BLOCK_BYTES: Final = 2**20
MAX_DRIVER_BYTES: Final = 64 * 2**20
"""Up to so many new bytes are decoded on the driver, before Spark could have started."""

StartSpark = Callable[[], SparkSession]
"""Starts Spark at its first call, and returns the session."""

_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


ReceiptAnswer = Literal["accepted", "duplicate", "merged", "refused", "unknown"]


class ReceiptLine(Struct, frozen=True):
    """A producer's record of one enqueue."""

    seq: _Long
    answer: ReceiptAnswer
    job_id: _Long | None = None
    sent_at: datetime | None = None


class EffectLine(Struct, frozen=True):
    """A handler's record of one run."""

    seq: _Long
    job_id: _Long
    delivery: _Int
    effect_at: datetime | None = None
    worker: str | None = None


_LINES: Final[dict[str, tuple[type[Struct], StructType]]] = {
    "receipts": (ReceiptLine, RECEIPTS),
    "effects": (EffectLine, EFFECTS),
}


EVIDENCE: Final = {"receipts": "sent_at", "effects": "effect_at"}
"""The tables, by the column that says how old a row is."""

_ORIGIN: Final = pa.schema([(name, pa.string()) for name in ("digest", "parent", "start", "end", "source")])
"""The segment that a row belongs to: the digest of its file up to its end, that of the segment before it or "first",
where it starts and ends, and the file's path."""

_FIRST: Final = "first"
_STAGE: Final = "audit: evidence"


class FileRange(Struct, frozen=True):
    """The bytes `start` … `end` - 1 of a file. `digest`: of all bytes below `end`. `parent`: of those below `start`."""

    file: str
    digest: str
    parent: str
    start: int
    end: int

    @property
    def origin(self) -> dict[str, str]:
        bounds = {"start": str(self.start), "end": str(self.end)}
        return {"digest": self.digest, "parent": self.parent, **bounds, "source": self.file}


class Chunk(Struct, frozen=True):
    """The lines of a segment that begin at `start` … `end` - 1."""

    name: str
    segment: FileRange
    start: int
    end: int


class Decoded(Struct, frozen=True):
    """`file`: the rows, as a file of the lake. `fault`: what is wrong with which line."""

    file: DataFile | None = None
    fault: str | None = None


class _GivenFile(Struct, frozen=True):
    """A file of evidence, and the digest of all its bytes. `known`: the digests of its segments that the lake has.
    `new`: the rest of it. `torn`: its last line was cut off."""

    file: Path
    digest: str
    known: list[str]
    new: FileRange | None
    is_parquet: bool
    torn: bool


class Evidence(Struct, frozen=True):
    """The rows of the given files in a table of the lake: `files`.

    kept      all files of the table, with the evidence of earlier audits
    torn      how many of the given files end in the middle of a line
    doubled   copies of other files, each with its original
    absent    files that were given to an earlier audit, and not to this one
    """

    name: str
    schema: StructType
    lake: Lake
    files: list[DataFile]
    kept: list[DataFile]
    torn: int
    doubled: list[str]
    absent: list[str]

    def rows(self, spark: SparkSession) -> DataFrame:
        return read_files(spark, self.lake, self.name, self.files, self.schema)


def join_segments(lake: Lake, name: str) -> int:
    """Join the files of each segment, up to MAX_ROWS in one; how many were joined."""
    table = lake.table(name)
    added, removed = list[DataFile](), list[DataFile]()
    for files in _by_segment(table.files):
        batch: list[DataFile] = []
        for file in [*sorted(files, key=lambda each: each.rows), None]:
            if file is not None and sum(each.rows for each in batch) + file.rows <= MAX_ROWS:
                batch.append(file)
                continue
            if len(batch) > 1:
                added.append(_rewritten(lake, name, batch))
                removed += batch
            batch = [] if file is None else [file]
    return len(removed) if _replaced(lake, table, added, removed) else 0


def expire_segments(lake: Lake, name: str, day: str) -> int:
    """Drop the rows of segments that are all of earlier days; how many they were. An empty file stays for each: its
    lines are not decoded again, and proofs that name it hold."""
    table = lake.table(name)
    at = EVIDENCE[name]
    old = [
        files
        for files in _by_segment(table.files)
        if all(at in file.max_values and str(file.max_values[at])[:10] < day for file in files)
    ]
    added = [_rewritten(lake, name, files, empty=True) for files in old]
    removed = [file for files in old for file in files]
    return sum(file.rows for file in removed) if _replaced(lake, table, added, removed) else 0


def _by_segment(files: Iterable[DataFile]) -> Iterable[list[DataFile]]:
    segments: dict[str, list[DataFile]] = {}
    for file in files:
        segments.setdefault(file.partition["digest"], []).append(file)
    return segments.values()


def _rewritten(lake: Lake, name: str, files: Sequence[DataFile], *, empty: bool = False) -> DataFile:
    place, first = lake.files(name), files[0]
    tables = [arrow_schema(_LINES[name][1]).empty_table()]
    for file in () if empty else files:
        with place.open_input_file(file.path) as opened:
            tables.append(pq.ParquetFile(opened).read())
    path = f"{first.partition['digest']}/{uuid4().hex}.parquet"
    return write_file(place, path, pa.concat_tables(tables, promote_options="permissive"), first.partition)


def _replaced(lake: Lake, table: LakeTable, added: list[DataFile], removed: list[DataFile]) -> bool:
    """Whether they were: if another process has just changed the table, the next upkeep does it."""
    try:
        if removed:
            table.commit(added, removed=removed)
    except Conflict:
        lake.discard(table.name, added)
        return False
    return True


def read_receipts(start: StartSpark, paths: Sequence[str], lake: Lake) -> Evidence:
    """Answers to producers, as RECEIPTS; the lake keeps them for the next audit."""
    return _read(start, paths, lake, "receipts")


def read_effects(start: StartSpark, paths: Sequence[str], lake: Lake) -> Evidence:
    """Effects of handlers, as EFFECTS."""
    return _read(start, paths, lake, "effects")


def _read(start: StartSpark, paths: Sequence[str], lake: Lake, name: str) -> Evidence:
    schema = _LINES[name][1]
    files = [file for path in paths for file in _files(path, name)]
    given, doubled, kept = _ingest(start, files, lake, name)
    digests = {digest for each in given for digest in each.known}
    digests |= {each.new.digest for each in given if each.new is not None}
    own = [file for file in kept if file.partition["digest"] in digests]
    absent = sorted({file.partition["source"] for file in kept} - {str(each.file) for each in given})
    torn = sum(each.torn for each in given)
    return Evidence(name, schema, lake, own, kept, torn, doubled, absent)


def _distinct(files: Iterable[_GivenFile]) -> tuple[list[_GivenFile], list[str]]:
    """Files of different contents, and those that repeat one of them."""
    kept: dict[str, _GivenFile] = {}
    doubled = []
    for each in files:
        first = kept.setdefault(each.digest, each)
        if first is not each:
            same = first.file == each.file
            doubled.append(f"{each.file} was given twice" if same else f"{each.file} is a copy of {first.file}")
    return list(kept.values()), doubled


def _files(path: str, name: str) -> list[Path]:
    """All files at a path, without empty ones."""
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


def _ingest(
    start: StartSpark, files: Sequence[Path], lake: Lake, name: str
) -> tuple[list[_GivenFile], list[str], list[DataFile]]:
    """Add new segments in one commit. Returns the given files, those that were given twice, and all files of the
    table."""
    lake.create(name, pa.schema([*arrow_schema(_LINES[name][1]), *_ORIGIN]), _ORIGIN.names)
    table = lake.table(name)
    parents = {file.partition["digest"]: file.partition["parent"] for file in table.files}
    ends = sorted({int(file.partition["end"]) for file in table.files})
    given, doubled = _distinct(_given(file, parents, ends) for file in files)
    new = [each for each in given if each.new is not None]
    if not new:
        return given, doubled, table.files
    added = _write_parquet(start, [each.new for each in new if each.is_parquet and each.new is not None], lake, name)
    added += _decode(start, [each.new for each in new if not each.is_parquet and each.new is not None], lake, name)
    try:
        table.commit(added, apps={each.new.digest: each.new.end for each in new if each.new is not None})
    except Conflict:
        lake.discard(name, added)
        return _ingest(start, files, lake, name)
    return given, doubled, [*table.files, *added]


def _given(file: Path, parents: dict[str, str], ends: Sequence[int]) -> _GivenFile:
    """`parents`: of the digests that the table has. `ends`: where their segments end."""
    with file.open("rb") as opened:
        is_parquet = opened.read(len(_PARQUET)) == _PARQUET
    size = file.stat().st_size
    whole = size if is_parquet else _whole_end(file, size)
    *prefixes, (_, contents) = _digests(file, [*(end for end in ends if end < whole), whole, size])
    reached, digest = max((each for each in prefixes if each[1] in parents), default=(0, _FIRST))
    known, at = [], digest
    while at != _FIRST:
        known.append(at)
        at = parents[at]
    new = FileRange(str(file), prefixes[-1][1], digest, reached, whole) if whole > reached else None
    return _GivenFile(file, contents, known, new, is_parquet, whole < size)


def _digests(file: Path, ends: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Of the bytes below each of these ends, which go up."""
    hasher = hashlib.blake2b(digest_size=20)
    with file.open("rb") as opened:
        for end in ends:
            while block := opened.read(min(_BLOCK_BYTES, end - opened.tell())):
                hasher.update(block)
            yield end, hasher.hexdigest()


def _whole_end(file: Path, size: int) -> int:
    """The end of the last whole line; a last line without a newline is whole if it is JSON."""
    with file.open("rb") as opened:
        begin, tail = size, b""
        while begin and b"\n" not in tail:
            begin = max(0, begin - _BLOCK_BYTES)
            opened.seek(begin)
            tail = opened.read(min(_BLOCK_BYTES, size - begin)) + tail
    rest = tail[tail.rfind(b"\n") + 1 :]
    try:
        msgspec.json.decode(rest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return size - len(rest)
    return size


def _write_parquet(start: StartSpark, segments: Sequence[FileRange], lake: Lake, name: str) -> list[DataFile]:
    schema = _LINES[name][1]
    written: list[DataFile] = []
    for segment in segments:
        with stage(start(), _STAGE):
            rows = conform(start().read.parquet(segment.file), schema, f"{name} {segment.file}")
            _check_rows(rows, schema, f"{name} {segment.file}")
            written += write_rows(lake, name, rows, segment.digest, segment.origin)
    return written


def _decode(start: StartSpark, segments: Sequence[FileRange], lake: Lake, name: str) -> list[DataFile]:
    chunks = [chunk for segment in segments for chunk in chunks_of(name, segment)]
    if not chunks:
        return []
    decode = partial(decode_chunk, lake)
    if sum(segment.end - segment.start for segment in segments) <= MAX_DRIVER_BYTES:
        found = [decode(chunk) for chunk in chunks]
    else:
        with stage(start(), _STAGE):
            found = start().sparkContext.parallelize(chunks, len(chunks)).map(decode).collect()
    decoded = [part.file for part in found if part.file is not None]
    faults = [(chunk, part.fault) for chunk, part in zip(chunks, found, strict=True) if part.fault is not None]
    if faults:
        lake.discard(name, decoded)
        raise _unreadable(name, faults[0][0].segment.file, str(faults[0][1]))
    return decoded


def chunks_of(name: str, segment: FileRange) -> list[Chunk]:
    starts = range(segment.start, segment.end, _CHUNK_BYTES)
    return [Chunk(name, segment, start, min(segment.end, start + _CHUNK_BYTES)) for start in starts]


def decode_chunk(lake: Lake, chunk: Chunk) -> Decoded:
    """In a task of Spark, or on the driver."""
    line, schema = _LINES[chunk.name]
    begin, text = _whole_lines(chunk)
    try:
        rows = msgspec.json.Decoder(line).decode_lines(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        number, fault = next(_faults(line, text))
        return Decoded(fault=f"line {_lines_before(chunk.segment.file, begin) + number + 1}: {fault}")
    target = arrow_schema(schema)
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in target]
    path = f"{chunk.segment.digest}/{chunk.start}-{uuid4().hex}.parquet"
    table = pa.table(columns, schema=target)
    return Decoded(write_file(lake.files(chunk.name), path, table, chunk.segment.origin))


def _whole_lines(chunk: Chunk) -> tuple[int, bytes]:
    """Where the first line is that begins in the chunk, and all that do."""
    segment = chunk.segment
    with open(segment.file, "rb") as file:
        file.seek(max(0, chunk.start - 1))
        if chunk.start > segment.start and file.read(1) != b"\n":
            file.readline()
        begin = max(chunk.start, file.tell())
        file.seek(begin)
        text = file.read(max(0, chunk.end - begin))
        if text and not text.endswith(b"\n") and chunk.end < segment.end:
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
        return sum(block.count(b"\n") for block in iter(lambda: file.read(min(_BLOCK_BYTES, begin - file.tell())), b""))


def _unreadable(name: str, file: str, fault: str) -> Invalid:
    fields = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in _LINES[name][1])
    return Invalid(
        f"{name} {file}", fault, f"write one JSON object a line with {fields}; times like 2030-01-31T10:30:00Z"
    )


def _check_rows(rows: DataFrame, schema: StructType, what: str) -> None:
    """Of Parquet, whose columns may be null."""
    needed = [field.name for field in schema if not field.nullable]
    wrong = " or ".join(f"{name} is null" for name in needed)
    if "answer" in needed:
        answers = ", ".join(f"'{answer}'" for answer in get_args(ReceiptAnswer))
        wrong += f" or answer not in ({answers})"
    bad = rows.filter(wrong).take(1)
    if bad:
        raise Invalid(what, f"a row cannot be: {bad[0].asDict()}", f"every row has {', '.join(needed)}")
