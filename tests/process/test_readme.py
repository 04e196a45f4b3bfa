"""The README's eight lines, tried as a new user would, word for word: app.py, `forebay dev`, `python app.py`."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.process.readme import PATIENCE_SECONDS, README, first_example, run_first_example


def test_the_eight_lines_run_a_job(tmp_path: Path) -> None:
    run_first_example(sys.executable, tmp_path)


def test_a_handler_that_fails_on_purpose_is_shown_as_the_readme_shows_it(tmp_path: Path) -> None:
    source = first_example()
    shown = re.findall(r"```\n(\d\d:\d\d:\d\d  send_email 2 .*?)```", README.read_text(), re.DOTALL)[0]
    body = """print(f"sent {subject!r} to {to}")"""
    assert body in source
    (tmp_path / "app.py").write_text(source.replace(body, 'raise ValueError("mailbox full")'))
    for _ in range(2):
        subprocess.run([sys.executable, "app.py"], cwd=tmp_path, check=True, timeout=PATIENCE_SECONDS)
    dev = subprocess.Popen(
        [sys.executable, "-m", "forebay", "dev", "app:fb", "--no-server", "--concurrency", "1"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert dev.stderr is not None
        output: list[str] = []
        while len(output) < len(shown.splitlines()):
            line = dev.stderr.readline()
            assert line, "dev ended without running the job"
            if output or "send_email 2  started" in line:
                output.append(line.rstrip())
        assert [_without_figures(line) for line in output] == [_without_figures(line) for line in shown.splitlines()]
    finally:
        dev.send_signal(signal.SIGTERM)
        assert dev.wait(PATIENCE_SECONDS) == 0
        if dev.stderr is not None:
            dev.stderr.close()


def _without_figures(line: str) -> str:
    return re.sub(r'"/.*/app.py"|\d\d:\d\d:\d\d|[\d.]+ m?s\b', "…", line)
