"""The README's eight lines, tried as a new user would, word for word: app.py, `forebay dev`, `python app.py`."""

import sys
from pathlib import Path

from tests.process.readme import run_first_example


def test_the_eight_lines_run_a_job(tmp_path: Path) -> None:
    run_first_example(sys.executable, tmp_path)
