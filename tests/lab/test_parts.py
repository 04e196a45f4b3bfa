"""The small parts of the lab: latencies in buckets, results case by case, and what a handler leaves behind."""

import os
import random
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from forebay import Context, Invalid
from forebay_proof.histogram import LatencyHistogram
from forebay_proof.lab.audit import Effect, NdjsonLines
from forebay_proof.lab.lab_server import LabServer
from forebay_proof.lab.results import Results
from forebay_proof.load.generator import Load
from forebay_proof.load.handler_log import HandlerLog


def test_a_percentile_is_never_less_than_the_truth_and_at_most_two_hundredths_more() -> None:
    rng = random.Random(7)
    taken = sorted(rng.lognormvariate(-6, 2) for _ in range(5_000))
    parts = [LatencyHistogram(), LatencyHistogram()]
    for place, each in enumerate(taken):
        parts[place % 2].add(each)
    whole = msgspec.json.decode(msgspec.json.encode(parts[0].plus(parts[1])), type=LatencyHistogram)
    assert whole.total == 5_000
    for percent in (1, 50, 90, 99, 99.9, 100):
        truth = taken[max(0, -(-round(percent * 5_000) // 100) - 1)]
        assert truth <= whole.percentile(percent) * (1 + 1e-9)
        assert whole.percentile(percent) <= max(truth, 1e-6) * 1.0201
    assert LatencyHistogram().percentile(99) == 0


def test_a_case_is_done_when_its_file_is_there_and_a_run_goes_on_after_it(tmp_path: Path) -> None:
    results = Results(tmp_path, seed=7)
    results.row("e01", "postgres-64", 0, "rate", 12_000, "jobs/s", workers=64)
    results.sample("e01", "postgres-64", 0, 1.0, depth=10, age=None)
    assert not results.done("e01", "postgres-64", 0)
    results.finish("e01", "postgres-64", 0)
    results.row("e01", "postgres-64", 1, "rate", 11_000, "jobs/s")
    results.drop("e01", "postgres-64", 1)
    again = Results(tmp_path)
    assert again.done("e01", "postgres-64", 0)
    assert not again.done("e01", "postgres-64", 1)
    assert not again.done("e01", "postgres-6", 0)
    (row,) = again.rows("e01")
    assert (row["experiment"], row["case"], row["round"], row["metric"]) == ("e01", "postgres-64", 0, "rate")
    assert (row["value"], row["unit"], row["facts"]) == (12_000, "jobs/s", '{"workers":64}')
    machine = msgspec.json.decode(row["machine"])
    assert machine["seed"] == 7
    assert machine["cores"] >= 1
    assert again.rows("e02") == []


def test_a_line_is_whole_or_not_there_when_the_disk_is_full(tmp_path: Path) -> None:
    script = """
import resource
from types import SimpleNamespace
from forebay_proof.load.app import effect
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
for seq in range(5):
    try:
        effect(seq, SimpleNamespace(fence=(100 + seq, 1)))
        print("kept", seq)
    except OSError:
        print("refused", seq)
"""
    environment = {**os.environ, "LAB_EFFECTS": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    lines = NdjsonLines(tmp_path, "effects")
    found = [effect.seq for part in lines.read(Effect) for effect in part]
    assert found == [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("kept")]
    assert 0 < len(found) < 5
    assert lines.torn == 0


def test_lines_of_threads_that_meet_in_a_new_second_have_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second thread comes while the first one formats the second that both are in."""
    monkeypatch.setenv("LAB_EFFECTS", str(tmp_path))
    log = HandlerLog("LAB_EFFECTS", b"effect_at")
    context = cast(Context, SimpleNamespace(fence=(1, 1)))
    real = time.strftime
    others = [2]

    def strftime(form: str, moment: time.struct_time) -> str:
        if others:
            log.write(others.pop(), context)
        return real(form, moment)

    monkeypatch.setattr("forebay_proof.load.handler_log.time.strftime", strftime)
    log.write(1, context)
    lines = [msgspec.json.decode(line) for file in tmp_path.iterdir() for line in file.read_bytes().splitlines()]
    assert [line["seq"] for line in lines] == [2, 1]
    assert all(datetime.fromisoformat(line["effect_at"]) for line in lines), lines


def test_what_makes_no_sense_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="use postgres, redis, sqlite"):
        LabServer("oracle")
    with LabServer("sqlite") as lab_server, pytest.raises(Invalid, match="no server of its own"):
        lab_server.kill()
    with pytest.raises(Invalid, match="give a rate and seconds"):
        Load("memory://", seconds=10, directory=tmp_path)
    with pytest.raises(Invalid, match="batch"):
        Load("memory://", rate=10, seconds=1, batch=0, directory=tmp_path)
