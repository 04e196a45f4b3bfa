"""The proxy cuts where it is set to, to the byte; a lost reply is one whose request took effect; no thread is left."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer

import psycopg
import pytest

from forebay_proof.servers.postgres import PostgresServer
from forebay_proof.servers.process import LOOPBACK, free_port
from forebay_proof.servers.proxy import Proxy
from tests.waiting import PATIENCE, eventually

QUIET = 0.1
"""Long enough for loopback to deliver what it would deliver."""


class Echo(ThreadingTCPServer):
    """Answers every chunk with itself, and keeps all it was sent; a connection that ended is counted."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((LOOPBACK, 0), EchoHandler)
        self.got = bytearray()
        self.ended = threading.Semaphore(0)


class EchoHandler(BaseRequestHandler):
    server: Echo

    def handle(self) -> None:
        try:
            while data := self.request.recv(65_536):
                self.server.got += data
                self.request.sendall(data)
        except ConnectionError:
            pass
        finally:
            self.server.ended.release()


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(PATIENCE)


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(*echo.server_address) as proxy:
        yield proxy
    assert not [thread for thread in threading.enumerate() if thread.name == f"proxy-{proxy.port}"]


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), PATIENCE)


def read(client: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer if the connection ends before."""
    data = b""
    try:
        while len(data) < count and (more := client.recv(count - len(data))):
            data += more
    except ConnectionError:
        pass
    return data


def test_bytes_pass_both_ways_unchanged_also_many_of_them(echo: Echo, proxy: Proxy) -> None:
    sent = bytes(range(256)) * 8_000
    with connect(proxy) as client:
        writer = threading.Thread(target=client.sendall, args=(sent,))
        writer.start()
        assert read(client, len(sent)) == sent
        writer.join(PATIENCE)
        assert proxy.connections == 1
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert proxy.connections == 0


def test_cut_ends_every_connection_also_one_that_has_only_just_come(echo: Echo, proxy: Proxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        assert proxy.cut() == 2
        assert read(first, 1) == read(second, 1) == b""
    with connect(proxy) as third:
        third.sendall(b"again")
        assert read(third, 5) == b"again"


@pytest.mark.parametrize("count", range(6))
def test_cut_after_lets_exactly_so_many_bytes_reach_the_server(echo: Echo, proxy: Proxy, count: int) -> None:
    trap = proxy.cut_after(count)
    with connect(proxy) as client:
        client.sendall(b"01234567")
        assert trap.wait(PATIENCE)
        assert read(client, 8) == b""
    assert echo.ended.acquire(timeout=PATIENCE)
    assert echo.got == b"01234567"[:count]


@pytest.mark.parametrize("count", [1, 3])
def test_cut_after_lets_exactly_so_many_bytes_of_the_reply_back(echo: Echo, proxy: Proxy, count: int) -> None:
    with connect(proxy) as client:
        client.sendall(b"before")
        assert read(client, 6) == b"before"
        trap = proxy.cut_after(count, replies=True)
        client.sendall(b"0123")
        assert read(client, 4) == b"0123"[:count]
        assert trap.wait(PATIENCE)
    assert echo.ended.acquire(timeout=PATIENCE)
    assert echo.got == b"before0123"


def test_cut_before_keeps_the_pattern_from_the_server(echo: Echo, proxy: Proxy) -> None:
    trap = proxy.cut_before(b"COMMIT")
    with connect(proxy) as client:
        client.sendall(b"insert; COMMIT; more")
        assert trap.wait(PATIENCE)
        assert read(client, 1) == b""
    assert echo.ended.acquire(timeout=PATIENCE)
    assert echo.got == b"insert; "


def test_a_pattern_is_found_across_packets_and_counted(echo: Echo, proxy: Proxy) -> None:
    trap = proxy.cut_before(b"COMMIT", nth=2)
    with connect(proxy) as client:
        for part in (b"COM", b"MIT C", b"OMMI"):
            client.sendall(part)
            assert read(client, len(part)) == part
        assert not trap.struck
        client.sendall(b"T tail")
        assert trap.wait(PATIENCE)
        assert read(client, 1) == b""
    assert echo.ended.acquire(timeout=PATIENCE)
    assert echo.got == b"COMMIT COMMI"


def test_lose_reply_cuts_the_client_when_the_answer_has_come(echo: Echo, proxy: Proxy) -> None:
    trap = proxy.lose_reply(b"two", answer=b"three")
    with connect(proxy) as client:
        client.sendall(b"one")
        assert read(client, 3) == b"one"
        client.sendall(b"two")
        assert not trap.wait(QUIET)
        client.sendall(b"three")
        assert read(client, 1) == b""
        assert trap.wait(PATIENCE)
        assert echo.got == b"onetwothree"
    assert proxy.connections == 0


@pytest.mark.parametrize("way", ["before", "after"])
def test_an_outage_takes_everybody_down_in_the_moment_it_strikes(echo: Echo, proxy: Proxy, way: str) -> None:
    with connect(proxy) as bystander, connect(proxy) as client:
        bystander.sendall(b"on")
        assert read(bystander, 2) == b"on"
        trap = proxy.cut_before(b"x", outage=True) if way == "before" else proxy.lose_reply(b"x", outage=True)
        client.sendall(b"x")
        assert read(client, 1) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        assert read(bystander, 1) == b""
        assert trap.wait(PATIENCE)
    proxy.admit()
    with connect(proxy) as client:
        client.sendall(b"x")
        assert read(client, 1) == b"x"


def test_a_trap_strikes_once_and_can_be_taken_away(echo: Echo, proxy: Proxy) -> None:
    proxy.cut_before(b"x")
    proxy.disarm()
    trap = proxy.cut_before(b"y")
    with connect(proxy) as client:
        client.sendall(b"x")
        assert read(client, 1) == b"x"
        client.sendall(b"y")
        assert read(client, 1) == b""
        assert trap.wait(PATIENCE)
    with connect(proxy) as client:
        client.sendall(b"xy")
        assert read(client, 2) == b"xy"


def test_freeze_holds_everything_and_thaw_loses_nothing(echo: Echo, proxy: Proxy) -> None:
    with connect(proxy) as old:
        old.sendall(b"a")
        assert read(old, 1) == b"a"
        proxy.freeze()
        with connect(proxy) as new:
            for client in (old, new):
                client.sendall(b"held")
                client.settimeout(QUIET)
                with pytest.raises(TimeoutError):
                    client.recv(1)
                client.settimeout(PATIENCE)
            assert echo.got == b"a"
            proxy.thaw()
            assert read(old, 4) == read(new, 4) == b"held"


def test_step_lets_so_many_bytes_through_and_no_more(echo: Echo, proxy: Proxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"a")
        assert read(client, 1) == b"a"
        proxy.freeze()
        client.sendall(b"held")
        eventually(lambda: proxy.step(1), "a byte on its way")
        eventually(lambda: echo.got == b"ah", "that byte and no other")
        client.settimeout(QUIET)
        arrived: list[bytes] = []

        def step() -> bool:
            """The answer to it comes back by such steps, too."""
            proxy.step(1)
            with suppress(TimeoutError):
                arrived.append(client.recv(1))
            return bool(arrived)

        eventually(step, "its answer")
        assert arrived == [b"h"]
        proxy.thaw()
        client.settimeout(PATIENCE)
        assert read(client, 3) == b"eld"


def test_mute_freezes_the_connections_that_last_sent_these_bytes(echo: Echo, proxy: Proxy) -> None:
    with connect(proxy) as mute, connect(proxy) as other:
        for client, words in ((mute, b"LISTEN x"), (other, b"SELECT 1")):
            client.sendall(words)
            assert read(client, 8) == words
        assert proxy.speaking(b"LISTEN") == 1
        assert proxy.mute(b"LISTEN") == 1
        assert (proxy.mute(b"LISTEN"), proxy.speaking(b"LISTEN")) == (0, 0)
        for client in (mute, other):
            client.sendall(b"held")
        assert read(other, 4) == b"held"
        mute.settimeout(QUIET)
        with pytest.raises(TimeoutError):
            mute.recv(1)
        proxy.unmute()
        mute.settimeout(PATIENCE)
        assert read(mute, 4) == b"held"


def test_refuse_turns_new_connections_away_and_keeps_the_old(echo: Echo, proxy: Proxy) -> None:
    with connect(proxy) as old:
        old.sendall(b"a")
        assert read(old, 1) == b"a"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        old.sendall(b"b")
        assert read(old, 1) == b"b"
        proxy.admit()
        with connect(proxy) as new:
            new.sendall(b"c")
            assert read(new, 1) == b"c"


def test_a_server_that_is_away_ends_the_connection() -> None:
    with Proxy(LOOPBACK, free_port()) as proxy:
        with suppress(ConnectionResetError), connect(proxy) as client:  # the reset may be quicker than connect
            assert read(client, 1) == b""
        assert proxy.connections == 0


def test_a_closed_proxy_says_so(echo: Echo) -> None:
    with Proxy(*echo.server_address) as proxy:
        pass
    proxy.close()
    with pytest.raises(RuntimeError, match="not running"):
        proxy.cut()
    with pytest.raises(ValueError, match="1 to 256 bytes"):
        proxy.cut_before(b"")


def names(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM kept")]


@pytest.fixture
def table(postgres_url: str) -> str:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE kept (name text)")
    return postgres_url


def test_a_commit_that_was_cut_off_did_not_happen(postgres: PostgresServer, table: str) -> None:
    with Proxy(postgres.host, postgres.port) as proxy, psycopg.connect(proxy.url(table)) as connection:
        trap = proxy.cut_before(b"COMMIT")
        connection.execute("INSERT INTO kept VALUES ('never')")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        assert trap.wait(PATIENCE)
    assert names(table) == []


def test_a_commit_whose_reply_was_lost_did_happen(postgres: PostgresServer, table: str) -> None:
    with Proxy(postgres.host, postgres.port) as proxy, psycopg.connect(proxy.url(table)) as connection:
        trap = proxy.lose_reply(b"COMMIT", answer=b"COMMIT")
        connection.execute("INSERT INTO kept VALUES ('kept')")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        assert names(table) == ["kept"]
        assert trap.wait(PATIENCE)
