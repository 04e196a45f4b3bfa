"""Runs the README's first example with an interpreter that has Forebay: app.py, `forebay dev`, `python app.py`."""

import re
import signal
import subprocess
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
PATIENCE_SECONDS = 60


def first_example() -> str:
    return str(re.findall(r"```python\n(# app\.py\n.*?)```", README.read_text(), re.DOTALL)[0])


def run_first_example(python: str, directory: Path) -> None:
    """Raises `AssertionError` unless the job runs and the worker ends with 0."""
    (directory / "app.py").write_text(first_example())
    dev = subprocess.Popen(
        [python, "-m", "forebay", "dev", "app:fb"],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(directory), "PYTHONUNBUFFERED": "1"},
    )
    try:
        command = [python, "app.py"]
        assert subprocess.check_output(command, cwd=directory, text=True, timeout=PATIENCE_SECONDS) == "job 1\n"
        assert dev.stdout is not None
        for line in dev.stdout:
            if "sent 'Hello' to ada@example.com" in line:
                break
        else:
            raise AssertionError("dev ended without running the job")
    finally:
        dev.send_signal(signal.SIGTERM)
        assert dev.wait(PATIENCE_SECONDS) == 0
        if dev.stdout is not None:
            dev.stdout.close()
    assert (directory / "forebay.db").exists()
