"""Several cells as one stream, one lake and one verdict; a cell that is missing or has lost something is named."""

import json
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from forebay.core.errors import Invalid
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.spark.audit import audit
from forebay.spark.lake import Lake
from forebay.spark.pipeline import Pipeline
from forebay.spark.tails import CellsTail
from forebay.store.cells.ids import LOCAL_BITS, cell_of
from forebay.store.cells.store import CellsStore
from forebay.store.open import cell_ledgers
from forebay.store.protocol import Want
from tests.command_result import Run
from tests.spark.sample_stores import opened

QUEUES = ("a-jobs", "b-jobs")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Cells 0 and 5, a queue in each."""
    file = tmp_path / "cells.toml"
    cells = "".join(
        f'[cells.{name}]\nnumber = {number}\nurl = "sqlite:///{tmp_path / name}.db"\n'
        for name, number in (("a", 0), ("b", 5))
    )
    file.write_text(f'version = 1\n{cells}[queues]\n"*" = "a"\nb-jobs = "b"\n')
    return f"cells:{file}"


class Evidence:
    """Jobs are enqueued and done through all cells; what producers and handlers saw is in two files."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url, self.seq = url, 0
        self.receipts, self.effects = directory / "receipts.ndjson", directory / "effects.ndjson"
        self.jobs: list[int] = []

    def work(self, count: int) -> None:
        with opened(self.url) as store:
            for queue in QUEUES:
                sent = range(self.seq, self.seq + count)
                self.seq += count
                made = store.enqueue([Draft("k", {"seq": seq}, queue=queue) for seq in sent])
                self._write(
                    self.receipts,
                    ({"seq": s, "answer": "accepted", "job_id": r.id} for s, r in zip(sent, made, strict=True)),
                )
                self.jobs += [receipt.id for receipt in made]
                leases = store.claim([Want(queue, count)], "w", timedelta(minutes=1))
                assert len(leases) == count
                self._write(
                    self.effects,
                    (
                        {
                            "seq": lease.job.payload["seq"],
                            "job_id": lease.job.id,
                            "delivery": 1,
                            "effect_at": "2030-01-01T00:00:00Z",
                        }
                        for lease in leases
                    ),
                )
                store.settle([(lease, Ack()) for lease in leases])

    def _write(self, file: Path, lines: Any) -> None:
        with file.open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)

    def audited(self, run: Run, *more: str, code: int = 0) -> dict[str, Any]:
        paths = ("--receipts", str(self.receipts), "--effects", str(self.effects))
        done = run("audit", "--lake", "lake", "--store", self.url, *paths, "--drained", "--json", *more)
        assert done.code == code, done
        found: dict[str, Any] = json.loads(done.out)
        return found


@pytest.mark.nightly
def test_one_verdict_on_all_cells(run: Run, url: str, tmp_path: Path) -> None:
    evidence = Evidence(url, tmp_path)
    evidence.work(30)
    first = evidence.audited(run)
    assert (first["answer"], first["facts"]["jobs"]) == ("PASS", 60)
    evidence.work(10)
    second = evidence.audited(run)
    assert (second["answer"], second["facts"]["jobs"]) == ("PASS", 80)
    assert second["earlier"]["new_events"] == 60
    extents = second["facts"]["cells"]
    with opened(url) as store:
        assert isinstance(store, CellsStore)
        ends = {name: cell.ledger_extent()[1] for name, cell in store.cells().items()}
    assert extents == f"a 0 … {ends['a'] - 1}, b 0 … {ends['b'] - 1}"
    assert second["facts"]["records"] == sum(ends.values())


def test_a_loss_is_named_with_its_cell_and_seq(run: Run, url: str, tmp_path: Path) -> None:
    evidence = Evidence(url, tmp_path)
    evidence.work(5)
    lost = (5 << LOCAL_BITS) + 999
    evidence._write(evidence.receipts, [{"seq": 77, "answer": "accepted", "job_id": lost}])
    verdict = evidence.audited(run, code=1)
    (found,) = (each for each in verdict["results"] if each["check"] == "lost")
    assert found["offenders"] == [
        {"seq": 77, "job_id": lost, "note": "a receipt names it, and it is not in the ledger", "cell": "b"}
    ]
    text = run("audit", "--lake", "lake", "--receipts", str(evidence.receipts), "--effects", str(evidence.effects))
    assert f"cell b seq 77 job {lost}: a receipt names it" in text.out


