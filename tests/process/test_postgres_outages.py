"""A server that is read-only, full, silent or cut off for a while: clear errors meanwhile, and all go on by themselves.

Also the wake-up: a connection that listens and is half open is noticed and replaced.
"""

import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from forebay import Draft, ForebayError, open_store
from forebay.core.errors import StoreFailed
from forebay.core.instant import seconds
from forebay.store.protocol import Store
from forebay_proof.conformance.racing import RacingCall
from forebay_proof.servers.postgres import PostgresServer
from forebay_proof.servers.proxy import Proxy
from tests.process.load import Load, admin, now

TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> ALL (%s) AND client_port IS NOT NULL"
LISTENERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'"
CALLS = (b"\0forebay.insert_run(", b"\0forebay.claim(", b"\0forebay.settle(", b"\0forebay.heartbeat(", b"COMMIT")


@contextmanager
def read_only(url: str) -> Iterator[None]:
    with admin(url) as connection:
        connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            connection.execute("SELECT pg_reload_conf()")


def test_workers_and_producers_outlast_a_server_that_is_read_only(load: Load) -> None:
    fleet = load.workers(2)
    load.until(lambda: len(load.workers_of(fleet)) == 2, "both workers")
    load.produce()
    load.produce(threads=1, keyed=True)
    load.until_busy(50)
    printed_before, began = len(load.log.read_text().splitlines()), time.monotonic()

    def printed() -> list[str]:
        return load.log.read_text().splitlines()[printed_before:]

    with read_only(load.url):
        load.until(lambda: load.answers()[-1].word == "failed", "a producer is refused")
        with pytest.raises(StoreFailed, match="read-only"):
            load.store.enqueue([Draft("counted", {"seq": 1})])
        load.until(lambda: "read-only" in "".join(printed()), "the workers say so")
        time.sleep(2)
        output = [line for line in printed() if "  counted" not in line]  # lines of jobs that still ended
        roles = Counter(line.partition("forebay.work ")[2].partition(":")[0] for line in output)
        limit = 2 * (time.monotonic() - began + 1)
        assert max(roles.values()) <= limit, (
            f"more than a line a second of a role of a process:\n{os.linesep.join(output)}"
        )
    load.until_consumed(now(), 2)
    load.stop_producing()
    load.until_quiet()
    assert load.end(fleet) == 0
    load.audit_load()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Load]:
    """A server with few connections, and no reserve."""
    settings = {"max_connections": "24", "superuser_reserved_connections": "0", "autovacuum": "off"}
    with PostgresServer(durable=True, private=True, settings=settings) as server:
        load = Load(tmp_path, server.create_database())
        try:
            yield load
        finally:
            load.close()


def fill(url: str, stack: ExitStack) -> list[int]:
    """Take every connection that can be had; the processes behind them."""
    taken: list[int] = []
    with suppress(psycopg.OperationalError):
        while True:
            connection = stack.enter_context(psycopg.connect(url, autocommit=True))
            taken.append(connection.info.backend_pid)
            connection.execute(TERMINATE, (taken,))
    return taken


def refuse_a_store(url: str, stack: ExitStack) -> None:
    """A full server says so. A worker may have given a connection up meanwhile: that one is taken, too."""
    for _ in range(10):
        try:
            open_store(url).close()
        except StoreFailed as error:
            if re.search(r"too many clients|connection slots", str(error)):
                return
            raise
        fill(url, stack)
    pytest.fail("a full server took another store")


def test_workers_and_producers_outlast_a_server_that_is_full(small: Load) -> None:
    fleet = small.workers(1)
    small.produce(threads=1)
    small.until_busy(20)
    with ExitStack() as stack:
        taken = fill(small.url, stack)
        assert len(taken) >= 20, "others keep theirs"
        refuse_a_store(small.url, stack)
        time.sleep(2)
    small.until_consumed(now(), 1)
    small.stop_producing()
    small.until_quiet()
    assert small.end(fleet) == 0
    small.audit_load()


