"""Marks say which jobs have started, in a file that outlives its process and may be read at any moment."""

import os
import stat
from pathlib import Path

import pytest

from forebay.work.marks import Marks, read_marks


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "marks")


def test_nothing_is_marked_at_first(path: str) -> None:
    marks = Marks(path, 4)
    assert list(read_marks(path)) == []
    marks.close()


def test_what_has_started_and_not_ended_is_marked(path: str) -> None:
    marks = Marks(path, 4)
    marks.started((7, 1))
    marks.started((8, 3))
    marks.started((2**40, 2**33))
    marks.ended((8, 3))
    assert set(read_marks(path)) == {(7, 1), (2**40, 2**33)}
    marks.close()


def test_marks_are_there_without_a_close(path: str) -> None:
    """A killed process closes nothing."""
    marks = Marks(path, 2)
    marks.started((1, 1))
    assert list(read_marks(path)) == [(1, 1)]
    marks.close()
    assert list(read_marks(path)) == [(1, 1)]


def test_slots_are_used_again(path: str) -> None:
    marks = Marks(path, 2)
    for job_id in range(1, 1_001):
        marks.started((job_id, 1))
        marks.started((job_id, 2))
        assert set(read_marks(path)) == {(job_id, 1), (job_id, 2)}
        marks.ended((job_id, 1))
        marks.ended((job_id, 2))
    assert list(read_marks(path)) == []
    marks.close()


def test_two_deliveries_of_one_job_are_two_marks(path: str) -> None:
    marks = Marks(path, 3)
    marks.started((5, 1))
    marks.started((5, 2))
    marks.ended((5, 1))
    assert list(read_marks(path)) == [(5, 2)]
    marks.close()


def test_the_end_of_what_never_started_changes_nothing(path: str) -> None:
    marks = Marks(path, 2)
    marks.started((1, 1))
    marks.ended((9, 9))
    marks.ended((1, 1))
    marks.ended((1, 1))
    marks.started((2, 1))
    marks.started((3, 1))
    assert set(read_marks(path)) == {(2, 1), (3, 1)}
    marks.close()


def test_the_marks_of_a_process_before_this_one_are_gone(path: str) -> None:
    """The supervisor removes the file before it starts a child; a file of another size does not break the reading."""
    before = Marks(path, 8)
    before.started((1, 1))
    before.close()
    Path(path).unlink()
    marks = Marks(path, 2)
    assert list(read_marks(path)) == []
    marks.close()


@pytest.mark.parametrize("length", [0, 1, 15, 17, 31])
def test_half_a_mark_is_no_mark(path: str, length: int) -> None:
    Path(path).write_bytes(b"\1" * length)
    assert len(list(read_marks(path))) == length // 16


def test_the_file_is_for_its_owner_alone(path: str) -> None:
    before = os.umask(0)
    try:
        Marks(path, 1).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
