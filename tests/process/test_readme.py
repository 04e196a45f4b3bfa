"""The README's eight lines, tried as a new user would, word for word: app.py, `forebay dev`, `python app.py`."""

import re
import signal
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
PATIENCE_SECONDS = 60


def test_the_eight_lines_run_a_job(tmp_path: Path) -> None:
    source = re.findall(r"```python\n(# app\.py\n.*?)```", README.read_text(), re.DOTALL)[0]
    (tmp_path / "app.py").write_text(source)
    dev = subprocess.Popen(
        [sys.executable, "-m", "forebay", "dev", "app:fb"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    )
    try:
        command = [sys.executable, "app.py"]
        assert subprocess.check_output(command, cwd=tmp_path, text=True, timeout=PATIENCE_SECONDS) == "job 1\n"
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
    assert (tmp_path / "forebay.db").exists()
