"""Receipts and effects from files: decoded in chunks of whole lines, each file once, faults by file and number."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from forebay.core.errors import Invalid
from forebay.spark import evidence
from forebay.spark.evidence import Chunk, Decoded, decode_chunk, read_receipts

LINES = [f'{{"seq": {seq}, "job_id": {seq * 7}, "answer": "accepted"}}\n' for seq in range(40)]


def decoded(file: Path, size: int) -> tuple[list[int], list[Decoded]]:
    """The seqs of all chunks of a file, in order."""
    seqs: list[int] = []
    answers = []
    for start in range(0, file.stat().st_size, size):
        target = file.parent / f"{start}.parquet"
        answers.append(
            decode_chunk(Chunk("receipts", str(file), start, min(file.stat().st_size, start + size), str(target)))
        )
        if answers[-1].fault is None:
            seqs += pq.read_table(target)["seq"].to_pylist()
    return seqs, answers


@pytest.mark.parametrize("size", [1, 7, 45, 46, 47, 48, 49, 50, 100, 10_000])
def test_every_line_is_in_one_chunk_wherever_the_file_is_cut(tmp_path: Path, size: int) -> None:
    file = tmp_path / "receipts.ndjson"
    file.write_text("".join(LINES))
    seqs, answers = decoded(file, size)
    assert seqs == list(range(40))
    assert not any(answer.torn for answer in answers)


@pytest.mark.parametrize("size", [45, 100, 10_000])
def test_half_a_line_at_the_end_is_left_out_and_any_other_is_named(tmp_path: Path, size: int) -> None:
    file = tmp_path / "receipts.ndjson"
    file.write_text("".join(LINES) + LINES[0][:20])
    seqs, answers = decoded(file, size)
    assert (seqs, sum(answer.torn for answer in answers)) == (list(range(40)), 1)
    file.write_text("".join([*LINES[:17], '{"seq": 17, "answer": "perhaps"}\n', *LINES[18:]]))
    (fault,) = [answer.fault for answer in decoded(file, size)[1] if answer.fault is not None]
    assert fault.startswith("line 18: a line cannot be read: Invalid enum value 'perhaps'")


def test_a_whole_last_line_needs_no_newline(tmp_path: Path) -> None:
    file = tmp_path / "receipts.ndjson"
    file.write_text("".join(LINES).rstrip("\n"))
    seqs, (answer,) = decoded(file, 10_000)
    assert (seqs, answer.torn) == (list(range(40)), False)


def test_a_file_is_decoded_once_and_again_when_it_has_grown(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "_CHUNK_BYTES", 500)
    file, keep = tmp_path / "receipts.ndjson", tmp_path / "kept"
    file.write_text("".join(LINES[:30]))
    first = read_receipts(spark, [str(file)], keep)
    made = {path: path.stat().st_mtime_ns for path in keep.rglob("*.parquet")}
    assert (first.rows.count(), len(made)) == (30, 3)
    again = read_receipts(spark, [str(file)], keep)
    assert again.rows.count() == 30
    assert {path: path.stat().st_mtime_ns for path in keep.rglob("*.parquet")} == made
    file.write_text("".join(LINES))
    grown = read_receipts(spark, [str(file)], keep).rows.select("seq", "job_id", "answer").collect()
    assert sorted(map(tuple, grown)) == [(seq, seq * 7, "accepted") for seq in range(40)]


def test_a_file_that_cannot_be_read_is_named_and_not_kept(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "receipts.ndjson"
    file.write_text(LINES[0] + '{"seq": 99999999999999999999, "answer": "accepted"}\n')
    for _ in range(2):
        with pytest.raises(Invalid, match=r"receipts .*receipts.ndjson: line 2: a line cannot be read"):
            read_receipts(spark, [str(file)], tmp_path / "kept")
