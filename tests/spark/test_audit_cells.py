"""Cells on real servers pass the audit: one is killed under load and comes back, again and again."""

from pathlib import Path

import pytest

from forebay.store.cells.ids import cell_of
from forebay_proof.servers.postgres import PostgresServer, StopMode
from tests.command_result import Run
from tests.process.load import Load
from tests.stores.openers import cells_file

KILLS = 5


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_cell_that_is_killed_and_back_passes(run: Run, tmp_path: Path) -> None:
    with PostgresServer(durable=True, private=True) as a, PostgresServer(durable=True, private=True) as b:
        queues = 'quick = { partitions = 8, by = "key", cells = ["a", "b"] }\n'
        file = tmp_path / "cells.toml"
        file.write_text(cells_file({"a": a.create_database(), "b": b.create_database()}, ["a"], queues))
        load = Load(tmp_path, f"cells:{file}")
        try:
            load.survive(KILLS, lambda: b.stop(StopMode.KILL), b.start, workers_too=True)
            assert {cell_of(line.job) for line in load.lines("effect")} == {0, 1}
            receipts, effects = load.evidence()
            files = ("--receipts", str(receipts), "--effects", str(effects))
            answer = run("audit", "--store", load.url, "--lake", "lake", *files, "--drained", "--json")
        finally:
            load.close()
    (verdict,) = answer.json
    assert (answer.code, verdict["answer"]) == (0, "PASS"), answer.out
    assert verdict["facts"]["effects"] > 50
