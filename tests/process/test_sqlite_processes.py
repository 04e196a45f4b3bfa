"""Real processes on one file: races, a writer that holds on, kills in the middle of transactions, forks, idle cost."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.store.protocol import Query, Want
from forebay.store.sqlite.store import SqliteStore
from forebay_proof.conformance.racing import RacingCall

SRC = Path(__file__).parents[2] / "src"

PRELUDE = """
import os, sys
from threading import Thread
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.core.errors import StoreFailed
from forebay.store.protocol import Want
from forebay.store.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1])
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""

CLAIMS = """
while leases := store.claim([Want("default", 7)], sys.argv[2], seconds(60)):
    say(*(lease.job.id for lease in leases))
store.close()
"""

KEYS = """
def produce(number):
    for start in range(0, 40, 4):
        keys = [f"k{(start + number + i) % 40}" for i in range(4)]
        receipts = store.enqueue([Draft("k", 0, key=key) for key in keys])
        say(*(f"{key}={receipt.id}={int(receipt.duplicate)}" for key, receipt in zip(keys, receipts)))
threads = [Thread(target=produce, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
store.close()
"""

BUSY = """
def work(number):
    while True:
        receipts = store.enqueue([Draft("k", 0) for _ in range(3)])
        say("in", *(receipt.id for receipt in receipts))
        leases = store.claim([Want("default", 2)], f"w{number}", seconds(600))
        store.settle([(lease, Ack()) for lease in leases])
        say("out", *(lease.job.id for lease in leases))
threads = [Thread(target=work, args=(number,)) for number in range(2)]
[thread.start() for thread in threads]
"""

FORKS = """
store.enqueue([Draft("k")])
child = os.fork()
if child == 0:
    try:
        store.enqueue([Draft("k")])
    except StoreFailed as error:
        say(error)
    try:
        store.backlog()
    except StoreFailed as error:
        say(error)
    os._exit(0)
os.waitpid(child, 0)
say(store.enqueue([Draft("k")])[0].id)
store.close()
"""


def start(script: str, path: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, str(path), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )


def words(process: "subprocess.Popen[str]") -> list[str]:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out.split()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def test_racing_processes_never_claim_a_job_twice(path: Path) -> None:
    store = SqliteStore(str(path))
    ids = [receipt.id for _ in range(3) for receipt in store.enqueue([Draft("k")] * 500)]
    processes = [start(CLAIMS, path, f"p{number}") for number in range(3)]
    claimed = [int(word) for process in processes for word in words(process)]
    assert sorted(claimed) == ids
    assert store.backlog(["default"])[0].running == len(ids)
    store.close()


def test_processes_and_threads_with_shared_keys_make_one_job_a_key(path: Path) -> None:
    processes = [start(KEYS, path) for _ in range(4)]
    answers = [word.split("=") for process in processes for word in words(process)]
    assert len(answers) == 4 * 4 * 40
    assert len({(key, job_id) for key, job_id, _ in answers}) == 40
    assert sum(duplicate == "0" for _, _, duplicate in answers) == 40
    store = SqliteStore(str(path))
    assert (store.backlog(["default"])[0].depth, store.backlog(["default"])[0].keys) == (40, 40)
    store.close()


def test_kills_in_the_middle_of_transactions_lose_nothing_acknowledged(path: Path) -> None:
    accepted: set[int] = set()
    acked: set[int] = set()
    for number in range(20):
        process = start(BUSY, path)
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        time.sleep(0.005 + 0.01 * (number % 7))
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate(timeout=30)
        for line in [*lines, *rest.splitlines()]:
            verb, *ids = line.split() or ["in"]
            (accepted if verb == "in" else acked).update(map(int, ids))
    assert len(accepted) > 60
    store = SqliteStore(str(path))
    held: set[int] = set()
    after: int | None = 0
    while after is not None:
        page = store.browse(Query(), after, 1_000)
        held |= {job.id for job in page.jobs}
        after = page.next
    connection = sqlite3.connect(path)
    done = {job_id for half in (0, 1) for (job_id,) in connection.execute(f"SELECT id FROM removed_{half}")}
    assert accepted <= held | done, "accepted, and neither there nor done"
    assert acked <= done, "acknowledged as done, and lost"
    assert not held & done, "done, and still there"
    (backlog,) = store.backlog(["default"])
    states = dict(connection.execute("SELECT state, count(*) FROM job GROUP BY state"))
    assert (backlog.waiting, backlog.ready, backlog.running) == tuple(states.get(state, 0) for state in range(3))
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    store.close()


def test_a_writer_that_holds_on_for_two_seconds_is_waited_for(path: Path) -> None:
    store = SqliteStore(str(path))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    call = RacingCall(lambda: store.enqueue([Draft("k")]))
    began = time.perf_counter()
    while time.perf_counter() - began < 2:
        assert store.backlog(["default"])[0].depth == 0
        time.sleep(0.1)
    assert call.running
    other.execute("ROLLBACK")
    assert call.result(patience=5)[0].id == 1
    other.close()
    store.close()


def test_a_store_is_refused_after_a_fork_and_the_parent_goes_on(path: Path) -> None:
    out, _ = (process := start(FORKS, path)).communicate(timeout=30)
    first, second, parent = out.splitlines()
    assert process.returncode == 0
    assert "after a fork" in first
    assert "after a fork" in second
    assert parent == "2"


def test_waiting_for_another_process_is_quick_and_costs_little(path: Path) -> None:
    store = SqliteStore(str(path))
    began, used = time.perf_counter(), time.thread_time()
    assert store.wait(["default"], seconds(2)) is False
    share = (time.thread_time() - used) / (time.perf_counter() - began)
    assert share < 0.01, f"an idle waiter uses {share:.2%} of a core"
    waiter = RacingCall(lambda: (store.wait(["default"], seconds(20)), time.perf_counter()))
    time.sleep(0.3)
    other = SqliteStore(str(path))
    sent = time.perf_counter()
    other.enqueue([Draft("k")])
    woken, at = waiter.result(patience=10)
    assert woken
    assert at - sent < 1
    (lease,) = store.claim([Want("default", 1)], "w", seconds(5))
    other.settle([(lease, Ack())])
    other.close()
    store.close()


PUTS = """
for _ in range(10):
    store.enqueue([Draft("k", n) for n in range(200)])
store.close()
"""


def test_a_second_store_on_the_file_in_one_process_lets_go_of_nothing(tmp_path: Path) -> None:
    """The locks of a process on a file are gone when it closes any descriptor of it, and so would be the log."""
    path = str(tmp_path / "jobs.db")
    first = SqliteStore(path)
    first.enqueue([Draft("k", n) for n in range(50)])
    SqliteStore(path).close()
    for _ in range(3):
        subprocess.run([sys.executable, "-c", PRELUDE + PUTS, path], check=True, timeout=60)
        first.enqueue([Draft("k", n) for n in range(50)])
    assert first.backlog()[0].ready == 4 * 50 + 3 * 10 * 200
    first.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
