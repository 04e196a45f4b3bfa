"""Servers for tests start, stop, come back and leave nothing behind: no process, file or shared memory, even killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import psycopg
import pytest

from forebay_proof.servers import account, pgbouncer, postgres
from forebay_proof.servers.account import Programs, settle
from forebay_proof.servers.pgbouncer import PgBouncer
from forebay_proof.servers.postgres import ELSEWHERE, PostgresServer, StopMode
from forebay_proof.servers.process import ServerFailed, ServerUnavailable, ServerWatchdog
from tests.waiting import PATIENCE, eventually

SRC = Path(__file__).parents[2] / "src"

HOLDER = """
import os, signal
from forebay_proof.servers.postgres import PostgresServer
server = PostgresServer(private=True)
server.start()
if {forks} and os.fork() == 0:
    signal.pause()
print(server.pid, server.directory, flush=True)
signal.pause()
"""


def processes_in(directory: Path) -> list[int]:
    """Every process that works in this directory or has it among its arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            place, words = (entry / "cwd").readlink(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if place.is_relative_to(directory) or os.fsencode(directory) in words:
            found.append(int(entry.name))
    return found


def memory_of(server: PostgresServer) -> str:
    """The id of its segment of shared memory."""
    return (server.directory / "data" / "postmaster.pid").read_text().splitlines()[6].split()[1]


def memories() -> list[str]:
    return [line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]


def query(url: str, question: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(question.encode()).fetchone()
    return row and row[0]


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresServer]:
    with PostgresServer(durable=True, private=True) as server:
        yield server


def test_a_fresh_database_is_empty_and_used_by_one_test(postgres: PostgresServer, postgres_url: str) -> None:
    other = postgres.create_database()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE mine (id int)")
    question = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert (query(postgres_url, question), query(other, question)) == (1, 0)
    copy = postgres.create_database(template=postgres_url)
    assert query(copy, question) == 1
    for url in (other, copy):
        postgres.drop_database(url)
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            query(url, "SELECT 1")


def stop_amid_writes(server: PostgresServer, how: StopMode) -> None:
    """Stop it while a client commits; it comes back with every acknowledged commit, and at most one more."""
    url = server.create_database()
    port, pid = server.port, server.pid
    committed = 0
    begun = Event()

    def write() -> None:
        nonlocal committed
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (id int)")
            while True:
                connection.execute("INSERT INTO kept VALUES (1)")
                committed += 1
                begun.set()

    def write_until_cut() -> None:
        with pytest.raises(psycopg.OperationalError):
            write()

    writer = Thread(target=write_until_cut)
    writer.start()
    assert begun.wait(PATIENCE)
    server.stop(how)
    writer.join(PATIENCE)
    assert not writer.is_alive()
    assert processes_in(server.directory) == []
    server.start()
    assert server.port == port
    assert server.pid != pid
    assert query(url, "SELECT count(*) FROM kept") in {committed, committed + 1}


@pytest.mark.parametrize("how", StopMode, ids=lambda how: how.name.lower())
def test_a_durable_server_keeps_what_was_committed(own: PostgresServer, how: StopMode) -> None:
    assert query(own.url(), "SHOW fsync") == "on"
    stop_amid_writes(own, how)


def test_a_quick_server_does_not_sync_and_keeps_it_too() -> None:
    with PostgresServer(private=True, settings={"max_connections": "7"}) as quick:
        assert query(quick.url(), "SHOW fsync") == "off"
        assert query(quick.url(), "SHOW max_connections") == "7"
        stop_amid_writes(quick, StopMode.KILL)


@pytest.mark.parametrize("how", [None, StopMode.KILL], ids=["running", "killed"])
def test_a_closed_server_leaves_nothing(how: StopMode | None) -> None:
    with PostgresServer(private=True) as server:
        directory, memory = server.directory, memory_of(server)
        assert memory in memories()
        assert processes_in(directory) != []
        if how is not None:
            server.stop(how)
    assert processes_in(directory) == []
    assert not directory.exists()
    assert memory not in memories()
    server.close()


@pytest.mark.parametrize("forks", [False, True], ids=["alone", "with a fork that goes on"])
def test_a_server_ends_with_a_test_that_is_killed(forks: bool) -> None:
    test = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(forks=forks)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        start_new_session=True,
    )
    with test:
        assert test.stdout is not None
        pid, _, name = test.stdout.readline().strip().partition(" ")
        directory = Path(name)
        before = processes_in(directory)
        test.kill()
    try:
        assert int(pid) in before
        eventually(lambda: not processes_in(directory), "no process is left", PATIENCE)
        eventually(lambda: not directory.exists(), "the directory is gone", PATIENCE)
    finally:
        if forks:
            os.killpg(test.pid, signal.SIGKILL)


