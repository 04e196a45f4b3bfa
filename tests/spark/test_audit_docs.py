"""docs/guides/audit.md, followed by hand: its app, its worker as a real command on Spark, its audit."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.demo.proof import SMALL_DATA
from tests.command_result import Run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "audit.md").read_text()


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_app_of_the_page_passes(run: Run, tmp_path: Path) -> None:
    (app,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    produce, work, audit, *_ = re.findall(r"^\$ (\S.*?)(?:  +#.*)?$", PAGE, re.MULTILINE)
    (tmp_path / "app.py").write_text(app)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_SUBMIT_ARGS": SMALL_DATA}
    said = ""
    for command in (produce, work.replace("forebay", "python -m forebay", 1)):
        words = [sys.executable, *shlex.split(command)[1:]]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=250
        )
        said += done.stdout + done.stderr
        assert done.returncode == 0, said
    assert "100 open jobs, now 0, by 2 tasks in " in said
    verdict = run(*audit.split()[1:])
    assert (verdict.code, verdict.out.splitlines()[-1]) == (0, "PASS"), verdict.out
