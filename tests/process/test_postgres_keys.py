"""Many producers with the same keys: one job a key, the same id for all, and an error for another payload.

Real processes with threads of their own against one server; also where the key's window ends.
"""

import os
import subprocess
import sys
from collections import Counter
from operator import sub
from pathlib import Path

import pytest

from forebay import Job, QueueSpec, open_store
from forebay.core.instant import seconds
from forebay.store.protocol import Query, Store

ROOT = Path(__file__).parents[2]
PROCESSES, THREADS = 4, 16
WINDOW = 1_000_000

RACE = """
import sys
from random import Random
from threading import Thread
from time import monotonic
from forebay import Draft, KeyConflict, open_store

url, number, threads, keys, batch, path = sys.argv[1:]
number, threads, keys, batch = int(number), int(threads), int(keys), int(batch)
store = open_store(url)
said = []


def send(drafts, meaning):
    try:
        receipts = store.enqueue(drafts)
    except KeyConflict as conflict:
        said.append(f"conflict {conflict.key} {conflict.job_id} {meaning}")
        return
    said.extend(
        f"{'duplicate' if receipt.duplicate else 'fresh'} {draft.key} {receipt.id} {meaning}"
        for draft, receipt in zip(drafts, receipts)
    )


def produce(thread):
    # Every tenth key is contested: half of the threads mean something else by it.
    rng = Random(number * threads + thread)
    numbers = [n for n in range(keys) if n % 10]
    rng.shuffle(numbers)
    for start in range(0, len(numbers), batch):
        send([Draft("k", 0, key=f"key-{n}") for n in numbers[start : start + batch]], 0)
    contested = list(range(0, keys, 10))
    rng.shuffle(contested)
    for n in contested:
        send([Draft("k", thread % 2, key=f"key-{n}")], thread % 2)


def hammer(thread):
    rng, end = Random(thread), monotonic() + keys
    while monotonic() < end:
        send([Draft("k", 0, key=f"key-{rng.randrange(5)}")], 0)


running = [Thread(target=produce if batch else hammer, args=(thread,)) for thread in range(threads)]
[thread.start() for thread in running]
[thread.join() for thread in running]
store.close()
with open(path, "w") as file:
    file.writelines(line + "\\n" for line in said)
"""


def race(url: str, directory: Path, threads: int, keys: int, batch: int) -> list[tuple[str, str, int, int]]:
    """The producers' answers: word, key, job and what they meant."""
    paths = [directory / f"said-{number}" for number in range(PROCESSES)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, url, *map(str, (number, threads, keys, batch, path))],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        for number, path in enumerate(paths)
    ]
    try:
        assert [process.wait(1_000) for process in processes] == [0] * PROCESSES
    finally:
        for process in processes:
            process.kill()
            process.wait()
    lines = [line.split() for path in paths for line in path.read_text().splitlines()]
    return [(word, key, int(job), int(meaning)) for word, key, job, meaning in lines]


def everything(store: Store) -> list[Job]:
    jobs: list[Job] = []
    after: int | None = 0
    while after is not None:
        page = store.browse(Query(), after, 1_000)
        jobs += page.jobs
        after = page.next
    return jobs


def share_keys(url: str, directory: Path, keys: int, batch: int) -> None:
    store = open_store(url)
    store.put_spec(QueueSpec(name="default", key_window=seconds(3_600)))
    output = race(url, directory, THREADS, keys, batch)
    jobs = {job.key: job for job in everything(store)}
    (backlog,) = store.backlog(["default"])
    store.close()
    assert len(output) == PROCESSES * THREADS * keys
    assert (len(jobs), backlog.depth, backlog.keys) == (keys, keys, keys), "one job a key"
    assert Counter(key for word, key, _, _ in output if word == "fresh") == Counter(jobs.keys())
    for word, key, job_id, meaning in output:
        job = jobs[key]
        assert job_id == job.id
        assert (word == "conflict") == (meaning != job.payload), (
            f"{word} of {key}: {meaning} was meant, {job.payload} is"
        )
    assert sum(word == "conflict" for word, _, _, _ in output) == PROCESSES * THREADS // 2 * (keys // 10)


def test_producers_in_many_processes_make_one_job_a_key(durable_url: str, tmp_path: Path) -> None:
    share_keys(durable_url, tmp_path, 100, 20)


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_sixty_four_producers_with_ten_thousand_keys_make_one_job_a_key(durable_url: str, tmp_path: Path) -> None:
    share_keys(durable_url, tmp_path, 10_000, 100)


def test_a_key_counts_for_its_window_and_is_forgotten_after_it(durable_url: str, tmp_path: Path) -> None:
    """Five keys, hammered for three seconds: a new job only when the window of the last one has ended."""
    store = open_store(durable_url)
    store.put_spec(QueueSpec(name="default", key_window=seconds(WINDOW / 1_000_000)))
    output = race(durable_url, tmp_path, 2, 3, 0)
    of_key: dict[str | None, list[int]] = {}
    for job in sorted(everything(store), key=lambda job: job.enqueued_at):
        of_key.setdefault(job.key, []).append(job.enqueued_at)
    assert {word for word, _, _, _ in output} == {"fresh", "duplicate"}
    assert len(of_key) == 5
    assert sum(word == "fresh" for word, _, _, _ in output) == sum(len(times) for times in of_key.values())
    for times in of_key.values():
        assert len(times) > 1
        assert [gap for gap in map(sub, times[1:], times) if gap < WINDOW] == []
    store.promote(1_000)
    assert store.backlog(["default"])[0].keys <= 5
    store.close()
