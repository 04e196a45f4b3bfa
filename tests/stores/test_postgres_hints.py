"""Hints to other processes, against a real server: each is sent at once, and none is lost on the way out.

What is lost would only be found by the clock: a waiter reads the tables once a second anyway.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest

import forebay
from forebay import Draft, open_store
from forebay.store.postgres import waiting
from forebay.store.postgres.connect import Rows
from forebay.store.postgres.store import PostgresStore
from forebay.transactions import enqueue_in
from forebay_proof.conformance.racing import RacingCall
from forebay_proof.servers.postgres import PostgresServer
from forebay_proof.servers.proxy import Proxy
from tests.waiting import PATIENCE, eventually

NAMES = [f"{number:03d}-{'q' * 124}" for number in range(200)]
"""As long as a name may be; more than fit into one notification."""

ENQUEUE_TWO = """
import sys
from threading import Event
from forebay import Draft, open_store
store = open_store(sys.argv[1])
server = store.backend.session.server
query = server.query
server.query = lambda text, *more, **kw: ("pg_notify" in text and Event().wait(0.5), query(text, *more, **kw))[1]
for queue in ("first", "second"):
    store.enqueue([Draft("k", queue=queue)])
"""


class Listener:
    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("LISTEN forebay")
        self.received: set[str] = set()

    def until(self, *names: str) -> None:
        """Until all of these have arrived; nothing else is going on in the database."""
        while missing := {*names} - self.received:
            notices = list(self._connection.notifies(timeout=PATIENCE, stop_after=1))
            assert notices, f"never notified of {sorted(missing)[:3]}"
            for notice in notices:
                self.received.update(notice.payload.split(","))

    def all_by_now(self) -> set[str]:
        """What was sent before: a notification is delivered with the next answer at the latest."""
        self._connection.execute("SELECT 1")
        for notice in self._connection.notifies(timeout=0):
            self.received.update(notice.payload.split(","))
        return self.received

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def listener(cleared_url: str) -> Iterator[Listener]:
    listener = Listener(cleared_url)
    yield listener
    listener.close()


@pytest.fixture
def store(cleared_url: str) -> Iterator[PostgresStore]:
    store = open_store(cleared_url)
    assert isinstance(store, PostgresStore)
    yield store
    store.close()


def test_no_hint_is_lost_when_a_producer_closes_its_store(
    store: PostgresStore, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one while the first is on its way."""
    query, sending, go_on = store.backend.session.server.query, Event(), Event()

    def slow(statement: str, given: Sequence[Any] = (), **settings: bool) -> Rows:
        if "pg_notify" in statement:
            sending.set()
            assert go_on.wait(PATIENCE)
        return query(statement, given, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(store.backend.session.server, "query", slow)
        store.enqueue([Draft("k", queue="first")])
        assert sending.wait(PATIENCE)
        store.enqueue([Draft("k", queue="second")])
        closing = RacingCall(store.close)
        assert store.backend.session.waiters._closing.wait(PATIENCE)
        go_on.set()
        closing.result()
    assert listener.all_by_now() >= {"first", "second"}


def test_no_hint_is_lost_when_a_producer_exits_without_closing(cleared_url: str, listener: Listener) -> None:
    source = str(Path(forebay.__file__).parents[1])
    command = [sys.executable, "-c", ENQUEUE_TWO, cleared_url]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": source}, check=True, timeout=PATIENCE)
    assert listener.all_by_now() >= {"first", "second"}


def test_no_hint_is_lost_where_a_call_concerns_many_queues(store: PostgresStore, listener: Listener) -> None:
    store.enqueue([Draft("k", queue=name) for name in NAMES])
    listener.until(*NAMES)


def test_a_transaction_on_many_queues_notifies_all_of_them(
    cleared_url: str, listener: Listener, store: PostgresStore
) -> None:
    with psycopg.connect(cleared_url) as connection:
        enqueue_in(connection, [Draft("k", queue=name) for name in NAMES])
    listener.until(*NAMES)


class Watched(Event):
    """Notes how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.rests: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.rests.append(timeout)
        return super().wait(timeout)


def test_nothing_rests_between_two_hints(store: PostgresStore, listener: Listener) -> None:
    sleepers = store.backend.session.waiters
    sleepers._closing, sleepers._leaving = Watched(), Watched()
    for number in range(10):
        store.enqueue([Draft("k", queue=f"q{number}")])
        listener.until(f"q{number}")
    assert sleepers._closing.rests == sleepers._leaving.rests == []


def test_a_busy_producer_rests_between_its_hints_and_loses_none(
    store: PostgresStore, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_SENDS_A_SECOND", 0.001)
    store.backend.session.waiters._leaving = leaving = Watched()
    names = [f"q{number}" for number in range(40)]
    for number, name in enumerate(names):
        store.enqueue([Draft("k", queue=name)])
        if number < waiting._SENDS_AT_ONCE:
            listener.until(name)
    eventually(lambda: leaving.rests, "the sender pauses")
    assert leaving.rests == [1_000.0]
    store.close()
    assert listener.all_by_now() >= {*names}


def test_a_hint_that_could_not_be_sent_is_sent_later(
    postgres: PostgresServer, cleared_url: str, listener: Listener
) -> None:
    with Proxy(postgres.host, postgres.port) as proxy:
        store = open_store(proxy.url(cleared_url))
        trap = proxy.cut_before(b"pg_notify", outage=True)
        store.enqueue([Draft("k", queue="later")])
        assert trap.wait(PATIENCE)
        proxy.admit()
        listener.until("later")
        store.close()
