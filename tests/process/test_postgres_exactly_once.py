"""`ctx.transaction()` under kill -9: each job has exactly one row, however often its workers were killed.

Effect and end of a job are one commit. Workers, their isolated children and (at night) the postmaster are killed at
random moments while handlers insert; afterwards every accepted job has one row, and it is that of the delivery which
ended the job.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from forebay import Draft, QueueSpec, State
from forebay.core.instant import hours, ms
from forebay.core.limits import MAX_BATCH
from forebay.core.policy import AtMost, Fixed, KeepFor, Routing
from forebay_proof.servers.postgres import PostgresServer, StopMode
from tests.process.site import Site

APP = "tests.process.exactly_once:fb"
KINDS = {"plain": "default", "awaited": "default", "fails": "default", "alone": "default", "capped": "capped"}
LIVES = 1_000


@pytest.fixture
def site(durable_url: str, tmp_path: Path) -> Iterator[Site]:
    with psycopg.connect(durable_url) as connection:
        connection.execute("CREATE TABLE effects (job bigint, delivery int)")
    site = Site(tmp_path, durable_url)
    routing = Routing(LIVES, Fixed(ms(20)))
    site.store.put_spec(QueueSpec(name="default", retention=KeepFor(hours(1)), routing=routing))
    site.store.put_spec(QueueSpec(name="capped", retention=KeepFor(hours(1)), routing=routing, eligibility=AtMost(4)))
    try:
        yield site
    finally:
        site.close()


def enqueue(site: Site, count: int) -> None:
    kinds = list(KINDS)
    drafts = []
    for seq in range(1, count + 1):
        # Isolated handlers start a process of their own after each kill, so there are fewer of them.
        name = kinds[seq % 5] if seq % 20 == 3 or kinds[seq % 5] != "alone" else "plain"
        drafts.append(Draft("awaited" if name == "capped" else name, {"seq": seq}, KINDS[name]))
    for start in range(0, count, MAX_BATCH):
        site.ids += [receipt.id for receipt in site.store.enqueue(drafts[start : start + MAX_BATCH])]


def ended(site: Site) -> int:
    return sum(backlog.done + backlog.dead for backlog in site.store.backlog())


def audit(site: Site) -> None:
    with psycopg.connect(site.url) as connection:
        rows = connection.execute("SELECT job, delivery FROM effects ORDER BY job").fetchall()
    jobs = site.jobs()
    assert {job.state for job in jobs} == {State.DONE}
    assert [job for job, _ in rows] == sorted(site.ids), "each job has one row"
    assert dict(rows) == {job.id: job.delivery for job in jobs}, "the row is that of the delivery that ended the job"


def kill_at_random(site: Site, server: PostgresServer | None, jobs: int, kills: int) -> None:
    rng = random.Random(kills)
    enqueue(site, jobs)
    words = "--processes 3 --concurrency 8 --visibility-timeout 2 --drain-timeout 10 --queues default,capped"
    fleet = site.run("-m", "forebay", "worker", APP, *words.split())
    site.until(lambda: ended(site) > 0, "some work")
    for number in range(kills):
        time.sleep(rng.uniform(0.02, 0.5))
        if server is not None and number % 10 == 5:
            server.stop(StopMode.KILL)
            server.start()
        elif victims := sorted(site.workers_of(fleet)):
            with suppress(ProcessLookupError):
                os.kill(rng.choice(victims), signal.SIGKILL)
        if ended(site) == jobs:
            break
    site.until(lambda: ended(site) == jobs, "all jobs ended", 300)
    assert site.end(fleet) == 0
    audit(site)
    assert len({line.seq for line in site.lines("start") if line.delivery > 1}) > 1, "no kill met a job that ran"


def test_each_job_has_exactly_one_row_though_workers_are_killed(site: Site) -> None:
    kill_at_random(site, None, 400, 8)


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_each_job_has_exactly_one_row_though_everything_is_killed(site: Site, durable: PostgresServer) -> None:
    kill_at_random(site, durable, 10_000, 200)
