"""`make ... PYTHON=...` in a checkout that has an environment: another interpreter than its own is refused by name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With an environment that is ready, and newer than what it was made from."""
    for name in ("Makefile", "pyproject.toml", "proof/pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    for name in ("requirements/dev.txt", ".venv/.ready"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".venv" / "bin").mkdir()
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    os.utime(tmp_path / "requirements" / "dev.txt", (0, 0))
    return tmp_path


def setup(checkout: Path, python: str = "") -> tuple[int, str]:
    done = subprocess.run(
        ["make", "setup", f"PYTHON={python}"], cwd=checkout, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def test_the_interpreter_of_the_environment_is_taken(checkout: Path) -> None:
    assert setup(checkout) == (0, "")
    assert setup(checkout, sys.executable) == (0, "")


def test_another_interpreter_is_refused(checkout: Path) -> None:
    other = checkout / "other-python"
    other.write_text("#!/bin/sh\necho 3.99\n")
    other.chmod(0o755)
    code, stderr = setup(checkout, str(other))
    assert code == 2
    assert f"is Python 3.99, but .venv has Python {OWN}: rm -rf .venv, or leave PYTHON out" in stderr


def test_one_that_cannot_be_run_is_named(checkout: Path) -> None:
    code, stderr = setup(checkout, "python-of-nowhere")
    assert (code, stderr.strip()) == (0, f"setup: PYTHON=python-of-nowhere cannot be run, .venv has Python {OWN}")
