"""`migrate` and `doctor` on a real Postgres server: what they find, what they change, how they end, what they hide."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from forebay.cli import main
from forebay.store.postgres import health, migrate
from forebay.store.postgres.migrate import Migration, migrations
from forebay.store.postgres.store import PostgresStore
from forebay_proof.servers.pgbouncer import PgBouncer
from forebay_proof.servers.postgres import PostgresServer, database_of
from tests.command_result import CommandResult, Run
from tests.waiting import eventually

LATER = Migration(len(migrations()) + 1, "9001_later.post.sql", "CREATE TABLE forebay.later (id bigint)")
MORE = Migration(len(migrations()) + 2, "9002_more.pre.sql", "CREATE TABLE forebay.more (id bigint)")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("migrate", url)`. No answer ever has the URL's password in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_URL", raising=False)

    def call(command: str, url: str, *words: str) -> CommandResult:
        capsys.readouterr()
        code = main([command, "--store", url, *words])
        output = capsys.readouterr()
        secret = re.search(r":([^/]*)@", url)
        assert secret is None or secret[1] not in output.out + output.err
        assert "Traceback (most" not in output.err
        return CommandResult(code, output.out, output.err)

    return call


@pytest.fixture(scope="module")
def sound() -> Iterator[PostgresServer]:
    """A server as in production."""
    with PostgresServer(durable=True, private=True, settings={"max_prepared_transactions": "2"}) as server:
        yield server


@pytest.fixture
def sound_url(sound: PostgresServer) -> Iterator[str]:
    url = sound.create_database()
    PostgresStore(url).close()
    yield url
    sound.drop_database(url)


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def has_schema(url: str) -> bool:
    return query(url, "SELECT to_regnamespace('forebay') IS NOT NULL") == [(True,)]


def with_migrations(monkeypatch: pytest.MonkeyPatch, *more: Migration) -> None:
    """This program has more migrations than its files say."""
    known = (*migrations(), *more)
    for module in (migrate, health):
        monkeypatch.setattr(module, "migrations", lambda: known)


def found(run: Run, url: str) -> dict[str, dict[str, str]]:
    """The worst finding of each check."""
    worst: dict[str, dict[str, str]] = {}
    for finding in run("doctor", url, "--json").json:
        known = worst.get(finding["check"])
        if known is None or known["status"] == "ok":
            worst[finding["check"]] = finding
    return worst


def test_migrate_makes_a_store_and_says_what_it_did(run: Run, postgres_url: str) -> None:
    answer = run("migrate", postgres_url)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0].split() == ["number", "phase", "file", "state"]
    assert lines[1].split() == ["1", "pre", "0001_tables.pre.sql", "applied", "now"]
    assert lines[-1].endswith(f"schema {len(migrations())} of {len(migrations())}, durable")
    assert ":***@" in lines[-1]
    again = run("migrate", postgres_url)
    assert again.code == 0
    assert "applied now" not in again.out
    assert " UTC" in again.out.splitlines()[1]
    PostgresStore(postgres_url).close()


def test_a_dry_run_changes_nothing_and_answers_by_its_exit_code(run: Run, postgres_url: str) -> None:
    answer = run("migrate", postgres_url, "--dry-run")
    assert answer.code == 1
    assert answer.out.count("would be applied") == len(migrations())
    assert not has_schema(postgres_url)
    document = run("migrate", postgres_url, "--dry-run", "--json").json[0]
    assert (document["schema"], document["known"]) == (0, len(migrations()))
    assert document["would_apply"] == [migration.number for migration in migrations()]
    assert run("migrate", postgres_url).code == 0
    done = run("migrate", postgres_url, "--dry-run", "--json")
    assert (done.code, done.json[0]["would_apply"], done.json[0]["applied"]) == (0, [], [])
    assert all(one["applied_at"].endswith("Z") and one["phase"] == "pre" for one in done.json[0]["migrations"])


def test_phases_are_applied_one_by_one_and_in_order(
    run: Run, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_migrations(monkeypatch, LATER, MORE)
    blocked = run("migrate", postgres_url, "--phase", "post")
    assert blocked.code == 1
    assert "apply that first" in blocked.err
    assert not has_schema(postgres_url)
    first = run("migrate", postgres_url, "--phase", "pre", "--json")
    assert first.json[0]["applied"] == [migration.number for migration in migrations()]
    assert first.code == 1, "a file of this phase waits behind the other one"
    requested = run("migrate", postgres_url, "--phase", "post", "--dry-run", "--json")
    assert (requested.code, requested.json[0]["would_apply"]) == (1, [LATER.number])
    second = run("migrate", postgres_url, "--phase", "post")
    assert second.code == 0
    assert re.search(rf"{LATER.number}  post   9001_later\.post\.sql +applied now", second.out)
    assert f"{MORE.number}  pre    9002_more.pre.sql" in second.out
    assert "another phase" in second.err
    assert run("migrate", postgres_url, "--json").json[0]["applied"] == [MORE.number]


def test_a_migration_that_fails_leaves_nothing(run: Run, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Migration(len(migrations()) + 1, "9001_broken.pre.sql", "CREATE TABLE forebay.fine (); SELECT nonsense")
    with_migrations(monkeypatch, broken)
    answer = run("migrate", postgres_url)
    assert answer.code == 3
    assert "nonsense" in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not has_schema(postgres_url)


def test_a_command_that_looks_makes_nothing(run: Run, postgres_url: str) -> None:
    for command in ("ls", "stats", "doctor"):
        answer = run(command, postgres_url)
        assert answer.code == (1 if command == "doctor" else 3)
        assert "create one with `forebay migrate" in answer.out + answer.err
    assert not has_schema(postgres_url)


def test_an_older_schema_names_the_way_out(run: Run, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run("migrate", postgres_url)
    with_migrations(monkeypatch, newer())
    answer = run("ls", postgres_url)
    assert answer.code == 3
    assert "9001_newer.pre.sql" in answer.err
    assert "forebay migrate" in answer.err
    opens = found(run, postgres_url)["opens"]
    assert opens["status"] == "fail"
    assert "forebay migrate" in opens["fact"]


def newer() -> Migration:
    return Migration(LATER.number, "9001_newer.pre.sql", "SELECT 1")


def test_a_newer_schema_is_refused_and_left_alone(run: Run, postgres_url: str) -> None:
    run("migrate", postgres_url)
    query(postgres_url, "INSERT INTO forebay.migration VALUES (999, '0999_future.pre.sql', 'x')")
    for command in ("migrate", "ls"):
        answer = run(command, postgres_url)
        assert answer.code == 3
        assert "upgrade forebay" in answer.err


def test_phases_are_for_servers(run: Run) -> None:
    answer = run("migrate", "sqlite:///jobs.db", "--phase", "pre")
    assert answer.code == 2
    assert "has no phases" in answer.err
    assert not Path("jobs.db").exists()
    assert run("migrate", "sqlite:///jobs.db", "--dry-run").code == 1
    assert not Path("jobs.db").exists()
    assert run("migrate", "sqlite:///jobs.db").code == 0
    assert run("migrate", "sqlite:///jobs.db", "--dry-run").code == 0


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3cret!@127.0.0.1:1/db",
        "postgresql://ada:s3 cret@127.0.0.1:1/db",
        "postgresql://ada:s3%zzcret@127.0.0.1:1/db",
        "postgresql://ada:s3cret@127.0.0.1:1/db?sslmode=nonsense",
        "postgresql://ada:s3cret@127.0.0.1:1/db?nonsense=1",
        "postgresql://127.0.0.1:1/db?user=ada&password=s3cret",
        "postgresql://ada:s3/cret@127.0.0.1:1/db",
    ],
)
def test_a_server_out_of_reach_is_one_line_without_the_password(run: Run, url: str) -> None:
    for command in ("ls", "migrate"):
        answer = run(command, url)
        assert answer.code == 3
        assert len(answer.err.splitlines()) == 1
        assert "s3" not in answer.err
    answer = run("doctor", url)
    assert answer.code == 1
    assert "fail  opens" in answer.out
    assert "s3" not in answer.out + answer.err


def test_what_is_no_url_is_said_so(run: Run) -> None:
    answer = run("ls", "postgresql://[::1/db")
    assert answer.code == 2
    assert "is not a URL" in answer.err


def test_a_user_without_the_right_to_create_tables_is_refused(run: Run, sound: PostgresServer) -> None:
    url = sound.create_database()
    query(url, "CREATE ROLE clerk LOGIN PASSWORD 'clerks-own'")
    parts = urlsplit(url)
    answer = run("migrate", parts._replace(netloc=f"clerk:clerks-own@{sound.host}:{sound.port}").geturl())
    query(url, "DROP ROLE clerk")
    assert answer.code == 3
    assert "permission denied" in answer.err


def test_a_sound_server_is_well(run: Run, sound_url: str) -> None:
    answer = run("doctor", sound_url)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert all(line.startswith("ok ") for line in lines), answer.out
    checks = [line.split()[1] for line in lines]
    assert checks[:7] == ["versions", "server", "durable", "held", "vacuum", "sessions", "notifies"]
    assert {"opens", "writable", "clock", "schema"} <= set(checks)
    assert query(sound_url, "SELECT count(*) FROM forebay.gate_limit") == [(0,)]


def test_commits_that_a_crash_could_take_back_are_found(run: Run, sound_url: str) -> None:
    query(sound_url, f"ALTER DATABASE {database_of(sound_url)} SET synchronous_commit = off")
    durable = found(run, sound_url)["durable"]
    assert durable["status"] == "warn"
    assert "synchronous_commit is off" in durable["fact"]


def test_a_server_that_does_not_sync_is_found(run: Run, cleared_url: str) -> None:
    findings = [one for one in run("doctor", cleared_url, "--json").json if one["check"] == "durable"]
    assert "fsync is off: a power failure" in findings[0]["fact"]
    assert all(one["status"] == "warn" for one in findings)


def test_a_transaction_that_is_held_open_is_named(run: Run, sound_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(sound_url, application_name="nightly report") as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM forebay.run")
        assert found(run, sound_url)["held"]["status"] == "ok", "a minute has not passed"
        monkeypatch.setattr(health, "HELD_SECONDS", 0.0)
        held = found(run, sound_url)["held"]
        pid = holder.info.backend_pid
        assert held["status"] == "warn"
        assert f"pid {pid} (nightly report, user forebay, idle in transaction)" in held["fact"]
        assert f"pg_terminate_backend({pid})" in held["remedy"]
        holder.rollback()
    assert found(run, sound_url)["held"]["status"] == "ok"


def test_a_prepared_transaction_that_was_forgotten_is_named(
    run: Run, sound_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "HELD_SECONDS", 0.0)
    query(sound_url, "BEGIN; INSERT INTO forebay.gate_limit VALUES ('a', 1); PREPARE TRANSACTION 'left behind'")
    try:
        held = found(run, sound_url)["held"]
    finally:
        query(sound_url, "ROLLBACK PREPARED 'left behind'")
    assert "'left behind'" in held["fact"]
    assert "ROLLBACK PREPARED 'left behind'" in held["remedy"]


def test_a_key_that_may_not_see_others_is_refused(run: Run, sound: PostgresServer, sound_url: str) -> None:
    query(sound_url, "CREATE ROLE clerk LOGIN PASSWORD 'clerks-own'; GRANT USAGE ON SCHEMA forebay TO clerk")
    query(sound_url, "GRANT ALL ON ALL TABLES IN SCHEMA forebay TO clerk")
    netloc = f"clerk:clerks-own@{sound.host}:{sound.port}"
    try:
        held = found(run, urlsplit(sound_url)._replace(netloc=netloc).geturl())["held"]
    finally:
        query(sound_url, "DROP OWNED BY clerk; DROP ROLE clerk")
    assert held["status"] == "ok"
    assert "others are not shown" in held["fact"]


def test_dead_rows_that_are_never_cleared_are_found(run: Run, sound_url: str) -> None:
    query(sound_url, "ALTER TABLE forebay.run SET (autovacuum_enabled = off)")
    vacuum = found(run, sound_url)["vacuum"]
    assert "off for forebay.run" in vacuum["fact"]
    assert "RESET (autovacuum_enabled)" in vacuum["remedy"]
    try:
        setting(sound_url, "autovacuum", "off")
        assert "autovacuum is off: dead rows pile up" in found(run, sound_url)["vacuum"]["fact"]
    finally:
        setting(sound_url, "autovacuum", "on")


def setting(url: str, name: str, value: str) -> None:
    """Change a setting of the whole server, and wait until it counts."""
    query(url, f"ALTER SYSTEM SET {name} = {value}")
    query(url, "SELECT pg_reload_conf()")
    eventually(lambda: query(url, f"SHOW {name}") == [(value,)], f"{name} is {value}")


def test_a_server_that_cannot_write_fails(run: Run, sound_url: str) -> None:
    query(sound_url, f"ALTER DATABASE {database_of(sound_url)} SET default_transaction_read_only = on")
    answer = run("doctor", sound_url)
    assert answer.code == 1
    assert "fail  role       transactions are read-only here" in answer.out
    assert "fail  writable" in answer.out


def test_a_pooler_that_swallows_notifications_is_found(run: Run, pgbouncer: PgBouncer, cleared_url: str) -> None:
    notifies = found(run, pgbouncer.url(cleared_url))["notifies"]
    assert notifies["status"] == "warn"
    assert "no notification arrives" in notifies["fact"]
    assert found(run, cleared_url)["notifies"]["status"] == "ok"
