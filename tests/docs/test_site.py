"""The site: it builds strictly and without a network, and its terminal sessions run as written."""

import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from forebay.cli.parser import build
from forebay.cli.plugins import all_commands
from forebay.core import limits
from forebay_proof.bench.audit_data import whole_periods
from forebay_proof.bench.audit_figures import figures_of, growth_of
from forebay_proof.bench.recovery import NEVER
from forebay_proof.servers.postgres import PostgresServer, find_programs
from forebay_proof.servers.process import free_port
from tests.browser.chrome import browser, opened
from tests.docs import figures
from tests.docs.console import blocks, has_terminal, terminals
from tests.docs.curves import CURVES, IMAGES, SCHEMES, ShownCurve, drawn
from tests.docs.docstrings import with_lists
from tests.docs.reference import BEGIN, TABLES, metrics, place_of, renewed, routes
from tests.docs.reference import PAGES as REFERENCE
from tests.docs.test_python_reference import described, entries
from tests.docs.versions import write_menu

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PLACES = ("start", "guides", "internals")
ELSEWHERE = {
    "audit.md": "tests/spark/test_audit_docs.py::test_the_app_of_the_page_passes",
    "django.md": "tests/contrib/test_django_guide.py::test_the_project_of_the_guide_runs",
    "lake.md": "tests/spark/test_pipeline_docs.py::test_the_terminal_of_the_page_runs",
}
"""Guides whose terminals are run by another test, which types every command of them."""

