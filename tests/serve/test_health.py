"""/health and /ready: a real Postgres that is killed, cut off, frozen or read-only, and a queue without workers."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL

import httpx
import psycopg
import pytest

from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.serve.actor import Role
from forebay.serve.metrics import readiness
from forebay.serve.metrics.readiness import PROBE, probe
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from forebay_proof.servers.postgres import PostgresServer
from forebay_proof.servers.proxy import Proxy
from forebay_proof.servers.redis import RedisServer
from tests.serve.site import Serving, Site
from tests.waiting import eventually


def ready(client: httpx.Client, **parameters: str) -> tuple[int, list[str]]:
    answer = client.get("/ready", params=parameters)
    body = answer.json()
    assert (answer.status_code == 200) == (body["status"] == "ready") == (body["reasons"] == [])
    return answer.status_code, body["reasons"]


def becomes(client: httpx.Client, wanted: Callable[[int, list[str]], bool]) -> list[str]:
    """Request `/ready` until the response is the wanted one; return its reasons."""
    seen: list[tuple[int, list[str]]] = []

    def holds() -> bool:
        seen.append(ready(client))
        return wanted(*seen[-1])

    eventually(holds, details=lambda: seen[-1])
    return seen[-1][1]


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    yield store
    store.close()


def test_a_store_that_works_is_ready_and_says_how_durable_it_is(durable: Store, serve_on: Serving) -> None:
    client = serve_on(durable).with_key(None)
    answer = client.get("/ready")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "reasons": [], "store": "sqlite", "durable": True}
    assert client.get("/health").json() == {"status": "alive"}


def test_a_store_in_memory_says_that_it_is_not_durable(site: Site) -> None:
    assert site.with_key(None).get("/ready").json()["durable"] is False


def test_the_probe_writes_and_leaves_nothing(durable: Store) -> None:
    probe(durable)
    before, places = durable.ledger_extent(), []
    for _ in range(4):
        probe(durable)
        places.append(durable.position(PROBE, "probe", 0))
    assert places == [-1, 0, -1, 0], "every probe moves something"
    assert durable.ledger_extent() == before
    assert durable.extent(PROBE) == [(0, 1)]
    assert durable.backlog([PROBE + ".queue"])[0].depth == 0


def test_a_closed_store_is_not_ready_and_the_process_goes_on(durable: Store, serve_on: Serving) -> None:
    client = serve_on(durable).with_key(None)
    durable.close()
    assert ready(client) == (503, ["store-failed"])
    assert client.get("/health").status_code == 200


def test_it_shows_no_names_or_errors(durable: Store, serve_on: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "STALLED_SECONDS", 0.0)
    site = serve_on(durable)
    durable.enqueue([Draft("secret-kind", None, "secret-queue")])
    site.context.metrics.poller.poll(slowly=True)
    answer = site.with_key(None).get("/ready")
    assert answer.json()["reasons"] == ["no-progress"]
    assert "secret" not in answer.text


def test_work_that_no_worker_claims_is_no_progress(
    durable: Store, serve_on: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker died with a job in its hands, and more is ready behind it."""
    monkeypatch.setattr(readiness, "STALLED_SECONDS", 0.4)
    site = serve_on(durable)
    client, metrics = site.with_key(None), site.context.metrics
    durable.enqueue([Draft("send", n, "mail") for n in range(3)])
    (lease,) = durable.claim([Want("mail", 1)], "dead", seconds(30))
    metrics.followers[""].step()
    metrics.poller.poll(slowly=False)
    assert ready(client) == (200, [])
    assert becomes(client, lambda status, _: status == 503) == ["no-progress"]
    assert ready(client, skip="no-progress") == (200, [])
    durable.settle([(lease, Ack())])
    durable.claim([Want("mail", 1)], "living", seconds(30))
    becomes(client, lambda status, _: status == 200)
    durable.pause("mail")
    metrics.poller.poll(slowly=False)
    assert ready(client) == (200, []), "a paused queue waits on purpose"


def test_a_reason_that_there_is_not_cannot_be_skipped(site: Site) -> None:
    assert site.with_key(None).get("/ready", params={"skip": "everything"}).status_code == 422


def test_a_server_that_is_cut_off_or_frozen(postgres: PostgresServer, postgres_url: str, serve_on: Serving) -> None:
    with Proxy(postgres.host, postgres.port) as proxy:
        store = open_store(proxy.url(postgres_url))
        site = serve_on(store)
        client = site.with_key(None)
        assert becomes(client, lambda status, _: status == 200) == []
        eventually(lambda: "settings" in client.get("/ready").json())
        assert client.get("/ready").json()["settings"].keys() == {"fsync", "full_page_writes", "synchronous_commit"}
        proxy.refuse()
        proxy.cut()
        assert becomes(client, lambda status, _: status == 503) == ["store-failed"]
        proxy.admit()
        becomes(client, lambda status, _: status == 200)
        proxy.freeze()
        becomes(client, lambda _, reasons: reasons == ["store-timeout"])
        began = time.monotonic()
        assert ready(client) == (503, ["store-timeout"])
        assert time.monotonic() - began < readiness.TIMEOUT_SECONDS, "a later request gets the answer at once"
        assert client.get("/health").status_code == 200
        proxy.thaw()
        becomes(client, lambda status, _: status == 200)
        site.stop()
        store.close()


def test_a_redis_whose_settings_become_unsafe(serve_on: Serving) -> None:
    with RedisServer(durable=True, private=True) as server:
        store = open_store(server.url())
        site = serve_on(store)
        client = site.with_key(None)
        assert becomes(client, lambda status, _: status == 200) == []
        with server.client() as admin:
            admin.config_set("maxmemory-policy", "allkeys-lru")
            assert becomes(client, lambda status, _: status == 503) == ["unsafe-settings"]
            assert client.get("/ready").json()["durable"] is False
            put = site.client(Role.PRODUCER).post("/jobs", json={"kind": "hello"})
            assert put.json()["durable"] is False
            admin.config_set("maxmemory-policy", "noeviction")
        becomes(client, lambda status, _: status == 200)
        assert site.client(Role.PRODUCER).post("/jobs", json={"kind": "hello"}).json()["durable"] is True
        site.stop()
        store.close()


def test_a_server_that_takes_no_writes(postgres: PostgresServer, postgres_url: str, serve_on: Serving) -> None:
    store = open_store(postgres_url)
    site = serve_on(store)
    client = site.with_key(None)
    assert becomes(client, lambda status, _: status == 200) == []
    name = postgres_url.rpartition("/")[2].partition("?")[0]
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
            (name,),
        )
        assert "store-failed" in becomes(client, lambda status, _: status == 503)
        site.context.metrics.poller.poll(slowly=True)
        assert ready(client) == (503, ["store-failed", "read-only"])
        admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
            (name,),
        )
    site.context.metrics.poller.poll(slowly=True)
    becomes(client, lambda status, _: status == 200)
    site.stop()
    store.close()


def test_a_server_that_is_killed_and_comes_back(serve_on: Serving) -> None:
    with PostgresServer() as server:
        store = open_store(server.url())
        site = serve_on(store)
        client = site.with_key(None)
        assert becomes(client, lambda status, _: status == 200) == []
        server.stop_by(SIGKILL)
        assert becomes(client, lambda status, _: status == 503) == ["store-failed"]
        server.start()
        becomes(client, lambda status, _: status == 200)
        site.stop()
        store.close()
