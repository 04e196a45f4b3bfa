"""Commands that pages show without output run in a prepared directory: the examples of every command, and `sh` blocks.

SQL runs on Postgres, `redis-cli` on Redis.
"""

import ast
import json
import re
import shlex
import tomllib
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import redis

from forebay import Draft, Want, open_store
from forebay.core.instant import seconds
from tests.docs.console import blocks, commands, has_terminal
from tests.docs.examples import REFUSED, ROOT, RUN_ELSEWHERE, copy, prepare, run, runs_elsewhere
from tests.docs.test_site import ELSEWHERE, PLACES

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TYPED_ELSEWHERE = ROOT / "docs" / "guides" / "http.md"  # tests/serve/test_api_docs.py
REFERENCE = ROOT / "docs" / "reference" / "cli.md"


def listed() -> list[tuple[str, Path, list[str]]]:
    """The name of a block, its page, and its commands."""
    found = []
    for page in PAGES:
        for number, block in enumerate(blocks(page)):
            if block.language == "sh" and page != TYPED_ELSEWHERE:
                lines = [f"$ {line}" for line in re.sub(r"\\\n\s*", "", block.text).splitlines() if line.strip()]
                found.append((f"{page.stem}-{number}", page, "\n".join(lines)))
            elif page == REFERENCE:
                found.append((f"{page.stem}-{number}", page, block.text))
    return [(name, page, [command.line for command in commands(text)]) for name, page, text in found]


LISTED = listed()
BLOCKS = [(name, shown) for name, _, shown in LISTED]
OWN = re.compile(r"^(id=\$\()?forebay ")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.delenv("FOREBAY_URL", raising=False)
        prepare(directory)
    return directory


@pytest.mark.parametrize(("name", "shown"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_the_commands_of_a_block_run(
    name: str, shown: list[str], prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(prepared, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    for command in shown:
        if OWN.match(command) and not runs_elsewhere(command):
            code, out = run(command)
            words = REFUSED.get(command)
            assert code == 0 if words is None else code and words in out, f"$ {command}\n{out}"


def test_a_page_says_which_of_its_commands_are_not_run() -> None:
    pages = {page for name, page, shown in LISTED for each in shown if OWN.match(each) and runs_elsewhere(each)}
    assert len(pages) > 5
    silent = [page.name for page in sorted(pages) if "not run by the tests" not in " ".join(page.read_text().split())]
    assert silent == []


def test_a_command_whose_examples_are_not_run_is_run_by_a_test() -> None:
    for command, where in RUN_ELSEWHERE.items():
        assert re.search(rf'"{command}"|forebay[ .]{command}\b', (ROOT / where).read_text()), f"{where}: {command}"


# What runs the blocks of a language. `text`, `http`, `dockerfile` hold no commands; `toml`, `json` and `ts` are files:
# tests/serve/test_typescript.py builds the last.
EXECUTED = {"python", "py", "console", "sh", "sql"}
FILES = {"text", "http", "dockerfile", "toml", "json", "ts", "markdown"}
# Commands in `sh` blocks that no test can run here: they install, build images, or are whole runs of the suite.
MACHINES = (
    "pip install ",
    "docker ",
    "kubectl ",
    "helm ",
    "systemctl ",
    "npm ",
    "redis-cli ",
    "cd ",
    "curl --output ",
    "promtool ",
)


def test_every_block_has_a_language_and_every_command_is_known() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        opened = re.findall(r"^ *```([^\n]*)", page.read_text(), re.MULTILINE)[::2]
        unknown = {fence.split(" ")[0] for fence in opened} - EXECUTED - FILES
        assert not unknown, f"{page.name}: a block of {unknown}"
        text = "\n".join(block.text for block in blocks(page) if block.language == "text")
        typed = re.search(r"^(\$ .*|(forebay|make|pip|python|curl|docker) [a-z-].*)$", text, re.MULTILINE)
        assert not typed, f"{page.name}: a command as text, which nothing runs: {typed[0]}"
    for name, shown in BLOCKS:
        for command in shown:
            make = re.match(r"make( [a-z-]+)?", command)
            known = (make[1] is None or make[1].strip() in targets) if make else command.startswith(MACHINES)
            assert known or OWN.match(command) or command.startswith(("export ", "FOREBAY_URL=")), f"{name}: {command}"


def test_files_that_pages_show_are_sound() -> None:
    parsers = {"toml": tomllib.loads, "json": json.loads}
    shown = [block for page in PAGES for block in blocks(page) if block.language in parsers]
    assert {block.language for block in shown} == set(parsers)
    for block in shown:
        assert parsers[block.language](block.text)


def source_of(where: str) -> str:
    """Of `file::function`: the constants of the file and that function, without its docstring."""
    file, _, name = where.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    constants = [node for node in tree.body if isinstance(node, ast.Assign)]
    return "\n".join(ast.unparse(node) for node in [*constants, function]).replace("'", '"')


def test_every_page_with_a_terminal_is_run() -> None:
    """By the test that is named, if not by the terminals of tests/docs/test_site.py."""
    pages = {page.relative_to(ROOT / "docs") for page in PAGES if has_terminal(page) and page.name != "README.md"}
    left = {str(page) for page in pages if page.parent.name not in PLACES or page.name in ELSEWHERE}
    assert left == {f"guides/{name}" for name in ELSEWHERE} | {"reference/cli.md"}
    for name, where in ELSEWHERE.items():
        source = source_of(where)
        assert f'"{name}"' in source, f"{where} does not name {name}"
        assert re.search(r"for (command in page_commands|block in blocks)\(", source), (
            f"{where} does not type every command of {name}"
        )


def test_every_file_that_a_page_shows_is_used_by_a_terminal_of_it() -> None:
    for page in PAGES:
        titled = [block.title for block in blocks(page) if block.language == "python" and block.title]
        assert not titled or has_terminal(page), f"{page.name}: nothing runs {titled}"


def test_the_sql_of_the_reference_runs(postgres_url: str) -> None:
    """That of the guides is run by the tests that they name."""
    with closing(open_store(postgres_url)) as store:
        store.enqueue([Draft("send_email", queue="email")])
    statements = [block.text for block in blocks(ROOT / "docs" / "reference" / "sql.md") if block.language == "sql"]
    assert statements
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for text in statements:
            for statement in text.split(";\n"):
                connection.execute(statement.encode())


def test_the_commands_for_redis_answer(redis_url: str) -> None:
    plain = redis_url.partition("?")[0]
    with closing(open_store(f"{plain}?durability=none&delivery=streams")) as store:
        store.enqueue([Draft("send_email", queue="email")])
        store.claim([Want("email", 1)], "ada", seconds(30))
        lines = [command for _, shown in BLOCKS for command in shown if command.startswith("redis-cli ")]
        assert len(lines) == 5
        with redis.Redis.from_url(plain) as client:
            client.response_callbacks.clear()
            for line in lines:
                answer = client.execute_command(*shlex.split(line)[1:])
                assert answer is not None, line
                assert answer or "due" in line, line
