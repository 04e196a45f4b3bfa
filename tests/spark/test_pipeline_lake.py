"""A lake without Spark: whose it is, what its contents name, what a crash leaves behind, who may write."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from forebay.core.errors import ForebayError, Invalid
from forebay.spark.lake import CONTENTS, Contents, Held, Lake, Part, Piece, holes, identity

SRC = Path(__file__).parents[2] / "src"
URL = "sqlite:////srv/jobs.db"


def a_version(lake: Lake, table: str, version: int) -> Path:
    draft = lake.draft(table)
    (draft / "day=2030-01-31").mkdir(parents=True)
    (draft / "day=2030-01-31" / "a.parquet").write_bytes(b"PAR1")
    return lake.put(draft, table, version)


def test_a_store_is_known_by_its_place_not_by_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert identity("sqlite:///jobs.db") == identity(f"sqlite:///{tmp_path}/jobs.db") == f"sqlite:{tmp_path}/jobs.db"
    assert identity("postgresql://ada:secret@db:5432/app") == identity("postgres://eve@db:5432/app?sslmode=require")
    assert "secret" not in identity("postgresql://ada:secret@db:5432/app")
    assert identity("postgresql://db/app") != identity("postgresql://db/other")


def test_a_lake_is_made_once_and_belongs_to_its_store(tmp_path: Path) -> None:
    lake = Lake.of(tmp_path / "lake", URL)
    assert Lake.of(tmp_path / "lake", URL).contents() == lake.contents() == Contents(1, "sqlite:/srv/jobs.db")
    with pytest.raises(Invalid, match=r"belongs to sqlite:/srv/jobs.db, not to sqlite:/srv/other.db; name that store"):
        Lake.of(tmp_path / "lake", "sqlite:////srv/other.db")


@pytest.mark.parametrize("location", ["s3a://bucket/lake", "hdfs://name:8020/lake", "abfss://c@a/lake", "S3:/bucket"])
def test_a_scheme_that_is_no_directory_is_refused_by_name(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scheme = location.partition(":")[0].lower()
    for given in (location, Path(location)):
        with pytest.raises(Invalid, match=rf"lakes on {scheme}: are not supported; name a directory"):
            Lake.of(given, URL)
        with pytest.raises(Invalid, match=rf"lakes on {scheme}: are not supported"):
            Lake.at(given)
    assert list(tmp_path.iterdir()) == []


def test_a_file_uri_is_the_directory_that_it_names(tmp_path: Path) -> None:
    lake = Lake.of(f"file://{tmp_path}/my%20lake", URL)
    assert lake.path == Lake.at(tmp_path / "my lake").path == Lake.at(f"file:{tmp_path}/my%20lake").path
    with pytest.raises(Invalid, match=r"the directory is on the host far"):
        Lake.at(f"file://far{tmp_path}/my%20lake")


def test_what_is_no_lake_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear ada")
    with pytest.raises(Invalid, match=r"there is no lake.json; name the directory"):
        Lake.of(tmp_path, URL)
    with pytest.raises(Invalid, match=r"there is no lake.json"):
        Lake.at(tmp_path / "letter")
    with pytest.raises(Invalid, match=r"there is no lake.json"):
        Lake.at(tmp_path / "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]


@pytest.mark.parametrize(("text", "said"), [("{", "cannot be read"), ('{"format": 2, "store": "x"}', "the format 2")])
def test_contents_that_cannot_be_understood_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / CONTENTS).write_text(text)
    with pytest.raises(Invalid, match=said):
        Lake.at(tmp_path)


def test_a_crash_before_the_contents_are_replaced_leaves_the_lake_as_it_was(tmp_path: Path) -> None:
    lake = Lake.of(tmp_path / "lake", URL)
    before = lake.contents()
    a_version(lake, "events", 0)
    lake.draft("events").mkdir()
    (lake.path / f"{CONTENTS}.new").write_text("half")
    assert lake.contents() == before
    with lake.writing():
        assert not (lake.path / "work").exists()
        place = a_version(lake, "events", 0)
        lake.replace(msgspec.structs.replace(before, versions=1, events=[Part(0, 0, 5, 9)]))
    assert lake.contents().event_count == 9
    assert [file.name for file in place.rglob("*.parquet")] == ["a.parquet"]


def test_what_was_replaced_stays_for_a_while_and_then_goes(tmp_path: Path) -> None:
    lake = Lake.of(tmp_path / "lake", URL)
    old, new = a_version(lake, "events", 0), a_version(lake, "events", 1)
    table = a_version(lake, "jobs", 2)
    held = {"jobs": Held(5, 1, {"2030-01-31": Piece(2, 7)})}
    lake.replace(Contents(1, lake.contents().store, 3, [Part(1, 0, 5, 9)], held))
    lake.sweep()
    assert old.exists()
    os.utime(old / "_replaced", (0, 0))
    lake.sweep()
    assert (old.exists(), new.exists(), table.exists()) == (False, True, True)


def test_one_writes_at_a_time_and_a_killed_one_does_not_stay_in_the_way(tmp_path: Path) -> None:
    lake = Lake.of(tmp_path / "lake", URL)
    program = (
        "import signal, sys; from forebay.spark.lake import Lake\n"
        f"with Lake.at({str(lake.path)!r}).writing():\n    print('in', flush=True); signal.pause()"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(ForebayError, match="another pipeline writes"), lake.writing():
            pass
        other.kill()
    with lake.writing():
        pass


def test_holes_between_parts_are_seen() -> None:
    whole = Contents(1, "x", 3, [Part(0, 4, 9, 9), Part(1, 9, 12, 3)])
    assert (whole.first, whole.end, holes(whole)) == (4, 12, [])
    torn = Contents(1, "x", 3, [Part(0, 4, 9, 9), Part(1, 10, 12, 3)])
    assert holes(torn) == ["offsets 9 … 9 are missing before version 1"]
