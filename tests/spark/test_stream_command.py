"""`forebay pipeline stream`: events and tables follow; a signal ends it with code 0, and a second start goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from forebay.demo.proof import SMALL_DATA
from forebay.spark.lake import Lake, missing_events
from tests.command_result import Run
from tests.spark.lakes import places
from tests.spark.sample_stores import opened, worked
from tests.waiting import PATIENCE, eventually

SRC = Path(__file__).parents[2] / "src"
JOBS = 20


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def missed() -> Iterator[list[int]]:
    """Signals that the command did not take."""
    found: list[int] = []
    numbers = signal.SIGTERM, signal.SIGINT
    before = {number: signal.signal(number, lambda number, _: found.append(number)) for number in numbers}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def wait_for_all(lake: Lake, url: str, *, tables: bool = False) -> None:
    """Until the lake has the events of the whole ledger, and with `tables` its tables as well."""
    with opened(url) as store:
        head = store.ledger_extent()[1]
    eventually(lambda: ends(lake, tables) == {head}, "the lake has everything")


def ends(lake: Lake, tables: bool) -> set[int]:
    contents = lake.contents()
    return {contents.end, *(held.end for held in contents.tables.values() if tables)}


def test_a_stream_follows_until_a_signal_and_a_second_start_continues(
    run: Run, url: str, tmp_path: Path, missed: list[int]
) -> None:
    lake = Lake.of(tmp_path / "lake", url)
    words = ["pipeline", "stream", "--lake", "lake", "--store", url, "--every", "100ms", "--tables-every"]
    followed: list[bool] = []
    jobs = 0

    def watch(batches: int, tables: bool, number: int) -> None:
        nonlocal jobs
        try:
            for _ in range(batches):
                worked(url, tmp_path, JOBS, first=jobs)
                jobs += JOBS
                wait_for_all(lake, url, tables=tables)
                followed.append(True)
        finally:
            os.kill(os.getpid(), number)

    upkeep = {"1h": "1ms", "1ms": "1h"}
    for batches, tables_every, number in ((2, "1h", signal.SIGTERM), (1, "1ms", signal.SIGINT)):
        watcher = Thread(target=watch, args=(batches, tables_every == "1ms", number))
        watcher.start()
        answer = run(*words, tables_every, "--maintain-every", upkeep[tables_every])
        watcher.join()
        assert {held.end for held in lake.contents().tables.values()} == {lake.contents().end}
        assert (answer.code, missed) == (0, []), answer.err
        assert ("small files joined" in answer.err) == (upkeep[tables_every] == "1ms")
        assert f"{3 * batches} records, {3 * batches * JOBS} events" in answer.out
    contents = lake.contents()
    assert followed == [True, True, True]
    assert (missing_events(contents), contents.end, contents.event_count) == ([], 9, 9 * JOBS)
    assert contents.tables["jobs"].rows == 3 * JOBS
    assert len(set(places(lake))) == 9 * JOBS


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("whole_group", [False, True])
def test_a_service_that_is_stopped_leaves_a_whole_lake(url: str, tmp_path: Path, whole_group: bool) -> None:
    """A service manager signals every process of a service to end, Java too; a terminal's ctrl-c likewise."""
    lake = Lake.of(tmp_path / "lake", url)
    words = ["pipeline", "stream", "--lake", lake.uri, "--store", url, "--every", "200ms"]
    environment = {**os.environ, "PYTHONPATH": str(SRC), "PYSPARK_SUBMIT_ARGS": SMALL_DATA}
    for turn in range(2):
        worked(url, tmp_path, JOBS, first=turn * JOBS)
        command = [sys.executable, "-m", "forebay", *words]
        process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True)
        try:
            wait_for_all(lake, url)
            (os.killpg if whole_group else os.kill)(process.pid, signal.SIGTERM)
            said = process.communicate(timeout=3 * PATIENCE)[1]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        assert (process.returncode, "Traceback" in said) == (0, False), said
    assert missing_events(lake.contents()) == []
    assert lake.contents().event_count == 6 * JOBS
