"""Small rooms with a paragraph on the door: limits on size and comments, and words that no file may hold.

There is no list of exceptions: a file over a limit is split. Each limit is checked against a fake that breaks it.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PYTHON = ("src", "proof", "tests", "examples")

FILE_LINES = 600
FUNCTION_LINES = 60
LANE_LINES = 250  # of a file of lanes, and of a function, in a server language: decision 0027
COMMENT_SHARE = 0.05
COMMENTED_FROM_LINES = 100  # below this, one good comment would already be too many
DOCSTRING_FROM_LINES = 5

SKIPPED = re.compile(
    r"\.git|\.venv(-bench|-django)?|__pycache__|build|dist|node_modules|htmlcov|\.hypothesis|\.\w+_cache|.*\.egg-info"
)
LOOSE_END = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
# Written with brackets, so that this file does not hold what it forbids.
PLACE = re.compile(
    r"p[y]pi\.org|python[h]osted|[n]pmjs|[a]naconda\.org"
    r"|-[i]ndex-url|[f]ind-links|[t]rusted-host|[f]ile:///"
    r"|(?<![\w.])/(home|root|Users|work|opt)/\w|\b[A-Z]:\\Users",
    re.IGNORECASE,
)


POLLS = re.compile(r"Event\(\)\.wait\(|time\.monotonic\(\)")
POLLING = "a polling loop in a test: use `eventually` of tests/waiting.py"
PROGRAMS = {"apps.py", "poison.py", "watched_app.py"}
"""Applications that tests run in processes of their own; their loops are not tests that wait."""


def comments(source: str) -> Iterator[tokenize.TokenInfo]:
    return (t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All of them, at any depth, but no expression, of which there are ten times as many."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, part, ()):
            yield node
            yield from statements(node)


def long_file(text: str) -> Iterator[str]:
    lines = len(text.splitlines())
    if lines > FILE_LINES:
        yield f"1: {lines} lines, the limit is {FILE_LINES}: split the file"


def long_functions(source: str) -> Iterator[str]:
    """For every Python file."""
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{node.lineno}: {node.name} has {length} lines, the limit is {FUNCTION_LINES}: name its parts"


def size_findings(source: str) -> Iterator[str]:
    """For files in src/ and proof/."""
    yield from long_file(source)
    lines = len(source.splitlines())
    if lines > DOCSTRING_FROM_LINES and not source.startswith('"""'):
        yield "1: no docstring: open with what the file promises and what can go wrong"
    may = COMMENT_SHARE * lines
    # Tokenising takes longest, and lines that look like comments are at least those that are.
    if lines > COMMENTED_FROM_LINES and sum(line.lstrip().startswith("#") for line in source.splitlines()) > may:
        whole_line = sum(token.line.lstrip().startswith("#") for token in comments(source))
        if whole_line > may:
            yield f"1: {whole_line} comment lines of {lines}, the limit is {COMMENT_SHARE:.0%}: explain at the top"


def loose_ends(source: str) -> Iterator[str]:
    """For every Python file."""
    for token in comments(source) if LOOSE_END.search(source) else ():
        if match := LOOSE_END.search(token.string):
            yield f"{token.start[0]}: {match[1]} without an issue number: write {match[1]}(#123)"


def sleeps(source: str) -> Iterator[str]:
    """For tests, but not those of real processes."""
    for node in ast.walk(ast.parse(source)) if "sleep" in source else ():
        match node:
            case ast.ImportFrom(module="time", names=names, lineno=line) if "sleep" in {alias.name for alias in names}:
                pass
            case ast.Attribute(value=ast.Name(id="time"), attr="sleep", lineno=line):
                pass
            case _:
                continue
        yield f"{line}: time.sleep in a test: turn a ManualClock, or wait for a signal"


def polling_loops(source: str) -> Iterator[str]:
    """For every test: loops until an instant, and such that rest by the wait of an event that nothing sets."""
    tree = ast.parse(source) if POLLS.search(source) else ast.Module([], [])
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
    for line in sorted({line for loop in loops for line in _polls(loop)}):
        yield f"{line}: {POLLING}"


def _polls(loop: ast.For | ast.While) -> Iterator[int]:
    for node in ast.walk(loop):
        match node:
            case ast.Call(ast.Attribute(ast.Call(ast.Name("Event")), "wait"), [ast.Constant()]):
                yield loop.lineno
            case ast.Compare() if isinstance(loop, ast.While) and "time.monotonic()" in ast.unparse(node):
                yield loop.lineno
            case _:
                pass