PAGES = [
    page
    for place in PLACES
    for page in sorted((DOCS / place).glob("*.md"))
    if has_terminal(page) and page.name not in ELSEWHERE
]
ON_POSTGRES = "postgresql://localhost/shop"
PORT = "8321"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_the_terminal_sessions_of_a_page_run(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = page.read_text()
    replaced = {ON_POSTGRES: request.getfixturevalue("postgres_url")} if ON_POSTGRES in text else {}
    psql: list[Path] = []
    if "CREATE DATABASE shop" in text:
        replaced |= new_database(request)
        psql.append(find_programs().folder)
    if PORT in text:
        replaced[PORT] = str(free_port())
    with terminals(tmp_path, replaced, replaced.get(PORT, "0"), psql) as opened:
        for block in blocks(page):
            opened.run(block)
            if block.title and block.text.startswith("dashboard "):
                assert_dashboard_shows_the_failure(opened.link(block.title))


def new_database(request: pytest.FixtureRequest) -> dict[str, str]:
    """A substitute for a server without a database `shop`, which the page creates; it is dropped afterwards."""
    server: PostgresServer = request.getfixturevalue("postgres")
    name = f"shop_{secrets.token_hex(4)}"
    request.addfinalizer(partial(server.drop_database, server.url(name)))
    return {
        "postgresql://localhost/postgres": server.url("postgres"),
        "CREATE DATABASE shop": f"CREATE DATABASE {name}",
        ON_POSTGRES: server.url(name),
    }


def assert_dashboard_shows_the_failure(link: str) -> None:
    visitor = build_opener(HTTPCookieProcessor())
    with visitor.open(link, timeout=30) as overview:
        assert "<h1>Overview</h1>" in overview.read().decode()
    with visitor.open(f"{link.partition('/ui/')[0]}/ui/jobs/2", timeout=30) as job:
        assert "IndexError" in job.read().decode()


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    reached = offline(tmp_path, "-c", "import socket; socket.create_connection(('127.0.0.1', 9), 5)")
    assert REFUSED in reached.stderr, "the guard refuses nothing"
    done = offline(tmp_path, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert REFUSED not in done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = re.search(r'(src=|<link[^>]+href=)"https?://', page.read_text())
        assert not loaded, f"{page.name} loads a script, a style or a picture from elsewhere"
    reference = (tmp_path / "site" / "reference" / "python.html").read_text()
    members = [f"{entry.path}.{name}" for entry in entries() for name in entry.shown()]
    assert [member for member in members if f'id="{member}"' not in reference] == []
    text = " ".join(unescape(re.sub(r"<[^>]+>", "", reference)).split())
    begins = {path: " ".join(said.split()[:4]).replace("`", "") for path, said in described()}
    assert [path for path, words in begins.items() if words not in text] == [], "the page leaves docstrings out"
    assert "<li><code>timeout</code>: seconds after" in reference, "the columns of a docstring run together"
    found, elsewhere = search(tmp_path / "site", "redrive")
    assert re.match(r"\d+ matching documents", found)
    assert elsewhere == [], "the site loads something from another host"


REFUSED = "the build of the site may not use a network"
_GUARD = f"""
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        print({REFUSED!r}, event, arguments[-1], file=sys.stderr)
        raise OSError({REFUSED!r})

sys.addaudithook(refuse)
"""


def offline(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in which every connection and look-up of a name fails, without interfaces where permitted."""
    (directory / "sitecustomize.py").write_text(_GUARD)
    environment = {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    alone = ["unshare", "--map-root-user", "--net"]
    permitted = shutil.which("unshare") and subprocess.run([*alone, "true"], capture_output=True, check=False)
    prefix = alone if permitted and permitted.returncode == 0 else []
    command = [*prefix, sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002


def search(site: Path, words: str) -> tuple[str, list[str]]:
    """What the search of the served site answers, and the addresses on other hosts that its pages load from."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    loaded: list[str] = []
    try:
        with browser() as chrome, opened(chrome) as (page, _):
            page.on("request", lambda request: loaded.append(request.url))
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            page.fill("[data-md-component=search-query]", words, force=True)
            page.wait_for_function("/\\d+ match/.test(document.querySelector('.md-search-result__meta').innerText)")
            answer = page.inner_text(".md-search-result__meta").strip()
    finally:
        server.shutdown()
        server.server_close()
    return answer, [url for url in loaded if not url.startswith(f"http://127.0.0.1:{server.server_port}/")]


def written_commands() -> list[tuple[str, str]]:
    """Every `forebay …` that a page shows, as far as a shell would give it to the program."""
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        for block in blocks(page):
            if block.language in ("sh", "console"):
                text = block.text.replace("\\\n", " ")
                lines = [re.sub(r"^\$ ", "", line) for line in text.splitlines()]
                found += [(page.name, re.split(r"[|&;>]| #", line)[0]) for line in lines if line.startswith("forebay ")]
    return found


def test_every_command_that_a_page_shows_is_accepted_by_the_parser() -> None:
    parser = build(all_commands())
    shown = written_commands()
    assert len(shown) > 40
    refused = []
    for page, line in shown:
        try:
            parser.parse_args([word for word in shlex.split(line)[1:] if word != "…"])
        except SystemExit as end:
            refused += [] if end.code == 0 else [f"{page}: {line}"]
    assert refused == []


def test_every_limit_has_its_row() -> None:
    rows = (DOCS / "reference" / "limits.md").read_text()
    assert [name for name in vars(limits) if name.isupper() and f"`{name}`" not in rows] == []


@pytest.mark.parametrize("name", TABLES)
def test_a_generated_table_matches_the_code(name: str) -> None:
    (file, number), table = place_of(name), TABLES[name]()
    assert table.strip()
    page = file.read_text()
    assert page == renewed(page, table, number), "run make reference"


def test_every_generated_table_has_what_writes_it() -> None:
    places = [place_of(name) for name in TABLES]
    for file in {file for file, _ in places}:
        assert [number for each, number in places if each == file] == [*range(1, file.read_text().count(BEGIN) + 1)]


def test_the_tables_are_not_empty() -> None:
    assert routes().count("## `") > 40
    assert metrics().count("| `forebay_") > 70


def test_every_environment_variable_and_table_has_its_row() -> None:
    sources = (ROOT / "src" / "forebay").rglob("*.py")
    used = {name for file in sources for name in re.findall(r"\"(FOREBAY_[A-Z_]+)\"", file.read_text())}
    assert len(used) > 5
    page = (REFERENCE / "configuration.md").read_text()
    assert [name for name in sorted(used) if f"`{name}`" not in page] == []
    migrations = (ROOT / "src" / "forebay" / "store" / "postgres" / "migrations").glob("*.sql")
    schema = "".join(file.read_text() for file in migrations)
    tables = re.findall(r"^CREATE (?:UNLOGGED )?(?:TABLE|VIEW) forebay\.(\w+)", schema, re.MULTILINE)
    assert len(tables) > 30
    page = (REFERENCE / "sql.md").read_text()
    assert [name for name in tables if f"`forebay.{name}`" not in page] == []


def test_every_recorded_figure_names_its_command_and_commit() -> None:
    parser = build(all_commands())
    recorded = figures.read()
    assert set(recorded) <= set(figures.RUNS) == set(figures.ABOUT)
    for command in figures.RUNS.values():
        parser.parse_args(shlex.split(command)[1:])
    for name, found in recorded.items():
        assert found["command"].replace(" --quick", "") == figures.RUNS[name].replace(" --quick", "")
        parser.parse_args(shlex.split(found["command"])[1:])
        assert re.fullmatch(r"[0-9a-f]{12}", found["commit"])
        assert re.fullmatch(r"2\d{3}-\d\d-\d\d", found["date"])
        assert found["figures"]


def test_figures_of_an_audit_are_held_against_the_goals_of_their_size() -> None:
    """Seconds, the CPU of all processes, its ratio to DuckDB and the share of the last 1 %; and the bill by stage."""
    run = {"seconds": 24.0, "cpu": 12.0, "all_cpu": 44.0, "stages": {"audit: profile": 9.0, "audit: survey": 3.0}}
    later = run | {"all_cpu": 2.0, "cpu": 0.0, "stages": {}}
    runs = {"audit": run, "audit --quick": run, "the last 1 %": later, "nothing new": later}
    runs |= {"spark alone": {"seconds": 5.0, "cpu": 5.0}, "duckdb": {"seconds": 1.0, "cpu": 3.0}}
    for jobs, judged in ((2_000_000, ["≤ 25", "≤ 45", "≤ 4 × missed", "≤ 0.1 ×"]), (200_000, [])):
        found = list(figures_of(whole_periods(jobs), runs))
        assert all(each["name"].startswith(f"audit/{whole_periods(jobs):,}/") for each in found)
        goals = [figures._judged(each) for each in found if each["goal"]]
        words = [goal.replace("<=", "≤").replace(", met", "").replace(", **missed**", " missed") for goal in goals]
        assert words == judged
        bill = {each["name"].rpartition("/")[2]: each["value"] for each in found if "audit: " in each["name"]}
        assert bill == run["stages"]
        assert "| `audit/" in figures.table_of("audit", {"figures": found})


@pytest.mark.parametrize(("cpu", "goal"), [(24.9, "<= 1.25 ×, met"), (25.1, "<= 1.25 ×, **missed**")])
def test_the_growth_of_an_audit_is_held_against_that_of_the_jobs(cpu: float, goal: str) -> None:
    """Ten times the jobs, and two seconds of CPU for the smaller history."""
    jobs, growth = growth_of({1_200_000: 2.0, 12_000_000: cpu})
    assert (jobs["name"], jobs["value"], jobs["goal"]) == ("audit/12,000,000/growth of jobs", 10, "")
    assert (growth["baseline"], figures._judged(growth)) == (jobs["name"], goal)
    assert list(growth_of({20_000: 2.0})) == []


def test_what_was_noted_before_recordings_names_a_command_and_its_date() -> None:
    parser = build(all_commands())
    for name, earlier in json.loads(figures.EARLIER.read_text()).items():
        assert name in figures.RUNS
        assert re.fullmatch(r"2\d{3}-\d\d-\d\d", earlier["date"])
        parser.parse_args(shlex.split(earlier["command"])[1:])
        assert {len(row) for row in earlier["rows"]} == {1 + len(earlier.get("columns", "12"))}


def test_a_run_that_ends_badly_keeps_what_it_printed() -> None:
    program = "import sys; print('{}'); sys.exit(1)"
    assert figures.printed([sys.executable, "-c", program], 60) == ("{}\n", "ended with code 1")
    assert figures.printed(["sh", "-c", "echo {}; exec sleep 600"], 1) == ("{}\n", "was stopped after 1 s")
    assert figures.printed([sys.executable, "-c", "print(1)"], 60) == ("1\n", "")


def test_a_recording_that_ended_badly_says_so_and_one_without_figures_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps({"name": "x", "value": 1.0})
    monkeypatch.setattr(figures, "_git", lambda *arguments: "abc" if arguments[0] == "log" else "")
    monkeypatch.setattr(figures, "printed", lambda *_: (f"not a figure\n{line}\n", "ended with code 1"))
    found = figures.record("memory")
    assert [each["name"] for each in found["figures"]] == ["x"]
    assert figures._source(found).endswith("; it ended with code 1")
    monkeypatch.setattr(figures, "printed", lambda *_: ("", "ended with code 2"))
    with pytest.raises(figures.NoFigures, match="ended with code 2"):
        figures.record("memory")


def test_figures_of_several_stores_are_columns_and_missed_goals_are_marked() -> None:
    def figure(name: str, value: float, goal: str = "") -> dict[str, object]:
        spread, beside = [value - 1, value + 1], {"baseline": None, "ratio": None}
        return {"name": name, "value": value, "unit": "ms", "spread": spread, "goal": goal, **beside}

    by_store = [figure("cycle/memory-single", 7.0), figure("cycle/redis-always-single", 9.0), figure("sqlite/cap", 2.0)]
    shown = figures.table_of("stores", {"figures": by_store}).splitlines()
    assert shown[0] == "| | memory | sqlite | redis-always |"
    assert shown[2:] == ["| `cycle/single`, ms | 7 [6 … 8] |  | 9 [8 … 10] |", "| `cap`, ms |  | 2 [1 … 3] |  |"]
    killed = [
        figure("recovery/q-1/again", 40.0) | {"unit": NEVER},
        *(
            figure(f"recovery/q-1/{key}", 2.0) | {"unit": "jobs"}
            for key in ("interrupted", "waited", "once", "repeated", "unfinished")
        ),
        *(
            figure(f"recovery/own/{key}", 3.0) | {"unit": "jobs"}
            for key in ("interrupted", "waited", "once", "repeated", "unfinished")
        ),
        *(figure(f"recovery/own/{key}", 1.5) | {"unit": "s"} for key in ("again", "waiting")),
    ]
    shown = figures.table_of("recovery", {"figures": killed}).splitlines()
    assert shown[2:] == [
        "| q-1 | 2, not within 40 s | 2 | 2, 2, 2 |",
        "| own | 3, after 1.5 s | 3, after 1.5 s | 3, 3, 3 |",
    ]
    shown = figures.table_of(
        "http", {"figures": [figure("slow", 30.0, "< 25"), figure("quick", 3.0, "≤ 25")]}
    ).splitlines()
    assert [line.split(" | ")[-1] for line in shown[2:]] == ["< 25, **missed** |", "≤ 25, met |"]


@pytest.mark.parametrize(("suffix", "dark"), SCHEMES.items())
@pytest.mark.parametrize(("name", "curve"), CURVES.items())
def test_a_curve_is_drawn_from_the_recorded_result(name: str, curve: ShownCurve, suffix: str, dark: bool) -> None:
    assert (IMAGES / f"{name}{suffix}.svg").read_text() == drawn(curve, dark=dark), "run python -m tests.docs.curves"


def test_every_picture_comes_in_the_two_schemes_of_the_site() -> None:
    """The switch of the site chooses by the ending; a picture that follows the system instead would differ from it."""
    for page in sorted(DOCS.rglob("*.md")):
        shown = re.findall(r"\(((?:\.\./)*img/[\w-]+\.(?:svg|png))(\S*)\)", page.read_text())
        light = [Path(name) for name, ending in shown if ending == "#only-light"]
        dark = [(name, "#only-dark") for name in (str(each.with_stem(f"{each.stem}-dark")) for each in light)]
        assert sorted(shown) == sorted([(str(each), "#only-light") for each in light] + dark), page
    assert not [file.name for file in IMAGES.glob("*.svg") if "prefers-color-scheme" in file.read_text()]


def test_versions_of_the_site_are_listed_newest_first(tmp_path: Path) -> None:
    for name in ("0.2", "0.10", "assets"):
        (tmp_path / name).mkdir()
    assert write_menu(tmp_path) == ["0.10", "0.2"]
    assert json.loads((tmp_path / "versions.json").read_text())[0] == {
        "version": "0.10",
        "title": "0.10",
        "aliases": ["latest"],
    }
    assert "url=0.10/index.html" in (tmp_path / "index.html").read_text()


def test_columns_of_a_docstring_are_a_list_on_the_site() -> None:
    text = "A job.\n\nkey    the first;  tenant: whose it is\na, b\n       both, on\n       two lines\n\nIt ends."
    items = "- `key`: the first\n- `tenant`: whose it is\n- `a`, `b`:\n  both, on\n  two lines\n"
    assert with_lists(text) == f"A job.\n\n{items}\nIt ends."