def cut_at_random(load: Load, server: PostgresServer, cuts: int) -> None:
    rng = random.Random(cuts)
    with Proxy(server.host, server.port) as proxy:
        url = proxy.url(load.url)
        fleet = load.workers(2, url=url)
        load.produce(url=url)
        load.produce(threads=1, keyed=True, url=url)
        load.until_busy(50)
        struck = 0
        for _ in range(cuts):
            match rng.randrange(5):
                case 0:
                    struck += proxy.cut() > 0
                case 1:
                    struck += proxy.cut_after(rng.randrange(4_000), replies=rng.random() < 0.5).wait(1)
                case 2:
                    struck += proxy.cut_before(rng.choice(CALLS), nth=rng.randrange(1, 4)).wait(1)
                case 3:
                    struck += proxy.lose_reply(rng.choice(CALLS), nth=rng.randrange(1, 4)).wait(1)
                case _:
                    proxy.freeze()
                    time.sleep(rng.uniform(0.05, 0.3))
                    proxy.thaw()
            proxy.disarm()
            time.sleep(rng.uniform(0, 0.1))
        assert struck > cuts / 3
        load.until_consumed(now(), 2)
        load.stop_producing()
        load.until_quiet(60)
        assert load.end(fleet) == 0
    load.audit_load()


def test_connections_that_are_cut_anywhere_lose_nothing(load: Load, durable: PostgresServer) -> None:
    cut_at_random(load, durable, 20)


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
def test_connections_that_are_cut_anywhere_many_times(load: Load, durable: PostgresServer) -> None:
    cut_at_random(load, durable, 1_000)


def is_notified(store: Store, url: str, within: float) -> bool:
    """Whether a notification ends a sleep for which there is no other reason."""
    sleeper = RacingCall(lambda: store.wait(["default"], seconds(within)))
    with admin(url) as connection:
        while sleeper.running:
            connection.execute("SELECT pg_notify('forebay', 'default')")
            time.sleep(0.05)
    return sleeper.result(patience=5)


def notice_a_half_open_listener(url: str, server: PostgresServer, within: float) -> None:
    """The connection of the listener alone is frozen: it stays open, and nothing arrives on it."""
    with Proxy(server.host, server.port) as proxy:
        store = open_store(proxy.url(url))
        store.enqueue([Draft("later", delay=3_600_000_000)])
        assert is_notified(store, url, 5)
        with admin(url) as connection:
            (listener,) = connection.execute(LISTENERS).fetchall()
            assert proxy.mute(b"LISTEN") == 1
            assert not is_notified(store, url, 0.5)
            began = time.monotonic()
            assert is_notified(store, url, within)
            assert time.monotonic() - began < within
            assert [pid for pid in connection.execute(LISTENERS).fetchall() if pid != listener], "another one listens"
        proxy.unmute()
        store.close()


def test_a_half_open_listener_is_replaced(
    durable: PostgresServer, durable_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With shorter times than usual; at night with the real ones."""
    monkeypatch.setattr("forebay.store.postgres.waiting._PING_EVERY", 0.3)
    monkeypatch.setattr("forebay.store.postgres.waiting._DEAF_SECONDS", 1.5)
    notice_a_half_open_listener(durable_url, durable, 10)


@pytest.mark.nightly
def test_a_half_open_listener_is_replaced_within_twenty_seconds(durable: PostgresServer, durable_url: str) -> None:
    notice_a_half_open_listener(durable_url, durable, 20)


def test_an_unreachable_server_is_named_by_its_address_and_not_by_its_password(
    durable: PostgresServer, durable_url: str
) -> None:
    with Proxy(durable.host, durable.port) as proxy:
        url = proxy.url(durable_url)
        store = open_store(url)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(StoreFailed, match="refused") as failed:
            store.enqueue([Draft("k")])
        with pytest.raises(ForebayError) as unopened:
            open_store(url)
        password = url.partition("@")[0].rpartition(":")[2]
        assert f"{proxy.host}:{proxy.port}" in str(failed.value)
        assert password not in str(failed.value) + str(unopened.value)
        proxy.admit()
        assert store.enqueue([Draft("k")])[0].durable
        store.close()
