"""A lake without Spark: whose it is, where it may be, what a second writer may do, and what its upkeep leaves."""

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import duckdb
import polars
import pytest
from deltalake import DeltaTable

from forebay.core.errors import ForebayError, Invalid
from forebay.spark.lake import Conflict, Lake, identity, lake_uri, missing_events
from forebay.spark.maintenance import Maintenance, maintain
from tests.spark.lakes import brought, landed, places
from tests.spark.sample_stores import busy_day

URL = "sqlite:////srv/jobs.db"


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/jobs.db"
    busy_day(url)
    return url


def test_a_store_is_identified_without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert identity("sqlite:///jobs.db") == identity(f"sqlite:///{tmp_path}/jobs.db") == f"sqlite:{tmp_path}/jobs.db"
    assert identity("postgresql://ada:secret@db:5432/app") == identity("postgres://eve@db:5432/app?sslmode=require")
    assert "secret" not in identity("postgresql://ada:secret@db:5432/app")
    assert identity("postgresql://db/app") != identity("postgresql://db/other")


def test_a_lake_is_made_once_and_belongs_to_its_store(tmp_path: Path) -> None:
    lake = Lake.of(tmp_path / "lake", URL)
    assert Lake.of(tmp_path / "lake", URL).table("events").version == lake.table("events").version == 0
    with pytest.raises(Invalid, match=r"belongs to sqlite:/srv/jobs.db, not to sqlite:/srv/other.db; name that store"):
        Lake.of(tmp_path / "lake", "sqlite:////srv/other.db")


@pytest.mark.parametrize("location", ["ftp://bucket/lake", "hdfs://name:8020/lake", "az://c/lake", "gcs://b/lake"])
def test_an_unsupported_scheme_is_refused_by_name(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scheme = location.partition(":")[0]
    for given in (location, Path(location)):
        with pytest.raises(Invalid, match=rf"lakes on {scheme}: are not supported; name a path, or a URI of file, s3"):
            Lake.of(given, URL)
    with pytest.raises(Invalid, match=r"it names no bucket or host; write s3://NAME/PATH"):
        Lake.of(Path("s3://bucket/lake"), URL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "location", ["s3://bucket/lake", "s3a://b/lake", "gs://b/lake", "abfss://c@account.dfs.core.windows.net/lake"]
)
def test_the_uri_of_an_object_store_is_kept_as_it_is(location: str) -> None:
    assert lake_uri(f"{location}/") == lake_uri(location) == location
    assert not Lake(lake_uri(location)).is_local
    with pytest.raises(Invalid, match=r"it names no bucket or host; write \w+://NAME/PATH"):
        lake_uri(f"{location.partition(':')[0]}:///lake")


def test_a_file_uri_is_the_directory_that_it_names(tmp_path: Path) -> None:
    lake = Lake.of(f"file://{tmp_path}/my%20lake", URL)
    assert lake.uri == Lake.at(tmp_path / "my lake").uri == Lake.at(f"file:{tmp_path}/my%20lake").uri
    with pytest.raises(Invalid, match=r"the directory is on the host far"):
        Lake.at(f"file://far{tmp_path}/my%20lake")


def test_what_is_no_lake_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear ada")
    for place in (tmp_path, tmp_path / "letter", tmp_path / "nowhere"):
        with pytest.raises(Invalid, match=r"there is no Delta table events; name what `forebay pipeline run --lake`"):
            Lake.at(place)
    with pytest.raises(Invalid, match=r"there is no Delta table events"):
        Lake.of(tmp_path, URL)
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]


def test_a_lake_that_another_process_makes_at_the_same_time_is_one_lake(tmp_path: Path) -> None:
    """The directories come first, then the first commit: between them there is no table yet."""
    (tmp_path / "begun" / "events" / "_delta_log").mkdir(parents=True)
    assert Lake.of(tmp_path / "begun", URL).contents().end == 0
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(Lake.of, tmp_path / "lake", URL) for _ in range(8)]
        assert {each.result().table("events").version for each in made} == {0}
    (tmp_path / "other" / "events").mkdir(parents=True)
    (tmp_path / "other" / "events" / "notes.txt").write_text("mine")
    with pytest.raises(Invalid, match="there is no Delta table events"):
        Lake.of(tmp_path / "other", URL)


def test_without_the_client_there_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ForebayError, match=r"a lake needs .*deltalake, which is not installed; pip install 'forebay"):
        Lake.at(tmp_path)


def test_a_batch_that_was_added_is_refused_by_the_format(url: str, tmp_path: Path) -> None:
    lake = Lake.of(tmp_path / "lake", url)
    late = lake.table("events")
    again = landed(lake, url, 0, 5)
    brought(lake, url, 5)
    with pytest.raises(Conflict, match="another writer has committed; nothing was added"):
        late.commit(again, 5)
    assert (lake.table("events").end, len(places(lake))) == (5, len(set(places(lake))))
    assert missing_events(lake.contents()) == []


def test_other_engines_find_what_they_filter_by(url: str, tmp_path: Path) -> None:
    """Statistics choose files there, too: those of a column that has none would never be chosen."""
    lake = Lake.of(tmp_path / "lake", url)
    brought(lake, url, 6)
    db = duckdb.connect()
    db.register("ours", DeltaTable(f"{lake.uri}/events").to_pyarrow_dataset())
    db.register("plainly", polars.read_delta(f"{lake.uri}/events").to_arrow())
    for wanted in ("change = 'accepted'", "event_at >= (SELECT max(event_at) FROM ours)", "tenant = 't1'", "verb > ''"):
        counts = {
            db.execute(f"SELECT count(*) FROM {rows} WHERE {wanted.replace('ours', rows)}").fetchall()[0][0]
            for rows in ("ours", "plainly")
        }
        assert len(counts) == 1
        assert counts != {0}


def test_maintenance_joins_small_files_and_removes_unreferenced_ones(url: str, tmp_path: Path) -> None:
    lake = Lake.of(tmp_path / "lake", url)
    for end in (1, 2, 3, 4, 5):
        brought(lake, url, end)
    before, orphans = sorted(places(lake)), landed(lake, url, 5, 6)
    done = maintain(lake, Maintenance())
    assert (done.joined, done.rows_dropped, done.files_removed) == (5, 0, 0)
    assert maintain(lake, Maintenance(grace=timedelta(minutes=1))).files_removed == 0
    assert maintain(lake, Maintenance(grace=timedelta(0))).files_removed == 5 + len(orphans)
    contents = lake.contents()
    assert (len(contents.events.files), contents.first, contents.end, sorted(places(lake))) == (1, 0, 5, before)
    assert len(list(Path(lake.uri, "events").rglob("*.parquet"))) == 1
    brought(lake, url, 6)
    assert (lake.contents().end, missing_events(lake.contents())) == (6, [])


def test_days_that_are_too_old_are_dropped_and_the_rest_stays_dense(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.of(tmp_path / "lake", url)
    brought(lake, url, 5)
    rows = len(places(lake))
    assert maintain(lake, Maintenance(keep=timedelta(days=2))).rows_dropped == 0
    later = 3 * 86_400_000_000
    from forebay.store.clock import SystemClock

    now = SystemClock().now()
    monkeypatch.setattr(SystemClock, "now", lambda _: now + later)
    assert maintain(lake, Maintenance(keep=timedelta(days=2))).rows_dropped == rows
    assert (lake.contents().end, places(lake)) == (5, [])
    with pytest.raises(Invalid, match="1:00:00 is less than a day; a lake keeps whole days: give at least 1d"):
        Maintenance(keep=timedelta(hours=1))