def places(text: str) -> Iterator[str]:
    """For every file of the project."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := PLACE.search(line):
            yield f"{number}: {match[0]!r} names a registry or a place on one machine"


def files(*tops: str, suffix: str = "") -> Iterator[tuple[Path, str]]:
    """The text files below these folders and their text, caches and environments aside."""
    todo = [ROOT / top for top in tops]
    while todo:
        path = todo.pop()
        if SKIPPED.fullmatch(path.name):
            continue
        if path.is_dir():
            todo += sorted(path.iterdir())
        elif path.is_file() and path.name.endswith(suffix) and b"\0" not in (content := path.read_bytes()):
            yield path, content.decode("utf-8")


def report(check: Callable[[str], Iterable[str]], found: Iterable[tuple[Path, str]]) -> None:
    complaints = [f"{path.relative_to(ROOT)}:{text}" for path, content in found for text in check(content)]
    assert not complaints, "\n" + "\n".join(complaints)


def test_source_files_are_small_and_explained() -> None:
    report(size_findings, files("src", "proof", suffix=".py"))


@pytest.mark.parametrize("suffix", [".sql", ".lua"])
def test_files_in_server_languages_are_small(suffix: str) -> None:
    found = list(files("src", suffix=suffix))
    assert len(found) > 10
    report(long_file, found)


def test_functions_are_small() -> None:
    report(long_functions, files(*PYTHON, suffix=".py"))


def test_no_loose_ends() -> None:
    report(loose_ends, files(*PYTHON, suffix=".py"))


def test_tests_do_not_sleep() -> None:
    real = {ROOT / "tests" / "process", ROOT / "tests" / "waiting.py"}
    rest = ((path, source) for path, source in files("tests", suffix=".py") if not real & {path, *path.parents})
    report(sleeps, rest)


def test_tests_have_no_polling_loops() -> None:
    found = files("tests", suffix=".py")
    report(polling_loops, ((path, source) for path, source in found if path.name not in PROGRAMS | {"waiting.py"}))


def test_no_file_names_a_registry_or_a_machine() -> None:
    report(places, files(""))


DOOR = '"""Promise."""\n'


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (DOOR + "x = 1\n" * 600, "601 lines"),
        ("x = 1\n" * 6, "no docstring"),
        (DOOR + "def f():\n" + "    x = 1\n" * 60, "2: f has 61 lines"),
        (DOOR + "async def f():\n" + "    x = 1\n" * 60, "2: f has 61 lines"),
        (DOOR + "x = 1\n" * 94 + "# why\n" * 6, "6 comment lines of 101"),
    ],
)
def test_the_size_checker_bites(source: str, complaint: str) -> None:
    (found,) = [*size_findings(source), *long_functions(source)]
    assert complaint in found


@pytest.mark.parametrize(
    "source",
    [
        DOOR + "x = 1\n" * 599,
        "x = 1\n" * 5,
        DOOR + "def f():\n" + "    x = 1\n" * 59,
        DOOR + "x = 1  # unit\n" * 95 + "# why\n" * 5,
        DOOR + "# why\n" * 50,
    ],
)
def test_the_size_checker_lets_good_code_pass(source: str) -> None:
    assert [*size_findings(source), *long_functions(source)] == []


def test_the_loose_end_checker_bites() -> None:
    assert len(list(loose_ends("# TODO later\n# FIXME\n# TODO(#12) known\ntodo = 'TODO'\n"))) == 2


def test_the_sleep_checker_bites() -> None:
    assert list(sleeps("import time\ntime.sleep(1)")) != []
    assert list(sleeps("from time import monotonic, sleep")) != []
    assert list(sleeps("import time\nclock.sleep(1)\n'time.sleep'")) == []


def test_the_polling_checker_bites() -> None:
    assert list(polling_loops("while not ready():\n    Event().wait(0.1)")) != []
    assert list(polling_loops("for _ in range(9):\n    if not ready():\n        Event().wait(0.1)")) != []
    assert list(polling_loops("while time.monotonic() < end:\n    step()")) == ["1: " + POLLING]
    assert list(polling_loops("while True:\n    if time.monotonic() > end:\n        break")) != []
    assert list(polling_loops("Event().wait(0.1)\nwhile not stop.wait(1):\n    step()")) == []


@pytest.mark.parametrize("word", ["https://p_ypi.org/simple", "--i_ndex-url x", "at /h_ome/ada/x", "'/o_pt/wheels'"])
def test_the_place_checker_bites(word: str) -> None:
    assert list(places(word.replace("_", ""))) != []
    assert list(places("src/forebay/work/pool.py and src/forebay/store/memory, in your home/ folder")) == []


LANE_FILES = (
    *(f"postgres/migrations/{name}.pre.sql" for name in ("0004_lanes", "0005_lines")),
    *(f"redis/lua/{name}.lua" for name in ("gates", "lanes", "lines", "shares", "order", "openings", "claim")),
)


def server_functions(source: str) -> Iterator[tuple[str, int]]:
    """The functions of a text in PL/pgSQL, and their lines."""
    for found in re.finditer(r"^CREATE FUNCTION ([\w.]+).*?\$\$.*?\$\$;", source, re.MULTILINE | re.DOTALL):
        yield found[1], found[0].count("\n") + 1


@pytest.mark.parametrize("name", LANE_FILES)
def test_lanes_stay_small_in_server_languages(name: str) -> None:
    text = (ROOT / "src/forebay/store" / name).read_text("utf-8")
    assert text.count("\n") <= LANE_LINES


def test_functions_of_postgres_stay_small() -> None:
    files = sorted((ROOT / "src/forebay/store/postgres/migrations").glob("*.sql"))
    lengths = {name: lines for path in files for name, lines in server_functions(path.read_text("utf-8"))}
    assert lengths["forebay.take"] > 200
    assert {name: lines for name, lines in lengths.items() if lines > LANE_LINES} == {}


def test_the_decision_states_the_limit_of_lanes() -> None:
    (page,) = (ROOT / "docs/decisions").glob("0027-*.md")
    assert f"at most {LANE_LINES} lines" in page.read_text("utf-8")
