"""A handler that fails on purpose, under real commands: what the person at the terminal gets to read."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forebay import Draft, open_store
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
APP = """
from forebay import Forebay

fb = Forebay()

@fb.job
def bad(password: str) -> None:
    raise ValueError(f"refused {password}")

@fb.job(isolate=True)
def far(password: str) -> None:
    raise ValueError(f"refused {password}")

@fb.job
async def good(password: str) -> None:
    pass
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    store = open_store(f"sqlite:///{tmp_path}/forebay.db")
    attempts = {"good": 25, "bad": 2, "far": 1}
    store.enqueue([Draft(kind, {"password": "hunter2222"}, max_attempts=count) for kind, count in attempts.items()])
    store.close()
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    ours = ("FOREBAY_URL", "FOREBAY_LOG", "FOREBAY_LOG_FORMAT", "NO_COLOR")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", **more}


def dead_letters(place: Path) -> int:
    store = open_store(f"sqlite:///{place}/forebay.db")
    try:
        return sum(queue.dead for queue in store.backlog())
    finally:
        store.close()


def printed_by(place: Path, *words: str, **variables: str) -> str:
    """What the command writes to its log until both jobs are dead; it ends with 0."""
    with open(place / "said", "wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "forebay", *words],
            cwd=place,
            env=environment(**variables),
            stdout=subprocess.DEVNULL,
            stderr=output,
        )
        try:
            eventually(lambda: dead_letters(place) >= 2, "both jobs are dead letters")
        finally:
            child.send_signal(signal.SIGTERM)
            assert child.wait(PATIENCE) == 0
    text = (place / "said").read_text()
    assert "hunter2222" not in text
    return text


@pytest.mark.parametrize("more", [(), ("--processes", "1")], ids=["alone", "supervised"])
def test_a_worker_logs_every_failure_at_its_default_level(place: Path, more: tuple[str, ...]) -> None:
    output = printed_by(place, "worker", "app:fb", *more)
    lines = [line.partition("forebay.jobs ")[2] for line in output.splitlines() if "forebay.jobs" in line]
    bad = [re.sub(r"[\d.]+ m?s", "1 ms", line) for line in lines if "(bad)" in line]
    assert bad == [
        "job 2 (bad) failed on attempt 1 of 2 after 1 ms: ValueError: refused ***; retry in 1 ms",
        "job 2 (bad) is a dead letter now: it failed on attempt 2 of 2 after 1 ms: ValueError: refused ***",
    ]
    (far,) = [line for line in lines if "(far)" in line]
    assert far.startswith("job 3 (far) is a dead letter now: it failed on attempt 1 of 1")
    assert output.count("Traceback (most recent call last)") == 2, "one a dead letter"
    assert [line for line in lines if "(good)" in line] == []


def test_one_option_makes_the_log_json(place: Path) -> None:
    output = printed_by(place, "worker", "app:fb", "--log-format", "json", FOREBAY_LOG="debug")
    records = [json.loads(line) for line in output.splitlines()]
    events = [(record["event"], record["level"]) for record in records if record.get("kind") == "bad"]
    assert events == [("started", "DEBUG"), ("failed", "WARNING"), ("started", "DEBUG"), ("dead", "ERROR")]
    assert [record["event"] for record in records if record.get("kind") == "good"] == ["started", "done"]
    assert all("traceback" in record for record in records if record.get("event") in ("failed", "dead"))


def test_dev_shows_a_line_for_each_step_of_a_job(place: Path) -> None:
    output = printed_by(place, "dev", "app:fb", "--no-server")
    shown = [line[10:] for line in output.splitlines() if re.match(r"\d\d:\d\d:\d\d  ", line)]
    assert "\033" not in output, "a file has no colours"
    assert next(line for line in shown if line.startswith("good 1")) == "good 1  started, attempt 1 of 25"
    assert any(re.fullmatch(r"good 1  done in [\d.]+ ms", line) for line in shown), output
    assert any(re.fullmatch(r"bad 2  failed on attempt 1 of 2 .*; retry in [\d.]+ m?s", line) for line in shown), output
    assert any(line.startswith("bad 2  is a dead letter now") for line in shown), output
    assert output.count("Traceback (most recent call last)") == 3, "one a failure"


@pytest.mark.parametrize("wanted", [True, False], ids=["colours", "NO_COLOR"])
def test_dev_has_colours_on_a_terminal_unless_they_are_not_wanted(place: Path, wanted: bool) -> None:
    mine, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "forebay", "dev", "app:fb", "--no-server"],
        cwd=place,
        env=environment(**({} if wanted else {"NO_COLOR": "1"})),
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = bytearray()

    def both_died() -> bool:
        if select.select([mine], [], [], 1)[0]:
            seen.extend(os.read(mine, 65_536))
        return seen.count(b"is a dead letter now") == 2

    try:
        eventually(both_died, "both jobs are dead letters", details=seen.decode)
    finally:
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 0
        os.close(mine)
    output = bytes(seen)
    assert (b"\033[32mdone in " in output) is wanted, output.decode()
    assert (b"\033[31mis a dead letter now" in output) is wanted
    assert (b"\033[" in output) is wanted
