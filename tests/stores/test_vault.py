"""Encryption at rest, through the client and a worker, on every store: what the store holds is envelopes."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from forebay.client import Forebay
from forebay.core.errors import KeyConflict
from forebay.core.instant import hours, ms, seconds
from forebay.core.job import State
from forebay.core.lease import Settled
from forebay.core.policy import Fixed, KeepFor, Routing
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Want
from forebay.vault import Vault, envelope_of
from forebay.work.options import Options
from forebay.work.pool import Pool
from tests.waiting import eventually

OLD, NEW = os.urandom(32), os.urandom(32)
CANARY = "4f1c-the-canary-9a2b"
ROUTING = Routing(2, Fixed(ms(1)))

Maker = Callable[[Vault | None], Forebay]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Maker]:
    """Apps on one store, each with its own vault; the store in memory has one process, so its apps share it."""
    if request.param == "postgres":
        url = str(request.getfixturevalue("cleared_url"))
    else:
        url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    apps: list[Forebay] = []

    def application(vault: Vault | None) -> Forebay:
        app = Forebay(url, vault=vault)
        app.queue(QueueSpec(name="default", retention=KeepFor(hours(1)), routing=ROUTING))
        if apps and request.param == "memory":
            app._store = apps[0].store

        @app.job(keep_result=True, retry_on=OSError)
        def charge(card: str) -> str:
            if card == "bad":
                raise OSError("no luck")
            return card[::-1]

        apps.append(app)
        return app

    yield application
    for app in apps:
        app.close()


def work_off(app: Forebay) -> None:
    """Everything that is ready, once, by a pool as a worker has it."""
    store, settled = app.store, list[Settled]()
    pool = Pool(
        app.registry,
        Options(concurrency=1),
        lambda _: ROUTING,
        lambda pairs: settled.extend(store.settle(pairs)),
    )
    leases = store.claim([Want("default", 10)], "ada", seconds(30))
    pool.submit(leases)
    assert pool.wait_until_idle(30)
    pool.close()


def until_dead(app: Forebay, job_id: int) -> None:
    def died() -> bool:
        app.store.wait(["default"], ms(20))
        work_off(app)
        (job,) = app.store.get([job_id])
        return job is None or job.state is State.DEAD

    eventually(died, "the job is a dead letter")


def test_the_store_holds_envelopes_and_app_and_worker_see_through_them(make: Maker) -> None:
    app = make(Vault({"old": OLD}))
    receipt = app.enqueue("charge", {"card": CANARY})
    work_off(app)
    (raw,) = app.store.get([receipt.id])
    assert raw is not None
    assert raw.state is State.DONE
    assert raw.result_body is not None
    for body in (raw.body, raw.result_body):
        assert envelope_of(body) is not None
        assert CANARY.encode() not in body
        assert CANARY[::-1].encode() not in body
    job = app.get(receipt.id)
    assert job is not None
    assert (job.payload, job.result) == ({"card": CANARY}, CANARY[::-1])
    assert [job.payload for job in app.jobs()] == [{"card": CANARY}]


def test_a_key_that_comes_again_is_the_same_job_also_after_a_rotation(make: Maker) -> None:
    app = make(Vault({"old": OLD}))
    first = app.enqueue("charge", {"card": CANARY}, key="k1")
    again = app.enqueue("charge", {"card": CANARY}, key="k1")
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(KeyConflict):
        app.enqueue("charge", {"card": "another"}, key="k1")
    rotated = make(Vault({"new": NEW, "old": OLD}))
    assert rotated.enqueue("charge", {"card": CANARY}, key="k1").id == first.id
    with pytest.raises(KeyConflict):
        rotated.enqueue("charge", {"card": "another"}, key="k1")


def test_keys_rotate_while_jobs_are_open(make: Maker) -> None:
    before = make(Vault({"old": OLD}))
    early = before.enqueue("charge", {"card": "early"})
    during = make(Vault({"new": NEW, "old": OLD}))
    late = during.enqueue("charge", {"card": "late"})
    work_off(during)
    assert [job.result for job in during.jobs()] == ["ylrae", "etal"]
    after = make(Vault({"new": NEW}))
    assert (job := after.get(late.id)) is not None
    assert job.result == "etal"
    assert early.id < late.id


def test_without_the_key_a_job_fails_clearly_and_is_kept(make: Maker) -> None:
    app = make(Vault({"old": OLD}))
    job_id = app.enqueue("charge", {"card": CANARY}).id
    wrong = make(Vault({"new": NEW}))
    until_dead(wrong, job_id)
    (dead,) = wrong.store.get([job_id])
    assert dead is not None
    assert dead.attempt == 2
    assert "cannot be opened: this process has no key 'old', only new" in dead.errors[-1].message
    assert wrong.redrive(queue="default") == 1, "which needs no key"
    app.store.promote(10)
    work_off(app)
    assert (job := app.get(job_id)) is not None
    assert job.result == CANARY[::-1]


def test_jobs_from_before_the_vault_still_run(make: Maker) -> None:
    job_id = make(None).enqueue("charge", {"card": "plain"}).id
    app = make(Vault({"new": NEW}))
    work_off(app)
    assert (job := app.get(job_id)) is not None
    assert (job.payload, job.result) == ({"card": "plain"}, "nialp")


def test_plain_sql_shows_only_the_envelope_in_a_file(tmp_path: Path) -> None:
    app = Forebay(f"sqlite:///{tmp_path / 'jobs.db'}", vault=Vault({"old": OLD}))
    app.enqueue("charge", {"card": CANARY}, key="k1")
    app.close()
    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        dump = "\n".join(connection.iterdump())
    connection.close()
    assert CANARY not in dump
    assert CANARY.encode().hex() not in dump.lower()
    assert "charge" in dump
    assert all(CANARY.encode() not in file.read_bytes() for file in tmp_path.iterdir())


def test_plain_sql_shows_only_the_envelope_in_postgres(cleared_url: str) -> None:
    app = Forebay(cleared_url, vault=Vault({"old": OLD}))
    app.enqueue("charge", {"card": CANARY}, key="k1")
    app.close()
    with psycopg.connect(cleared_url) as connection:
        tables = connection.execute("SELECT schemaname, tablename FROM pg_tables WHERE schemaname !~ '^(pg_|info)'")
        texts = [
            str(row)
            for schema, table in tables.fetchall()
            for row in connection.execute(f'SELECT t::text FROM "{schema}"."{table}" t').fetchall()
        ]
    whole = "\n".join(texts)
    assert "charge" in whole
    assert CANARY not in whole
    assert CANARY.encode().hex() not in whole