@pytest.mark.nightly
def test_a_cell_without_its_ledger_is_named_and_nothing_is_judged(run: Run, url: str, tmp_path: Path) -> None:
    evidence = Evidence(url, tmp_path)
    evidence.work(5)
    (tmp_path / "b.db").rename(tmp_path / "away.db")
    verdict = evidence.audited(run, code=2)
    assert verdict["answer"] == "INVALID"
    assert verdict["reasons"][0].startswith("cell b was not read, so nothing was judged: ")
    assert verdict["facts"]["cells"].endswith("b none")
    (tmp_path / "away.db").rename(tmp_path / "b.db")
    assert evidence.audited(run)["answer"] == "PASS"


@pytest.mark.nightly
def test_records_that_a_cell_has_lost_are_refused_by_name(spark: SparkSession, url: str, tmp_path: Path) -> None:
    evidence = Evidence(url, tmp_path)
    evidence.work(5)
    evidence.work(5)
    with sqlite3.connect(tmp_path / "b.db") as db:
        (table,) = next(db.execute("SELECT name FROM sqlite_master WHERE name LIKE '%ledger%' AND type = 'table'"))
        db.execute(f"DELETE FROM {table} WHERE rowid = (SELECT max(rowid) - 2 FROM {table})")
    with pytest.raises(Exception, match="missing"):
        Pipeline(spark, Lake.of(tmp_path / "lake", url), url).run(tables=False)


def test_rows_have_the_cell_and_its_offset(spark: SparkSession, url: str, tmp_path: Path) -> None:
    evidence = Evidence(url, tmp_path)
    evidence.work(3)
    lake = Lake.of(tmp_path / "lake", url)
    Pipeline(spark, lake, url).run()
    evidence.work(3)
    Pipeline(spark, lake, url).run()
    raw = spark.read.format("forebay").options(url=url, table="events").load().collect()
    kept = spark.read.format("forebay").options(lake=lake.uri, table="events").load().collect()
    assert {(row.cell, row.offset, row.place) for row in raw} == {(row.cell, row.seq, row.place) for row in kept}
    assert sorted({row.offset for row in kept}) == list(range(len({(row.cell, row.seq) for row in kept})))
    assert {row.cell for row in kept} == {0, 5}
    assert all(cell_of(row.job_id) == row.cell for row in kept if row.job_id is not None)
    order = {(row.cell, row.seq): row.offset for row in kept}
    for cell in (0, 5):
        offsets = [order[key] for key in sorted(order) if key[0] == cell]
        assert offsets == sorted(offsets)
    jobs = spark.read.format("forebay").options(lake=lake.uri, table="jobs").load().collect()
    assert sorted(row.job_id for row in jobs) == sorted(evidence.jobs)
    events = spark.read.format("forebay").options(url=url, table="events").load()
    with pytest.raises(Invalid, match="several cells"):
        audit(events)


@pytest.mark.nightly
def test_a_stream_has_an_offset_for_each_cell(spark: SparkSession, url: str, tmp_path: Path) -> None:
    evidence = Evidence(url, tmp_path)
    rows = 0
    for _ in range(2):
        evidence.work(4)
        events = spark.readStream.format("forebay").options(url=url, table="events").load()
        out = events.writeStream.format("parquet").trigger(availableNow=True)
        query = out.options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "check")).start()
        query.awaitTermination()
        found = spark.read.parquet(str(tmp_path / "out")).count()
        assert found > rows
        rows = found
    assert rows == spark.read.format("forebay").options(url=url, table="events").load().count()
    newest = max((tmp_path / "check" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    tail = CellsTail(cell_ledgers(url))
    ends = {"0": tail.extent(0)[1], "5": tail.extent(1)[1]}
    tail.close()
    assert json.loads(newest.read_text().splitlines()[-1])["next"] == ends
