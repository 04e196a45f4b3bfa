"""The schema is its migrations, in whatever steps they are applied; an unknown schema is refused."""

import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

from forebay.core.entries import LEADING, TIMED, UNTIMED
from forebay.core.errors import Invalid
from forebay.core.job import Draft
from forebay.core.limits import MAX_INSTANT
from forebay.core.stamp import rank_at
from forebay.store.open import open_store
from forebay.store.postgres import migrate
from forebay.store.postgres.connect import Server
from forebay.store.postgres.health import SQL as HEALTH
from forebay.store.postgres.migrate import Migration, migrations
from forebay.store.postgres.queries import SQL
from forebay.store.postgres.store import PostgresStore
from forebay_proof.servers.postgres import PostgresServer
from tests.stores.tables import Tables

FOLDER = Path(__file__).parents[2] / "src" / "forebay" / "store" / "postgres"
OURS = "relnamespace = 'forebay'::regnamespace"
CATALOGUE = {
    "columns": f"""
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
            pg_get_expr(d.adbin, d.adrelid)
        FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
        LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.{OURS} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 2""",
    "relations": f"SELECT relname, relkind, reloptions FROM pg_class WHERE {OURS} ORDER BY 1",
    "indexes": f"""
        SELECT c.relname, pg_get_indexdef(c.oid), i.indisvalid
        FROM pg_class AS c JOIN pg_index AS i ON i.indexrelid = c.oid WHERE c.{OURS} ORDER BY 1""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'forebay'::regnamespace ORDER BY 1, 2""",
    "functions": """
        SELECT p.proname, pg_get_functiondef(p.oid) FROM pg_proc AS p
        WHERE p.pronamespace = 'forebay'::regnamespace ORDER BY 1, 2""",
    "views": f"SELECT relname, pg_get_viewdef(oid) FROM pg_class WHERE {OURS} AND relkind = 'v' ORDER BY 1",
    "sequences": f"""
        SELECT c.relname, s.seqincrement, s.seqstart, s.seqcycle
        FROM pg_class AS c JOIN pg_sequence AS s ON s.seqrelid = c.oid WHERE c.{OURS} ORDER BY 1""",
}


@pytest.fixture
def server(postgres_url: str) -> Iterator[Server]:
    server = Server(postgres_url)
    yield server
    server.close()


def catalogue(server: Server) -> dict[str, list[tuple[Any, ...]]]:
    return {name: server.query(text) for name, text in CATALOGUE.items()}


def output(pattern: str) -> set[str]:
    """Names that the files create."""
    text = "\n".join(migration.text for migration in migrations())
    return set(re.findall(pattern, text, re.MULTILINE))


def only(monkeypatch: pytest.MonkeyPatch, *known: Migration) -> None:
    monkeypatch.setattr(migrate, "migrations", lambda: known)


