"""docs/pipeline.md and the example, run as they stand, in the session of all tests."""

import re
import runpy
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from forebay.spark.tables import TABLES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pipeline.md"


@pytest.mark.nightly
@pytest.mark.usefixtures("spark")
def test_the_page_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    runpy.run_path(str(script))


def test_the_page_names_every_table() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert set(TABLES) | {"events"} <= set(named)


def test_the_example_sends_back_what_it_chose(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dead_letters_to_table.py"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(ROOT / "examples" / "dead_letters_to_table.py"), run_name="__main__")
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert "a dry run:  Redriven(redriven=5, mended=10, gone=0)" in said
    assert "for real:   Redriven(redriven=5, mended=10, gone=0)" in said
    assert "in the end: 15 jobs live again, 0 are dead" in said
