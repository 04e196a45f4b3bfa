"""`forebay pipeline stream` killed with -9 while events are written, again and again: every event is there, once."""

import os
import random
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql import SparkSession

from forebay.core.job import Draft
from forebay.core.outcome import Ack, Failure, Retry
from forebay.demo.proof import SMALL_DATA
from forebay.spark.lake import Lake, missing_events
from forebay.spark.pipeline import Pipeline
from forebay.spark.tables import TABLES
from forebay.store.protocol import Want
from tests.spark.lakes import places, plain
from tests.spark.sample_stores import opened
from tests.waiting import eventually

SRC = Path(__file__).parents[2] / "src"
PATIENCE = 300.0


def write(url: str, stop: Event) -> None:
    """Jobs that come, fail, and end, as long as it takes."""
    with opened(url) as store:
        while not stop.wait(0.05):
            store.enqueue([Draft("k", {"n": n}, queue) for n in range(10) for queue in ("mail", "media")])
            leases = store.claim([Want("mail", 7), Want("media", 9)], "worker", timedelta(seconds=30))
            store.settle([(lease, Ack()) for lease in leases[1:]])
            store.settle([(lease, Retry(1_000, Failure("OSError", "later"))) for lease in leases[:1]])


def until_more(lake: Lake, process: "subprocess.Popen[bytes]", more: int) -> None:
    """Wait for this many commits."""
    wanted = lake.table("events").version + more

    def holds() -> bool:
        assert process.poll() is None
        return lake.table("events").version >= wanted

    eventually(holds, f"{more} commits")


@pytest.mark.timeout(900)
@pytest.mark.nightly
@pytest.mark.parametrize("kills", [1, 6])
def test_a_stream_that_is_killed_adds_every_event_once(spark: SparkSession, tmp_path: Path, kills: int) -> None:
    url, rng, stop = f"sqlite:///{tmp_path}/jobs.db", random.Random(kills), Event()
    lake = Lake.of(tmp_path / "lake", url)
    words = ["pipeline", "stream", "--lake", lake.uri, "--store", url, "--every", "200ms", "--tables-every", "2s"]
    environment = {**os.environ, "PYTHONPATH": str(SRC), "PYSPARK_SUBMIT_ARGS": SMALL_DATA}
    writer = Thread(target=write, args=(url, stop))
    writer.start()
    try:
        for _ in range(kills):
            process = subprocess.Popen(
                [sys.executable, "-m", "forebay", *words], env=environment, start_new_session=True
            )
            try:
                until_more(lake, process, rng.randint(1, 3))
                Event().wait(rng.random())
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    finally:
        stop.set()
        writer.join()
    assert missing_events(lake.contents()) == []
    Pipeline(spark, lake, url).run()
    with opened(url) as store:
        head = store.ledger_extent()[1]
    found = places(lake)
    assert len(found) == len(set(found)) == lake.contents().event_count
    assert {offset for offset, _ in found} == set(range(head))
    clean = Lake.of(tmp_path / "clean", url)
    Pipeline(spark, clean, url).run()
    for name in ("events", *TABLES):
        assert plain(lake, name) == plain(clean, name), name
