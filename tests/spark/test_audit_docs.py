"""docs/guides/audit.md, followed by hand: its app, its worker as a real command on Spark, its audits."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.demo.proof import SMALL_DATA
from tests.docs.console import missing, page_commands

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "audit.md"


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_app_of_the_page_passes(tmp_path: Path) -> None:
    (app,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "app.py").write_text(app)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_SUBMIT_ARGS": SMALL_DATA}
    said = []
    for command in page_commands(PAGE):
        words = shlex.split(command.line.replace("forebay", "python -m forebay", 1))
        process = subprocess.Popen(
            [sys.executable, "-u", *words[1:]],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        out = ""
        if "--follow" in words:
            for line in process.stdout:
                out += line
                if missing(command.shown, out) is None:
                    process.send_signal(signal.SIGTERM)
                    break
        out += process.communicate(timeout=250)[0]
        said.append(out)
        assert (process.returncode, missing(command.shown, out)) == (0, None), out
    produced, worked, audited, followed = said
    assert produced == ""
    assert "100 open jobs, now 0, by 2 tasks in " in worked
    assert audited.splitlines()[-1] == "PASS"
    assert followed.count("PASS") >= 1
