"""Documentation is executed: every Python block of every page runs, tables match the code.

`python tests/docs/test_docs.py` writes the table of named queues into docs/reference/queues.md anew.
"""

import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from forebay import NAMED, State
from forebay.cli import main
from forebay.cli.command import Command, CommandGroup
from forebay.cli.plugins import all_commands
from forebay.core.outcome import Outcome, Verdict
from forebay_proof.bench.lines import files_passed
from forebay_proof.conformance import cases
from forebay_proof.lab.chaos.plan import find, matrix
from forebay_proof.lab.chaos.run import ChaosResult
from tests.docs import chaos_matrix

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUEUES = ROOT / "docs" / "reference" / "queues.md"
BEGIN, END = "<!-- named: begin -->\n", "<!-- named: end -->\n"


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(python_blocks(page)))
    if "django" in script.read_text():
        # A process has one set of Django's settings.
        subprocess.run([sys.executable, str(script)], cwd=tmp_path, check=True)
    else:
        runpy.run_path(str(script))


def test_the_first_example_of_the_readme_has_eight_lines() -> None:
    first = python_blocks(ROOT / "README.md")[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 8


def test_every_test_that_a_page_names_is_there() -> None:
    known = {f"{case.theme}/{case.name}" for case in cases()}
    for page in PAGES:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text()):
            assert f"def {name}(" in (ROOT / file).read_text(), f"{page.name} names {file}::{name}"
    for name in re.findall(r"`([a-z_]+/[a-z_0-9]+)`", (ROOT / "docs" / "internals" / "track-record.md").read_text()):
        assert name in known, f"the track record names {name}"


def test_the_reading_guide_names_the_files_that_a_job_passes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reading-guide.md").read_text()
    rows = re.findall(r"^\|[^|]*\| `src/forebay/([\w/]+\.py)` \| `(\w+)` \|", page, re.MULTILINE)
    assert len({file for file, _ in rows}) == 10
    assert "in ten files" in page
    for file, name in rows:
        source = (ROOT / "src" / "forebay" / file).read_text()
        assert re.search(rf"^( {{4}})?(def|class) {name}\b", source, re.MULTILINE), f"{file} has no {name}"
    passed = files_passed(f"sqlite:///{tmp_path}/jobs.db")
    by_store = {file for file, _ in rows if file.startswith(("engine/", "store/", "core/ledger"))}
    assert by_store <= set(passed), "a plain job does not pass these"


def test_the_words_of_the_architecture_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text()
    for word, union in (("Outcome", Outcome), ("Verdict", Verdict)):
        (row,) = re.findall(rf"^\| \*\*{word}\*\* \| [^:]*: ([\w, ]+)", page, re.MULTILINE)
        assert {each.strip() for each in row.split(",")} == {each.__name__ for each in get_args(union)}
    (states,) = re.findall(r"^States: (.*)\.", page, re.MULTILINE)
    assert re.findall(r"`(\w+)`", states) == list(State)


def named_table() -> str:
    rows = ["| name | vector | classically fails by | contained by | test |\n", "|---|---|---|---|---|\n"]
    for name, named in NAMED.items():
        vector = named("q").vector().removeprefix("q = ").strip("{}")
        rows.append(f"| `{name}` | {vector} | {named.fails_by} | {named.contained_by} | `{named.test}` |\n")
    return "".join(rows)


def test_the_table_of_named_queues_matches_the_code() -> None:
    written = QUEUES.read_text().split(BEGIN)[1].split(END)[0]
    assert written == named_table(), "run python tests/docs/test_docs.py"


def test_every_decision_is_listed_under_its_title() -> None:
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text()
    for page in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        number, _, title = page.read_text().splitlines()[0].removeprefix("# ").partition(". ")
        assert f"| [{number}]({page.name}) | {title} |" in listed, page.name


def test_every_named_queue_has_its_story() -> None:
    stories = "".join(page.read_text() for page in (ROOT / "tests" / "stores").glob("test_named_*.py"))
    for named in NAMED.values():
        assert f"def {named.test}(begin: Begin)" in stories, "shown on every store of `begin`"


def test_every_case_that_the_page_of_queues_names_is_in_the_suite() -> None:
    named = set(re.findall(r"`([a-z_]+/[a-z_]+)`", QUEUES.read_text()))
    assert len(named) > 30
    assert named <= {f"{case.theme}/{case.name}" for case in cases()}


def test_the_fault_matrix_has_every_plan_on_every_store() -> None:
    table = (ROOT / "docs" / "internals" / "chaos.md").read_text().split("<!-- generated: begin -->")[1]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| f")]
    shown = {(name, store): (verdict, what) for name, store, *_, verdict, what in rows}
    plans = {(name, str(store)): find(name) for name in matrix() for store in find(name).stores}
    assert shown.keys() == plans.keys()
    for which, (verdict, what) in shown.items():
        title = plans[which].title
        assert what == title if verdict == "PASS" else what.startswith(f"{title}: "), which


def test_the_fault_matrix_is_written_from_a_recording() -> None:
    about = {"command": chaos_matrix.COMMAND, "commit": "0123456789ab", "date": "2026-11-19", "cores": 2}
    run = ChaosResult(
        plan="f01",
        title="kill -9",
        store="redis",
        scale="quick",
        seed=1,
        answer="PASS",
        reasons=[],
        planned=5,
        made=5,
        bit=4,
        accepted=1_460,
        redelivered=6,
        recovery_p50=0.071,
    )
    broken = msgspec.structs.replace(run, answer="FAIL", reasons=["job 7 | lost"])
    recording = {**about, "load": [0.5, 2.0], "results": msgspec.to_builtins([run, broken])}
    source, _, *rows = chaos_matrix.table_of(recording).splitlines()
    assert source.startswith("`forebay chaos all --scale quick`, commit `0123456789ab`, 2026-11-19, 2 cores, load 0.5")
    assert rows[2:] == [
        "| f01 | redis | 5 | 4 | 1,460 | 6 | 0.07 |  | 0 | PASS | kill -9 |",
        "| f01 | redis | 5 | 4 | 1,460 | 6 | 0.07 |  | 0 | FAIL | kill -9: job 7 \\| lost |",
    ]
    assert chaos_matrix.without_verdicts([{"plan": "f01", "verdict": {"accepted": 7}}]) == [{"plan": "f01"}]


def test_the_page_names_the_commands_that_create_a_store() -> None:
    page = " ".join((ROOT / "docs" / "reference" / "cli.md").read_text().split())
    found = re.search(r"with exit code 3\. ([^.]*) create it\.", page)
    assert found
    listed = set(re.findall(r"`([a-z ]+)`", found[1]))
    commands: dict[str, Command] = {}
    for entry in all_commands():
        if isinstance(entry, CommandGroup):
            commands.update({f"{entry.name} {each.name}": each for each in entry.commands})
        else:
            commands[entry.name] = entry
    creating = {name for name, command in commands.items() if "create=True" in inspect.getsource(command.run)}
    assert creating <= listed <= set(commands)


@pytest.mark.parametrize(
    "command", ["keys create --role viewer --name x", "cron put report @daily report", "queues ls", "dlq ls"]
)
def test_a_command_creates_a_store_if_the_page_says_so(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    named = f"`{' '.join(command.split()[:2])}`" in page.partition("## For scripts")[0]
    assert (main(command.split()) == 0) == named == Path("forebay.db").exists()


if __name__ == "__main__":
    head, rest = QUEUES.read_text().split(BEGIN)
    QUEUES.write_text(head + BEGIN + named_table() + END + rest.split(END)[1])
