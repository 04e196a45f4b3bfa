"""docs/guides/lake.md, the example and the notebook, run as written, in the session of all tests."""

import ast
import json
import os
import re
import runpy
import shlex
import signal
import sys
from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql import SparkSession

from forebay.spark.lake import Lake
from forebay.spark.tables import TABLES, VIEWS
from tests.command_result import Run
from tests.docs.console import page_commands
from tests.spark.sample_stores import opened, worked
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "lake.md"
pytestmark = pytest.mark.timeout(900)


@pytest.mark.usefixtures("spark")
def test_the_page_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    runpy.run_path(str(script))


def test_the_terminal_of_the_page_runs(
    run: Run, tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is ended by a signal once it has what was done since the run; the busy day is a short one."""
    monkeypatch.chdir(tmp_path)
    url, lake = "sqlite:///jobs.db", Lake.of("lake", "sqlite:///jobs.db")
    worked(url, tmp_path, 20)
    (tmp_path / "effects").mkdir()
    (tmp_path / "effects.ndjson").rename(tmp_path / "effects" / "1.ndjson")
    said: dict[str, list[str]] = {}
    for command in page_commands(PAGE):
        line = command.line.replace("5_000_000", "500").replace("postgresql://db/app", postgres_url)
        words = shlex.split(line)[1:]
        if words[1] == "stream":
            worked(url, tmp_path, 20, first=20)
            (tmp_path / "effects.ndjson").rename(tmp_path / "effects" / "2.ndjson")
            watcher = Thread(target=end_when_read, args=(lake, url))
            watcher.start()
            answer = run(*words)
            watcher.join()
        else:
            answer = run(*words)
        assert answer.code == 0, f"{line}\n{answer.out}{answer.err}"
        said.setdefault(" ".join(words[:2] if words[0] == "pipeline" else words[:1]), []).append(answer.out)
    assert list(said) == [f"pipeline {name}" for name in ("run", "stream", "status", "maintain")] + [
        "audit",
        "report",
        "gen",
    ]
    assert [out.splitlines()[-1] for out in said["audit"]] == ["PASS", "PASS"]
    assert "<html" in (tmp_path / "report.html").read_text()
    with opened(postgres_url) as store:
        assert sum(each.depth for each in store.backlog()) == 500


def end_when_read(lake: Lake, url: str) -> None:
    try:
        with opened(url) as store:
            head = store.ledger_extent()[1]
        eventually(lambda: lake.contents().end == head, "the lake has the whole ledger")
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("spark")
def test_the_notebook_shows_what_its_cells_give(tmp_path: Path) -> None:
    """One cell after the other, as a kernel runs them; what is shown is the last expression of a cell."""
    book = json.loads((ROOT / "examples" / "read_the_lake.ipynb").read_text())
    assert (book["nbformat"], book["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    lines = []
    for number, cell in enumerate(cells):
        *body, last = ast.parse("".join(cell["source"])).body
        assert isinstance(last, ast.Expr)
        lines += [*map(ast.unparse, body), f"shown_{number} = {ast.unparse(last)}"]
    (tmp_path / "book.py").write_text("\n".join(lines))
    names = runpy.run_path(str(tmp_path / "book.py"))
    for number, cell in enumerate(cells):
        assert cell["outputs"][0]["data"]["text/plain"] == [repr(names[f"shown_{number}"])]
    text = " ".join("".join(cell["source"]) for cell in cells)
    assert all(engine in text for engine in ("duckdb.sql(", "polars.read_delta(", ".to_pandas()", "spark.sql("))


def test_the_page_names_every_table() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert {"events", *TABLES, *VIEWS} <= set(named)


def test_the_example_sends_back_what_it_chose(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dead_letters_to_table.py"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(ROOT / "examples" / "dead_letters_to_table.py"), run_name="__main__")
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert "a dry run:  RedriveCommit(redriven=5, replaced=10, gone=0)" in said
    assert "for real:   RedriveCommit(redriven=5, replaced=10, gone=0)" in said
    assert "in the end: 15 jobs live again, 0 are dead" in said
