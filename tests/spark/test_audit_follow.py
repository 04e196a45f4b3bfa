"""`forebay audit --follow`: a verdict a turn while jobs are under way, until a signal or a broken promise."""

import json
import os
import signal
from functools import partial
from pathlib import Path
from threading import Thread

import pyarrow.parquet as pq
import pytest

from forebay.spark.lake import Lake
from tests.command_result import Run
from tests.spark.sample_stores import worked
from tests.spark.test_stream_command import missed
from tests.waiting import eventually

__all__ = ["missed"]


def proven(lake: Lake, jobs: int) -> bool:
    """Whether an audit that passed has seen this many jobs."""
    for table in lake.tables(["proof"]).values():
        for file in (each for each in table.files if each.partition["content"] == "proof"):
            (text,) = pq.ParquetFile(f"{lake.uri}/proof/{file.path}").read()["proof"].to_pylist()
            if json.loads(text)["totals"]["jobs"] == jobs:
                return True
    return False


@pytest.mark.timeout(1200)
def test_a_verdict_each_turn_until_a_signal_or_a_broken_promise(run: Run, tmp_path: Path, missed: list[int]) -> None:
    """Jobs are done meanwhile; what the evidence says of those that the lake does not have yet is no finding."""
    url = f"sqlite:///{tmp_path}/forebay.db"
    given = ("--receipts", "receipts.ndjson", "--effects", "effects.ndjson")
    words = ("audit", "--lake", "lake", "--store", url, *given, "--follow", "--every", "10ms")
    followed: list[bool] = []

    def work() -> None:
        try:
            for first in (10, 20):
                worked(url, tmp_path, 10, first=first)
                jobs, lake = first + 10, Lake.of(tmp_path / "lake", url)
                eventually(partial(proven, lake, jobs), f"an audit has passed {jobs} jobs", 400)
                followed.append(True)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    worked(url, tmp_path, 10)
    watcher = Thread(target=work)
    watcher.start()
    ended = run(*words, "--json")
    watcher.join()
    assert (ended.code, missed, followed) == (0, [], [True, True]), ended.err
    verdicts = ended.json
    assert {each["answer"] for each in verdicts} == {"PASS"}
    assert [each["earlier"] is None for each in verdicts] == [True] + [False] * (len(verdicts) - 1)
    with open("receipts.ndjson", "a") as file:
        file.write(json.dumps({"seq": 99, "job_id": 999_999, "answer": "accepted"}) + "\n")
    broken = run(*words)
    assert (broken.code, missed) == (1, []), broken.err
    assert broken.out.splitlines()[-1] == "FAIL"
    assert "seq 99 job 999999: a receipt names it, and it is not in the ledger" in broken.out
