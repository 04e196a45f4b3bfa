"""Readers of a log that are killed between handling an entry and committing it, for real, again and again.

`after` must lose nothing, `before` must handle nothing twice, and a bridge must do neither.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Query
from forebay.store.sqlite.store import SqliteStore
from tests.waiting import PATIENCE

SRC = Path(__file__).parents[2] / "src"
ENTRIES = 40
KILLS = 3

CONSUMER = """
import os, signal, sys, time
from datetime import timedelta
from forebay.store.sqlite.store import SqliteStore
from forebay.work.log_readers import Consumer

path, commit, received_path, kill_after = sys.argv[1:]
received = os.open(received_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
left = int(kill_after)

def handle(entry):
    global left
    os.write(received, entry.body + b"\\n")
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

store = SqliteStore(path)
consumer = Consumer(store, "log", "g", handle, commit=commit, batch=4, lease=timedelta(milliseconds=200))
while any(one.lag for one in store.groups("log", "", 10)) or not store.groups("log", "", 10):
    time.sleep(min(consumer.step(), 0.02))
"""

BRIDGE = """
import os, signal, sys, time
from datetime import timedelta
from forebay.core.job import Draft
from forebay.store.sqlite.store import SqliteStore
from forebay.work.log_readers import Bridge

path, kill_after = sys.argv[1:]
store = SqliteStore(path)
left = int(kill_after)
commit = store.commit

def dying(*place, **how):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return commit(*place, **how)

store.commit = dying
lease = timedelta(milliseconds=200)
bridge = Bridge(store, "log", "g", lambda entry: [Draft("job", body=entry.body, queue="jobs")], batch=4, lease=lease)
while any(one.lag for one in store.groups("log", "", 10)) or not store.groups("log", "", 10):
    time.sleep(min(bridge.step(), 0.02))
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "jobs.db")
    store = SqliteStore(path)
    store.put_spec(QueueSpec(name="log", retention=Retained(2)))
    store.append("log", [b"%d" % number for number in range(ENTRIES)])
    store.close()
    return path


def run(script: str, *arguments: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env={"PYTHONPATH": str(SRC)}, timeout=PATIENCE, check=False
    )
    return done.returncode


def reported(path: str, commit: str) -> list[int]:
    """What was handled, over some runs that ended in the middle of a batch and one that went to the end."""
    received = Path(path).with_name("received")
    for _ in range(KILLS):
        assert run(CONSUMER, path, commit, str(received), "7") == -signal.SIGKILL
    assert run(CONSUMER, path, commit, str(received), "0") == 0
    return sorted(map(int, received.read_text().split()))


def test_after_loses_nothing(path: str) -> None:
    handled = reported(path, "after")
    assert sorted(set(handled)) == list(range(ENTRIES))
    assert len(handled) > ENTRIES, "a kill between handling and committing repeats something"


def test_before_handles_nothing_twice(path: str) -> None:
    handled = reported(path, "before")
    assert len(handled) == len(set(handled))
    assert len(handled) < ENTRIES, "a kill between committing and handling loses something"


def test_a_bridge_brings_every_entry_in_once(path: str) -> None:
    for _ in range(KILLS):
        assert run(BRIDGE, path, "2") == -signal.SIGKILL
    assert run(BRIDGE, path, "0") == 0
    store = SqliteStore(path)
    jobs = store.browse(Query(queue="jobs"), 0, 1000).jobs
    store.close()
    assert sorted(int(job.body) for job in jobs) == list(range(ENTRIES))
