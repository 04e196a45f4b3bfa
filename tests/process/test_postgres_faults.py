"""Postgres under load while workers and the server are killed, stopped and taken away: nothing accepted is lost.

Real workers, real producers, a server that syncs. After every fault all consume again and the audit of `load.py` holds.
The same with many more faults runs at night; `--log-level=INFO -o log_cli=true` shows how long they took to recover.
"""

import logging
import os
import random
import signal
import time

import pytest

from forebay import State
from forebay_proof.servers.postgres import PostgresServer, StopMode
from tests.process.load import Load, admin, now

TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"

log = logging.getLogger(__name__)


def kill_workers(load: Load, kills: int, min_jobs: int) -> None:
    rng = random.Random(kills)
    fleet = load.workers(3, lease=60)
    load.produce(threads=3, pause=0.03)
    load.until_busy(50)
    for _ in range(kills):
        time.sleep(rng.uniform(0.05, 0.6))
        victims = sorted(load.workers_of(fleet))
        if victims:
            os.kill(rng.choice(victims), signal.SIGKILL)
    load.until_busy(100)
    load.stop_producing()
    load.until_quiet(40)
    assert load.end(fleet) == 0
    jobs = load.audit_load()
    assert len(jobs) > min_jobs
    assert {job.state for job in jobs} == {State.DONE}
    assert any(job.attempt > 1 for job in jobs), "no kill met a job that ran"
    assert all(answer.word == "receipt" for answer in load.answers())


def test_kills_of_workers_at_random_lose_nothing_and_charge_what_had_started(load: Load) -> None:
    kill_workers(load, 6, 200)


@pytest.mark.nightly
def test_many_kills_of_workers(load: Load) -> None:
    kill_workers(load, 100, 5_000)


def test_a_server_that_is_killed_comes_back_with_everything(load: Load, durable: PostgresServer) -> None:
    load.survive(1, lambda: durable.stop(StopMode.KILL), durable.start)


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
def test_many_kills_of_the_server(load: Load, durable: PostgresServer) -> None:
    load.survive(40, lambda: durable.stop(StopMode.KILL), durable.start)


def terminate_sessions(load: Load, rounds: int) -> None:
    rng = random.Random(rounds)
    fleet = load.workers(2)
    load.produce()
    load.produce(threads=1, keyed=True)
    load.until_busy(50)
    ended = 0
    with admin(load.url) as connection:
        for _ in range(rounds):
            time.sleep(rng.uniform(0.02, 0.3))
            ended += connection.execute(TERMINATE, (connection.info.backend_pid,)).rowcount
    load.until_consumed(now(), 2)
    load.stop_producing()
    load.until_quiet(60)
    assert load.end(fleet) == 0
    jobs = load.audit_load()
    assert ended > rounds
    assert len(jobs) > rounds
    assert {job.state for job in jobs} == {State.DONE}


def test_sessions_that_are_ended_again_and_again_are_replaced(load: Load) -> None:
    terminate_sessions(load, 12)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_many_ended_sessions(load: Load) -> None:
    terminate_sessions(load, 500)


def test_what_a_stopped_worker_held_is_run_by_another_and_its_late_word_does_not_count(load: Load) -> None:
    """A run of several jobs at once, as a batch is stored."""
    first = load.workers(1, lease=1)
    ids = load.enqueue("reported_when", 6)
    stopped = {load.started(seq).pid for seq in range(1, 7)}
    (pid,) = stopped
    os.kill(pid, signal.SIGSTOP)
    try:
        for delivery in range(2, 40):
            load.make(f"go-{delivery}")
        second = load.workers(1, lease=1)
        load.until_ended()
        load.make("go-1")
    finally:
        os.kill(pid, signal.SIGCONT)
    load.until(lambda: sum(line.delivery == 1 for line in load.lines("effect")) == 6, "the late effects")
    load.enqueue("counted", 20)
    load.until_ended()
    assert load.end(first) == 0
    assert load.end(second) == 0
    load.audit_load()
    for job in load.store.get(ids):
        assert job is not None
        assert (job.state, job.result) == (State.DONE, job.delivery)
        assert job.delivery > 1
        assert job.attempt == 1, "it is unknown whether it held up its worker, so the attempt is given back"


def test_an_outage_longer_than_the_lease_costs_no_life_and_little_is_said(load: Load, durable: PostgresServer) -> None:
    """Handlers that ran before it end during it or after it; their verdicts wait, and their workers live on."""
    fleet = load.workers(2, lease=1)
    load.until(lambda: len(load.workers_of(fleet)) == 2, "both workers")
    ids = load.enqueue("reported_when", 4) + load.enqueue("reported_when", 4, word="later")
    pids = {load.started(seq).pid for seq in range(1, 9)}
    booted = len(load.lines("boot"))
    printed_before = len(load.log.read_text().splitlines())
    durable.stop(StopMode.FAST)
    began = time.monotonic()
    try:
        time.sleep(4)
        load.make("go-1")
        load.until_effects(4)
        time.sleep(3)
    finally:
        durable.start()
    healed_at, seconds = time.monotonic(), time.monotonic() - began
    load.until(lambda: load.job(ids[0]).state is State.DONE, "a verdict that had waited is written", 20)
    log.info("verdicts were written %.1f s after the outage", time.monotonic() - healed_at)
    time.sleep(max(0.0, healed_at + 4 - time.monotonic()))
    load.make("later-1")
    load.until_ended(20)
    output = load.log.read_text().splitlines()[printed_before:]
    assert 1 <= len(output) <= 3 * (seconds + 1), "a line a second of each process, and of the supervisor"
    load.enqueue("counted", 50)
    load.until_ended(20)
    assert load.end(fleet) == 0
    load.audit_load()
    assert [(job.attempt, job.delivery) for job in load.store.get(ids) if job] == [(1, 1)] * 8
    assert len(load.lines("boot")) == booted, "no process was replaced"
    assert pids == {line.pid for line in load.lines("effect")[:8]}
