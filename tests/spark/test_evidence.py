"""Receipts and effects from files: decoded in chunks of whole lines, each line once, faults by file and number."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from forebay.core.errors import Invalid
from forebay.spark import evidence
from forebay.spark.evidence import Chunk, Decoded, Evidence, FileRange, decode_chunk, read_receipts
from forebay.spark.lake import Lake

LINES = [f'{{"seq": {seq}, "job_id": {seq * 7}, "answer": "accepted"}}\n' for seq in range(40)]


def decoded(file: Path, size: int) -> tuple[list[int], list[Decoded]]:
    """The seqs of all chunks of a file, in order."""
    seqs: list[int] = []
    answers = []
    whole = FileRange(str(file), "0a", "first", 0, file.stat().st_size)
    for start in range(0, whole.end, size):
        chunk = Chunk("receipts", whole, start, min(whole.end, start + size))
        answers.append(decode_chunk(Lake(str(file.parent)), chunk))
        if answers[-1].file is not None:
            seqs += pq.ParquetFile(file.parent / "receipts" / answers[-1].file.path).read()["seq"].to_pylist()
    return seqs, answers


def seqs_of(spark: SparkSession, found: Evidence) -> list[int]:
    return sorted(row.seq for row in found.rows(spark).select("seq").collect())


@pytest.mark.parametrize("size", [1, 7, 45, 46, 47, 48, 49, 50, 100, 10_000])
def test_every_line_is_in_one_chunk_wherever_the_file_is_cut(tmp_path: Path, size: int) -> None:
    file = tmp_path / "receipts.ndjson"
    file.write_text("".join(LINES))
    assert decoded(file, size)[0] == list(range(40))
    file.write_text("".join(LINES).rstrip("\n"))
    assert decoded(file, size)[0] == list(range(40)), "a whole last line needs no newline"


@pytest.mark.parametrize("size", [45, 100, 10_000])
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, size: int) -> None:
    file = tmp_path / "receipts.ndjson"
    file.write_text("".join([*LINES[:17], '{"seq": 17, "answer": "perhaps"}\n', *LINES[18:]]))
    (fault,) = [answer.fault for answer in decoded(file, size)[1] if answer.fault is not None]
    assert fault.startswith("line 18: a line cannot be read: Invalid enum value 'perhaps'")


def test_of_a_file_that_has_grown_only_the_new_lines_are_decoded(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it ended before: after a line, in the middle of one, or after one that had no newline yet."""
    monkeypatch.setattr(evidence, "_CHUNK_BYTES", 500)
    file, keep = tmp_path / "receipts.ndjson", tmp_path / "lake" / "receipts"
    lake = Lake.of(tmp_path / "lake", "sqlite:////srv/jobs.db")
    text = "".join(LINES)
    ends = [text.index(LINES[line]) + more for line, more in ((30, 0), (30, 20), (33, -1), (36, 0))]
    before: set[Path] = set()
    expected = ((30, 0, 30), (30, 1, 0), (33, 0, 3), (36, 0, 3), (40, 0, 4))
    for end, (lines, torn, rows) in zip([*ends, len(text)], expected, strict=True):
        file.write_text(text[:end])
        found = read_receipts(lambda: spark, [str(file)], lake)
        assert (seqs_of(spark, found), found.torn, found.absent) == (list(range(lines)), torn, [])
        made = set(keep.rglob("*.parquet"))
        assert sum(pq.ParquetFile(path).metadata.num_rows for path in made - before) == rows
        before = made
    (tmp_path / "copy.ndjson").write_text(text)
    copied = read_receipts(lambda: spark, [str(tmp_path / "copy.ndjson")], lake)
    assert (seqs_of(spark, copied), set(keep.rglob("*.parquet"))) == (list(range(40)), before)
    file.write_text(text + '{"seq": 41, "answer": "perhaps"}')
    with pytest.raises(Invalid, match=r"receipts.ndjson: line 41: a line cannot be read: Invalid enum value"):
        read_receipts(lambda: spark, [str(file)], lake)


def test_a_rewritten_file_is_read_again(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "receipts.ndjson"
    lake = Lake.of(tmp_path / "lake", "sqlite:////srv/jobs.db")
    for first, last in ((0, 9), (20, 33)):
        file.write_text("".join(LINES[first:last]))
        assert seqs_of(spark, read_receipts(lambda: spark, [str(file)], lake)) == list(range(first, last))


def test_a_file_that_cannot_be_read_is_named_and_not_kept(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "receipts.ndjson"
    lake = Lake.of(tmp_path / "lake", "sqlite:////srv/jobs.db")
    file.write_text(LINES[0] + '{"seq": 99999999999999999999, "answer": "accepted"}\n')
    for _ in range(2):
        with pytest.raises(Invalid, match=r"receipts .*receipts.ndjson: line 2: a line cannot be read"):
            read_receipts(lambda: spark, [str(file)], lake)
    assert list((tmp_path / "lake" / "receipts").rglob("*.parquet")) == []
