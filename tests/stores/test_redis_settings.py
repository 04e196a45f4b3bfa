"""A Redis server whose settings become unsafe while a store is open: receipts no longer promise durability."""

import logging
from collections.abc import Iterator

import pytest

from forebay import Draft, open_store
from forebay.store.protocol import Store
from forebay.store.redis import health
from forebay_proof.servers.process import ServerUnavailable
from forebay_proof.servers.redis import RedisServer
from tests.waiting import eventually

SAFE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
UNSAFE = [("maxmemory-policy", "allkeys-lru"), ("appendonly", "no"), ("appendfsync", "everysec")]


@pytest.fixture(scope="module")
def durable() -> Iterator[RedisServer]:
    try:
        with RedisServer(durable=True, private=True) as server:
            yield server
    except ServerUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def server(durable: RedisServer) -> RedisServer:
    durable.clear()
    turn(durable, **SAFE)
    return durable


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    store = open_store(server.url())
    yield store
    store.close()


def turn(server: RedisServer, **settings: str) -> None:
    with server.client() as client:
        for name, value in settings.items():
            client.config_set(name, value)
        eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "the rewrite ends")


def receipt_says(store: Store, durable: bool) -> None:
    """As soon as the settings were read again, and from then on."""
    eventually(lambda: store.enqueue([Draft("k")])[0].durable is durable, f"durable is {durable}")
    assert store.capabilities.durable is durable
    assert bool(store.capabilities.unsafe) is not durable
    assert store.enqueue([Draft("k")])[0].durable is durable


@pytest.mark.parametrize(("name", "value"), UNSAFE)
def test_receipts_are_true_while_a_setting_is_unsafe(
    server: RedisServer, store: Store, name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    receipt_says(store, True)
    with caplog.at_level(logging.WARNING, "forebay.store"):
        turn(server, **{name: value})
        receipt_says(store, False)
        (output,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert name.removesuffix("-policy") in output.getMessage()
        assert "may lose jobs" in output.getMessage()
        turn(server, **SAFE)
        receipt_says(store, True)
        assert "keeps what it acknowledges again" in caplog.text


def test_settings_are_read_again_after_a_reconnect_before_a_receipt_is_written(
    server: RedisServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was started anew may have other settings. Time alone would not show it here."""
    monkeypatch.setattr(health, "_CHECK_EVERY", 3_600.0)
    assert store.enqueue([Draft("k")])[0].durable
    turn(server, appendfsync="everysec")
    assert store.enqueue([Draft("k")])[0].durable, "the settings have not been read again yet"
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    assert not store.enqueue([Draft("k")])[0].durable


def test_what_the_operator_promises_is_not_checked(server: RedisServer) -> None:
    store = open_store(server.url(durability="trusted"))
    turn(server, appendfsync="everysec")
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    assert store.enqueue([Draft("k")])[0].durable
    assert store.capabilities.unsafe == ()
    store.close()