def test_the_schema_is_its_migrations_in_whatever_steps(
    server: Server, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    PostgresStore(server.url).close()
    stepwise = Server(postgres.create_database())
    for count in range(1, len(migrations()) + 1):
        only(monkeypatch, *migrations()[:count])
        phase = migrations()[count - 1].phase
        assert [one.number for one in migrate.migrate(stepwise, phase=phase)] == [count]
    monkeypatch.undo()
    assert migrate.pending(stepwise) == []
    assert catalogue(stepwise) == catalogue(server)
    applied = "SELECT number, name, checksum FROM forebay.migration ORDER BY number"
    assert server.query(applied) == [(one.number, one.name, one.checksum) for one in migrations()]
    assert stepwise.query(applied) == server.query(applied)
    stepwise.close()


def test_there_is_nothing_but_what_the_files_say(server: Server) -> None:
    PostgresStore(server.url).close()
    kinds = server.query(f"SELECT relkind::text, relname FROM pg_class WHERE {OURS}")
    found = {kind: {name for one, name in kinds if one == kind} for kind in "rivcS"}
    assert found["r"] == output(r"^CREATE (?:UNLOGGED )?TABLE forebay\.(\w+)")
    assert found["v"] == output(r"^CREATE VIEW forebay\.(\w+)")
    assert found["c"] == output(r"^CREATE TYPE forebay\.(\w+)")
    keys = {name for name in found["i"] if re.search(r"_(pkey|key)$", name)}
    assert found["i"] - keys == output(r"^CREATE INDEX (\w+) ON forebay\.")
    identities = {name for name in found["S"] if name.endswith("_seq")}
    assert found["S"] - identities == output(r"^CREATE SEQUENCE forebay\.(\w+)")
    functions = server.query("SELECT proname FROM pg_proc WHERE pronamespace = 'forebay'::regnamespace")
    assert {name for (name,) in functions} == output(r"^CREATE FUNCTION forebay\.(\w+)")
    assert server.query("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace") == [(0,)]


def test_an_empty_database_is_made_ready_by_opening_it(postgres_url: str) -> None:
    store = open_store(postgres_url)
    assert store.capabilities.name == "postgres"
    (receipt,) = store.enqueue([Draft("k")])
    assert receipt.id == 1
    store.close()
    again = open_store(postgres_url)
    assert again.get([1])[0] is not None
    again.close()


def test_processes_that_open_an_empty_database_at_once_all_succeed(postgres_url: str) -> None:
    program = (
        "import sys\nfrom forebay import Draft, open_store\nsys.stdin.readline()\n"
        "store = open_store(sys.argv[1])\nprint(store.enqueue([Draft('k')])[0].durable)\nstore.close()\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, postgres_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=60) for child in children]
    assert [(out, err) for out, err in answers] == [("True\n", "")] * 4
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM forebay.run").fetchone() == (4,)
        assert connection.execute("SELECT count(*) FROM forebay.migration").fetchone() == (len(migrations()),)


def test_the_second_caller_finds_everything_done(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes the schema just after this one has found none."""
    applied = migrate._applied

    def slowly(server: Server) -> dict[int, str]:
        found = applied(server)
        monkeypatch.setattr(migrate, "_applied", applied)
        if not found:
            migrate.migrate(server)
        return found

    monkeypatch.setattr(migrate, "_applied", slowly)
    migrate.prepare(server)
    assert migrate.pending(server) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("INSERT INTO forebay.migration VALUES (999, '0999_future.pre.sql', 'x')", "has schema 999.*upgrade forebay"),
        ("UPDATE forebay.migration SET checksum = 'edited' WHERE number = 1", "schema 1 .* is not the one"),
        ("DELETE FROM forebay.migration WHERE number > 1", r"0002_values\.pre\.sql.*forebay migrate"),
    ],
)
def test_a_schema_we_do_not_know_is_refused(server: Server, change: str, reason: str) -> None:
    PostgresStore(server.url).close()
    server.query(change)
    before = catalogue(server)
    with pytest.raises(Invalid, match=reason) as refusal:
        open_store(server.url)
    password = re.search(r":([^/]*)@", server.url)
    assert password is not None
    assert password[1] not in str(refusal.value)
    assert catalogue(server) == before


def test_a_database_with_the_first_migrations_alone_is_refused_until_it_is_migrated(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, *migrations()[:1])
    migrate.migrate(server)
    monkeypatch.undo()
    missing = ", ".join(one.name for one in migrations()[1:])
    with pytest.raises(Invalid, match=rf"{re.escape(missing)}; run: forebay migrate"):
        open_store(server.url)
    assert [one.number for one in migrate.migrate(server)] == [one.number for one in migrations()[1:]]
    open_store(server.url).close()


def test_a_new_program_runs_before_the_last_phase(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """`post` is applied when no old program runs any more, so the new one must start without it."""
    PostgresStore(server.url).close()
    number = len(migrations()) + 1
    later = Migration(number, f"{number:04}_later.post.sql", "DROP FUNCTION forebay.clock CASCADE")
    only(monkeypatch, *migrations(), later)
    PostgresStore(server.url).close()
    assert migrate.pending(server) == [later]


def test_a_migration_that_fails_leaves_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    number = len(migrations()) + 1
    broken = Migration(number, f"{number:04}_broken.pre.sql", "CREATE TABLE fine (x int); CREATE TABLE fine (x int)")
    only(monkeypatch, *migrations(), broken)
    with pytest.raises(Exception, match='"fine" already exists'):
        PostgresStore(server.url)
    assert server.query("SELECT to_regnamespace('forebay') IS NULL") == [(True,)]
    monkeypatch.undo()
    PostgresStore(server.url).close()


def test_migrations_are_numbered_and_tagged() -> None:
    names = sorted(path.name for path in (FOLDER / "migrations").iterdir())
    assert names == [migration.name for migration in migrations()]
    assert all(re.fullmatch(r"\d{4}_[a-z_]+\.(pre|post)\.sql", name) for name in names)


def test_every_statement_has_a_purpose() -> None:
    text = "".join((FOLDER / name).read_text("utf-8") for name in ("jobs.sql", "queues.sql", "logs.sql", "health.sql"))
    purposes = re.findall(r"^-- name: \w+\n-- (.+)$", text, re.MULTILINE)
    assert len(purposes) == len(vars(SQL)) + len(vars(HEALTH))


def test_the_server_ranks_as_core_does(tables: Tables) -> None:
    instants = [0, 1, 1_700_000_000_000_000, MAX_INSTANT - 1, MAX_INSTANT]
    bases = [0, 1, -5, 2**31, -(2**40), MAX_INSTANT]
    grid = list(product(bases, (UNTIMED, TIMED, LEADING), instants, instants))
    columns = [list(column) for column in zip(*grid, strict=True)]
    found = tables.execute(
        "SELECT forebay.rank_at(base, timed, due_at, v_now) FROM unnest(%s::bigint[], %s::smallint[], %s::bigint[], "
        "%s::bigint[]) WITH ORDINALITY AS u (base, timed, due_at, v_now, place) ORDER BY place",
        *columns,
    )
    assert [rank for (rank,) in found] == [rank_at(*values) for values in grid]
