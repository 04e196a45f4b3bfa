"""The command line as real processes: a worker that drains, a reload, a live screen, a closed pipe."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from forebay import Draft, open_store
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
APP = """
import time
from pathlib import Path
from forebay import Forebay

fb = Forebay()
WORD = "first"

@fb.job
def note(name: str, seconds: float = 0) -> None:
    Path(f"started-{name}").write_text(WORD)
    time.sleep(seconds)
    Path(f"ended-{name}").write_text(WORD)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("FOREBAY_URL", "NO_COLOR")}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "forebay", *words]


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), cwd=place, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
    )


@contextmanager
def running(place: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child that is gone at the end, whatever happens; what it says is in the file `said`."""
    with open(place / "said", "wb") as output:
        child = subprocess.Popen(command(*words), cwd=place, env=environment(), stdout=output, stderr=output)
        try:
            yield child
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait(PATIENCE)


def enqueue(place: Path, name: str, queue: str = "default") -> None:
    store = open_store(f"sqlite:///{place}/forebay.db")
    store.enqueue([Draft("note", {"name": name}, queue)])
    store.close()


def left(place: Path) -> int:
    """Jobs that are still to be done."""
    store = open_store(f"sqlite:///{place}/forebay.db")
    depth = sum(backlog.depth for backlog in store.backlog())
    store.close()
    return depth


def until(place: Path, condition: Callable[[], bool], what: str) -> None:
    eventually(condition, what, PATIENCE, (place / "said").read_text)


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["alone", "supervised"])
def test_a_worker_runs_a_job_and_drains_on_sigterm(place: Path, options: list[str]) -> None:
    assert run(place, "enqueue", "note", "name=a", "seconds=0.5", "--app", "app:fb").stdout == "1\n"
    with running(place, "worker", "app:fb", *options) as worker:
        until(place, (place / "started-a").exists, "the job")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
    assert (place / "ended-a").exists()
    output = (place / "said").read_text()
    assert "store   sqlite:///forebay.db (sqlite, durable)\njobs    note\nqueues  default\n" in output
    assert "draining: 1 running job may end within 25 s; a second signal releases the rest" in output
    assert "Traceback" not in output
    assert left(place) == 0


def test_dev_starts_anew_when_the_code_changes(place: Path) -> None:
    with running(place, "dev", "app:fb") as dev:
        until(place, lambda: "jobs " in (place / "said").read_text(), "the banner")
        enqueue(place, "a")
        until(place, (place / "ended-a").exists, "the first job")
        (place / "app.py").write_text(APP.replace('"first"', '"other"'))
        until(place, lambda: (place / "said").read_text().count("jobs ") == 2, "the second banner")
        enqueue(place, "b")
        until(place, (place / "ended-b").exists, "the second job")
        dev.send_signal(signal.SIGTERM)
        assert dev.wait(PATIENCE) == 0
    assert [(place / f"ended-{name}").read_text() for name in "ab"] == ["first", "other"]
    assert "app.py changed; restarting" in (place / "said").read_text()


def test_dev_waits_for_code_that_can_be_imported(place: Path) -> None:
    (place / "app.py").write_text("raise RuntimeError('boom')\n")
    with running(place, "dev", "app:fb"):
        until(place, lambda: "waiting for a change" in (place / "said").read_text(), "the complaint")
        assert "failed on import (app.py:1): RuntimeError: boom" in (place / "said").read_text()
        (place / "app.py").write_text(APP)
        until(place, lambda: "jobs    note" in (place / "said").read_text(), "the banner")


def test_top_once_is_for_scripts(place: Path) -> None:
    enqueue(place, "a", "mail")
    reported = run(place, "top", "--once", "--every", "0.2", "--json")
    assert (reported.returncode, reported.stderr) == (0, "")
    line = json.loads(reported.stdout)
    assert (line["queue"], line["depth"], line["net_rate"]) == ("mail", 1, 0.0)


def read_until(terminal: int, phrase: bytes) -> bytes:
    seen = bytearray()

    def has_phrase() -> bool:
        if select.select([terminal], [], [], 0.2)[0]:
            seen.extend(os.read(terminal, 4_096))
        return phrase in seen

    eventually(has_phrase, f"the terminal shows {phrase!r}", details=lambda: bytes(seen))
    return bytes(seen)


@contextmanager
def on_a_terminal(place: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command on a terminal of its own, and our end of that terminal."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(command(*words), cwd=place, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        yield child, ours
    finally:
        os.close(ours)
        child.kill()
        child.wait()


def test_top_draws_on_a_terminal_and_q_leaves_it_as_it_was(place: Path) -> None:
    enqueue(place, "a", "mail")
    with on_a_terminal(place, "top", "--every", "0.2") as (child, ours):
        seen = read_until(ours, b"mail")
        assert b"\033[?1049h" in seen
        os.write(ours, b"q")
        assert b"\033[?25h" in read_until(ours, b"\033[?1049l")
        assert child.wait(PATIENCE) == 0


def test_ctrl_c_is_130_and_leaves_the_terminal_as_it_was(place: Path) -> None:
    run(place, "migrate")
    with on_a_terminal(place, "stats", "--watch", "0.2") as (child, ours):
        read_until(ours, b"no queues yet")
        child.send_signal(signal.SIGINT)
        read_until(ours, b"interrupted")
        assert child.wait(PATIENCE) == 130


def test_a_reader_that_goes_away_is_no_traceback(place: Path) -> None:
    lines = ('{"kind": "note", "payload": "' + "x" * 500 + '"}\n') * 1_000
    (place / "jobs").write_text(lines)
    assert run(place, "enqueue", "--file", "jobs").returncode == 0
    listing = subprocess.Popen(
        command("ls", "--limit", "1000", "--json"),
        cwd=place,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    listing.stdout.readline()
    listing.stdout.close()
    assert listing.wait(PATIENCE) == 141
    assert listing.stderr.read() == b""
    listing.stderr.close()


def test_dev_names_the_store_of_the_app_for_its_server_too(place: Path) -> None:
    (place / "app.py").write_text(APP.replace("Forebay()", 'Forebay("sqlite:///its-own.db")'))
    with running(place, "dev", "app:fb", "--port", "0"):
        until(place, lambda: b"dashboard" in (place / "said").read_bytes(), "the server")
        until(place, lambda: b"queues" in (place / "said").read_bytes(), "the worker")
    stores = [line.split()[1] for line in (place / "said").read_text().splitlines() if line.startswith("store")]
    assert stores == ["sqlite:///its-own.db"] * 2
    assert not (place / "forebay.db").exists()


def test_ctrl_c_ends_dev_and_its_server_without_a_traceback(place: Path) -> None:
    """On a terminal it is a signal to the whole group; the server, which is not in it, gets one signal and not two."""
    with open(place / "said", "wb") as output:
        dev = subprocess.Popen(
            command("dev", "app:fb", "--port", "0"),
            cwd=place,
            env=environment(),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            until(place, lambda: "dashboard" in (place / "said").read_text(), "the server")
            until(place, lambda: "queues" in (place / "said").read_text(), "the worker")
            os.killpg(dev.pid, signal.SIGINT)
            assert dev.wait(PATIENCE) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(dev.pid, signal.SIGKILL)
            dev.wait(PATIENCE)
    output_text = (place / "said").read_text()
    assert output_text.endswith("stopped\n")
    assert "Traceback" not in output_text
