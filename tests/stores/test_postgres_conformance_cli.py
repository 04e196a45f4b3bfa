"""`python -m forebay_proof.conformance postgresql://…`: scratch databases alone are worked in, and none is left."""

from urllib.parse import urlsplit

import psycopg
import pytest

from forebay_proof.conformance.__main__ import main
from forebay_proof.servers.postgres import PostgresServer, join_hosts

LONG = [pytest.mark.nightly, pytest.mark.timeout(1_200)]


def databases(server: PostgresServer) -> set[str]:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        return {name for (name,) in connection.execute("SELECT datname FROM pg_database")}


def test_the_named_database_is_not_touched_and_nothing_is_left(
    postgres: PostgresServer, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = databases(postgres)
    assert main([postgres_url, "--only", "settling/settling_nothing*"]) == 0
    output = capsys.readouterr()
    assert "1 passed, 0 failed" in output.out
    assert databases(postgres) == before
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT to_regnamespace('forebay')").fetchall() == [(None,)]


@pytest.mark.parametrize("cases", ["settling/a_repeated*", pytest.param("*/*", marks=LONG)])
def test_a_url_with_several_hosts_keeps_the_contract(
    postgres_url: str, cases: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first host refuses connections."""
    url = join_hosts(f"postgresql://{urlsplit(postgres_url).netloc.rpartition('@')[0]}@127.0.0.1:1", postgres_url)
    path = urlsplit(postgres_url).path
    assert main([f"{url}{path}", "--only", cases]) == 0
    assert ", 0 failed" in capsys.readouterr().out


def test_no_answer_has_the_password_in_it(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    password = urlsplit(postgres_url).password
    assert password
    assert main([postgres_url, "--json", "--only", "settling/settling_nothing*"]) == 0
    assert main([postgres_url.replace("127.0.0.1", "127.0.0.1:1,127.0.0.1", 1), "--list"]) == 0
    assert main([f"postgresql://ada:{password}@127.0.0.1:1/trial"]) == 2
    output = capsys.readouterr()
    assert password not in output.out + output.err
    assert "cannot open postgresql://ada@127.0.0.1:1/trial" in output.err


def test_a_user_without_the_right_to_create_databases_is_shown_the_way_out(
    postgres: PostgresServer, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS humble")
        connection.execute("CREATE ROLE humble LOGIN PASSWORD 'humble'")
    parts = urlsplit(postgres_url)
    url = parts._replace(netloc=f"humble:humble@{parts.hostname}:{parts.port}").geturl()
    assert main([url]) == 2
    assert "CREATEDB" in capsys.readouterr().err