def test_a_server_that_does_not_start_says_why_and_leaves_nothing() -> None:
    server = PostgresServer(private=True, settings={"max_connections": "many"})
    try:
        with pytest.raises(ServerFailed, match="max_connections"):
            server.start()
        directory = server.directory
        assert processes_in(directory) == []
    finally:
        server.close()
    assert not directory.exists()
    with pytest.raises(ServerFailed, match="has not been started"):
        server.stop()


def test_a_server_elsewhere_gets_databases_and_is_not_stopped(
    own: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ELSEWHERE, own.url())
    with PostgresServer() as server:
        assert not server.private
        assert (server.host, server.port) == (own.host, own.port)
        url = server.create_database()
        assert query(url, "SELECT 1") == 1
        with pytest.raises(ServerUnavailable, match="private=True"):
            server.stop()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        query(url, "SELECT 1")
    assert query(own.url(), "SELECT 1") == 1


def test_without_programs_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(ELSEWHERE, raising=False)
    monkeypatch.setattr(postgres, "find_spec", lambda name: None)
    monkeypatch.setattr(postgres, "_FOLDERS", ("/nowhere/*",))
    with pytest.raises(ServerUnavailable, match=ELSEWHERE), PostgresServer():
        pass
    monkeypatch.setattr(pgbouncer, "_DAEMONS", str(tmp_path))
    monkeypatch.setattr(pgbouncer, "UNPACKED", tmp_path)
    with pytest.raises(ServerUnavailable, match="make servers"):
        pgbouncer.find_programs()


ROOT = os.geteuid() == 0


@pytest.fixture
def watchdog() -> Iterator[ServerWatchdog]:
    watchdog = ServerWatchdog()
    yield watchdog
    watchdog.close()


def tool(folder: Path, text: str) -> Programs:
    """A program that only its owner may reach."""
    home = folder / "home"
    (home / "bin").mkdir(parents=True)
    home.chmod(0o700)
    path = home / "bin" / "tool"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return Programs(home / "bin", (home / "bin",))


def test_where_namespaces_are_forbidden_root_becomes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "_NAMESPACE", ("false",))
    with PostgresServer(private=True) as server:
        assert query(server.create_database(), "SELECT 1") == 1
        server.restart(StopMode.KILL)
        directory = server.directory
        assert directory.stat().st_uid != 0
    assert not directory.exists()


def test_programs_that_the_user_nobody_may_not_read_are_copied(
    watchdog: ServerWatchdog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tool(tmp_path, "echo tool 1.2")
    monkeypatch.setattr(account, "_NAMESPACE", ("false",))
    found = settle(watchdog, programs, "tool", "do without")
    assert found.name == ("user nobody, copied" if ROOT else "yourself")
    assert found.version == "tool 1.2"
    assert found.programs.folder.is_relative_to(watchdog.directory) == ROOT
    log = watchdog.run(found.command("tool"), "out.log", env=found.env(), user=found.user)
    assert log.wait(PATIENCE) == 0


def test_when_no_account_works_each_is_named(watchdog: ServerWatchdog, tmp_path: Path) -> None:
    programs = tool(tmp_path, "echo not today; exit 1")
    with pytest.raises(ServerUnavailable, match="not today") as caught:
        settle(watchdog, programs, "tool", "do without")
    tried = ["a user namespace", "user nobody", "user nobody, copied"] if ROOT else ["yourself"]
    assert all(f"{number}. {name}:" in str(caught.value) for number, name in enumerate(tried, 1))
    assert str(caught.value).endswith("or do without.")


def test_pgbouncer_reaches_a_database_that_was_made_after_its_start(pgbouncer_url: str, postgres_url: str) -> None:
    assert pgbouncer_url != postgres_url
    assert query(pgbouncer_url, "SELECT current_database()") == query(postgres_url, "SELECT current_database()")


def test_transactions_share_a_session_behind_pgbouncer(
    pgbouncer: PgBouncer, postgres: PostgresServer, postgres_url: str
) -> None:
    with PgBouncer(postgres, pool=1) as pooler:
        assert query(pooler.url("pgbouncer"), "SHOW VERSION") is not None
        url, statement = pooler.url(postgres_url), "SELECT pg_backend_pid()"
        with psycopg.connect(url, prepare_threshold=0) as one, psycopg.connect(url, prepare_threshold=0) as two:
            first = one.execute(statement).fetchone()
            one.commit()
            with pytest.raises(psycopg.errors.DuplicatePreparedStatement):
                two.execute(statement)
            two.rollback()
            two.prepare_threshold = None
            assert two.execute(statement).fetchone() == first
        port, directory = pooler.port, pooler.directory
        pooler.restart()
        assert pooler.port == port != pgbouncer.port
        assert query(url, "SELECT 1") == 1
    assert processes_in(directory) == []
    assert not directory.exists()
