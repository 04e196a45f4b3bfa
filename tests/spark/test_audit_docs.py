"""docs/guides/audit.md, followed by hand: its app, its worker on Spark, its audits.

In the session of all tests, and every night as commands of their own.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql import SparkSession

from forebay.demo.proof import SMALL_DATA
from tests.command_result import Run
from tests.docs.console import missing, page_commands
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "audit.md"


def app_of_the_page() -> str:
    (app,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(app)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_commands_of_the_page_give_what_it_shows(
    run: Run, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks of the session have another working directory and path, and keep modules that they have imported:
    effects have an absolute path, and the app has a name of its own and is sent to them."""
    name = f"app_{tmp_path.name.replace('-', '_')}"
    app = re.sub(r'"effects(?=["/])', f'"{tmp_path}/effects', app_of_the_page())
    assert app.count(f"{tmp_path}/effects") == 2
    (tmp_path / f"{name}.py").write_text(app)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    spark.sparkContext.addPyFile(str(tmp_path / f"{name}.py"))
    said = []
    for command in page_commands(PAGE):
        words = shlex.split(command.line.replace("app.py", f"{name}.py").replace("app:fb", f"{name}:fb"))
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True)
            continue
        watcher = Thread(target=end_after_two_verdicts, args=(tmp_path / "lake" / "verdict.json",))
        if "--follow" in words:
            watcher.start()
        answer = run(*words[1:])
        said.append(answer.out)
        assert (answer.code, missing(command.shown, answer.out)) == (0, None), answer.out + answer.err
        if "--follow" in words:
            watcher.join()
    worked, audited, followed = said
    assert "100 open jobs, now 0, by 2 tasks in " in worked
    assert audited.splitlines()[-1] == "PASS"
    assert followed.count("PASS") >= 1


def _differs(file: Path, content: bytes) -> bool:
    return file.read_bytes() != content


def end_after_two_verdicts(file: Path) -> None:
    """The page shows one that relies on the one before it."""
    try:
        for _ in range(2):
            before = file.read_bytes()
            eventually(partial(_differs, file, before), "a verdict")
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_app_of_the_page_passes(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(app_of_the_page())
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
